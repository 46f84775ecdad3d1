"""The pool: what is settled comes again as often as it should, also in a run that was stopped and
goes on.
"""

import itertools
import types

import numpy as np
import pytest
import tiny_runs

from grpo_jax.data.loader import Batches
from grpo_jax.data.pool import Pool, key
from grpo_jax.errors import SettingError
from grpo_jax.loops import collect
from grpo_jax.rewards import combine
from grpo_jax.run import workdir
from grpo_jax.setup import checks, defaults
from grpo_jax.setup.experiment import make
from grpo_jax.types import Example

EXAMPLES = [Example(f"What is {n} + 1?", "", str(n + 1), {}) for n in range(8)]


class InTurn:
  """EXAMPLES one after the other without end: `Batches` takes 2 ms for each."""

  def __init__(self):
    self.turns = itertools.cycle([[example] for example in EXAMPLES])
    self.first, self.size = None, len(EXAMPLES)

  def __next__(self):
    return next(self.turns)


def pool(redraw, prompts=4, seed=0):
  return Pool(Batches([EXAMPLES], prompts=1, seed=3), prompts, redraw, seed)


def questions(batch):
  return [example.question for example in batch]


def test_until_something_is_settled_it_is_the_order_itself():
  plain = Batches([EXAMPLES], prompts=4, seed=3)
  drawn = pool(0.01)
  for _ in range(5):
    assert questions(next(drawn)) == questions(next(plain))
  assert drawn.metrics() == {"pool/prompts": 0, "pool/passed_over": 0}


def test_what_is_always_or_never_solved_comes_as_often_as_the_chance_says():
  drawn = Pool(InTurn(), 8, 0.25, 0)
  rates = {0: [0, 0], 1: [1, 1], 2: [0, 1], 3: [np.nan, np.nan]}
  drawn.note([EXAMPLES[n] for n in rates] + [None], np.array([*rates.values(), [0, 0]]))
  assert drawn.metrics() == {
    "pool/prompts": 3,
    "pool/passed_over": 0,
    "pool/never": 1 / 3,
    "pool/always": 1 / 3,
  }
  count = dict.fromkeys(range(8), 0)
  for _ in range(400):
    for example in next(drawn):
      count[EXAMPLES.index(example)] += 1
  epochs = (count[2] + count[3] + count[4] + count[5] + count[6] + count[7]) / 6
  assert max(abs(count[n] - epochs) for n in range(2, 8)) <= 1
  for settled in (0, 1):  # a binomial share, 0.25 of about 490 epochs: its standard error is 0.02
    assert abs(count[settled] / epochs - 0.25) < 0.08
  assert drawn.metrics()["pool/passed_over"] == pytest.approx(
    2 * epochs - count[0] - count[1], abs=2
  )


def test_a_prompt_that_is_solved_sometimes_comes_again_at_once():
  drawn = pool(0.01, prompts=8)
  drawn.note([EXAMPLES[0]], np.array([[0.0, 0.0]]))
  assert EXAMPLES[0] not in next(drawn)
  drawn.note([EXAMPLES[0]], np.array([[0.0, 1.0]]))
  assert EXAMPLES[0] in [*next(drawn), *next(drawn)]


def test_a_batch_ends_where_everything_is_settled():
  drawn = Pool(InTurn(), 4, 1e-9, 0)
  drawn.note(EXAMPLES, np.zeros((8, 2)))
  assert questions(next(drawn)) == questions(EXAMPLES[:4])  # after one epoch of turns
  assert drawn.metrics()["pool/passed_over"] == 8
  next(drawn)
  assert drawn.metrics()["pool/passed_over"] == 16


def test_a_run_that_goes_on_draws_the_same():
  whole, stopped = pool(0.5), pool(0.5)
  for each in (whole, stopped):
    next(each)
    each.note(EXAMPLES[:4], np.array([[0, 0], [1, 1], [0, 1], [0, 0]], float))
    next(each)
  state = stopped.get_state()
  stopped.note(EXAMPLES[4:], np.zeros((4, 2)))  # after the state was taken: lost with the process
  gone_on = pool(0.5)
  gone_on.set_state(state)
  assert [questions(next(gone_on)) for _ in range(20)] == [
    questions(next(whole)) for _ in range(20)
  ]
  assert gone_on.get_state() == whole.get_state()


def test_the_answer_tells_examples_apart_too():
  assert key(EXAMPLES[0]) != key(EXAMPLES[0]._replace(answer="other")) != key(EXAMPLES[1])
  # without one, as games that begin with the same words, the rest does
  games = [Example("Guess a number.", "", "", {"seed": seed}) for seed in (1, 2, 1)]
  assert key(games[0]) == key(games[2]) != key(games[1])


def test_where_nothing_says_what_is_solved_it_is_refused():
  c = defaults.get_config()
  checks.check_pool(make(c))
  c.data.redraw = 0.5
  checks.check_pool(make(c))
  c.rewards.functions = (("steps", "steps.steps_correct", 1.0),)
  with pytest.raises(
    SettingError, match=r"data.redraw=0.5: none of rewards.functions is eval.reward='math.answer_"
  ):
    checks.check_pool(make(c))
  c.loop = "offline"
  with pytest.raises(
    SettingError, match="data.redraw=0.5 with loop='offline': is for online, iterative; use 1"
  ):
    checks.check_pool(make(c))


def test_a_sample_is_right_from_a_reward_of_one_on():
  rewards = np.array([[[0.5, 1.0], [0.5, 0.9]], [[0.5, np.nan], [0.5, 2.0]]], np.float32)
  batch = types.SimpleNamespace(
    rollouts=types.SimpleNamespace(components=rewards, lengths=np.ones((2, 2), int)), faults=[]
  )
  named = types.SimpleNamespace(names=["other", "correct"], solved="correct")
  np.testing.assert_array_equal(collect.solved(batch, named), [[1, 0], [np.nan, 1]])
  batch.rollouts.lengths[0] = 0  # its prompt was too long
  np.testing.assert_array_equal(collect.solved(batch, named), [[np.nan, np.nan], [np.nan, 1]])


def test_where_its_reward_failed_nothing_is_known():
  """It counts as rewards.on_error there, which may be what a wrong answer gets, or a right one."""
  rewards = np.zeros((2, 2, 2), np.float32)
  rollouts = types.SimpleNamespace(components=rewards, lengths=np.ones((2, 2), int))
  faults = [combine.Fault(0, 1, "correct", "late"), combine.Fault(1, 0, "other", "late")]
  batch = types.SimpleNamespace(rollouts=rollouts, faults=faults)
  named = types.SimpleNamespace(names=["other", "correct"], solved="correct")
  np.testing.assert_array_equal(collect.solved(batch, named), [[0, np.nan], [0, 0]])


def test_a_run_that_goes_on_keeps_the_reward_by_which_prompts_are_drawn(tmp_path):
  c = defaults.get_config()
  workdir.claim(str(tmp_path), tiny_runs.as_json(c))
  c.eval.reward = "format.worked"
  workdir.check_owner(str(tmp_path), tiny_runs.as_json(c))  # it only says what is shown
  c.data.redraw = 0.5
  workdir.claim(str(tmp_path), tiny_runs.as_json(c))
  c.eval.reward = "math.answer_correct"
  with pytest.raises(
    SettingError, match=r"another config \(eval.reward was 'format.worked', is 'math"
  ):
    workdir.check_owner(str(tmp_path), tiny_runs.as_json(c))
  c.eval.reward, c.eval.arguments = "format.worked", (("most", 3),)
  with pytest.raises(SettingError, match=r"another config \(eval.arguments was "):
    workdir.check_owner(str(tmp_path), tiny_runs.as_json(c))
