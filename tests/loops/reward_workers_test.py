"""Completions that are scored as they end: each is asked about once, groups when they are whole."""

import json
from concurrent.futures import Future

import numpy as np
import pytest
from tiny_turns import Ids

from grpo_jax.errors import DataError, SettingError
from grpo_jax.loops import online, reward_workers
from grpo_jax.loops.reward_workers import Asked, RewardWorkers
from grpo_jax.sampling.stream import Seen
from grpo_jax.sandbox.deadline import LATE
from grpo_jax.setup import reward_worker
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example

P, G, L = 3, 2, 4
LENGTHS = np.array([[2, 3], [4, 1], [0, 0]])  # the last prompt fills the batch
TOKENS = np.where(np.arange(L) < LENGTHS[..., None], 10 * np.arange(1, 7).reshape(P, G, 1), 0)
EXAMPLES = [Example(f"{p}?", "", str(p), {}) for p in range(2)] + [None]


class Pool:
  """Replies at once: a completion gets its length, one of a group minus its length."""

  def __init__(self, message=""):
    self.asked, self.dropped, self.message = [], 0, message

  def submit(self, request):
    self.asked.append(request)
    sign = -1.0 if request["name"] == "rank" else 1.0
    group = [(0, each and sign * len(each[1])) for each in request["completions"]]
    reply = Future()
    reply.set_result({"outcomes": [([list(one)], self.message) for one in group]})
    return reply

  def drop(self, replies):
    self.dropped += len(list(replies))


def seen(*finished):
  """Returns a state of the rollout in which those places (prompt, sample) are finished."""
  done = np.zeros((P, G), bool)
  done[2] = True
  for place in finished:
    done[place] = True
  return Seen(TOKENS, np.where(done, LENGTHS, 1), np.where(LENGTHS > 2, TRUNCATED, STOPPED), done)


def texts():
  """Returns the completions of the whole batch."""
  ended = np.where(LENGTHS > 2, TRUNCATED, STOPPED)
  return [
    [
      Completion(Ids().decode(ids := TOKENS[p, g][:n].tolist()), ids, ended[p, g], [n - 1])
      for g, n in enumerate(LENGTHS[p])
    ]
    for p in range(P)
  ]


def asked(pool, grouped=("rank",)):
  return Asked(RewardWorkers(pool, ["length"], list(grouped)), Ids(), EXAMPLES, G)


def places(pool):
  """Returns what was asked: the reward, the question, and the first tokens of completions."""
  return [
    (each["name"], each["example"][0], [one[1][0] for one in each["completions"]])
    for each in pool.asked
  ]


def test_a_completion_is_asked_about_when_it_ends_and_a_group_when_all_have():
  pool = Pool()
  batch = asked(pool)
  batch.see(seen())
  assert pool.asked == []
  batch.see(seen((0, 1)))
  batch.see(seen((0, 1)))
  assert places(pool) == [("length", "0?", [20])]
  batch.see(seen((0, 1), (1, 0), (1, 1)))  # two that end at the same time
  assert places(pool)[1:] == [
    ("length", "1?", [30]),
    ("length", "1?", [40]),
    ("rank", "1?", [30, 40]),
  ]
  found = batch.outcomes(texts(), None)
  assert places(pool)[4:] == [("rank", "0?", [10, 20]), ("length", "0?", [10])]
  assert found == {
    "length": [
      [([(0, 2)], ""), ([(0, 3)], "")],
      [([(0, 4)], ""), ([(0, 1)], "")],
      [([], ""), ([], "")],
    ],
    "rank": [
      [([(0, -2)], ""), ([(0, -3)], "")],
      [([(0, -4)], ""), ([(0, -1)], "")],
      [([], ""), ([], "")],
    ],
  }


def test_a_group_that_other_processes_have_parts_of_waits_for_them():
  pool = Pool()
  batch, here = asked(pool), texts()
  here[0][1] = None
  batch.see(seen((0, 0)))
  batch.outcomes([here[0], [None, None], [None, None]], texts())
  assert places(pool) == [("length", "0?", [10]), ("rank", "0?", [10, 20])]


def test_a_reward_that_is_always_late_ends_the_run_and_gives_the_others_up(monkeypatch):
  monkeypatch.setattr("grpo_jax.rewards.attempts.LATE_AT_FIRST", 3)
  pool = Pool(f"{LATE} 1 s")
  with pytest.raises(SettingError, match="'length' took longer than 1 s, on each of the first 3"):
    asked(pool).outcomes(texts(), None)
  assert pool.dropped == len(pool.asked)


def test_a_batch_with_an_example_that_cannot_be_sent_is_refused():
  workers = RewardWorkers(Pool(), ["length"], [])
  odd = EXAMPLES[1]._replace(meta={"parts": (1, 2)})
  with pytest.raises(DataError, match="^rewards.workers: examples are sent .* of '1.' is not JSON"):
    Asked(workers, Ids(), [EXAMPLES[0], odd, None], G)


def test_which_rewards_are_the_workers(config):
  assert reward_workers.make(make(config)) is None
  config.rewards.workers = 2
  config.rewards.functions = (
    ("exact", "exact.exact_match", 1.0),
    ("rank", "group.shortest_correct", 1.0),
    ("ahead", f"{__file__}:exact_too", 1.0),
  )
  made = reward_workers.make(make(config))
  assert made.single == ["exact"] and made.grouped == ["rank"] and len(made.pool.processes) == 2


def test_workers_score_with_the_file_as_it_is_when_a_run_begins(config, tmp_path):
  config.rewards.workers = 1
  config.rewards.functions = (("mine", f"{tmp_path}/mine.py:score", 1.0),)
  for value in (1.0, 2.0):
    (tmp_path / "mine.py").write_text(f"def score(example, completion):\n  return {value}\n")
    workers = reward_workers.make(make(config))
    asked = reward_worker.request("mine", EXAMPLES[0], [Completion("a", [1], STOPPED, [0])])
    reply = workers.pool.submit(asked).result()
    assert reward_worker.outcomes(reply, 1) == [([(0, value)], "")]


def test_a_file_that_fails_to_import_in_a_worker_alone_ends_the_run_with_the_reason(
  config, tmp_path
):
  config.rewards.workers = 1
  config.rewards.functions = (("mine", f"{tmp_path}/mine.py:score", 1.0),)
  (tmp_path / "mine.py").write_text(
    "import sys\nassert 'pytest' in sys.modules, 'no tool'\n\n"
    "def score(example, completion):\n  return 1.0\n"
  )
  batch = Asked(reward_workers.make(make(config)), Ids(), EXAMPLES, G)
  message = "mine.py fails to import: AssertionError: no tool, in a process of rewards.workers"
  with pytest.raises(SettingError, match=message):
    batch.outcomes([[Completion("a", [1], STOPPED, [0])] * G], None)


OF_A_RUN = """
def halves(example, completion):
  return [(0, 0.5 * len(completion.tokens))]

def rank(example, completions):
  return [float(len(each.tokens)) for each in completions]
"""


@pytest.mark.slow
def test_a_run_with_workers_learns_what_one_without_does(config, tmp_path):
  """The first log-prob of a completion comes from another program, hence the tolerance."""
  config.steps, config.eval.problems, config.data.prompts, config.sampler.group = 2, 0, 8, 4
  config.sampler.max_length, config.sampler.tries = 40, 2  # several parts
  config.rewards.functions = (
    ("halves", f"{tmp_path}/mine.py:halves", 1.0),
    ("ahead", f"{__file__}:exact_too", 1.0),
    ("rank", f"{tmp_path}/mine.py:rank", 0.5),
  )
  (tmp_path / "mine.py").write_text(OF_A_RUN)
  logs = []
  for workers in (0, 2):
    config.rewards.workers = workers
    online.train(resolve(config), str(tmp_path / str(workers)))
    lines = (tmp_path / str(workers) / "metrics.jsonl").read_text().splitlines()
    logs.append([json.loads(line) for line in lines])
  plain, parallel = logs
  assert len(plain) == 2 and plain[0]["reward/rank"] > 1
  for one, other in zip(plain, parallel):
    assert one.keys() == other.keys()
    for name in one:
      if not name.startswith(("time/", "tokens_per_s/")):
        assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), name


def exact_too(example, completion):
  return float(completion.text == example.answer)


def score_ahead(pairs):
  """Has the rewards of this file stay in the run."""
