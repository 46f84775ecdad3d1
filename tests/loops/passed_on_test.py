"""What is passed on between the parts of a run: which groups, settings, keys and numbers; nothing
is compiled here.
"""

import contextlib
import types
from typing import Any

import jax
import numpy as np
import pytest
import tiny
import tiny_runs

from grpo_jax.data.loader import Batches
from grpo_jax.data.pool import Pool
from grpo_jax.evaluation import evaluator
from grpo_jax.evaluation.step_evaluator import Steps
from grpo_jax.loops import (
  iterative,
  offline,
  process_reward_model,
  reward_model,
  teaching,
)
from grpo_jax.loops.collector import Collector
from grpo_jax.loops.groups import Scored
from grpo_jax.loops.reward_data import continuations
from grpo_jax.setup import build, references
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve
from grpo_jax.types import STOPPED, Example, Prompts, Rollouts


def stub(**fields: Any) -> Any:
  return types.SimpleNamespace(**fields)


def groups(count: int, size: int = 2, length: int = 4) -> Rollouts:
  """Groups that were scored; each token of group n is n, and each prompt is n + 1."""
  n = np.arange(count, dtype=np.int32)
  tokens = np.broadcast_to(n[:, None, None], (count, size, length)).copy()
  zeros = np.zeros(tokens.shape, np.float32)
  lengths = np.full((count, size), length, np.int32)
  prompts = Prompts(n[:, None] + 1, np.ones(count, np.int32))
  ended = np.full_like(lengths, STOPPED)
  return Rollouts(
    prompts, tokens, lengths, ended, zeros - 1, zeros - 1, zeros, zeros > 0, zeros[..., :1] * 1
  )


WRITER: Any = stub(
  phase=lambda name, *args: contextlib.nullcontext(stub(seconds=1.0)),
  progress=lambda *args: None,
  evaluation=lambda *args: None,
  say=lambda *args: None,
)


# -- data


def test_data_sets_of_a_mixture_are_shuffled_apart():
  sets = [[Example(f"{name}{i}", "", "", {}) for i in range(20)] for name in "ab"]
  batches = Batches(sets, prompts=40, seed=0)
  taken = [example.question for example in next(batches)]
  a, b = ([int(question[1:]) for question in taken if question[0] == name] for name in "ab")
  assert sorted(a) == sorted(b) == list(range(20)) and a != b


def test_pass_rates_that_were_saved_stay_as_they_were():
  example = Example("1 + 1", "", "2", {})
  pool = Pool(Batches([[example]], prompts=1, seed=0), prompts=1, redraw=0.5, seed=0)
  pool.note([example], np.array([[1.0, 0.0]]))
  saved = pool.get_state()
  pool.note([example], np.array([[1.0, 1.0]]))
  assert [*saved["rates"].values()] == [0.5] and [*pool.get_state()["rates"].values()] == [1.0]


def test_kept_samples_come_once_an_epoch_and_without_the_sampler_s_log_probs():
  kept = offline.Kept(make(tiny_runs.config({"data.prompts": 3})), 6)
  kept.rollouts = groups(6)
  first, second = next(kept), next(kept)
  assert sorted([*first.tokens[:, 0, 0], *second.tokens[:, 0, 0]]) == list(range(6))
  assert (
    first.tokens.shape == (3, 2, 4)
    and first.sampler_logprobs is None
    and second.sampler_logprobs is None
  )


# -- held-out groups


class Kept:
  def __init__(self, config: Any, prompts: int):
    self.prompts, self.rollouts = prompts, None


class Run:
  """A run of no step."""

  def __init__(self, *args: Any):
    self.writer, self.stopping = WRITER, None

  def __enter__(self) -> "Run":
    return self

  def __exit__(self, *args: Any) -> None: ...

  def steps(self) -> range:
    return range(0)

  def finish(self) -> None: ...


@pytest.mark.parametrize(
  ("loop", "changes"),
  [
    (process_reward_model, {"offline.steps": "steps.jsonl"}),
    (process_reward_model, {}),
    (reward_model, {}),
  ],
)
def test_what_is_held_out_is_not_trained_on(monkeypatch, tmp_path, loop, changes):
  made: list[Kept] = []
  taken: list[Any] = []
  steps = loop is process_reward_model
  all_groups = Steps(groups(5), np.zeros((5, 2, 4), np.float32)) if steps else groups(5)

  def make(config: Any, prompts: int) -> Kept:
    made.append(Kept(config, prompts))
    return made[0]

  for name, value in {
    "Kept": make,
    "Run": Run,
    "Learner": lambda *args: None,
    "StepEvaluator" if steps else "PairEvaluator": lambda *args: stub(take=taken.append),
    "check_collector": lambda *args: None,
    "kept_samples": lambda *args: all_groups,
  }.items():
    monkeypatch.setattr(loop, name, value)
  if steps:
    monkeypatch.setattr(loop, "read_solutions", lambda *args: (all_groups, ""))
  monkeypatch.setattr(loop.checks, "check_settings", lambda *args: None)
  monkeypatch.setattr(loop.checks, "check", lambda *args: None)
  monkeypatch.setattr(build, "model", lambda *args, **more: stub(decoder=None))
  name = "process_reward_model" if steps else "reward_model"
  c = tiny_runs.config({"loop": name, "offline.held_out": 2, "offline.prompts": 3} | changes)
  loop.train(resolve(c), str(tmp_path / "run"))
  held_out = taken[0].rollouts if steps else taken[0]
  assert held_out.tokens[:, 0, 0].tolist() == [0, 1]
  assert made[0].rollouts.tokens[:, 0, 0].tolist() == [2, 3, 4] and made[0].prompts == 3


def test_held_out_prompts_are_drawn_first_and_come_in_no_other_group(monkeypatch):
  batch = Scored([Example("", "", "", {})] * 4, groups(4), [], 0.0)
  again = Scored([Example("", "", "", {})] * 4, groups(8), [], 0.0)._replace(examples=[None] * 8)
  drawn = iter([batch, again])
  monkeypatch.setattr(offline, "collect", lambda *args: stub(batch=next(drawn)))
  monkeypatch.setattr(offline, "make_collector", lambda *args: None)
  monkeypatch.setattr(references, "reference", lambda *args: None)
  c = tiny_runs.config({"offline.data": "samples", "offline.prompts": 5, "offline.held_out": 2})
  found = offline.draw_samples(make(c), stub(), WRITER, lambda: "")
  assert found is not None and found.tokens[:, 0, 0].tolist() == [0, 1, 2, 3, 2, 3, 4]


# -- models


def test_the_reward_model_of_an_iterative_run_has_settings_of_its_own():
  own = {
    "iterative.reward_model_lr": 3e-3,
    "iterative.pairs": 6,
    "learner.lr": 1e-5,
    "data.prompts": 8,
  }
  others = {
    "learner.mu": 4,
    "learner.minibatches": 2,
    "learner.microbatch": 2,
    "learner.schedule": "cosine",
  }
  stops = {
    "learner.warmup": 5,
    "learner.stop_kl": 0.1,
    "learner.stop_reached": 0.5,
    "learner.stop_surrogate": 0.1,
  }
  c = tiny_runs.config(own | others | stops)
  made = teaching.experiment_of_reward_model(make(c), teaching.OUTCOME)
  names = (
    "lr",
    "schedule",
    "warmup",
    "mu",
    "minibatches",
    "microbatch",
    "stop_reached",
    "stop_surrogate",
    "stop_kl",
  )
  assert [getattr(made.learner, name) for name in names] == [
    3e-3,
    "constant",
    0,
    1,
    1,
    2,  # divides the pairs, too
    0.0,
    0.0,
    0.0,
  ]
  assert (made.data.prompts, made.objective.name) == (6, "reward_model")
  assert (c.learner.lr, c.learner.mu, c.data.prompts, c.objective.name) == (1e-5, 4, 8, "grpo")
  for microbatch, its in ((0, 0), (4, 2), (3, 3), (5, 3), (6, 0), (12, 0)):
    c.learner.microbatch = microbatch
    judge = teaching.experiment_of_reward_model(make(c), teaching.OUTCOME)
    assert judge.learner.microbatch == its, microbatch


def test_another_model_has_no_adapters_of_this_run():
  c = tiny_runs.config({"lora.rank": 4})
  other = build.of_another(make(c), "teacher")
  assert (other.init_from, other.model.variant, other.lora.rank) == ("teacher", "", 0)
  assert (c.init_from, c.model.variant, c.lora.rank) == ("", "test_qwen3", 4)


@pytest.mark.parametrize("steps", [True, False])
def test_the_model_that_learns_is_asked_as_its_kind_and_after_the_others(steps):
  judge: Any = stub(model=stub(decoder="decoder"), params="now")
  found = iterative.current_models(["other"], judge, 0.5, steps)  # type: ignore
  assert found == ["other", ("reward_model", 0.5, steps, "decoder", "now")]


def test_continuations_are_made_with_the_settings_of_the_run(monkeypatch):
  settings = []
  monkeypatch.setattr(
    continuations.sampler,
    "make_sampler",
    lambda decoder, s, stop, table: settings.append(s) or "sampler",
  )
  changes = {
    "offline.continuations": 3,
    "sampler.max_length": 8,
    "data.max_prompt_length": 16,
    "eval.batch": 5,
  }
  c = tiny_runs.config(changes | {"rewards.deadline": 2.5, "eval.reward": "math.answer_correct"})
  model: Any = stub(
    layout=tiny.layout(), decoder=None, stop=(), stop_table=None, tokenizer="tokenizer"
  )
  made = continuations.make_labeller(make(c), model)
  assert settings[0].group == 3 and c.sampler.group == 4
  assert made.sizes.width == 24  # a prompt, and what was written of a completion
  assert (made.deadline, made.prompts, made.continuations, made.max_length) == (2.5, 5, 3, 8)


# -- updates


@pytest.mark.parametrize("step", [0, 3])
def test_pairs_of_each_step_are_chosen_by_a_seed_of_their_own(monkeypatch, step):
  seeds = []

  def of_samples(batch: Scored, seed: int, complete: bool) -> Scored:
    seeds.append(seed)
    return batch

  monkeypatch.setattr(teaching.pairs, "of_samples", of_samples)
  fields = dict.fromkeys(Collector._fields) | {
    "generator": stub(environment=None),
    "rewards": [("parity", None, 0.1)],
    "models": [],
  }
  c = tiny_runs.config(tiny_runs.ITERATIVE | {"seed": 7})
  # type: ignore
  teaching.labelled_pairs(Scored([None] * 2, groups(2), [], 0.0), Collector(**fields), c, step)
  assert seeds == [7 + step]


# -- evaluations


def test_greedy_evaluation_is_greedy_and_the_other_has_samples_of_its_own(monkeypatch):
  monkeypatch.setattr(
    evaluator.Evaluator, "_generator", lambda self, config, model, changes: changes
  )
  c = tiny_runs.config({"eval.problems": 0, "eval.samples": 6, "sampler.temperature": 0.7})
  model: Any = stub(layout=tiny.layout(), tokenizer=None)
  own = evaluator.Evaluator(make(c), model)
  assert own.greedy == {"temperature": 0.0, "group": 1} and own.sampled == {"group": 6}


@pytest.mark.parametrize(
  ("problems", "mesh", "learned", "batch"),
  [
    (5, tiny.ONE, None, 5),
    (5, (1, 2, 1, 1), None, 6),
    (5, tiny.ONE, lambda rollouts: (), 8),
    (8, tiny.ONE, None, 8),
    (9, tiny.ONE, None, 8),
  ],
)
def test_few_problems_are_not_filled_up_to_a_whole_batch(
  problems, mesh, learned, batch, monkeypatch
):
  """But where reward models judge, whose microbatches divide it."""
  monkeypatch.setattr(evaluator.policy, "solve", lambda *args, batch, **named: batch)
  own = evaluator.Evaluator.__new__(evaluator.Evaluator)
  own.cfg, own.problems, own.deadline, own.seed = stub(batch=8), [None] * problems, 1.0, 0
  own.reward = stub(score=None, answer_of=None, score_ahead=None)
  layout = tiny.layout(mesh)
  sizes: Any = tiny.sizes(mesh)
  generator: Any = evaluator.Generator(stub(layout=layout), sizes, None, None, 6)
  assert own.solve(generator, None, jax.random.key(0), lambda *_: None, None, learned) == batch
