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

from grpo_jax.distributed import inputs
from grpo_jax.errors import SettingError, said_of
from grpo_jax.evaluation.pair_evaluator import PairEvaluator
from grpo_jax.evaluation.step_evaluator import Steps
from grpo_jax.io import storage
from grpo_jax.loops.collector import check_collector
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.offline import Kept, draw_samples, kept_samples, learn_in_order, template
from grpo_jax.loops.reward_data.pairs import FromFile
from grpo_jax.loops.run import Run
from grpo_jax.setup import build, checks, references, weights
from grpo_jax.setup.experiment import Experiment, changed
from grpo_jax.types import HostScored

TEMPERATURE = 1.0  # of log-probs, which a reward model does not have

Samples = TypeVar("Samples", HostScored, Steps)


def train(experiment: Experiment, workdir: str) -> None:
  """Runs or resumes the experiment in `workdir`; see `Run`."""
  model = build.model(experiment, scores=True)
  checks.check(experiment, model.decoder)
  evaluator = PairEvaluator(experiment, model)
  if experiment.offline.pairs:
    train_on_file(experiment, workdir, model, evaluator)
    return
  batches = Kept(experiment, experiment.offline.prompts)
  sampled, policy = sampled_policy(experiment)
  if not (storage.place(workdir) / inputs.SAMPLES).exists():
    check_collector(sampled, policy)  # before the folder is claimed
  learner = Learner(experiment, model, TEMPERATURE)

  with Run(experiment, workdir, model, batches, {"policy": learner}, evaluator) as run:
    draw = functools.partial(draw_samples, sampled, policy, run.writer, run.stopping)
    samples = kept_samples(experiment, run, draw, template())
    if samples is None:  # a signal ended the drawing
      return
    evaluator.take(part(samples, slice(experiment.offline.held_out)))
    batches.rollouts = part(samples, slice(experiment.offline.held_out, None))
    learn_in_order(experiment, run, learner, batches)


def train_on_file(
  experiment: Experiment, workdir: str, model: build.Model, evaluator: PairEvaluator
) -> None:
  """Trains on the pairs of `offline.pairs`."""
  batches = FromFile(experiment, model)
  if batches.held_out:
    evaluator.take(batches.rollouts(batches.held_out))
  learner = Learner(experiment, model, TEMPERATURE)
  with Run(experiment, workdir, model, batches, {"policy": learner}, evaluator) as run:
    learn_in_order(experiment, run, learner, batches)


def sampled_policy(experiment: Experiment) -> tuple[Experiment, build.Model]:
  """Returns the config of the policy that is sampled, and its model."""
  sampled = experiment_of_policy(experiment)
  teacher = experiment.offline.teacher
  folder = "" if teacher else weights.find_source(experiment.init_from)[0]
  if folder and weights.read_shape(folder).scores:
    raise SettingError(
      f"offline.teacher='': samples would be drawn from init_from={experiment.init_from!r}, which "
      "is a reward model and samples nothing; give a policy"
    )
  with said_of("offline.teacher" if teacher else ""):
    policy = build.model(sampled)
  references.check_tokens(experiment, teacher, policy, "offline.teacher")
  return sampled, policy


def experiment_of_policy(experiment: Experiment) -> Experiment:
  """Returns the config of the policy that is sampled: the teacher's, with our tokenizer."""
  if not experiment.offline.teacher:
    return changed(experiment, {"lora.rank": 0})
  tokenizer = experiment.tokenizer or weights.find_source(experiment.init_from)[0]
  more = {"tokenizer": tokenizer, "offline.teacher": ""}
  return build.of_another(experiment, experiment.offline.teacher, **more)


def part(samples: Samples, groups: slice) -> Samples:
  """Returns some of the groups."""
  return jax.tree.map(lambda x: x[groups], samples)
