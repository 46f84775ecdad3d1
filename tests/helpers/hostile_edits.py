"""A small model folder that works, and edits of it: an edit is a function of the folder."""

import dataclasses
import functools
import json
import os
import pathlib
import struct
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from small_models import SMALL

from grpo_jax.models.hf import tensors
from grpo_jax.tokenizer import making

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
GENERATION, WEIGHTS, INDEX = (
  "generation_config.json",
  "model.safetensors",
  "model.safetensors.index.json",
)
DECODER = "decoder.json"
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}"
VOCAB = 128  # embeddings; the tokenizer has fewer tokens

Edit = Callable[[pathlib.Path], None]


class Case(NamedTuple):
  """A folder that is refused, and a piece of what is said of it."""

  edit: Edit
  says: str


def make_good(folder: pathlib.Path) -> None:
  """Writes a folder that works: Qwen3's form, a chat template, an index beside one file of weights."""
  import hf_test

  tokenizer = making.word_level(["one two three\n"])
  config = dataclasses.replace(SMALL["test_qwen3"], vocab=VOCAB)
  tensors.save(folder, config, hf_test.randomised(config), tokenizer=tokenizer)
  set_keys(TOKENIZER_CONFIG, chat_template=CHAT)(folder)
  names = hf_test.stored(folder)
  (folder / INDEX).write_text(
    json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, WEIGHTS)})
  )
  (folder / DECODER).write_text(json.dumps(dataclasses.asdict(config)))


@functools.cache
def good_files() -> dict[str, bytes]:
  """The files of the folder that works."""
  with tempfile.TemporaryDirectory() as parent:
    make_good(folder := pathlib.Path(parent) / "m")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# -- edits


NULL = object()


def copy_tensor(source: str, target: str) -> Edit:
  """Makes one tensor a copy of another."""

  def edit(folder: pathlib.Path) -> None:
    import hf_test

    hf_test.retensor(folder, **{target: hf_test.stored(folder)[source]})

  return edit


def set_keys(file: str, **changes: Any) -> Edit:
  """Changes keys of a JSON file; `a__b` is b in a, None removes one, NULL makes it null."""

  def edit(folder: pathlib.Path) -> None:
    top = json.loads((folder / file).read_text())
    for key, value in changes.items():
      *outer, last = key.split("__")
      inner = functools.reduce(lambda x, k: x[k], outer, top)
      inner[last] = None if value is NULL else value
      if value is None:
        del inner[last]
    (folder / file).write_text(json.dumps(top))

  return edit


def write(file: str, data: bytes | str) -> Edit:
  """Replaces a file."""
  return lambda folder: (
    (folder / file).write_bytes(data if isinstance(data, bytes) else data.encode()) and None
  )


def change(file: str, function: Callable[[bytes], bytes]) -> Edit:
  """Replaces a file by what a function makes of its bytes."""
  return lambda folder: (folder / file).write_bytes(function((folder / file).read_bytes())) and None


def insert(file: str, member: str) -> Edit:
  """Puts a member into a JSON object, as text that `json.dumps` would not write."""
  return change(file, lambda data: b"{" + member.encode() + b", " + data.lstrip()[1:])


def grow(file: str, size: int) -> Edit:
  """Makes a file as large as that, without using the disk."""
  return lambda folder: os.truncate(folder / file, size)


def link(file: str, target: str) -> Edit:
  """Puts a link in a file's place; a target that is not there yet gets what the file had."""

  def edit(folder: pathlib.Path) -> None:
    content = (folder / file).read_bytes()
    (folder / file).unlink()
    if not os.path.lexists(goal := folder / target) and not target.startswith("/"):
      goal.write_bytes(content)
    (folder / file).symlink_to(target)

  return edit


def make_folder(file: str) -> Edit:
  """Puts a folder in a file's place."""

  def edit(folder: pathlib.Path) -> None:
    (folder / file).unlink()
    (folder / file).mkdir()

  return edit


def make_pipe(file: str) -> Edit:
  """Puts a named pipe in a file's place: who reads it waits for ever."""

  def edit(folder: pathlib.Path) -> None:
    (folder / file).unlink()
    os.mkfifo(folder / file)

  return edit


def in_header(function: Callable[[dict], None]) -> Edit:
  """Changes the header of the weights, and leaves the bytes behind it."""

  def edit(data: bytes) -> bytes:
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    function(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]

  return change(WEIGHTS, edit)


def header(text: str, length: int | None = None) -> Edit:
  """Weights of that header alone."""
  return write(
    WEIGHTS, struct.pack("<Q", len(text.encode()) if length is None else length) + text.encode()
  )


def weight(name: str, function: Callable[[np.ndarray], np.ndarray] | None) -> Edit:
  """Changes one tensor; None removes it."""

  def edit(folder: pathlib.Path) -> None:
    import hf_test

    content = hf_test.stored(folder)
    found = content.pop(name, np.zeros(3, np.float32))
    if function:
      content[name] = np.ascontiguousarray(function(found))
    hf_test.safetensors.numpy.save_file(content, str(folder / WEIGHTS))

  return edit


def with_value(value: float, dtype: str = "float32") -> Callable[[np.ndarray], np.ndarray]:
  """Puts one number into a tensor."""

  def put(x: np.ndarray) -> np.ndarray:
    x = x.astype(dtype)
    x.flat[x.size // 2] = value
    return x

  return put


def several(*edits: Edit) -> Edit:
  """One edit after another."""
  return lambda folder: [edit(folder) for edit in edits] and None


def remove(file: str) -> Edit:
  """Removes a file."""
  return lambda folder: (folder / file).unlink()


def snapshot(folder: pathlib.Path) -> None:
  """Makes the folder one of the Hugging Face hub's cache: links from snapshots/REVISION to blobs."""
  cache = folder.parent / "models--org--name"
  (cache / "blobs").mkdir(parents=True)
  (cache / "snapshots" / "1a2b").mkdir(parents=True)
  for i, file in enumerate(sorted(folder.iterdir())):
    file.rename(cache / "blobs" / f"{i:040x}")
    (cache / "snapshots" / "1a2b" / file.name).symlink_to(f"../../blobs/{i:040x}")
  folder.rmdir()
  folder.symlink_to(cache / "snapshots" / "1a2b")
