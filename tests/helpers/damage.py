"""Kinds of damage to the files of a checkpoint, each a function of the file."""

import functools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator

import numpy as np


def delete(file: pathlib.Path) -> None:
  """Removes the file."""
  file.unlink()


def truncate(file: pathlib.Path) -> None:
  """Leaves the first half."""
  os.truncate(file, file.stat().st_size // 2)


def empty(file: pathlib.Path) -> None:
  """Leaves nothing of it."""
  os.truncate(file, 0)


def flip(file: pathlib.Path, seed: int = 0) -> None:
  """Changes one byte."""
  content = bytearray(file.read_bytes())
  if content:
    place = int(np.random.default_rng(seed).integers(len(content)))
    content[place] ^= 0x5A
    file.write_bytes(content)


def garbage(file: pathlib.Path) -> None:
  """Puts noise of the same length in its place."""
  noise = np.random.default_rng(7).integers(0, 256, max(1, file.stat().st_size), np.uint8)
  file.write_bytes(noise.tobytes())


def exchange(name: pathlib.Path, other: pathlib.Path, file: pathlib.Path) -> None:
  """Puts the file `name` of another checkpoint there, or the first in the same folder of it."""
  twin = other / name
  shutil.copyfile(
    twin if twin.exists() else min(p for p in twin.parent.iterdir() if p.is_file()), file
  )


def files(checkpoint: pathlib.Path) -> list[pathlib.Path]:
  """Every file of a checkpoint, by its name."""
  return sorted(path for path in checkpoint.rglob("*") if path.is_file())


KINDS = {f.__name__: f for f in (delete, truncate, empty, flip, garbage)}


def cases(
  checkpoint: pathlib.Path, other: pathlib.Path
) -> Iterator[tuple[str, pathlib.Path, Callable]]:
  """Yields (kind, file, function of a file that does it) of every kind of damage to every file.

  Args:
    checkpoint: a folder.
    other: another checkpoint of the same run, for files that are exchanged.
  """
  for file in files(checkpoint):
    yield from ((name, file, kind) for name, kind in KINDS.items())
    yield "exchange", file, functools.partial(exchange, file.relative_to(checkpoint), other)
