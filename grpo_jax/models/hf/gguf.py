"""Maps the metadata and tensors of a GGUF file to those of a Hugging Face folder.

llama.cpp stores the sizes of a model under names of its own, and some weights changed: Gemma's
norms with 1 added, and the rows of Llama's queries and keys in the order in which a head's rotated
pairs lie side by side. This module undoes both. It needs no library that reads the file.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.models import layers, limits
from grpo_jax.models.hf import names
from grpo_jax.models.hf.families import FAMILIES, Family
from grpo_jax.models.shape import DecoderConfig, Params
from grpo_jax.sandbox import model_folder


class Architecture(NamedTuple):
  """Describes how llama.cpp stores a family (`general.architecture`)."""

  model_type: str
  permuted: bool = False  # rows of queries and keys: the pairs of a head side by side
  plus_one: bool = False  # norms have 1 added


ARCHITECTURES = {
  "llama": Architecture("llama", permuted=True),
  "qwen2": Architecture("qwen2"),
  "qwen3": Architecture("qwen3"),
  "gemma": Architecture("gemma", plus_one=True),
  "gemma2": Architecture("gemma2", plus_one=True),
  "gemma3": Architecture("gemma3_text", plus_one=True),
  "olmo2": Architecture("olmo2"),
  "smollm3": Architecture("smollm3", permuted=True),
  "phi3": Architecture("phi3"),
}

# Keys behind "ARCHITECTURE." -> keys of config.json.
_KEYS = {
  "context_length": "max_position_embeddings",
  "embedding_length": "hidden_size",
  "block_count": "num_hidden_layers",
  "feed_forward_length": "intermediate_size",
  "attention.head_count": "num_attention_heads",
  "attention.head_count_kv": "num_key_value_heads",
  "attention.key_length": "head_dim",
  "attention.layer_norm_rms_epsilon": "rms_norm_eps",
  "attention.sliding_window": "sliding_window",
  "attention.sliding_window_pattern": "sliding_window_pattern",
  "rope.freq_base": "rope_theta",
  "rope.freq_base_swa": "rope_local_base_freq",
  "attn_logit_softcapping": "attn_logit_softcapping",
  "final_logit_softcapping": "final_logit_softcapping",
}
# Keys that are compared with what they must agree with, or describe nothing of the model.
_CHECKED = ("attention.value_length", "rope.dimension_count", "vocab_size")
_SCALING = ("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length")
_WINDOW = "attention.sliding_window"
_OF_SOME = {"sliding_window", "sliding_window_pattern", "rope_local_base_freq"}
_OF_SOME |= {"attn_logit_softcapping", "final_logit_softcapping"}
_NEEDED = (*list(_KEYS)[:5], "attention.layer_norm_rms_epsilon")

# Layers by which llama.cpp recognizes the models whose query scale is not that of a head's size.
_SCALE_OF_WIDTH = {("gemma2", 46), ("gemma3", 62)}

_TENSORS = {
  "token_embd": "model.embed_tokens",
  "output_norm": "model.norm",
  "output": "lm_head",
  "attn_norm": "input_layernorm",
  "attn_q": "self_attn.q_proj",
  "attn_k": "self_attn.k_proj",
  "attn_v": "self_attn.v_proj",
  "attn_output": "self_attn.o_proj",
  "attn_qkv": "self_attn.qkv_proj",
  "attn_q_norm": "self_attn.q_norm",
  "attn_k_norm": "self_attn.k_norm",
  "ffn_norm": "post_attention_layernorm",
  "ffn_gate": "mlp.gate_proj",
  "ffn_up": "mlp.up_proj",
  "ffn_down": "mlp.down_proj",
}
_POST_NORMS = {
  "post_attention_norm": "post_attention_layernorm",
  "ffn_norm": "pre_feedforward_layernorm",
  "post_ffw_norm": "post_feedforward_layernorm",
}
_BLOCK = re.compile(r"blk\.([0-9]{1,5})\.(.+)")
EMBEDDING, HEAD, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
_LLAMA3 = (1.0, 4.0, 8192.0)  # low and high factor, original context: the file does not say them


def architecture(where: str, metadata: Mapping[str, Any]) -> Architecture:
  """Returns how the file's family is stored; `where` names the file in messages."""
  name = metadata.get("general.architecture")
  if name not in ARCHITECTURES:
    able = ", ".join(ARCHITECTURES)
    raise SettingError(
      f"{where}: general.architecture {model_folder.shown(name)} is not supported; {able} would "
      "work"
    )
  return ARCHITECTURES[name]


def make_config(
  where: str,
  metadata: Mapping[str, Any],
  shapes: Mapping[str, Sequence[int]],
  rope_factors: np.ndarray | None = None,
) -> dict[str, Any]:
  """Returns config.json with the keys that the file's metadata speaks of.

  Args:
    where: names the file in messages.
    metadata: numbers and texts by their keys.
    shapes: of the tensors by their names in the file, rows first.
    rope_factors: `[head_dim / 2]`, the tensor rope_freqs.weight if there is one.
  """
  family, prefix = architecture(where, metadata), f"{metadata['general.architecture']}."
  values = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
  if unknown := sorted(values.keys() - _known(FAMILIES[family.model_type])):
    raise SettingError(
      f"{where}: {prefix}{unknown[0]}={model_folder.shown(values[unknown[0]])} is not supported; a "
      "dense model without that key would work"
    )
  if missing := [key for key in _NEEDED if key not in values]:
    raise SettingError(f"{where}: has no {prefix}{missing[0]}; convert the model again")
  if EMBEDDING not in shapes:
    raise SettingError(f"{where}: has no tensor {EMBEDDING}; a whole model would work")
  config = {theirs: values[ours] for ours, theirs in _KEYS.items() if ours in values}
  if config.get("sliding_window") == 0:  # of Phi-4, which has none
    del config["sliding_window"]
  model_folder.check(where, "its metadata", config, limits.CONFIG)
  config.setdefault("head_dim", values.get("rope.dimension_count"))
  if config["head_dim"] is None:
    config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
  for key in _CHECKED[:2]:
    if values.get(key, config["head_dim"]) != config["head_dim"]:
      raise SettingError(
        f"{where}: {prefix}{key}={values[key]} with heads of {config['head_dim']} numbers is not "
        "supported; the same number would work"
      )
  if (prefix[:-1], config["num_hidden_layers"]) in _SCALE_OF_WIDTH:
    config["query_pre_attn_scalar"] = config["hidden_size"] // config["num_attention_heads"]
  elif "query_pre_attn_scalar" in FAMILIES[family.model_type].reads:
    config["query_pre_attn_scalar"] = config["head_dim"]
  return config | {
    "model_type": family.model_type,
    "architectures": [FAMILIES[family.model_type].architecture],
    "vocab_size": shapes[EMBEDDING][0],
    "tie_word_embeddings": HEAD not in shapes,
    "rope_scaling": _rope_scaling(where, prefix, values, config, rope_factors),
  }


def _known(family: Family) -> set[str]:
  """Returns the keys that are understood in the metadata of a family."""
  known = {key for key, name in _KEYS.items() if name not in _OF_SOME or name in family.reads}
  return known | {*_CHECKED, *_SCALING} | ({_WINDOW} if family.windows else set())


def _rope_scaling(
  where: str,
  prefix: str,
  values: Mapping[str, Any],
  config: Mapping[str, Any],
  factors: np.ndarray | None,
) -> dict[str, Any] | None:
  """Returns the scaling of rotary positions; None if there is none."""
  kind, factor = values.get("rope.scaling.type", "none"), values.get("rope.scaling.factor", 1.0)
  original = values.get("rope.scaling.original_context_length")
  if factors is not None:
    return _llama3_scaling(where, config, np.asarray(factors, np.float64))
  if kind == "linear" or (kind == "none" and factor != 1.0):
    return {"rope_type": "linear", "factor": factor}
  if kind != "none" or original not in (None, config["max_position_embeddings"]):
    raise SettingError(
      f"{where}: {prefix}rope.scaling.type={model_folder.shown(kind)} with "
      f"rope.scaling.original_context_length={original} is not supported; none or linear would work"
    )
  return None


def _llama3_scaling(
  where: str, config: Mapping[str, Any], factors: np.ndarray
) -> dict[str, Any] | None:
  """Returns Llama 3's scaling whose frequencies are divided by `factors`; None if all are 1."""
  if np.all(factors == 1.0):
    return None
  factor = float(factors.max())
  half = np.arange(0, config["head_dim"], 2) / config["head_dim"]
  frequency = config.get("rope_theta", 10000.0) ** -half
  scaled = np.asarray(layers.long_context(frequency, factor, *_LLAMA3))
  if factors.shape != frequency.shape or not np.allclose(frequency / scaled, factors, rtol=1e-3):
    raise SettingError(
      f"{where}: the scaling of rotary positions in {ROPE_FACTORS} is not Llama 3's, which would "
      "work"
    )
  low, high, original = _LLAMA3
  numbers = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
  return {"rope_type": "llama3", **numbers, "original_max_position_embeddings": int(original)}


def tensor_name(where: str, family: Architecture, name: str) -> str:
  """Returns the name in a Hugging Face folder of a tensor of the file."""
  block = _BLOCK.fullmatch(name)
  stem, _, kind = (block[2] if block else name).rpartition(".")
  post = FAMILIES[family.model_type].flags.get("post_norms", False)
  table = _TENSORS | (_POST_NORMS if post else {})
  if FAMILIES[family.model_type].fused:
    table["ffn_up"] = "mlp.gate_up_proj"
  if stem not in table or kind not in ("weight", "bias"):
    raise SettingError(
      f"{where}: unexpected tensor {model_folder.shown(name)} in a {family.model_type}; a dense "
      "model without it would work"
    )
  return f"model.layers.{block[1]}.{table[stem]}.{kind}" if block else f"{table[stem]}.{kind}"


def check_tensors(
  where: str, shapes: Mapping[str, tuple[int, ...]], tree: Params, layer_count: int, fused: bool
) -> None:
  """Refuses tensors that are missing, unexpected or of another shape than the model's.

  Args:
    where: names the file in messages.
    shapes: of the file's tensors, by their names in a Hugging Face folder.
    tree: shapes of the decoder's parameters.
    layer_count: of the decoder.
    fused: whether the family has fused tensors.
  """
  wanted: dict[str, tuple[int, ...]] = {}
  for name, leaves in names.by_tensor(tree, fused).items():
    axis = 1 if "{}" in name else 0
    shape = (sum(leaf.shape[axis] for leaf in leaves), *leaves[0].shape[axis + 1 :])
    layer_names = [name.format(i) for i in range(layer_count)] if axis else [name]
    wanted |= dict.fromkeys(layer_names, shape)
  for name in sorted(wanted.keys() ^ shapes.keys()):
    what = "no" if name in wanted else "an unexpected"
    raise SettingError(f"{where}: has {what} tensor for {name}; a whole dense model would work")
  for name, shape in wanted.items():
    if shapes[name] != shape:
      raise SettingError(
        f"{where}: the tensor for {name} is {list(shapes[name])}, its metadata asks {list(shape)}; "
        "convert the model again"
      )


def to_hugging_face(
  family: Architecture, name: str, values: np.ndarray, config: DecoderConfig
) -> np.ndarray:
  """Returns a tensor's weights as transformers has them.

  Args:
    family: how they are stored.
    name: in a Hugging Face folder.
    values: dequantized, rows first.
    config: of the decoder.
  """
  if family.plus_one and name.endswith("norm.weight"):
    return values - np.float32(1.0)
  heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.split(".")[-2])
  if family.permuted and heads:
    pairs = values.reshape(heads, config.head_dim // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)
  return values
