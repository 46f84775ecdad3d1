"""What a Hugging Face folder's safetensors files hold, by their headers: no weights are read here.

`init_from` in the messages is the setting by which a person names the folder.
"""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import ml_dtypes  # noqa: F401  numpy learns bfloat16 from it, before safetensors asks
import safetensors

from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.models.hf.config import GET, read_json
from grpo_jax.sandbox import model_folder

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADER_BYTES = 10 * 1000**2  # of a file; a tensor takes about a hundred
_PICKLES = (
  b"PK\x03\x04",
  b"\x80\x02",
  b"\x80\x03",
  b"\x80\x04",
  b"\x80\x05",
)  # how those of torch.save begin


class Tensor(NamedTuple):
  """A tensor in a file, by its header."""

  file: storage.Path
  shape: tuple[int, ...]
  dtype: str


def read_headers(path: storage.Path) -> dict[str, Tensor]:
  """Returns all tensors of a folder by their names, from model.safetensors or the files that the
  index names.

  Raises:
    SettingError: a file that is missing, corrupt, a pickle or elsewhere, an index that is wrong.
  """
  found: dict[str, Tensor] = {}
  for name in _files(path):
    file = model_folder.find(f"init_from={path}", path, name)
    if file is None:
      pickles = [
        n for n in ("pytorch_model.bin", "pytorch_model.bin.index.json") if (path / n).exists()
      ]
      beside = (
        f"; {pickles[0]} is a pickle, which could run anything and is not read" if pickles else ""
      )
      raise SettingError(
        f"init_from={path}: no weights: {name} is missing{beside}; get them with {GET}"
      )
    for tensor, what in _read_header(path, name, file).items():
      if tensor in found:
        raise SettingError(
          f"init_from={path}: {name} has the tensor {plain(tensor)}, which another file has, too; "
          "download it again"
        )
      found[tensor] = what
  return found


def plain(name: str) -> str:
  """Returns the name of a tensor as a message shows it."""
  return name if name.isprintable() and len(name) <= 120 else model_folder.shown(name)


def _files(path: storage.Path) -> list[str]:
  """Returns the names of the files with the weights, all of them directly in the folder.

  An index that does not name model.safetensors, where that is there, is left over from an earlier
  export.
  """
  if model_folder.find(f"init_from={path}", path, INDEX) is None:
    return [SINGLE]
  index = read_json(path, INDEX, model_folder.INDEX_BYTES)
  model_folder.check(f"init_from={path}", INDEX, index, {"weight_map": model_folder.NAMES})
  names = sorted(set((index.get("weight_map") or {}).values()))
  for name in names:
    if (
      not name.endswith(".safetensors") or not name.isprintable() or "/" in name or len(name) > 200
    ):
      raise SettingError(
        f"init_from={path}: {INDEX} names the file {model_folder.shown(name)}; safetensors files "
        "beside it would work"
      )
  if not names:
    raise SettingError(
      f"init_from={path}: {INDEX} names no file in its weight_map; download it again"
    )
  if SINGLE not in names and model_folder.find(f"init_from={path}", path, SINGLE) is not None:
    return [SINGLE]
  return names


def _read_header(path: storage.Path, name: str, file: storage.Path) -> dict[str, Tensor]:
  """Returns the tensors of one file."""
  try:
    start = storage.start(file, 8)
    if start.startswith(_PICKLES):
      raise SettingError(
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
  except SettingError:
    raise
  except (safetensors.SafetensorError, OSError, ValueError) as error:
    raise SettingError(
      f"init_from={path}: {name} is corrupt ({model_folder.first_line(error)}); download it again"
    ) from error


@contextlib.contextmanager
def _with_header(file: storage.Path, length: int) -> Iterator[pathlib.Path]:
  """Gives a file of this disk with the first `length` bytes; of one in a bucket, the rest is a hole
  of its size.
  """
  if not storage.in_bucket(file):
    yield pathlib.Path(file)
    return
  with tempfile.TemporaryDirectory() as folder:
    copy = pathlib.Path(folder) / file.name
    copy.write_bytes(storage.start(file, length))
    os.truncate(copy, storage.size(file))
    yield copy
