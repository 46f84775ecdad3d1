"""What loops pass on from one step to the next: keys, temperatures, the reward model as it is;
models are stubs.
"""

import contextlib
import types
from typing import Any

import jax
import numpy as np
import pytest
import tiny_runs

from grpo_jax.evaluation import evaluator
from grpo_jax.loops import iterative, learner, offline, online, process_reward_model, teaching
from grpo_jax.loops.collector import Collector
from grpo_jax.loops.groups import Scored
from grpo_jax.setup import build, references
from grpo_jax.setup.resolve import resolve


class Began(Exception):
  """A loop has come to its run."""


def stub(**fields: Any) -> Any:
  return types.SimpleNamespace(**fields)


def same(*keys: jax.Array) -> bool:
  return len({jax.random.key_data(key).tobytes() for key in keys}) == 1


# -- keys


def test_keys_of_each_purpose_seed_and_step_differ():
  purposes = [
    getattr(build, name) for name in "INIT SAMPLE EVALUATE CONTINUE ADAPTERS CARRY".split()
  ]
  keys = [
    build.key(seed, purpose, step) for seed in (0, 1) for purpose in purposes for step in (0, 1)
  ]
  assert len({jax.random.key_data(key).tobytes() for key in keys}) == len(keys)


def test_an_evaluation_has_the_noise_of_its_step_and_purpose(monkeypatch):
  keys: list[jax.Array] = []
  own = evaluator.Evaluator.__new__(evaluator.Evaluator)
  own.problems, own.seed, own.cfg, own.greedy, own.sampled = (
    [1],
    3,
    stub(samples=4),
    "greedy",
    "sampled",
  )
  own._learned, own.warnings = lambda: None, lambda found: []
  own.solve = lambda generator, params, key, *args, **more: keys.append(key)
  monkeypatch.setattr(evaluator.policy, "metrics_of", lambda *outcomes: {})
  monkeypatch.setattr(evaluator.policy, "learned_metrics", lambda outcomes: {})
  writer: Any = stub(
    phase=lambda name: contextlib.nullcontext(), progress=print, evaluation=lambda *args: None
  )
  own(writer, None, 7, samples=True)
  assert len(keys) == 2 and same(build.key(3, build.EVALUATE, 7), *keys)


def test_each_batch_that_is_labelled_has_noise_of_its_own(monkeypatch):
  keys: list[jax.Array] = []

  def label(labeller, params, batch, key):
    keys.append(key)
    return np.zeros(len(batch)), process_reward_model.continuations.Counts(1, 0, 0, 1, 0)

  monkeypatch.setattr(process_reward_model.continuations, "label", label)
  monkeypatch.setattr(process_reward_model.continuations, "make_labeller", lambda *args: None)
  monkeypatch.setattr(process_reward_model, "select", lambda batch, places: [*places])
  monkeypatch.setattr(references, "reference", lambda *args: None)
  said: list[str] = []
  writer: Any = stub(
    phase=lambda name: contextlib.nullcontext(), progress=lambda *args: None, say=said.append
  )
  batch = Scored([None] * 5, None, [], 0.0)  # type: ignore
  c = tiny_runs.config({"seed": 4, "eval.batch": 2, "offline.continuations": 3})
  found = process_reward_model.continue_all(c, stub(), batch, writer, lambda: "")
  assert found is not None and found.rollouts.shape == (5,)  # type: ignore
  assert len(keys) == 3 and all(
    same(build.key(4, build.CONTINUE, 2 * n), key) for n, key in enumerate(keys)
  )
  assert said[0].startswith("3 steps were labelled by 3 continuations of each of 3 beginnings")


# -- temperatures


@pytest.mark.parametrize(
  ("loop", "changes", "want"),
  [
    (online, {}, [0.7]),
    (offline, {"loop": "offline", "offline.data": "solutions", "objective.name": "sft"}, [1.0]),
    (iterative, tiny_runs.ITERATIVE, [1.0, 0.7]),  # the reward model, the policy
  ],
)
def test_log_probs_are_at_the_sampler_s_temperature_where_the_policy_sampled_and_else_at_1(
  monkeypatch, tmp_path, loop, changes, want
):
  found = []
  make = learner.Learner.__init__

  def recorded(self, config, model, temperature, sizes=None):
    found.append(temperature)
    make(self, config, model, temperature, sizes)

  def begin(*args):
    raise Began

  monkeypatch.setattr(learner.Learner, "__init__", recorded)
  monkeypatch.setattr(loop, "Run", begin)
  one = build.model
  monkeypatch.setattr(
    build, "model", lambda config, scores=False: one(config, jax.devices()[:1], scores)
  )
  c = tiny_runs.config({"sampler.temperature": 0.7, "eval.problems": 0} | changes)
  if loop is offline:
    c.objective = tiny_runs.defaults.objective("sft", c)
  with pytest.raises(Began):
    loop.train(resolve(c), str(tmp_path / "run"))
  assert found == want


# -- iterations


class Policy:
  """A policy whose parameters are how many updates it has had."""

  def __init__(self, *args: Any):
    self.params, self.ref_params, self.references = 0, None, []

  @property
  def trained(self) -> int:
    return self.params

  def learn(self, step: int, batch: Any, writer: Any) -> Any:
    self.references.append(self.ref_params)
    self.params += 1
    return stub(metrics={}, seconds=1.0)


class Judge:
  """A reward model whose parameters are how many iterations it was taught in."""

  def __init__(self, *args: Any):
    self.params, self.model = 0, stub(decoder=None)


class Run:
  """Five steps from the first one."""

  def __init__(self, *args: Any):
    self.evaluated: list[int] = []
    self.logged: list[dict[str, Any]] = []
    self.first, self.stopped = 0, False
    self.extra: dict[str, Any] = {}
    self.checkpoints = stub(oldest=lambda: self.first)
    self.writer = stub(samples=lambda *args: None)
    RUNS.append(self)

  def __enter__(self) -> "Run":
    return self

  def __exit__(self, *args: Any) -> None: ...

  def steps(self) -> range:
    return range(5)

  def log(self, step: int, numbers: dict[str, Any], always: bool = False) -> None:
    self.logged.append(numbers | {"always": always})

  def after(self, step: int, evaluate: bool = False) -> None:
    self.evaluated += [step] * evaluate

  def finish(self, *args: Any) -> None: ...


RUNS: list[Run] = []


def test_an_iteration_samples_scores_learns_and_then_teaches(monkeypatch):
  """Two steps an iteration: which reward model scores, what the reference is, what is kept, when it
  is taught.
  """
  scored, kept, policies, forgotten = [], [], [], []
  everything = stub()  # what was sampled, with the groups that are not learned from

  def make_policy(*args: Any) -> Policy:
    policies.append(Policy())
    return policies[0]

  class Reference:
    trained = None

    def __init__(self, policy: Policy): ...

    def take(self, params: int) -> None:
      self.trained = params

  def collect(asked: Collector, params: int, key: jax.Array, writer: Any) -> Any:
    scored.append((params, [(m.name, m.weight, m.steps, m.params) for m in asked.models], key))
    batch = stub(rollouts=stub(lengths=np.ones(1), sampled=None))
    return batch, {"tokens": 1}, {}, [everything]

  def teach(judge: Judge, kind: Any, replay: Any, step: int, *args: Any) -> dict[str, float]:
    judge.params += 1
    return {"reward_model/step": step}

  labels = ("parity", None, 0.1)
  fields = dict.fromkeys(Collector._fields) | {"rewards": [labels], "models": []}
  collector = Collector(**fields)._replace(  # type: ignore
    batches=stub(first=lambda n: []), generator=stub(sizes=None)
  )
  replay = stub(add=lambda step, pairs: kept.append((step, pairs)), forget=forgotten.append)
  for name, value in {
    "make_collector": lambda *args: collector,
    "check_batches": lambda *args: None,
    "Judge": Judge,
    "Policy": make_policy,
    "Reference": Reference,
    "Replay": lambda folder: replay,
    "IterationEvaluator": lambda *args: stub(),
    "Run": Run,
    "collect": collect,
    "sample_rows": lambda *args: [],
    "speeds": lambda *args: {},
  }.items():
    monkeypatch.setattr(iterative, name, value)
  monkeypatch.setattr(iterative.load, "check_tokenizer", lambda *args: None)
  monkeypatch.setattr(iterative.checks, "check", lambda *args: None)
  monkeypatch.setattr(build, "model", lambda *args, **more: stub(decoder=None))
  monkeypatch.setattr(teaching, "kind_of", lambda *args: teaching.OUTCOME)
  # process 0 says what kind it is: a reward may fail on another
  monkeypatch.setattr(iterative.hosts, "gather", lambda own: [teaching.STEPS, own])
  monkeypatch.setattr(
    teaching, "labelled", lambda _, batch, *args: batch is everything and f"pairs of {args[-1]}"
  )
  monkeypatch.setattr(teaching, "teach", teach)
  c = tiny_runs.config(tiny_runs.ITERATIVE | {"iterative.weight": 0.5, "iterative.kept_steps": 3})
  c.checkpoint.export = False
  iterative.train(resolve(c), "unused")
  run = RUNS.pop()
  assert [(params, models) for params, models, _ in scored] == [
    (step, [("reward_model", 0.5, True, step // 2)]) for step in range(5)
  ]
  assert all(
    same(key, build.key(c.seed, build.SAMPLE, step)) for step, (_, _, key) in enumerate(scored)
  )
  assert policies[0].references == [0, 0, 2, 2, 4]
  assert kept == [(step, f"pairs of {step}") for step in range(5)] and forgotten == [-3, -3, -3]
  assert [n["iteration"] for n in run.logged] == [1, 1, 2, 2, 3] and run.evaluated == [1, 3]
  assert [n.get("reward_model/step") for n in run.logged] == [None, 1, None, 3, None]
  assert [n["always"] for n in run.logged] == [False, True, False, True, False]


def test_speeds_are_tokens_over_the_seconds_of_their_phases():
  seconds = {"sample": 2.0, "score": 1.0, "learn": 5.0, "save": 100.0}
  assert online.speeds(sampled=12, learned=40, seconds=seconds) == {
    "tokens_per_s/sample": 6.0,
    "tokens_per_s/learn": 8.0,
    "tokens_per_s/step": 5.0,
    "time/score_share": 0.125,
  }
