"""Reads the shape and the weights of a Hugging Face folder or of a run's checkpoint."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import rich.console
import rich.progress
import rich.text

from grpo_jax.aliases import Json, Tree
from grpo_jax.config import settings, table
from grpo_jax.errors import CheckpointError, DataError
from grpo_jax.io import storage
from grpo_jax.learning.state import MODEL
from grpo_jax.models import limits
from grpo_jax.models.decoder import Decoder, DecoderConfig
from grpo_jax.models.hf import tensors
from grpo_jax.models.hf.config import read_config
from grpo_jax.models.lora import join, split
from grpo_jax.run import checkpoint, provenance, writer
from grpo_jax.run import console as terminal
from grpo_jax.sandbox import model_folder
from grpo_jax.setup import adapters, parameters

SHAPE = "decoder.json"  # in DIR/model: the shape of a run's policy
# the learner of loops/iterative.py that may start from a folder of its own
REWARD_MODEL = "reward_model"
REFERENCE = "reference"  # the learner that is a copy of the policy


def find_source(init_from: str) -> tuple[str, str]:
  """Resolves `init_from`, which is a Hugging Face folder or the workdir of a run.

  Returns:
    The folder with the shape and the tokenizer ("" for a fresh model), and the run whose last
    checkpoint has the weights ("" if the folder has them, as the export of a finished run does).
  """
  export, model = storage.place(init_from) / "export", storage.place(init_from) / "model"
  if init_from and (export / "config.json").exists() and not provenance.has_gone_on(init_from):
    return str(export), ""
  if init_from and (model / SHAPE).exists():
    return str(model), init_from
  return init_from, ""


def read_shape(folder: str) -> DecoderConfig:
  """Returns the shape of the decoder in a Hugging Face folder or a run's DIR/model."""
  where, path = f"init_from={folder}", storage.place(folder)
  fields = model_folder.read_json(where, path, SHAPE)
  if fields is None:
    return read_config(folder)
  model_folder.check(where, SHAPE, fields, limits.DECODER)
  for i, spec in enumerate(fields.get("attention") or ()):
    model_folder.check(where, SHAPE, spec, limits.ATTENTION, f"attention[{i}].")
  fields = _without_null(fields)
  try:
    shape = DecoderConfig.from_json(fields)
    limits.check_shape(
      where, SHAPE, shape.heads, shape.kv_heads, shape.head_dim, shape.rope_scaling
    )
  except (TypeError, KeyError) as error:  # a field that is missing, null or not a field
    raise DataError(
      f"{where}: {SHAPE} cannot be read ({model_folder.first_line(error)}); use another run"
    ) from error
  return shape


def _without_null(value: Any) -> Any:
  """Returns JSON without the fields that are null, which count as missing."""
  if isinstance(value, list):
    return [_without_null(item) for item in value]
  if isinstance(value, dict):
    return {name: _without_null(item) for name, item in value.items() if item is not None}
  return value


def load(
  folder: str, decoder: Decoder, left_out: Sequence[str] = (), dtype: str = "float32"
) -> Tree:
  """Returns the parameters in a Hugging Face folder, but for the parts `left_out`."""
  with reading(folder) as progress:
    return tensors.load(folder, decoder, dtype, progress=progress, left_out=left_out)


@contextlib.contextmanager
def reading(
  folder: str, console: rich.console.Console | None = None
) -> Iterator[Callable[[int, int], None]]:
  """Gives a function of bytes read and bytes in total that shows how far reading weights is.

  A terminal shows a bar until the block ends. Elsewhere a line is printed now and then.
  """
  if jax.process_index() != 0:
    yield lambda done, total: None
    return
  console = console or terminal.make()
  last = time.perf_counter()
  with rich.progress.Progress(
    rich.progress.TextColumn("reading weights"),
    rich.progress.BarColumn(bar_width=20),
    rich.progress.DownloadColumn(),
    rich.progress.TimeRemainingColumn(),
    console=console,
    transient=True,
    disable=not console.is_terminal,
  ) as bar:
    task = bar.add_task("", total=None)

    def show(done: int, total: int) -> None:
      nonlocal last
      bar.update(task, completed=done, total=total)
      if not console.is_terminal and time.perf_counter() - last >= writer.PLAIN_SECONDS:
        line = f"reading weights of {folder}: {done / 1e9:.1f} of {total / 1e9:.1f} GB"
        console.print(rich.text.Text(terminal.printable(line)), soft_wrap=True)
        last = time.perf_counter()

    yield show


def restore(
  run: str,
  decoder: Decoder,
  step: int | None = None,
  left_out: Sequence[str] = (),
  learner: str = checkpoint.LEARNER,
) -> Tree:
  """Returns a learner's float32 parameters in a checkpoint, with its adapters merged into them.

  Args:
    run: its workdir.
    decoder: of the learner's shape.
    step: of the checkpoint; None: the last one.
    left_out: parts of the tree that are not restored: ("score",) if the run trained a policy.
    learner: its name.
  """
  config = provenance.saved_config(run)
  section = table.from_json(settings.Lora, config.get("lora"))
  lora = adapters.make_lora(section)
  if lora is None:
    return restore_trained(run, decoder.base, step, left_out, learner)
  scores = decoder.config.scores and "score" not in left_out
  decoder = dataclasses.replace(
    decoder, lora=lora, config=dataclasses.replace(decoder.config, scores=scores)
  )
  trained = restore_trained(run, decoder, step, (), learner)
  source = began_with(config, learner)
  folder, unfinished = find_source(source)
  if unfinished or not storage.place(folder).is_dir():
    gone = "has gone on since" if unfinished else "is not there"
    raise CheckpointError(
      f"workdir={run}: its adapters stand on init_from={source!r}, which {gone}; put it back"
    )
  headless = ("score",) if scores and not read_shape(folder).scores else ()
  base = split(load(folder, decoder.base, headless, adapters.base_dtype(section, folder)))[0]
  step = checkpoint.latest(run) if step is None else step
  assert step is not None  # `restore_trained` has found the checkpoint
  about = checkpoint.about(run, step)
  owner = checkpoint.LEARNER if learner == REFERENCE else learner  # of the base
  adapters.check_base(base, about["extra"].get("references", {}).get(owner, {}), source)
  whole = jax.tree.map(lambda x: x.astype("float32"), decoder.merged(join(base, trained)))
  return parameters.without(whole, ("unembed",) if "score" in left_out else ())


def restore_trained(
  run: str,
  decoder: Decoder,
  step: int | None = None,
  left_out: Sequence[str] = (),
  learner: str = checkpoint.LEARNER,
) -> Tree:
  """Returns what a checkpoint holds of a learner: all parameters, or adapters and heads.

  Its arguments are those of `restore`.
  """
  wanted = parameters.without(parameters.abstract(decoder), left_out)
  wanted = wanted if decoder.lora is None else split(wanted)[1]
  return checkpoint.restore_params(run, {MODEL: wanted}, step, learner)[MODEL]


def learners(run: str, step: int) -> list[str]:
  """Returns the names of the learners in a checkpoint of a run."""
  return sorted({name.partition(".")[0] for name in checkpoint.about(run, step)["arrays"]})


def began_with(config: Json, learner: str) -> str:
  """Returns the folder or run that a learner started from, by its config; "" for fresh weights."""
  iterative = config.get("iterative") or {}
  start = iterative.get("reward_model") if learner == REWARD_MODEL else ""
  return start or config.get("init_from") or ""
