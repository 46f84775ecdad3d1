"""A Hugging Face config.json to a decoder's configuration, and back.

`init_from` in the messages is the setting by which a person names the folder.
"""

import os
from typing import Any, NamedTuple

from grpo_jax import folder as folders
from grpo_jax import storage
from grpo_jax.errors import SettingError
from grpo_jax.models import limits
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.shape import DecoderConfig


class Family(NamedTuple):
  """What a `model_type` means: the flags of DecoderConfig, and what config.json leaves out."""

  architecture: str
  flags: dict[str, Any]
  defaults: dict[str, Any]
  keys: dict[str, Any]  # what transformers wants to read beside the common keys
  hidden_acts: dict[str, str] = {}  # what a `hidden_act` means, where it is not what it says


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
    {"gelu": "gelu_pytorch_tanh"},  # the official files say gelu and mean the approximation, as transformers knows
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

# What the decoder of these families does not compute, wherever it is set.
REFUSED = ("attention_bias", "mlp_bias", "num_experts", "num_local_experts", "quantization_config")
REFUSED += ("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")

_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

SCORER = "ForSequenceClassification"  # how the architecture of a reward model ends; a policy's ends in CAUSAL
CAUSAL = "ForCausalLM"

GET = "`hf download Qwen/Qwen3-0.6B --local-dir=DIR`, then --config.init_from=DIR"


def read_config(folder: str | os.PathLike) -> DecoderConfig:
  """Returns the configuration of the decoder in a Hugging Face folder.

  Raises:
    SettingError: no such folder or config.json, or a model that this decoder is not, by the name of what it lacks.
  """
  path = storage.place(folder)
  where = f"init_from={path}"
  if not path.is_dir():
    raise SettingError(f"init_from={str(folder)!r}: no such folder; get weights with {GET}")
  raw = read_json(path, "config.json")
  folders.check(where, "config.json", raw, limits.CONFIG)
  kind = raw.get("model_type")
  if kind not in FAMILIES:
    _refuse(path, f"model_type {folders.shown(kind)}")
  family = FAMILIES[kind]
  raw = {**family.defaults, **{k: v for k, v in raw.items() if v is not None}}
  for key in _KEYS.values():
    if key not in raw:
      raise SettingError(f"{where}: config.json has no {key!r}; {limits.CONFIG[key].expects} would work")
  rope = _rope(where, raw)
  _check_features(path, raw, rope)
  act = raw.get("hidden_act", "silu")
  act = raw.get("hidden_activation", family.hidden_acts.get(act, act))
  flags = {"activation": "silu", **family.flags}
  if _ACTIVATIONS.get(act) != flags["activation"]:
    _refuse(path, f"hidden_act {folders.shown(act)} in a {kind}")
  config = DecoderConfig(
    **{ours: raw[theirs] for ours, theirs in _KEYS.items()},
    kv_heads=raw.get("num_key_value_heads", raw["num_attention_heads"]),
    head_dim=raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"]),
    rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
    norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
    rope_scaling=_llama3(where, rope) if _scaling(rope) == "llama3" else None,
    tied=raw.get("tie_word_embeddings", False),
    scores=(raw.get("architectures") or [""])[0].endswith(SCORER),
    **flags,
  )
  limits.check_shape(where, "config.json", config.heads, config.kv_heads, config.head_dim, config.rope_scaling)
  return config


def write_config(config: DecoderConfig, base: dict | None = None) -> dict:
  """Returns config.json as transformers 4 and 5 read it; keys of `base` that a DecoderConfig does not decide are kept.

  Raises:
    SettingError: no family has these flags or this attention, so that no other program could run the model.
  """
  if config.logit_soft_cap or any(spec != AttentionSpec() for spec in config.attention):
    raise SettingError(
      f"model: no Hugging Face family that can be exported has attention={config.attention} and "
      f"logit_soft_cap={config.logit_soft_cap}; {', '.join(FAMILIES)} see all tokens, without soft caps"
    )
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
  scorer = {"id2label": {"0": "score"}, "label2id": {"score": 0}}  # transformers counts the labels of these
  return {
    "max_position_embeddings": 32768,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "use_cache": True,
    **(base or {}),
    "architectures": [family.architecture.replace(CAUSAL, SCORER) if config.scores else family.architecture],
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
    **(scorer if config.scores else {}),
  }


def _rope(where: str, raw: dict) -> dict:
  """Returns the rotary settings, from transformers 5's `rope_parameters` or the older `rope_scaling`."""
  key = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
  rope, within = raw.get(key) or {}, f"{key}."
  if "full_attention" in rope:
    folders.check(where, "config.json", rope, {"full_attention": folders.OBJECT}, within)
    rope, within = rope["full_attention"] or {}, f"{within}full_attention."
  folders.check(where, "config.json", rope, limits.ROPE, within)
  return {k: v for k, v in rope.items() if v is not None}


def _scaling(rope: dict) -> str:
  return rope.get("rope_type", rope.get("type")) or "default"


def _llama3(where: str, rope: dict) -> tuple[float, ...]:
  """Returns the arguments of `layers.long_context`."""
  if missing := [key for key in _LLAMA3 if key not in rope]:
    says = limits.ROPE[missing[0]].expects
    raise SettingError(f"{where}: config.json has rope scaling 'llama3' without {missing[0]!r}; {says} would work")
  return tuple(float(rope[key]) for key in _LLAMA3)


def _check_features(path: storage.Path, raw: dict, rope: dict) -> None:
  """Refuses by name what the decoder would silently compute otherwise."""
  if _scaling(rope) not in ("default", "llama3"):
    _refuse(path, f"rope scaling {folders.shown(_scaling(rope))}")
  if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
    _refuse(path, "partial_rotary_factor")
  kinds = set(raw.get("layer_types") or ()) - {"full_attention"}
  if kinds:
    _refuse(path, f"layer_types {folders.shown(sorted(kinds))}")
  if "layer_types" not in raw and raw.get("use_sliding_window"):
    _refuse(path, "use_sliding_window")
  for key in REFUSED:
    if raw.get(key):
      _refuse(path, key)


def _refuse(path: storage.Path, feature: str) -> None:
  able = "dense " + ", ".join(FAMILIES) + " without sliding windows, experts or quantization"
  raise SettingError(f"init_from={path}: {feature} is not supported; {able} would work")


def read_json(path: storage.Path, name: str, most: int = folders.CONFIG_BYTES) -> dict:
  """Returns the object in a JSON file that a model's folder must have.

  Raises:
    SettingError: no such file, or see `folder.read_json`.
  """
  value = folders.read_json(f"init_from={path}", path, name, most)
  if value is None:
    raise SettingError(f"init_from={path}: no {name}; get a Hugging Face folder with {GET}")
  return value
