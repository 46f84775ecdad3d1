"""Train an outcome reward model on pairs of completions, better and worse of a prompt.

They are samples of a policy that the rewards tell apart, drawn once and kept in DIR/samples.npz, or
those of a file (`offline.pairs`). The pairs of `offline.held_out` prompts are kept for evaluation:
no batch has one of these prompts.

Two models: the reward model starts as `init_from` says, where that is a policy with a fresh head;
the samples are of `offline.teacher`, or else of `init_from`.
"""

import functools
from typing import Any

import jax
from ml_collections import ConfigDict

from grpo_jax.evaluation.pair_evaluator import PairEvaluator
from grpo_jax.io import storage
from grpo_jax.loops.collect import check_collector
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.offline import Kept, draw_samples, kept_samples, template
from grpo_jax.loops.reward_data.pairs import FromFile, left_out
from grpo_jax.loops.run import Run
from grpo_jax.setup import build, checks, parameters, registry

TEMPERATURE = 1.0  # of log-probs, of which a reward model has none


def train(config: ConfigDict, workdir: str) -> None:
  """Runs, or goes on with, the experiment in `workdir`; see `Run`."""
  checks.check_settings(config)
  model = build.model(config, scores=True)
  checks.check(config, model.decoder, registry.objective(config.objective.name))
  evaluator = PairEvaluator(config, model)
  if config.offline.pairs:
    batches = FromFile(config, model)
    if batches.held_out:
      evaluator.take(batches.rollouts(batches.held_out))
  else:
    batches, sampled = Kept(config, config.offline.prompts), of_policy(config)
    policy = build.model(sampled)
    if not (storage.place(workdir) / "samples.npz").exists():
      check_collector(sampled, policy)  # what is wrong with it is said before the folder is claimed
  learner = Learner(config, model, TEMPERATURE)

  with Run(config, workdir, model, batches, {"policy": learner}, evaluator) as run:
    if not config.offline.pairs:
      draw = functools.partial(draw_samples, sampled, policy, run.writer, run.stopping)
      samples = kept_samples(sampled, run, draw, template())
      if samples is None:  # a signal ended the drawing
        return
      evaluator.take(part(samples, slice(config.offline.held_out)))
      batches.rollouts = part(samples, slice(config.offline.held_out, None))
    for step in run.steps():
      with run.writer.phase("data"):
        given = next(batches)
      numbers = learner.learn(step, given, run.writer).metrics
      numbers |= {"tokens_per_s/learn": int(given.lengths.sum()) / run.writer.seconds["learn"]}
      numbers |= left_out(config, given)
      run.log(step, numbers)
      run.after(step)
    run.finish()


def of_policy(config: ConfigDict) -> ConfigDict:
  """The config of the policy whose samples are drawn: the teacher's, with the reward model's
  tokenizer.
  """
  if not config.offline.teacher:
    sampled = config.copy_and_resolve_references()
    sampled.lora.rank = 0
    return sampled
  sampled = build.of_another(config, config.offline.teacher)
  sampled.tokenizer, sampled.offline.teacher = (
    config.tokenizer or parameters.find_source(config.init_from)[0],
    "",
  )
  return sampled


def part(samples: Any, which: slice) -> Any:
  """Some of the groups."""
  return jax.tree.map(lambda x: x[which], samples)
