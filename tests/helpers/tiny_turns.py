"""An environment that answers the tiny model by arithmetic, and a tokenizer of numbers."""

from concurrent.futures import Future
from typing import Any

import tiny

from grpo_jax.environments import base
from grpo_jax.environments.base import Environment
from grpo_jax.types import Completion, Example, Turn


class Ids:
  """A tokenizer of numbers."""

  before_stop = tokens_before_stop = staticmethod(lambda _: None)

  def decode(self, ids: Any) -> str:
    return " ".join(map(str, ids))

  def step_ends(self, tokens: Any) -> list[int]:
    return [len(tokens) - 1]


def reset(example: Example, key: int) -> Any:
  return {"turn": 0, "key": int(key) % 5, "n": example.meta["n"]}


def step(state: Any, completion: Completion) -> Turn:
  """Answers with two or three tokens; an episode has up to six turns."""
  state, total = state | {"turn": state["turn"] + 1}, sum(completion.tokens) + state["key"]
  reward = None if total % 4 == 0 else total % 3 / 2
  if state["turn"] > total % 6:
    return Turn(state, None, reward)
  words = [(total * 7) % tiny.V, (total + state["n"]) % tiny.V, 1][: 2 + total % 2]
  return Turn(state, " ".join(map(str, words)), reward)


class Here:
  """Replies at once, in this process; a test can read what was asked."""

  def __init__(self, functions: base.Functions) -> None:
    self.functions = functions
    self.asked: list[Any] = []
    self.answered = False

  def submit(self, request: Any) -> Future:
    self.asked.append(request)
    reply: Future = Future()
    reply.set_result(base.respond(self.functions, request))
    return reply

  def drop(self, replies: Any) -> None:
    del replies


def environment(answer: Any = step, **changes: Any) -> Environment:
  whole = Environment(
    workers=Here(base.Functions(reset, answer)),
    reply=lambda text, last: list(map(int, text.split())),
    turns=8,
    turn_length=0,
  )
  return whole._replace(**changes)
