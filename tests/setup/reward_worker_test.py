"""Rewards in a process of their own: the same values and messages as in the run, and its limits."""

import json
import textwrap

import pytest

from grpo_jax.config import settings
from grpo_jax.errors import SettingError
from grpo_jax.rewards import attempts
from grpo_jax.sandbox.deadline import Guard
from grpo_jax.sandbox.worker import Process
from grpo_jax.setup import reward_worker, scorers
from grpo_jax.types import STOPPED, Completion, Example

EXAMPLE = Example("two?", "#### 2", "2", {"parts": [1, 2], "name": "x"})
CODE = """
import os, signal, time
from grpo_jax.errors import SettingError

def plain(example, completion, *, scale=1.0):
  assert example.meta["parts"] == [1, 2] and example.answer == "2"
  print("printed")
  if completion.text == "none":
    return None
  if completion.text == "raise":
    raise ValueError("not so")
  if completion.text == "hang":
    while True:
      time.sleep(0.1)
  if completion.text == "timer":
    return signal.getitimer(signal.ITIMER_PROF)[0]
  if completion.text == "deaf":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(100)
  if completion.text == "leave":
    os.kill(os.getpid(), 9)
  if completion.text == "refuse":
    raise SettingError("use another reward")
  if completion.text == "parts":
    return [(0, 0.1), (1, 1 / 3)]
  return scale * len(completion.tokens)

def rank(example, completions):
  return [float(len(each.tokens)) / 3 for each in completions]
"""


def completion(text, tokens=2):
  return Completion(text, range(tokens), STOPPED, [tokens - 1])


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
  path = tmp_path_factory.mktemp("rewards") / "mine.py"
  path.write_text(textwrap.dedent(CODE))
  return (("plain", f"{path}:plain", 1.0, {"scale": 0.3}), ("rank", f"{path}:rank", 1.0))


@pytest.fixture(scope="module")
def process(rows):
  return Process(reward_worker.__name__, reward_worker.describe(rows, 1.0))


def given(process, text):
  reply = process.ask(reward_worker.request("plain", EXAMPLE, [completion(text)]))
  ((values, message),) = reward_worker.outcomes(reply, 1)
  return values, message


@pytest.mark.parametrize("text", ["", "none", "raise", "parts"])
def test_a_process_gives_what_the_run_would(process, rows, text):
  (plain, _) = scorers.reward_functions(settings.Rewards(functions=rows), [])
  with Guard(0.0) as call:
    here = attempts.attempt(call, plain.reward.score, EXAMPLE, completion(text))
  assert given(process, text) == here


def test_a_group_is_scored_without_the_places_that_are_missing(process):
  group = [completion("a", 1), None, completion("b", 2)]
  reply = process.ask(reward_worker.request("rank", EXAMPLE, group))
  assert reward_worker.outcomes(reply, 3) == [([(0, 1 / 3)], ""), ([], ""), ([(1, 2 / 3)], "")]


def test_what_a_reward_does_to_its_process_is_a_fault_and_the_next_one_is_scored(process):
  assert given(process, "hang") == ([], "took longer than 1 s (rewards.deadline)")
  values, message = given(process, "leave")
  assert values == [] and "its process ended its process with code -9" in message
  assert given(process, "deaf") == ([], "its process takes more than 6 seconds")
  assert given(process, "") == ([(1, 0.6)], "")


def test_a_reward_is_not_limited_in_computing_time_which_many_threads_use_up_early(process):
  assert given(process, "timer") == ([(1, 0.0)], "")


def test_a_reward_may_end_the_run(process):
  with pytest.raises(SettingError, match="use another reward"):
    given(process, "refuse")


def test_a_reply_that_is_missing_is_a_fault_of_each_completion():
  found = reward_worker.outcomes({"error": "takes more than 3 seconds"}, 2)
  assert found == [([], "its process takes more than 3 seconds")] * 2


def test_the_argument_is_json(rows):
  assert json.loads(reward_worker.describe(rows, 1.5))["deadline"] == 1.5
