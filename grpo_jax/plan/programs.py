"""Makes the programs of a config as a run would, to compile them without weights, data or chips."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, NoReturn, cast

import jax
import numpy as np

from grpo_jax.aliases import Tree
from grpo_jax.distributed import sharding
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.loops.learner import Learner
from grpo_jax.models import lora, variants
from grpo_jax.models.decoder import Decoder, DecoderConfig
from grpo_jax.models.hf.headers import INDEX, SINGLE
from grpo_jax.objectives.base import reads_reference
from grpo_jax.packing import plan
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.sizes import BEGUN, CARRIED, Sizes
from grpo_jax.reward_models import load
from grpo_jax.sampling import drawing, sampler
from grpo_jax.sampling.begun import Begun, Carried
from grpo_jax.setup import adapters, build, checks, parameters, references, weights
from grpo_jax.setup.experiment import Experiment
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import Prompts, Rollouts

Shapes = Tree  # a tree of jax.ShapeDtypeStruct with shardings


class Lengths(NamedTuple):
  """Tokens of each prompt and completion, which decide the shapes of a step."""

  prompts: np.ndarray  # [P] int32
  completions: np.ndarray  # [P, G] int32


class Padding(NamedTuple):
  """Shares of padding in what is computed."""

  completions: float = 0.0  # in the learner
  prompts: float = 0.0  # in the learner
  prefill: float = 0.0  # of the prompts in the sampler


class Workload(NamedTuple):
  """A run on the devices of a topology; nothing is allocated or compiled."""

  experiment: Experiment
  decoder: Decoder
  learner: Learner
  sample: sampler.Sampler
  weights: Shapes  # for decoding
  judges: Sequence[Shapes] = ()  # the parameters of each reward model


def decoder_shape(experiment: Experiment) -> DecoderConfig:
  """Returns the decoder's shape, without weights, from init_from, model.variant or model.hub."""
  folder, _ = weights.find_source(experiment.init_from)
  if folder:
    return weights.read_shape(folder)
  if experiment.model.variant:
    changes = {"vocab": experiment.model.vocab} if experiment.tokenizer == "bpe" else {}
    return variants.variant(experiment.model.variant, **changes)
  if experiment.model.hub in variants.HUB:
    return variants.variant(variants.HUB[experiment.model.hub])
  raise SettingError(
    f"model.hub={experiment.model.hub!r}: its shape is not in grpo_jax/models/variants.py; pass "
    "--config.init_from=FOLDER with a config.json, or "
    f"--config.model.variant= one of {', '.join(variants.VARIANTS)}"
  )


def model_name(experiment: Experiment) -> str:
  """Returns the folder, variant or model of a hub that gives the shape."""
  return experiment.init_from or experiment.model.variant or experiment.model.hub


def check(experiment: Experiment) -> None:
  """Refuses a run of which no plan is made."""
  if experiment.kind != "online":
    raise SettingError(
      f"loop={experiment.loop!r}: a plan is of a run that samples and learns in each step with no "
      "other model to train; plan a config with loop='online', or a loop whose LIKE is that"
    )
  if experiment.reference.prompt:
    raise SettingError(
      f"reference.prompt={experiment.reference.prompt!r:.80}: a plan has no completions that a "
      "teacher could be asked about; plan with reference.prompt=''"
    )


def make_workload(experiment: Experiment, devices: Sequence[jax.Device]) -> Workload:
  """Returns the functions of an online run on `devices`; refuses what the run would refuse."""
  check(experiment)
  layout = sharding.make_layout(experiment.mesh, devices)
  m = experiment.model
  plain = Decoder(decoder_shape(experiment), layout, m.layers, m.remat, m.dtype)
  decoder = dataclasses.replace(plain, lora=adapters.make_lora(experiment.lora))
  checks.check(experiment, decoder)
  # a plan loads no weights and encodes no text
  model = build.Model(layout, decoder, cast(Tokenizer, None), _absent, _absent, (0,), None, _absent)
  sample = sampler.make_sampler(decoder, experiment.sampler, model.stop)
  shardings = sampler.decode_shardings(
    dataclasses.replace(decoder, layout=sample.layout), experiment.sampler.weights_dtype
  )
  learner = Learner(experiment, model, experiment.sampler.temperature)
  weights = jax.tree.map(_struct, jax.eval_shape(sample.ready, policy_params(learner)), shardings)
  shapes = load.shapes(experiment)
  scoring = [parameters.abstract(dataclasses.replace(plain, config=shape)) for shape in shapes]
  return Workload(experiment, decoder, learner, sample, weights, scoring)


def _absent(*_: object) -> NoReturn:
  raise AssertionError("a plan has neither weights nor a tokenizer")


def base_params(learner: Learner) -> Shapes:
  """Returns the shapes of the base model of adapters; None without adapters."""
  folder = weights_here(learner.experiment.init_from)
  return adapters.abstract_base(
    learner.model.decoder, adapters.base_dtype(learner.experiment.lora, folder)
  )


def weights_here(source: str) -> str:
  """Returns the folder of `init_from` or `ref_from`; "" for one that has a config.json alone."""
  folder, run = weights.find_source(source)
  there = run or any((storage.place(folder) / name).exists() for name in (SINGLE, INDEX))
  return folder if source and there else ""


def own_reference(workload: Workload) -> Shapes:
  """Returns the shapes of the reference; None without one or if it is the base of adapters.

  Weights that are not downloaded yet are taken to be bfloat16, as on hubs; fresh ones are float32.
  """
  experiment = workload.experiment
  if experiment.reference.ema:  # a copy of what is trained
    return workload.learner.abstract().model
  is_base = workload.decoder.lora and not experiment.ref_from
  if is_base or not reads_reference(workload.learner.needs):
    return None
  source, decoder = experiment.ref_from or experiment.init_from, workload.learner.teacher.decoder
  absent = not weights_here(source) and (source or experiment.model.hub)
  dtype = decoder.dtype if absent else references.held_dtype(source, decoder.dtype)
  return parameters.abstract(decoder.base, dtype)


def policy_params(learner: Learner) -> Shapes:
  """Returns the shapes of the policy's parameters, with adapters joined to their base."""
  return lora.join(base_params(learner), learner.abstract().model)


def learn_batch(workload: Workload, lengths: Lengths, sizes: Sizes) -> tuple[Rollouts, Packing]:
  """Returns scored rollouts of zeros with these lengths, and their packing, as numpy arrays.

  `sizes` are the sizes of the programs so far (`build.sizes`).
  """
  prompts, _ = sampler_prompts(workload, lengths, sizes)
  return sizes.for_learner(_rollouts(workload.experiment, prompts, lengths))


def sampler_prompts(
  workload: Workload, lengths: Lengths, sizes: Sizes
) -> tuple[Prompts, int | None]:
  """Returns prompts of zeros with these lengths, as numpy arrays, and the size of their list."""
  shape = (len(lengths.prompts), workload.experiment.data.max_prompt_length)
  return sizes.for_sampler(
    Prompts(np.zeros(shape, np.int32), lengths.prompts), workload.sample.layout
  )


def learn_arguments(workload: Workload, lengths: Lengths) -> tuple[Shapes, ...]:
  """Returns the shapes of the update's arguments after its state, on rollouts of these lengths."""
  batch = learn_batch(workload, lengths, workload.learner.sizes.fresh())
  base, ref = base_params(workload.learner), own_reference(workload)
  if ref is None and base is not None and reads_reference(workload.learner.needs):
    ref = {}
  return ref, None, *_abstract(workload.decoder.layout, batch), base


def lower_learn(workload: Workload, lengths: Lengths) -> jax.stages.Lowered:
  """Returns the update on rollouts of these lengths, ready to be compiled."""
  learner = workload.learner
  return learner.jitted_learn.trace(learner.abstract(), *learn_arguments(workload, lengths)).lower()


def lower_weights(workload: Workload) -> jax.stages.Lowered:
  """Returns the program that prepares the weights for decoding, ready to be compiled."""
  return workload.sample.ready.trace(policy_params(workload.learner)).lower()


def lower_sampler(workload: Workload, lengths: Lengths) -> jax.stages.Lowered:
  """Returns the sampler on prompts of these lengths, ready to be compiled.

  With an environment it is that of a later turn, which begins at half of each completion; with
  carried rollouts, the carried groups do.
  """
  sizes, layout = workload.learner.sizes.fresh(), workload.sample.layout
  key, begun, carried = jax.eval_shape(lambda: jax.random.key(0)), None, None
  if workload.experiment.environment.name or workload.experiment.sampler.carry:
    half, size = begun_lengths(workload, lengths), None
    most = BEGUN
    if workload.experiment.sampler.carry:
      carried, most = Carried(half.prompts, half.prompts > 0), CARRIED
    shape = (len(half.prompts), workload.experiment.data.max_prompt_length)
    tokens = np.zeros((*half.completions.shape, workload.experiment.sampler.max_length), np.int32)
    zeros = np.zeros_like(half.completions)
    begun = Begun(tokens, half.completions, zeros == 0, zeros, zeros)
    prompts, begun = drawing.packed(
      workload.sample, Prompts(np.zeros(shape, np.int32), half.prompts), sizes, begun, most
    )
  else:
    prompts, size = sampler_prompts(workload, lengths, sizes)
  batch, begun, carried = _abstract(layout, (prompts, begun, carried))
  run = workload.sample.run.trace(
    workload.weights, batch, key, None, None, begun, carried, prompt_size=size
  )
  return run.lower()


def begun_lengths(workload: Workload, lengths: Lengths) -> Lengths:
  """Returns the lengths of all prompts and of what has begun: half of it, or of what is carried."""
  prompts, completions = lengths.prompts, lengths.completions
  if carry := workload.experiment.sampler.carry:
    n = len(prompts) + carry
    begun = n if workload.experiment.environment.name else carry
    prompts = np.resize(prompts, n)
    completions = np.resize(completions, (begun, completions.shape[1]))
  return Lengths(prompts, completions // 2)


def padding(workload: Workload, lengths: Lengths) -> Padding:
  """Returns the shares of padding in what is computed for these lengths."""
  sizes = workload.learner.sizes.fresh()
  batch = learn_batch(workload, lengths, sizes)
  learned = plan.padding(*batch, workload.decoder.layout, sizes.microbatches)
  prompts, size = sampler_prompts(workload, lengths, workload.learner.sizes.fresh())
  places = size * workload.sample.layout.size("prompt") if size else prompts.tokens.size
  return Padding(
    learned["padding_fraction"],
    learned["prompt_padding_fraction"],
    1.0 - float(lengths.prompts.sum()) / places,
  )


def _rollouts(experiment: Experiment, prompts: Prompts, lengths: Lengths) -> Rollouts:
  """Returns scored rollouts of zeros with these lengths, as numpy arrays."""
  shape = (*lengths.completions.shape, experiment.sampler.max_length)
  numbers = np.zeros(shape, np.float32)
  return Rollouts(
    prompts,
    np.zeros(shape, np.int32),
    lengths.completions,
    np.zeros(shape[:2], np.int32),
    numbers,
    numbers,
    rewards=numbers,
    given=np.zeros(shape, bool),
    components=np.zeros((*shape[:2], len(experiment.components)), np.float32),
    sampled=np.zeros(shape, bool) if experiment.environment.name else None,
  )


def _abstract(layout: sharding.Layout, batch: Tree) -> Shapes:
  """Returns the shapes of a batch of numpy arrays, sharded as `rollouts.to_device` does."""
  batch = jax.tree.map(np.asarray, batch)
  return jax.tree.map(_struct, batch, layout.batch(batch))


def _struct(
  x: np.ndarray | jax.ShapeDtypeStruct, sharding_: jax.sharding.Sharding
) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding_)
