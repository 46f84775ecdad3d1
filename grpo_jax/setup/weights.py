"""Loads the weights of a model's folder, and shows how far it is."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import rich.console
import rich.progress
import rich.text

from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import tensors
from grpo_jax.run import writer
from grpo_jax.run.console import printable


def load(
  folder: str, decoder: Decoder, left_out: Sequence[str] = (), dtype: str = "float32"
) -> Any:
  """The parameters in a Hugging Face folder, with a bar for those that take long; without some
  parts of the tree.
  """
  with reading(folder) as progress:
    return tensors.load(folder, decoder, dtype, progress=progress, left_out=left_out)


@contextlib.contextmanager
def reading(
  folder: str, console: rich.console.Console | None = None
) -> Iterator[Callable[[int, int], None]]:
  """Returns a function that shows how many bytes of some weights are read, of how many, while the
  block lasts.

  A terminal has a bar that goes when the block ends; elsewhere there is a line where it takes long.
  """
  if jax.process_index() != 0:
    yield lambda done, total: None
    return
  console = console or rich.console.Console()
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
        console.print(rich.text.Text(printable(line)), soft_wrap=True)
        last = time.perf_counter()

    yield show
