"""Trains an outcome reward model on pairs of completions, a better and a worse one of a prompt.

They are samples of a policy that the rewards tell apart, drawn once and kept in DIR/samples.npz, or
those of a file (`offline.pairs`). The pairs of `offline.held_out` prompts are kept for evaluation:
no batch has one of these prompts.

There are two models: the reward model starts from `init_from`, with a fresh head if that is a
policy; the samples are drawn from `offline.teacher`, or else from `init_from`.
"""

import functools
from typing import TypeVar

import jax
from ml_collections import ConfigDict

from grpo_jax.evaluation.pair_evaluator import PairEvaluator
from grpo_jax.evaluation.step_evaluator import Steps
from grpo_jax.io import storage
from grpo_jax.loops.collect import check_collector
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.offline import Kept, draw_samples, kept_samples, learn_in_order, template
from grpo_jax.loops.reward_data.pairs import FromFile
from grpo_jax.loops.run import Run
from grpo_jax.setup import build, checks, registry, weights
from grpo_jax.types import HostScored

TEMPERATURE = 1.0  # of log-probs, which a reward model does not have

Samples = TypeVar("Samples", HostScored, Steps)


def train(config: ConfigDict, workdir: str) -> None:
  """Runs or resumes the experiment in `workdir`; see `Run`."""
  checks.check_settings(config)
  model = build.model(config, scores=True)
  checks.check(config, model.decoder, registry.objective(config.objective.name))
  evaluator = PairEvaluator(config, model)
  if config.offline.pairs:
    train_on_file(config, workdir, model, evaluator)
    return
  batches, sampled = Kept(config, config.offline.prompts), config_of_policy(config)
  policy = build.model(sampled)
  if not (storage.place(workdir) / "samples.npz").exists():
    check_collector(sampled, policy)  # before the folder is claimed
  learner = Learner(config, model, TEMPERATURE)

  with Run(config, workdir, model, batches, {"policy": learner}, evaluator) as run:
    draw = functools.partial(draw_samples, sampled, policy, run.writer, run.stopping)
    samples = kept_samples(sampled, run, draw, template())
    if samples is None:  # a signal ended the drawing
      return
    evaluator.take(part(samples, slice(config.offline.held_out)))
    batches.rollouts = part(samples, slice(config.offline.held_out, None))
    learn_in_order(config, run, learner, batches)


def train_on_file(
  config: ConfigDict, workdir: str, model: build.Model, evaluator: PairEvaluator
) -> None:
  """Trains on the pairs of `offline.pairs`."""
  batches = FromFile(config, model)
  if batches.held_out:
    evaluator.take(batches.rollouts(batches.held_out))
  learner = Learner(config, model, TEMPERATURE)
  with Run(config, workdir, model, batches, {"policy": learner}, evaluator) as run:
    learn_in_order(config, run, learner, batches)


def config_of_policy(config: ConfigDict) -> ConfigDict:
  """Returns the config of the policy that is sampled: the teacher's, with our tokenizer."""
  if not config.offline.teacher:
    sampled = config.copy_and_resolve_references()
    sampled.lora.rank = 0
    return sampled
  sampled = build.of_another(config, config.offline.teacher)
  sampled.tokenizer = config.tokenizer or weights.find_source(config.init_from)[0]
  sampled.offline.teacher = ""
  return sampled


def part(samples: Samples, groups: slice) -> Samples:
  """Returns some of the groups."""
  return jax.tree.map(lambda x: x[groups], samples)
