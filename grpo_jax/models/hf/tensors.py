"""Reads a Hugging Face folder's tensors as a decoder's parameters, and writes them.

One table of names (names.py) serves both ways. Our tree stacks the layers on a leading axis and
stores projections `[out, in]` as Hugging Face does, so that nothing is transposed. Reading touches
only the bytes that a device's shard needs; writing goes to a folder beside the target, which takes
the target's name when it is complete.

In the messages, `init_from` is the setting by which a person names the folder.
"""

import functools
import json
import math
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np

from grpo_jax.errors import DataError, SettingError
from grpo_jax.io import storage
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import headers
from grpo_jax.models.hf.config import GET, read_json, write_config
from grpo_jax.models.hf.families import FAMILIES
from grpo_jax.models.hf.files import Files, copies
from grpo_jax.models.hf.headers import INDEX, SINGLE, plain
from grpo_jax.models.hf.names import (
  COMPUTED,
  EMBEDDING,
  HEAD,
  Place,
  by_tensor,
  dotted,
  is_fused,
  places,
)
from grpo_jax.models.hf.writing import check_target, on_host, replacing, save_tensors
from grpo_jax.models.shape import DecoderConfig, Leaf, Params
from grpo_jax.sandbox import model_folder

_DTYPES = ("F32", "BF16", "F16")
# Keys of the base's config.json that do not hold for an export.
_NOT_KEPT = ["rope_scaling", "sliding_window", "transformers_version", "quantization_config"]
_NOT_KEPT += ["auto_map"]
_LAYER = re.compile(r"model\.layers\.([0-9]+)\.")


class Tensor(NamedTuple):
  """A tensor to write: the rows of its leaves, one after the other."""

  name: str
  leaves: list[Leaf]  # of our tree
  layer: int | None  # index into stacked leaves

  @property
  def shape(self) -> tuple[int, ...]:
    axis = 0 if self.layer is None else 1
    return (sum(leaf.shape[axis] for leaf in self.leaves), *self.leaves[0].shape[axis + 1 :])


class Saves(Protocol):
  """Lists the parts of a `grpo_jax.tokenizer.tokenizer.Tokenizer` that `save` needs."""

  eos_ids: tuple[int, ...]
  pad_id: int
  vocab_size: int
  text_size: int

  def save(self, folder: str | os.PathLike) -> None: ...


def check(folder: str | os.PathLike, shapes: Params) -> None:
  """Compares the folder's tensors with a tree of shapes, reading headers only."""
  _locate(storage.place(folder), shapes)


def load(
  folder: str | os.PathLike,
  decoder: Decoder,
  dtype: str = "float32",
  progress: storage.Progress | None = None,
  left_out: Sequence[str] = (),
) -> Params:
  """Returns the parameters of `decoder` in its shardings; each process reads only its own bytes.

  The files of a bucket are first copied to a temporary folder of this disk.

  Args:
    folder: of the weights.
    decoder: which needs the weights.
    dtype: of the parameters.
    progress: called after every tensor with the bytes that this process has read and will have
      read, and before that with those that it copies from a bucket.
    left_out: parts of the tree that are not loaded.
  """
  trees = decoder.shapes(), decoder.shardings()
  shapes, shardings = (
    {name: part for name, part in tree.items() if name not in left_out} for tree in trees
  )
  path = storage.place(folder)
  numbers = sum(map(_count_numbers, jax.tree.leaves(shapes), jax.tree.leaves(shardings)))
  total = numbers * np.dtype(dtype).itemsize
  where = _locate(path, shapes)
  has_copy = decoder.config.tied and not decoder.config.scores and HEAD in where
  with tempfile.TemporaryDirectory(prefix="grpo_jax_") as temporary:
    here = copies(path, set(where.values()), pathlib.Path(temporary), progress)
    files = Files(path, {name: here[file] for name, file in where.items()}, dtype, total, progress)
    if has_copy and not files.same(EMBEDDING, HEAD):
      raise DataError(
        f"init_from={path}: {HEAD} is another matrix than {EMBEDDING}, though config.json has "
        "tie_word_embeddings=true; tie_word_embeddings=false would work"
      )
    load_leaf = functools.partial(_load_leaf, files, places(shapes, is_fused(where)))
    return jax.tree_util.tree_map_with_path(load_leaf, shapes, shardings)


def _count_numbers(shape: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> int:
  """Returns how many numbers of a leaf this process reads: each of its shards once."""
  shards = {str(index) for index in sharding.addressable_devices_indices_map(shape.shape).values()}
  return len(shards) * math.prod(sharding.shard_shape(shape.shape))


def _load_leaf(
  files: Files,
  placed: dict[str, Place],
  tree_path: tuple,
  shape: jax.ShapeDtypeStruct,
  sharding: jax.sharding.Sharding,
) -> jax.Array:
  """Returns one leaf of our tree, in which each device's shard is read by itself."""
  read = functools.partial(_read_shard, files, placed[dotted(tree_path)], shape.shape[0], {})
  return jax.make_array_from_callback(shape.shape, sharding, read, dtype=files.dtype)


def _read_shard(
  files: Files, place: Place, layers: int, cache: dict[str, np.ndarray], index: tuple[slice, ...]
) -> np.ndarray:
  """Returns the slice `index` of a leaf, from `cache` if another device holds the same shard."""
  if str(index) not in cache:
    stacked = "{}" in place.name
    first, last, _ = index[stacked].indices(place.rows)
    rows = (slice(place.start + first, place.start + last), *index[1 + stacked :])
    if stacked:
      numbers = range(*index[0].indices(layers))
      cache[str(index)] = _stacked([place.name.format(i) for i in numbers], rows, files)
    else:
      cache[str(index)] = files.read(place.name, rows)
  return cache[str(index)]


def _stacked(names: list[str], rows: tuple[slice, ...], files: Files) -> np.ndarray:
  """Returns the rows of tensors, stacked as they are read, so that they are held once."""
  first = files.read(names[0], rows)
  stack = np.empty((len(names), *first.shape), first.dtype)
  stack[0] = first
  for i, name in enumerate(names[1:], 1):
    stack[i] = files.read(name, rows)
  return stack


def save(
  folder: str | os.PathLike,
  config: DecoderConfig,
  params: Params,
  *,
  tokenizer: Saves | None = None,
  dtype: str = "float32",
  base: str | os.PathLike | None = None,
  max_bytes: int = 5 * 1000**3,
  progress: Callable[[int], None] = lambda done: None,
) -> None:
  """Writes a Hugging Face folder; on several hosts each calls it and the first one writes.

  Args:
    folder: replaced as a whole if it holds an earlier model; at any moment but a rename it is
      complete or absent. In a bucket it is complete once it has a config.json.
    config: of the decoder that `params` belongs to.
    params: the tree in any shardings; one tensor at a time is gathered.
    tokenizer: saved along; config.json repeats its ids.
    dtype: of the file, float32 or bfloat16.
    base: the folder that the weights came from; unknown keys of its config.json are kept.
    max_bytes: size of a file; more tensors go to further files, with an index.
    progress: called after every tensor with the bytes that have been gathered.
  """
  if dtype not in ("float32", "bfloat16"):
    raise SettingError(f"dtype={dtype!r}: float32 or bfloat16 can be exported")
  if tokenizer is not None:
    check_tokenizer(tokenizer, config)
  target = check_target(folder, "config.json", "a model")
  # An unfinished run's folder has no config.json, and its shape file has nothing to keep.
  known = {}
  if base is not None and (storage.place(base) / "config.json").is_file():
    known = read_json(storage.place(base), "config.json")
  known = {key: value for key, value in known.items() if key not in _NOT_KEPT}
  top = write_config(config, known) | {"dtype": dtype, "torch_dtype": dtype}
  if tokenizer is not None:
    stops = list(tokenizer.eos_ids)
    # transformers reads the score at the last token that is not padding, for which it must not take
    # an end token. It does not open a model without an embedding for its padding either.
    unfit = tokenizer.pad_id >= config.vocab or (config.scores and tokenizer.pad_id in stops)
    top |= {"pad_token_id": None if unfit else tokenizer.pad_id}
    top |= {"eos_token_id": stops[0] if len(stops) == 1 else stops} if stops else {}

  with replacing(target, last="config.json") as part:
    written = list(_tensors(params, FAMILIES[top["model_type"]].fused))
    _write_tensors(part, written, dtype, max_bytes, progress)
    if part is not None:
      (part / "config.json").write_text(json.dumps(top, indent=2) + "\n")
      if tokenizer is not None:
        tokenizer.save(part)


def export_bytes(params: Params, dtype: str) -> int:
  """Returns the bytes of tensors that `save` writes, up to which it calls `progress`."""
  return sum(math.prod(x.shape) for x in jax.tree.leaves(params)) * np.dtype(dtype).itemsize


def check_tokenizer(tokenizer: Saves, config: DecoderConfig) -> None:
  """Refuses a tokenizer with ids for which the model has no embedding.

  Spare embeddings are usual. So are special tokens beyond them that no text becomes: Gemma 3's text
  models have those of its image models, and training may add padding. `build._render` refuses a
  template that has one.
  """
  hint = "pass the folder of the model's own with --config.tokenizer=DIR"
  if tokenizer.text_size > config.vocab:
    raise DataError(
      f"tokenizer: its ids reach {tokenizer.text_size - 1}, the model has {config.vocab} "
      f"embeddings; {hint}"
    )
  beyond = [i for i in tokenizer.eos_ids if i >= config.vocab]
  if tokenizer.pad_id >= max(tokenizer.vocab_size, config.vocab):
    beyond.append(tokenizer.pad_id)
  if beyond:
    raise DataError(
      f"tokenizer: its eos_token_id or pad_token_id {beyond[0]} is none of the model's "
      f"{config.vocab} embeddings; {hint}"
    )


def _tensors(tree: Params, fused: bool) -> Iterator[Tensor]:
  """Yields everything in the tree as it is in the file, the layers in order."""
  tensors = by_tensor(tree, fused)
  yield from (Tensor(name, leaves, None) for name, leaves in tensors.items() if "{}" not in name)
  stacks = {name: leaves for name, leaves in tensors.items() if "{}" in name}
  for i in range(next(iter(stacks.values()))[0].shape[0]):
    yield from (Tensor(name.format(i), leaves, i) for name, leaves in stacks.items())


def _locate(path: storage.Path, shapes: Params) -> dict[str, storage.Path]:
  """Returns the file of every needed tensor, and of the head if there is one, after checks."""
  if not path.is_dir():
    raise SettingError(f"init_from={str(path)!r}: no such folder; get weights with {GET}")
  where = headers.read_headers(path)
  if any(name.startswith("layers.") for name in where):
    raise DataError(
      f"init_from={path}: its tensors have no 'model.' before their names, as AutoModel saves "
      "them; save the model as AutoModelForCausalLM"
    )
  named = len({match[1] for match in map(_LAYER.match, where) if match})
  layers = jax.tree.leaves(shapes["layers"])[0].shape[0]
  if named != layers:  # checked before the number, which may be huge, makes names
    raise DataError(
      f"init_from={path}: config.json has num_hidden_layers={layers}, the weights have {named}; "
      "download both again"
    )
  wanted = {tensor.name: tensor.shape for tensor in _tensors(shapes, is_fused(where))}
  if missing := [name for name in wanted if name not in where]:
    raise DataError(
      f"init_from={path}: no tensor {_few(missing)} in the weights, which config.json asks for"
    )
  ignored = {name for name in where if name.endswith(COMPUTED)} | {HEAD}
  if extra := sorted(where.keys() - wanted.keys() - ignored):
    raise DataError(
      f"init_from={path}: unexpected tensor {_few(extra)}, which config.json does not mention"
    )
  for name, shape in wanted.items():
    file, stored, kind = where[name]
    if stored != tuple(shape):
      raise DataError(
        f"init_from={path}: {name} is {model_folder.shown(list(stored))} in {file.name}, "
        f"config.json asks {list(shape)}"
      )
    if kind not in _DTYPES:
      raise DataError(f"init_from={path}: {name} is {kind}; {', '.join(_DTYPES)} would work")
  return {name: where[name].file for name in wanted.keys() | ({HEAD} & where.keys())}


def _write_tensors(
  folder: storage.Path | None,
  written: Sequence[Tensor],
  dtype: str,
  max_bytes: int,
  progress: Callable[[int], None],
) -> None:
  """Writes safetensors into `folder`; with None it only takes part in gathering."""
  size = np.dtype(dtype).itemsize
  files: list[list[Tensor]] = [[]]
  room = max_bytes
  for tensor in written:
    cost = size * math.prod(tensor.shape)
    if cost > room and files[-1]:
      files.append([])
      room = max_bytes
    files[-1].append(tensor)
    room -= cost
  names = [f"model-{n + 1:05}-of-{len(files):05}.safetensors" for n in range(len(files))]
  names = [SINGLE] if len(files) == 1 else names
  total = 0
  for file, content in zip(names, files, strict=True):
    tensors = {}
    for tensor in content:
      whole = _whole(tensor, dtype)
      total += whole.nbytes
      if folder is not None:
        tensors[tensor.name] = whole
      progress(total)
    if folder is not None:
      save_tensors(folder / file, tensors)
  if folder is not None and len(files) > 1:
    weight_map = {
      tensor.name: file for file, content in zip(names, files, strict=True) for tensor in content
    }
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _whole(tensor: Tensor, dtype: str) -> np.ndarray:
  """Returns a tensor on the host, in the file's dtype."""
  parts = [on_host(leaf, tensor.layer, dtype) for leaf in tensor.leaves]
  return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _few(names: list[str]) -> str:
  """Returns the first of some names, and how many more there are."""
  return plain(names[0]) if len(names) == 1 else f"{plain(names[0])} (and {len(names) - 1} more)"
