"""Scores completions in a process of its own; its argument is JSON: the rewards and their limits.

The files of the rewards are read here before a child is forked, so that a child that a reward has
ended is replaced at once. What a reward remembers from one call to the next, it remembers in its
own process alone.
"""

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence

import jax

from grpo_jax.aliases import Json
from grpo_jax.config import settings
from grpo_jax.errors import GrpoError
from grpo_jax.rewards import attempts
from grpo_jax.rewards.attempts import Outcome
from grpo_jax.sandbox import serving
from grpo_jax.sandbox.deadline import Guard
from grpo_jax.setup import modules, scorers
from grpo_jax.types import Completion, Example

MEMORY = 64 * 1024**3  # bytes of address space, of which libraries may ask for more than they use
GRACE = 5.0  # seconds after the deadline, for code that does not stop there


def describe(functions: Sequence[tuple], deadline: float) -> str:
  """Returns the argument of this program.

  Args:
    functions: entries of `rewards.functions`.
    deadline: seconds that a reward may take for a completion or a group; 0: any time.
  """
  named = [(name, modules.absolute(path), *rest) for name, path, *rest in functions]
  return json.dumps({"functions": named, "deadline": deadline, "path": sys.path})


def request(name: str, example: Example, completions: Sequence[Completion | None]) -> Json:
  """Returns the request to score completions by the reward `name`: one, or a group."""
  shown = [completion and list(completion) for completion in completions]
  return {"name": name, "example": list(example), "completions": shown}


def outcomes(reply: Json, count: int) -> list[Outcome]:
  """Returns what a reward gave `count` completions, from the reply to their request.

  Raises:
    SettingError: the reward ends the run.
  """
  if "error" in serving.accepted(reply):
    return [([], f"its process {reply['error']}")] * count
  return [([(t, v) for t, v in values], message) for values, message in reply["outcomes"]]


def respond(rewards: Mapping[str, Callable], deadline: float, asked: Json) -> Json:
  """Returns the reply to a request, see `outcomes`."""
  function, example = rewards[asked["name"]], Example(*asked["example"])
  group = [each and Completion(*each) for each in asked["completions"]]
  try:
    with Guard(deadline) as call:
      if attempts.looks_at_group(function):
        return {"outcomes": attempts.attempt_group(call, function, example, group)}
      return {"outcomes": [attempts.attempt(call, function, example, each) for each in group]}
  except GrpoError as error:
    return {"refused": str(error)}


def main(described: str) -> None:
  """Answers the requests of the standard input."""
  about = json.loads(described)
  sys.path[:] = about["path"]
  jax.config.update("jax_platforms", "cpu")  # the accelerator is the run's

  def load() -> serving.Answer:
    cfg = settings.Rewards(functions=tuple(map(tuple, about["functions"])))
    rewards = {each.name: each.reward.score for each in scorers.reward_functions(cfg, [])}
    return functools.partial(respond, rewards, about["deadline"])

  answer = serving.loaded(load, "rewards.workers")
  seconds = about["deadline"] + GRACE if about["deadline"] else 10.0**8
  serving.serve(answer, MEMORY, 0.0, patience=seconds, files=True)


if __name__ == "__main__":
  main(sys.argv[1])
