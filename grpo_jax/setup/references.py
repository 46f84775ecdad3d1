"""Reads the reference or teacher: the policy's start, a folder or another run."""

import dataclasses

from grpo_jax.aliases import Json, Tree
from grpo_jax.errors import CheckpointError, GrpoError, SettingError, said_of
from grpo_jax.io import storage
from grpo_jax.models.hf import tensors
from grpo_jax.run import checkpoint, provenance
from grpo_jax.setup import build, parameters, weights
from grpo_jax.setup.experiment import Experiment
from grpo_jax.tokenizer import reading


def owner(experiment: Experiment, model: build.Model) -> build.Model:
  """Returns the model that describes the reference: the policy, or a teacher of another shape.

  Only an objective that learns from another model may have one of another shape, which reads the
  policy's tokens.

  Args:
    experiment: of the run.
    model: the policy; a plan's has no tokenizer (None), and only the shapes are compared.
  """
  source = experiment.ref_from
  teaches = experiment.objective.objective.teacher == "ref_from"
  if not teaches or not source or not storage.place(source).is_dir():  # `check_source` says so
    return model
  folder, _ = weights.find_source(source)
  with said_of("ref_from"):
    shape, own = weights.read_shape(folder), model.decoder.config
  if shape == own:
    return model
  shown = f"ref_from={source!r}"
  if experiment.reference.ema:
    raise SettingError(
      f"reference.ema={experiment.reference.ema} with {shown}: this teacher is {shape}, which "
      f"cannot move to the policy, {own}; use reference.ema=0, or a teacher of the same shape"
    )
  planned = model.tokenizer is None
  if shape.vocab != own.vocab:
    raise SettingError(
      f"{shown}: this teacher has {shape.vocab} tokens and the policy {own.vocab}; use a teacher "
      "that reads the policy's"
    )
  if not planned and not reading.alike(model.tokenizer, reading.load(folder, "ref_from")):
    raise SettingError(
      f"{shown}: this teacher reads a text as other tokens than the policy, or has a token with "
      "another id or another end token; use a teacher that reads the policy's"
    )
  return model._replace(decoder=dataclasses.replace(model.decoder.base, config=shape))


def reference(
  source: str,
  model: build.Model,
  setting: str,
  step: int | None = None,
  dtype: str = "float32",
) -> Tree:
  """Returns a parameter tree of the model's shape.

  Args:
    source: a Hugging Face folder or the workdir of a run; "": the policy's own start.
    model: the policy, or what `owner` returns.
    setting: that names the source, for messages.
    step: of the run's checkpoint; None: the last one.
    dtype: of the parameters of a folder; those of a checkpoint or of fresh weights are float32.
  """
  if not source:
    return model.load()
  check_source(source, model, setting)
  folder, run = weights.find_source(source)
  run = run if step is None else source  # the run may have an export by now
  with said_of(setting):
    if run:
      return weights.restore(run, model.decoder, step)
    return weights.load(folder, model.decoder.base, dtype=dtype)


def check_source(source: str, model: build.Model, setting: str) -> None:
  """Refuses a folder or run without parameters of the model's shape, by its headers alone.

  Args:
    source: a Hugging Face folder or the workdir of a run; "" is let through.
    model: the policy, or what `owner` returns.
    setting: that names the source, for messages.
  """
  if not source:
    return
  if not storage.place(source).is_dir():
    raise SettingError(
      f"{setting}={source!r}: no such folder; give a Hugging Face folder or the workdir of a run"
    )
  folder, run = weights.find_source(source)
  with said_of(setting):
    shape = weights.read_shape(folder)
  if shape != model.decoder.config:
    raise SettingError(
      f"{setting}={source!r}: is {shape}; the policy is {model.decoder.config}; use the same shape"
    )
  if not run:
    with said_of(setting):
      tensors.check(folder, model.decoder.base.shapes())
  elif checkpoint.latest(run) is None:
    raise CheckpointError(
      f"{setting}={source!r}: this run has no complete checkpoint; wait for its first, or use "
      "another"
    )


def check_tokens(experiment: Experiment, source: str, model: build.Model, setting: str) -> None:
  """Refuses a model that was trained on other tokens, by the tokenizer of its folder.

  The start of the run is let through, whose tokens `tokenizer` may say, and so is a folder without
  a tokenizer that can be read. End tokens may be others: an instruct model has others than its
  base.

  Args:
    experiment: of the run.
    source: a Hugging Face folder or the workdir of a run; "" is let through.
    model: reads the texts that this one is to read; a plan's has no tokenizer (None).
    setting: that names the source, for messages.
  """
  found = weights.find_source(source)
  if not source or model.tokenizer is None or found == weights.find_source(experiment.init_from):
    return
  try:
    own = reading.load(found[0], setting)
  except GrpoError:  # it is read for nothing else
    return
  if not reading.same_tokens(own, model.tokenizer):
    raise SettingError(
      f"{setting}={source!r}: its tokenizer reads a text as other tokens than the one of this run, "
      "or has a token with another id; use a model of the same tokens"
    )


def check(experiment: Experiment, source: str, model: build.Model, setting: str) -> None:
  """Refuses what `check_source` and `check_tokens` refuse, of a reference or a teacher."""
  check_source(source, model, setting)
  check_tokens(experiment, source, model, setting)


def pinned_reference(experiment: Experiment, model: build.Model, pin: Json) -> tuple[Tree, Json]:
  """Returns the reference, of `ref_from` or the policy's start, with which the run began.

  Args:
    experiment: of the run.
    model: the policy.
    pin: what this function returned when the run began; {} at that time.

  Returns:
    The tree, and its pin: the `step` of its checkpoint (None if it is from a folder), its
    `dtype` and its `fingerprint`, which depends on the dtype.
  """
  setting = "ref_from" if experiment.ref_from else "init_from"
  source = experiment.ref_from or experiment.init_from
  _, run = weights.find_source(source)
  step = pin.get("step", checkpoint.latest(run) if run else None)
  held = held_dtype(source, model.decoder.dtype)
  dtype = pin.get("dtype", "float32") if "fingerprint" in pin else held
  tree = reference(source, model, setting, step, dtype)
  use = "this run began with as its reference"
  fingerprint = parameters.check_fingerprint(
    tree, pin.get("fingerprint"), f"{setting}={source!r}", use
  )
  return tree, {"step": step, "dtype": dtype, "fingerprint": fingerprint}


def held_dtype(source: str, computed: str) -> str:
  """Returns the dtype in which a reference that never changes is held.

  It is bfloat16 where its folder has bfloat16 and its passes compute in it: half the memory, and
  the same log-probs.

  Args:
    source: a Hugging Face folder or the workdir of a run; "": fresh weights.
    computed: the decoder's dtype. In float32, weights of bfloat16 would be converted each time.
  """
  folder, run = weights.find_source(source)
  return provenance.weights_dtype(folder) if computed == "bfloat16" and not run else "float32"
