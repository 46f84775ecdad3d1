"""Writes a checkpoint of a run as a Hugging Face folder.

    python -m experiments.export --workdir=RUN --out=FOLDER [--step=N] [--part=policy] [--adapter]

FOLDER appears when it is complete, with the tokenizer and, like DIR/export, in the dtype of the
weights that the run began with. --step defaults to the last checkpoint. --part names another
learner of the run, such as reward_model and reference of experiments/arithmetic_iterative.py.
Adapters (lora.rank) are merged into their base, or with --adapter written alone as a folder of
PEFT. The run may continue meanwhile. Any mesh will do.
"""

import dataclasses
from typing import TYPE_CHECKING

from absl import app, flags, logging

from experiments import arguments, sources
from experiments.progress import Progress
from grpo_jax.config import settings, table
from grpo_jax.errors import CheckpointError, SettingError
from grpo_jax.io import storage
from grpo_jax.run import finished, provenance

if TYPE_CHECKING:
  from grpo_jax.models.decoder import DecoderConfig


def main(argv: list[str]) -> None:
  """Exports what the flags name."""
  del argv
  logging.set_verbosity(logging.WARNING)  # orbax logs every step it takes
  values = flags.FLAGS
  with arguments.one_line_errors(), sources.output() as out:
    check(values.workdir, values.step, values.out)
    dtype = export(values.workdir, values.step, values.part, values.out, values.adapter)
    print(f"{values.out}: {values.part} of {values.workdir}, {dtype}", file=out)


def check(workdir: str | None, step: int | None, out: str | None) -> None:
  """Refuses flags that name nothing to read or no place to write."""
  if not workdir:
    raise SettingError("--workdir is missing: the folder of a run, as in --workdir=runs/1")
  if not out:
    raise SettingError("--out is missing: the folder to write, as in --out=exports/1")
  sources.check("--workdir", workdir, step)
  if not (storage.place(workdir) / "checkpoints").is_dir():
    raise SettingError(f"--workdir={workdir!r}: has no checkpoints; give the folder of a run")
  if not finished.steps(finished.directory(workdir)):
    ended = storage.place(workdir) / "export"
    raise CheckpointError(
      f"--workdir={workdir!r}: has no complete checkpoint any more; {ended} is the model of its end"
    )
  sources.check_out(out, [workdir])


def export(workdir: str, step: int | None, part: str, out: str, adapter: bool = False) -> str:
  """Writes a learner of a checkpoint to the folder `out`, and returns the dtype of its tensors.

  With `adapter`, its adapters alone.
  """
  print(f"reading {workdir}", flush=True)

  from grpo_jax.distributed import sharding
  from grpo_jax.models.decoder import Decoder
  from grpo_jax.models.hf import peft, tensors
  from grpo_jax.run import checkpoint
  from grpo_jax.setup import adapters, defaults, weights
  from grpo_jax.tokenizer import reading

  step = checkpoint.latest(workdir) if step is None else step
  assert step is not None  # `check` has found one
  if part not in (parts := weights.learners(workdir, step)):
    raise SettingError(
      f"--part={part!r}: checkpoint {step} of {workdir} has no such learner; use {', '.join(parts)}"
    )
  shape = shape_of(workdir, part)
  decoder = Decoder(shape, sharding.make_layout(defaults.get_config().mesh))
  config = provenance.saved_config(workdir)
  began = weights.began_with(config, part)
  base = weights.find_source(began)[0]
  if adapter:
    if (lora := adapters.make_lora(table.from_json(settings.Lora, config.get("lora")))) is None:
      raise SettingError(f"--adapter: {workdir} has lora.rank=0 and no adapters; leave it out")
    trained = weights.restore_trained(
      workdir, dataclasses.replace(decoder, lora=lora), step, learner=part
    )
    peft.save(out, shape, lora, trained, decoder.shapes(), base)
    return "float32"
  params = weights.restore(workdir, decoder, step, learner=part)
  dtype = provenance.weights_dtype(began)
  with Progress(tensors.export_bytes(params, dtype), 0) as bar:
    tensors.save(
      out,
      shape,
      params,
      tokenizer=reading.load(str(storage.place(workdir) / "model"), "--workdir"),
      dtype=dtype,
      base=base or None,
      progress=lambda done: bar.show(done, f"writing {out}"),
    )
  return dtype


def shape_of(workdir: str, part: str) -> "DecoderConfig":
  """Returns a learner's shape: the policy's, or that of the reward model of an iterative run."""
  from grpo_jax.setup import weights

  shape = weights.read_shape(str(storage.place(workdir) / "model"))
  if part != weights.REWARD_MODEL:
    return shape
  source = weights.began_with(provenance.saved_config(workdir), part)
  return dataclasses.replace(
    weights.read_shape(weights.find_source(source)[0]) if source else shape, scores=True
  )


if __name__ == "__main__":
  flags.DEFINE_string("workdir", None, "Folder of the run.")
  flags.DEFINE_integer("step", None, "Of the checkpoint; the last one where it is not given.")
  flags.DEFINE_string("part", "policy", "The learner: policy, or another that the run has.")
  flags.DEFINE_boolean("adapter", False, "Its adapters alone (lora.rank), as a folder of PEFT.")
  flags.DEFINE_string("out", None, "The Hugging Face folder to write: a new or an empty one.")
  app.run(main, flags_parser=arguments.parse_flags)
