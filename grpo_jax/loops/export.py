"""Writes the results of a run at its end: DIR/export, DIR/adapter and DIR/result.json."""

import functools
import json
from collections.abc import Callable

from grpo_jax.io import storage
from grpo_jax.loops.protocols import Trained
from grpo_jax.models.decoder import Params
from grpo_jax.models.hf import peft, tensors
from grpo_jax.run import provenance
from grpo_jax.run.writer import Writer, clean
from grpo_jax.setup import build


def export_merged(
  out: storage.Path, model: build.Model, params: Params, dtype: str, base: str, writer: Writer
) -> None:
  """Writes parameters to `out`, a Hugging Face folder with the adapters merged into the weights.

  Args:
    out: the folder.
    model: whose parameters these are.
    params: with the base under adapters.
    dtype: of the weights.
    base: the folder of the first weights, from which other files are taken; "": there is none.
    writer: shows the progress.
  """
  decoder = model.decoder
  merged = decoder.merged(params)
  tensors.save(
    out,
    decoder.config,
    merged,
    tokenizer=model.tokenizer,
    dtype=dtype,
    base=base or None,
    progress=progress_of(writer, merged, dtype),
  )


def export_adapters(out: storage.Path, model: build.Model, learner: Trained, base: str) -> None:
  """Writes the adapters of a learner to `out`, a folder of PEFT; nothing if there are none."""
  decoder = model.decoder
  if decoder.lora:
    shapes = decoder.base.shapes()
    peft.save(out, decoder.config, decoder.lora, learner.trained, shapes, base)


def progress_of(writer: Writer, params: Params, dtype: str) -> Callable[[int], None]:
  """Returns the function that shows the progress of an export, given the bytes written so far."""
  return functools.partial(_show, writer, tensors.export_bytes(params, dtype))


def _show(writer: Writer, total: int, done: int) -> None:
  writer.progress("MB exported", done // 1000**2, total // 1000**2)


def write_result(
  folder: str,
  before: dict[str, float],
  after: dict[str, float],
  steps: int,
  seconds: float,
  exported: bool = True,
) -> None:
  """Writes DIR/result.json.

  It has both evaluations (`NAME_before`, `NAME_after`), `steps`, `wall_s` and `exported`, the step
  of DIR/export: this one if it was `exported`, or an earlier one.
  """
  of_export = steps if exported else provenance.exported_at(folder)
  result = {f"{name.replace('@', '_at_')}_before": value for name, value in before.items()}
  result |= {f"{name.replace('@', '_at_')}_after": value for name, value in after.items()}
  result |= {} if of_export is None else {"exported": of_export}
  result |= {"steps": steps, "wall_s": round(seconds, 1)}
  with storage.run_errors(folder):
    storage.write(
      storage.place(folder) / "result.json", json.dumps(clean(result), indent=2).encode()
    )
