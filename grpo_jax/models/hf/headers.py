"""Reads the headers of a Hugging Face folder's safetensors files, and no weights.

In the messages, `init_from` is the setting by which a person names the folder.
"""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import ml_dtypes  # noqa: F401  teaches numpy bfloat16, which safetensors needs
import safetensors

from grpo_jax.errors import DataError, GrpoError
from grpo_jax.io import storage
from grpo_jax.models.hf.config import GET, read_json
from grpo_jax.sandbox import model_folder

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADER_BYTES = 10 * 1000**2  # largest header of a file; a tensor takes about a hundred bytes
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # first bytes


class Tensor(NamedTuple):
  """A tensor in a file, as its header describes it."""

  file: storage.Path
  shape: tuple[int, ...]
  dtype: str


def read_headers(path: storage.Path) -> dict[str, Tensor]:
  """Returns all tensors of a folder by their names."""
  tensors: dict[str, Tensor] = {}
  for name in _files(path):
    file = model_folder.find(f"init_from={path}", path, name)
    if file is None:
      pickles = [f"pytorch_model.bin{end}" for end in ("", ".index.json")]
      pickles = [pickle for pickle in pickles if (path / pickle).exists()]
      hint = "; {} is a pickle, which could run anything and is not read"
      hint = hint.format(pickles[0]) if pickles else ""
      raise DataError(f"init_from={path}: no weights: {name} is missing{hint}; get them with {GET}")
    for tensor, header in _read_header(path, name, file).items():
      if tensor in tensors:
        raise DataError(
          f"init_from={path}: {name} has the tensor {plain(tensor)}, which another file has, too; "
          "download it again"
        )
      tensors[tensor] = header
  return tensors


def plain(name: str) -> str:
  """Returns the name of a tensor as a message shows it."""
  return name if name.isprintable() and len(name) <= 120 else model_folder.shown(name)


def _files(path: storage.Path) -> list[str]:
  """Returns the names of the files with the weights, all of them directly in the folder.

  An index that does not name an existing model.safetensors is left over from an earlier export.
  """
  if model_folder.find(f"init_from={path}", path, INDEX) is None:
    return [SINGLE]
  index = read_json(path, INDEX, model_folder.INDEX_BYTES)
  model_folder.check(f"init_from={path}", INDEX, index, {"weight_map": model_folder.NAMES})
  names = sorted(set((index.get("weight_map") or {}).values()))
  for name in names:
    readable = name.isprintable() and "/" not in name and len(name) <= 200
    if not readable or not name.endswith(".safetensors"):
      raise DataError(
        f"init_from={path}: {INDEX} names the file {model_folder.shown(name)}; safetensors files "
        "beside it would work"
      )
  if not names:
    raise DataError(f"init_from={path}: {INDEX} names no file in its weight_map; download it again")
  if SINGLE not in names and model_folder.find(f"init_from={path}", path, SINGLE) is not None:
    return [SINGLE]
  return names


def _read_header(path: storage.Path, name: str, file: storage.Path) -> dict[str, Tensor]:
  """Returns the tensors of one file."""
  try:
    start = storage.start(file, 8)
    if start.startswith(_PICKLES):
      raise DataError(
        f"init_from={path}: {name} is a pickle, which could run anything and is not read; download "
        "a safetensors file"
      )
    if (size := int.from_bytes(start, "little")) > HEADER_BYTES:
      raise ValueError(f"its header would have {size} bytes, at most {HEADER_BYTES} are read")
    with (
      _with_header(file, 8 + size) as copy,
      safetensors.safe_open(str(copy), framework="np") as f,
    ):
      views = {tensor: f.get_slice(tensor) for tensor in f.keys()}  # noqa: SIM118  not a dict
      return {
        tensor: Tensor(file, tuple(v.get_shape()), v.get_dtype()) for tensor, v in views.items()
      }
  except GrpoError:
    raise
  except (safetensors.SafetensorError, OSError, ValueError) as error:
    raise DataError(
      f"init_from={path}: {name} is corrupt ({model_folder.first_line(error)}); download it again"
    ) from error


@contextlib.contextmanager
def _with_header(file: storage.Path, length: int) -> Iterator[pathlib.Path]:
  """Yields a local file with the first `length` bytes of a file; the rest may be a hole."""
  if not storage.in_bucket(file):
    yield pathlib.Path(file)
    return
  with tempfile.TemporaryDirectory() as folder:
    copy = pathlib.Path(folder) / file.name
    copy.write_bytes(storage.start(file, length))
    os.truncate(copy, storage.size(file))
    yield copy
