"""What the reward model of an iterative run learns from, of which kind it is, and what is said
after an iteration.
"""

import contextlib
import dataclasses
import types
from typing import Any

import numpy as np
import pytest
import tiny

from grpo_jax.errors import SettingError, TrainingError
from grpo_jax.evaluation.evaluator import Evaluator
from grpo_jax.loops import teaching
from grpo_jax.loops.collector import Collector
from grpo_jax.loops.groups import Scored
from grpo_jax.loops.iterative import IterationEvaluator
from grpo_jax.rewards.combine import Fault
from grpo_jax.setup import defaults
from grpo_jax.types import STOPPED, TRUNCATED, Example, Prompts, Rollouts

# a collector without anything, and without an environment
NOTHING: Any = dict.fromkeys(Collector._fields) | {
  "generator": types.SimpleNamespace(environment=None)
}


def broken(example, completion):
  raise ValueError("no results")


@pytest.mark.parametrize(
  ("label", "kind"),
  [
    (lambda example, completion: 0.0, teaching.OUTCOME),
    (lambda example, completion: np.float32(1), teaching.OUTCOME),
    (lambda example, completion: [(end, 1.0) for end in completion.step_ends], teaching.STEPS),
    (lambda example, completion: None if example.question == "0" else [], teaching.STEPS),
    (lambda example, completion: None, teaching.OUTCOME),
    (broken, teaching.OUTCOME),
  ],
)
def test_the_kind_follows_from_what_the_label_returns(label, kind):
  class Tokenizer:
    def encode(self, text):
      return [1, 2]

    def step_ends(self, ids):
      return [len(ids) - 1]

  examples = [Example(str(n), "", "", {}) for n in range(2)]
  model: Any = types.SimpleNamespace(tokenizer=Tokenizer(), end=lambda: 0)
  assert teaching.kind_of(label, examples, model, defaults.get_config()) is kind


def rollouts() -> Rollouts:
  """Four groups of two completions of four tokens, steps of two; the third is empty and the second
  of the first cut.
  """
  lengths = np.array([[4, 4], [4, 4], [0, 0], [4, 4]], np.int32)
  ended = np.array(
    [[STOPPED, TRUNCATED], [STOPPED, STOPPED], [STOPPED, STOPPED], [STOPPED, STOPPED]], np.int32
  )
  tokens = np.ones((4, 2, 4), np.int32)
  given = np.broadcast_to([False, True, False, True], tokens.shape) & (lengths > 0)[..., None]
  zeros = np.zeros(tokens.shape, np.float32)
  prompts = Prompts(np.ones((4, 3), np.int32), np.array([3, 2, 0, 1], np.int32))
  return Rollouts(
    prompts, tokens, lengths, ended, zeros, zeros, zeros + given, given, zeros[..., :1]
  )


def labelled(monkeypatch, r: Rollouts, faults: list[Fault]) -> Rollouts:
  """What is kept of samples to which the label says this."""
  asked = []

  def score(collector, examples, drawn):
    asked.append((collector.rewards, collector.models))
    return Scored(examples, r, faults, 0.0)

  monkeypatch.setattr(teaching, "score", score)
  own: Any = [("other", None, 1.0), ("steps", tiny, 0.1)]
  fields = NOTHING | {"rewards": own, "models": ["judge"]}
  config = defaults.get_config()
  config.iterative.labels, config.data.max_prompt_length = "steps", 5
  batch = Scored([Example("", "", "", {})] * 4, r, [], 0.0)
  kept = teaching.labelled(teaching.STEPS, batch, Collector(**fields), config, 0)
  assert asked == [([("steps", tiny, 1.0)], [])]  # by itself, whatever its weight
  return kept


def test_steps_are_labelled_but_for_those_that_were_cut_off_and_where_the_reward_failed(
  monkeypatch,
):
  kept = labelled(
    monkeypatch,
    rollouts(),
    [Fault(1, 0, "steps", ""), Fault(3, 0, "steps", ""), Fault(3, 1, "steps", "")],
  )
  np.testing.assert_array_equal(kept.given[..., 1], [[True, True], [False, True]])
  np.testing.assert_array_equal(kept.given[..., 3], [[True, False], [False, True]])
  np.testing.assert_array_equal(kept.rewards, kept.given)
  assert kept.prompts.tokens.shape == (2, 5) and kept.prompts.lengths.tolist() == [3, 2]


def test_a_sample_on_which_the_label_failed_is_in_no_pair():
  r = rollouts()
  r.ended[:], r.lengths[2] = STOPPED, 0
  r = dataclasses.replace(
    r, components=np.array([[1, 0], [1, 0], [0, 0], [1, 0]], np.float32)[..., None]
  )
  own: Any = NOTHING | {"rewards": [("steps", tiny, 0.1)], "models": []}
  config = defaults.get_config()
  config.iterative.labels, config.data.max_prompt_length = "steps", 5
  faults = [Fault(1, 1, "steps", ""), Fault(3, 1, "other", "")]
  batch = Scored([Example("", "", "", {})] * 4, r, faults, 0.0)
  found = teaching.labelled(teaching.OUTCOME, batch, Collector(**own), config, 0)
  assert found.prompts.lengths.tolist() == [3, 1]


def test_a_sample_that_was_cut_off_is_in_no_pair():
  """It has the best label of its group, the least, and the only label that differs."""
  r = rollouts()
  r.ended[:] = [[STOPPED, TRUNCATED], [TRUNCATED, STOPPED], [STOPPED, STOPPED], [STOPPED, STOPPED]]
  r = dataclasses.replace(
    r, components=np.array([[0, 1], [0, 1], [0, 0], [1, 0]], np.float32)[..., None]
  )
  own: Any = NOTHING | {"rewards": [("steps", tiny, 0.1)], "models": []}
  config = defaults.get_config()
  config.iterative.labels, config.data.max_prompt_length = "steps", 5
  found = teaching.labelled(
    teaching.OUTCOME, Scored([Example("", "", "", {})] * 4, r, [], 0.0), Collector(**own), config, 0
  )
  assert found.prompts.lengths.tolist() == [1]


def test_what_is_replayed_is_of_earlier_iterations():
  config = defaults.get_config()
  config.iterative.steps, config.iterative.kept_steps = 2, 3
  assert [list(teaching.earlier_steps(last, config)) for last in (1, 3, 5, 9)] == [
    [],
    [0, 1],
    [1, 2, 3],
    [5, 6, 7],
  ]
  assert [teaching.oldest_step(saved, config) for saved in (4, 5, 6)] == [1, 1, 3]


@pytest.mark.parametrize("share, past, replayed", [(0.34, [[1, 2, 3]], 2), (0.0, [], 0)])
def test_an_iteration_learns_its_own_samples_and_is_measured_before(
  monkeypatch, share, past, replayed
):
  events: list[Any] = []

  class Replay:
    def read(self, steps):
      events.append(list(steps))
      r = rollouts()
      return dataclasses.replace(r, tokens=r.tokens * 0 + steps[0])

  def learn(step, pairs, writer):
    events.append("learn")
    return types.SimpleNamespace(metrics=dict.fromkeys(teaching.OUTCOME.learned, len(events)))

  def agreement(judge, kind, new, config, show):
    events.append(f"agreement on {new.tokens.max()}")
    return 0.25

  monkeypatch.setattr(teaching, "agreement", agreement)
  judge: Any = types.SimpleNamespace(learn=learn)
  writer: Any = types.SimpleNamespace(phase=lambda name: contextlib.nullcontext(), progress=print)
  replay: Any = Replay()
  config = defaults.get_config()
  cfg = config.iterative
  cfg.steps, cfg.kept_steps, cfg.pairs, cfg.replay, cfg.epochs = 2, 3, 3, share, 1
  found = teaching.teach(judge, teaching.OUTCOME, replay, 5, config, writer)
  assert events == [[4, 5], *past, "agreement on 4", "learn", "learn"]
  counted = {name: found[f"reward_model/{name}"] for name in ("new", "replayed", "updates")}
  assert counted == {"new": 4, "replayed": replayed, "updates": 2}
  assert found["reward_model/loss"] == len(events) - 0.5  # the mean of the last two
  assert found["reward_model/new_pair_accuracy"] == 0.25


def test_what_is_not_finite_is_said_of_the_reward_model():
  judge: Any = types.SimpleNamespace(
    state=types.SimpleNamespace(bad_steps=3),
    cfg=types.SimpleNamespace(max_bad_steps=3, lr=0.5),
    RATE=teaching.Judge.RATE,
    METRICS=teaching.Judge.METRICS,
  )
  numbers = {
    "loss": 0.1,
    "grad_norm": 0.2,
    "reward_model/loss": np.nan,
    "reward_model/grad_norm": np.inf,
  }
  with pytest.raises(
    TrainingError, match=r"^iterative.reward_model_lr=0.5: .*\(loss nan, gradient norm inf\)"
  ):
    teaching.Judge.check_finite(judge, numbers, lambda: "")


def test_labels_of_steps_that_are_no_probabilities_are_refused(monkeypatch):
  r = rollouts()
  r.rewards[0, 0, 1] = 2.0
  with pytest.raises(
    SettingError, match="iterative.labels='steps': gave 1 to 2, .* steps.steps_correct"
  ):
    labelled(monkeypatch, r, [])


def test_agreement_with_the_labels(monkeypatch):
  r = rollouts()
  new = Rollouts(
    *(getattr(r, name) for name in ("prompts", "tokens", "lengths", "ended")), r.rewards, r.rewards
  )
  scores = np.zeros(r.tokens.shape, np.float32)
  scores[0, 0, 3], scores[1, 1, 3], scores[3, 0, 3], scores[3, 1, 1] = 1.0, 1.0, 2.0, 5.0
  monkeypatch.setattr(teaching, "scores_of_all", lambda *_: scores)
  monkeypatch.setattr(teaching.build, "sizes", lambda *_, **__: None)
  judge: Any = types.SimpleNamespace(
    model=types.SimpleNamespace(layout=None, decoder=None), params=None
  )
  config = defaults.get_config()
  # a tie counts half
  assert teaching.agreement(judge, teaching.OUTCOME, new, config, print) == (1 + 0 + 0.5 + 1) / 4
  assert teaching.agreement(judge, teaching.STEPS, r, config, print) == 4 / 12


def test_what_is_said_after_an_iteration(monkeypatch):
  monkeypatch.setattr(Evaluator, "__call__", lambda *_: {"accuracy": 0.613})
  said: list[str] = []
  writer: Any = types.SimpleNamespace(say=said.append)
  evaluator = IterationEvaluator.__new__(IterationEvaluator)
  evaluator.steps = 20
  evaluator.taught = teaching.in_words(teaching.OUTCOME, {"reward_model/new_pair_accuracy": 0.84})
  for step in (0, 10, 40):
    evaluator(writer, None, step)
  assert said == [
    "iteration 2: accuracy 61.3%, reward model agreed with the labels on 84% of its new pairs"
  ]
  assert [evaluator.about(step) for step in (0, 10, 40)] == [{}, {}, {"iteration": 2}]
  assert teaching.in_words(teaching.OUTCOME, {}) == ""
