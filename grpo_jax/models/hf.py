"""A Hugging Face folder (config.json, model.safetensors) to a decoder's configuration and parameters, and back.

One table of names serves both ways. Our tree stacks the layers on a leading axis and stores projections `[out, in]`
as Hugging Face does: reading stacks, writing unstacks, nothing is transposed. Reading touches only the bytes that a
device's shard needs; writing goes to a folder beside the target that takes its name when it is complete.

`init_from` in the messages is the setting by which a person names the folder.
"""

import json
import math
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import jax
import ml_dtypes  # noqa: F401  numpy learns bfloat16 from it, before safetensors asks
import numpy as np
import safetensors
import safetensors.numpy

from grpo_jax.errors import SettingError
from grpo_jax.models.decoder import Decoder, DecoderConfig

Params = Any


class Family(NamedTuple):
  """What a `model_type` means: the flags of DecoderConfig, and what config.json leaves out."""

  architecture: str
  flags: dict[str, Any]
  defaults: dict[str, Any]
  keys: dict[str, Any]  # what transformers wants to read beside the common keys


FAMILIES = {
  "qwen3": Family(
    "Qwen3ForCausalLM", {"qk_norm": True}, {"head_dim": 128}, {"attention_bias": False, "use_sliding_window": False}
  ),
  "qwen2": Family("Qwen2ForCausalLM", {"attention_bias": True}, {}, {"use_sliding_window": False}),
  "llama": Family("LlamaForCausalLM", {}, {}, {"attention_bias": False, "mlp_bias": False}),
  "gemma": Family(
    "GemmaForCausalLM",
    {"norm_plus_one": True, "embed_scale": True, "activation": "gelu_tanh"},
    {"head_dim": 256, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
    {"attention_bias": False, "hidden_activation": "gelu_pytorch_tanh"},
  ),
}

# Ours -> config.json's, where the value is the same.
_KEYS = {
  "vocab": "vocab_size",
  "width": "hidden_size",
  "layers": "num_hidden_layers",
  "heads": "num_attention_heads",
  "mlp": "intermediate_size",
}

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")

_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

# Path in our tree -> tensor in the file; {} is the layer.
_NAMES = {
  "embed.weight": "model.embed_tokens.weight",
  "final_norm.scale": "model.norm.weight",
  "unembed.weight": "lm_head.weight",
  "layers.attention_norm.scale": "model.layers.{}.input_layernorm.weight",
  "layers.attention.q.weight": "model.layers.{}.self_attn.q_proj.weight",
  "layers.attention.q.bias": "model.layers.{}.self_attn.q_proj.bias",
  "layers.attention.k.weight": "model.layers.{}.self_attn.k_proj.weight",
  "layers.attention.k.bias": "model.layers.{}.self_attn.k_proj.bias",
  "layers.attention.v.weight": "model.layers.{}.self_attn.v_proj.weight",
  "layers.attention.v.bias": "model.layers.{}.self_attn.v_proj.bias",
  "layers.attention.o.weight": "model.layers.{}.self_attn.o_proj.weight",
  "layers.attention.q_norm.scale": "model.layers.{}.self_attn.q_norm.weight",
  "layers.attention.k_norm.scale": "model.layers.{}.self_attn.k_norm.weight",
  "layers.mlp_norm.scale": "model.layers.{}.post_attention_layernorm.weight",
  "layers.mlp.gate.weight": "model.layers.{}.mlp.gate_proj.weight",
  "layers.mlp.up.weight": "model.layers.{}.mlp.up_proj.weight",
  "layers.mlp.down.weight": "model.layers.{}.mlp.down_proj.weight",
}

# In files but not parameters of ours: computed, or (a tied lm_head) a copy of the embedding.
_IGNORED = ("rotary_emb.inv_freq",)

_DTYPES = {"F32": 4, "BF16": 2, "F16": 2}
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_GET = "`hf download Qwen/Qwen3-0.6B --local-dir=DIR`, then --config.init_from=DIR"


class Saves(Protocol):
  """What `save` asks of a tokenizer (`grpo_jax.tokenizer.reading.Tokenizer`)."""

  eos_ids: tuple[int, ...]
  pad_id: int
  vocab_size: int

  def save(self, folder: str | os.PathLike) -> None: ...


# -- config.json


def read_config(folder: str | os.PathLike) -> DecoderConfig:
  """The decoder of a Hugging Face folder.

  Raises:
    SettingError: no such folder or config.json, or a model that this decoder is not, by the name of what it lacks.
  """
  path = pathlib.Path(folder)
  if not path.is_dir():
    raise SettingError(f"init_from={str(folder)!r}: no such folder; get weights with {_GET}")
  raw = _read_json(path / "config.json")
  kind = raw.get("model_type")
  if kind not in FAMILIES:
    _refuse(path, f"model_type {kind!r}")
  family = FAMILIES[kind]
  raw = {**family.defaults, **{k: v for k, v in raw.items() if v is not None}}
  for key in _KEYS.values():
    if not isinstance(raw.get(key), int):
      raise SettingError(f"init_from={path}: config.json has no whole number {key!r}; download it again")
  _check_features(path, raw)
  act = raw.get("hidden_activation", raw.get("hidden_act", "silu"))
  flags = {"activation": "silu", **family.flags}
  if _ACTIVATIONS.get(act) != flags["activation"]:
    _refuse(path, f"hidden_act {act!r} in a {kind}")
  rope = _rope(raw)
  config = DecoderConfig(
    **{ours: raw[theirs] for ours, theirs in _KEYS.items()},
    kv_heads=raw.get("num_key_value_heads", raw["num_attention_heads"]),
    head_dim=raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"]),
    rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
    norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
    rope_scaling=_llama3(path, rope) if _scaling(rope) == "llama3" else None,
    tied=bool(raw.get("tie_word_embeddings", False)),
    **flags,
  )
  if config.heads % config.kv_heads:
    raise SettingError(f"init_from={path}: {config.heads} heads do not divide over {config.kv_heads} key/value heads")
  return config


def write_config(config: DecoderConfig, base: dict | None = None) -> dict:
  """config.json as transformers 4 and 5 read it; keys of `base` that a DecoderConfig does not decide are kept.

  Raises:
    SettingError: no family has these flags, so that no other program could run the model.
  """
  names = ("qk_norm", "attention_bias", "norm_plus_one", "embed_scale", "activation")
  wanted = {name: getattr(config, name) for name in names}
  off = dict.fromkeys(names, False) | {"activation": "silu"}
  kind = next((kind for kind, family in FAMILIES.items() if {**off, **family.flags} == wanted), None)
  if kind is None:
    raise SettingError(f"model: no Hugging Face family has {wanted}; those of {', '.join(FAMILIES)} can be exported")
  family = FAMILIES[kind]
  rope = {"rope_type": "default"}
  if config.rope_scaling:
    rope = {"rope_type": "llama3", **dict(zip(_LLAMA3, config.rope_scaling, strict=True))}
    rope["original_max_position_embeddings"] = int(rope["original_max_position_embeddings"])
  act = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation)
  return {
    "max_position_embeddings": 32768,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "use_cache": True,
    **(base or {}),
    "architectures": [family.architecture],
    "model_type": kind,
    **{theirs: getattr(config, ours) for ours, theirs in _KEYS.items()},
    "num_key_value_heads": config.kv_heads,
    "head_dim": config.head_dim,
    "hidden_act": act,
    "rms_norm_eps": config.norm_eps,
    "tie_word_embeddings": config.tied,
    "layer_types": ["full_attention"] * config.layers,
    "rope_theta": config.rope_theta,
    "rope_parameters": {**rope, "rope_theta": config.rope_theta},
    **({"rope_scaling": rope} if config.rope_scaling else {}),
    **family.keys,
  }


def _rope(raw: dict) -> dict:
  """Rotary settings, from transformers 5's `rope_parameters` or the older `rope_scaling`."""
  rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
  return rope.get("full_attention", rope)


def _scaling(rope: dict) -> str:
  return rope.get("rope_type", rope.get("type")) or "default"


def _llama3(path: pathlib.Path, rope: dict) -> tuple[float, ...]:
  """The arguments of `layers.long_context`."""
  if missing := [key for key in _LLAMA3 if key not in rope]:
    raise SettingError(f"init_from={path}: config.json has rope scaling 'llama3' without {missing[0]!r}")
  return tuple(float(rope[key]) for key in _LLAMA3)


def _check_features(path: pathlib.Path, raw: dict) -> None:
  """Refuses by name what the decoder would silently compute otherwise."""
  rope = _rope(raw)
  if _scaling(rope) not in ("default", "llama3"):
    _refuse(path, f"rope scaling {_scaling(rope)!r}")
  if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
    _refuse(path, "partial_rotary_factor")
  kinds = set(raw.get("layer_types") or ()) - {"full_attention"}
  if kinds:
    _refuse(path, f"layer_types {sorted(kinds)}")
  if "layer_types" not in raw and raw.get("use_sliding_window"):
    _refuse(path, "use_sliding_window")
  for key in ("attention_bias", "mlp_bias", "num_experts", "num_local_experts", "quantization_config"):
    if raw.get(key):
      _refuse(path, key)


def _refuse(path: pathlib.Path, feature: str) -> None:
  able = "dense " + ", ".join(FAMILIES) + " without sliding windows, experts or quantization"
  raise SettingError(f"init_from={path}: {feature} is not supported; {able} would work")


# -- safetensors


def check(folder: str | os.PathLike, shapes: Params) -> None:
  """Compares the folder's tensors with a tree of shapes, reading headers only.

  Raises:
    SettingError: a missing, unexpected, misshapen or quantized tensor, or a file that is missing or corrupt.
  """
  _locate(pathlib.Path(folder), shapes)


def load(folder: str | os.PathLike, decoder: Decoder, dtype: str = "float32") -> Params:
  """The parameters of `decoder`, read straight into its shardings; each device's shard reads its own bytes only.

  Raises:
    SettingError: see `check`.
  """
  path = pathlib.Path(folder)
  shapes = decoder.shapes()
  files = _locate(path, shapes)
  opened: dict[pathlib.Path, Any] = {}

  def tensor(name: str, index: tuple[slice, ...]) -> np.ndarray:
    file = files[name]
    if file not in opened:
      opened[file] = safetensors.safe_open(str(file), framework="np")
    return opened[file].get_slice(name)[index].astype(dtype)

  def leaf(tree_path: tuple, shape: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.Array:
    name, stacked = _name(tree_path)
    made: dict[str, np.ndarray] = {}  # devices that hold the same shard share one reading

    def shard(index: tuple[slice, ...]) -> np.ndarray:
      if str(index) not in made:
        layers = range(*index[0].indices(shape.shape[0])) if stacked else ()
        parts = [tensor(name.format(i), index[1:]) for i in layers]
        made[str(index)] = np.stack(parts) if stacked else tensor(name, index)
      return made[str(index)]

    return jax.make_array_from_callback(shape.shape, sharding, shard, dtype=np.dtype(dtype))

  return jax.tree_util.tree_map_with_path(leaf, shapes, decoder.shardings())


def save(
  folder: str | os.PathLike,
  config: DecoderConfig,
  params: Params,
  *,
  tokenizer: Saves | None = None,
  dtype: str = "float32",
  base: str | os.PathLike | None = None,
  max_bytes: int = 5 * 1000**3,
) -> None:
  """Write a Hugging Face folder; on several hosts each calls it and the first one writes.

  Args:
    folder: replaced as a whole if it holds an earlier model; complete or absent at any moment but a rename.
    config: of the decoder that `params` belongs to.
    params: the tree, sharded in any way; one tensor at a time is gathered.
    tokenizer: saved along, and asked for the ids that config.json repeats.
    dtype: of the file, float32 or bfloat16.
    base: the folder that the weights came from: keys of its config.json that we do not know are kept.
    max_bytes: tensors beyond it go to further files, with an index.

  Raises:
    SettingError: the tokenizer does not fit the model, or the disk does not take the files.
  """
  if dtype not in ("float32", "bfloat16"):
    raise SettingError(f"dtype={dtype!r}: float32 or bfloat16 can be exported")
  if tokenizer is not None:
    check_tokenizer(tokenizer, config)
  target = pathlib.Path(folder).absolute()
  if target.exists() and not (target / "config.json").is_file() and (target.is_file() or any(target.iterdir())):
    raise SettingError(f"export: {target} holds something else than a model; an empty or new folder would work")
  known = _read_json(pathlib.Path(base) / "config.json") if base and pathlib.Path(base).is_dir() else {}
  for key in ("rope_scaling", "sliding_window", "transformers_version", "quantization_config"):
    known.pop(key, None)
  top = write_config(config, known) | {"dtype": dtype, "torch_dtype": dtype}
  if tokenizer is not None:
    stops = list(tokenizer.eos_ids)
    top |= {"pad_token_id": tokenizer.pad_id}
    top |= {"eos_token_id": stops[0] if len(stops) == 1 else stops} if stops else {}

  writer = jax.process_index() == 0
  part = target.with_name(f".{target.name}.part")
  try:
    if writer:
      shutil.rmtree(part, ignore_errors=True)
      part.mkdir(parents=True)
    _write_tensors(part if writer else None, params, dtype, max_bytes)
    if writer:
      (part / "config.json").write_text(json.dumps(top, indent=2) + "\n", encoding="utf-8")
      if tokenizer is not None:
        tokenizer.save(part)
      _replace(part, target)
  except (OSError, safetensors.SafetensorError) as error:
    shutil.rmtree(part, ignore_errors=True)
    raise SettingError(f"export: {target} cannot be written ({_line(error)}); what was there is untouched") from error


def check_tokenizer(tokenizer: Saves, config: DecoderConfig) -> None:
  """Refuses a tokenizer with ids that the model has no row for; spare rows in the model are usual."""
  if tokenizer.vocab_size > config.vocab:
    raise SettingError(
      f"tokenizer: its ids reach {tokenizer.vocab_size - 1}, the model has {config.vocab} rows;"
      " pass the folder of the model's own with --config.tokenizer=DIR"
    )


def _name(path: tuple) -> tuple[str, bool]:
  """The name in the file of a leaf of our tree (with {} for the layer), and whether it is stacked."""
  name = _NAMES[".".join(p.key for p in path)]
  return name, "{}" in name


def _tensors(tree: Params) -> Iterator[tuple[str, Any, int | None]]:
  """(name in the file, leaf, its layer or None) of everything in the tree, the layers in order."""
  leaves = [(*_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
  yield from ((name, leaf, None) for name, stacked, leaf in leaves if not stacked)
  stacks = [(name, leaf) for name, stacked, leaf in leaves if stacked]
  for i in range(stacks[0][1].shape[0]):
    yield from ((name.format(i), leaf, i) for name, leaf in stacks)


def _locate(path: pathlib.Path, shapes: Params) -> dict[str, pathlib.Path]:
  """The file of every tensor that `shapes` needs, all names, shapes and dtypes checked against the headers."""
  if not path.is_dir():
    raise SettingError(f"init_from={str(path)!r}: no such folder; get weights with {_GET}")
  if (path / _INDEX).is_file():
    files = sorted({path / str(name) for name in _read_json(path / _INDEX).get("weight_map", {}).values()})
  else:
    files = [path / _SINGLE]
  where: dict[str, tuple[pathlib.Path, tuple[int, ...], str]] = {}
  for file in files:
    if not file.is_file():
      raise SettingError(f"init_from={path}: no weights: {file.name} is missing; get them with {_GET}")
    try:
      with safetensors.safe_open(str(file), framework="np") as f:
        for name in f.keys():  # noqa: SIM118  not a dict
          view = f.get_slice(name)
          where[name] = (file, tuple(view.get_shape()), view.get_dtype())
    except (safetensors.SafetensorError, OSError) as error:
      raise SettingError(f"init_from={path}: {file.name} is corrupt ({_line(error)}); download it again") from error

  wanted = {name: leaf.shape if i is None else leaf.shape[1:] for name, leaf, i in _tensors(shapes)}
  if missing := [name for name in wanted if name not in where]:
    raise SettingError(f"init_from={path}: no tensor {_few(missing)} in the weights, which config.json asks for")
  ignored = lambda name: name.endswith(_IGNORED) or name == _NAMES["unembed.weight"]
  if extra := [name for name in sorted(where) if name not in wanted and not ignored(name)]:
    raise SettingError(f"init_from={path}: unexpected tensor {_few(extra)}, which config.json does not speak of")
  for name, shape in wanted.items():
    file, found, kind = where[name]
    if found != tuple(shape):
      raise SettingError(f"init_from={path}: {name} is {list(found)} in {file.name}, config.json asks {list(shape)}")
    if kind not in _DTYPES:
      raise SettingError(f"init_from={path}: {name} is {kind}; {', '.join(_DTYPES)} would work")
  return {name: where[name][0] for name in wanted}


def _write_tensors(folder: pathlib.Path | None, params: Params, dtype: str, max_bytes: int) -> None:
  """Safetensors in `folder`; with None takes part in gathering only."""
  size = np.dtype(dtype).itemsize
  files: list[list[tuple[str, Any, int | None]]] = [[]]
  room = max_bytes
  for name, leaf, i in _tensors(params):
    cost = size * math.prod(leaf.shape if i is None else leaf.shape[1:])
    if cost > room and files[-1]:
      files.append([])
      room = max_bytes
    files[-1].append((name, leaf, i))
    room -= cost
  names = (
    [_SINGLE] if len(files) == 1 else [f"model-{n + 1:05}-of-{len(files):05}.safetensors" for n in range(len(files))]
  )
  total = 0
  for file, content in zip(names, files, strict=True):
    tensors = {name: _gather(leaf, i, dtype) for name, leaf, i in content}
    total += sum(t.nbytes for t in tensors.values())
    if folder is not None:
      safetensors.numpy.save_file(tensors, str(folder / file), metadata={"format": "pt"})
      (folder / file).chmod(folder.stat().st_mode & 0o666)  # safetensors keeps its files to their owner
  if folder is not None and len(files) > 1:
    index = {
      "metadata": {"total_size": total},
      "weight_map": {name: file for file, content in zip(names, files, strict=True) for name, _, _ in content},
    }
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _gather(leaf: Any, layer: int | None, dtype: str) -> np.ndarray:
  """One tensor on the host, whole, in the file's dtype."""

  def piece(x: Any) -> Any:
    return (x if layer is None else x[layer]).astype(dtype)

  if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
    everywhere = jax.sharding.NamedSharding(leaf.sharding.mesh, jax.sharding.PartitionSpec())
    whole = jax.jit(piece, out_shardings=everywhere)(leaf)
    return np.ascontiguousarray(whole.addressable_data(0))
  return np.ascontiguousarray(piece(leaf))


def _replace(part: pathlib.Path, target: pathlib.Path) -> None:
  """`part` becomes `target`; a folder that was there goes last."""
  old = target.with_name(f".{target.name}.old")
  shutil.rmtree(old, ignore_errors=True)
  if target.exists():
    target.rename(old)
  try:
    part.rename(target)
  except OSError:
    if old.exists():
      old.rename(target)
    raise
  shutil.rmtree(old, ignore_errors=True)


def _read_json(path: pathlib.Path) -> dict:
  if not path.is_file():
    raise SettingError(f"init_from={path.parent}: no {path.name}; get a Hugging Face folder with {_GET}")
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise SettingError(
      f"init_from={path.parent}: {path.name} is not JSON ({_line(error)}); download it again"
    ) from error


def _few(names: list[str]) -> str:
  return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


def _line(error: Exception) -> str:
  return str(error).split("\n")[0][:200]
