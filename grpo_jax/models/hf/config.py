"""Converts a Hugging Face config.json to a decoder's configuration, and back.

In the messages, `init_from` is the setting by which a person names the folder.
"""

import dataclasses
import os
from typing import NoReturn

from grpo_jax.aliases import Json
from grpo_jax.errors import DataError, GrpoError, SettingError
from grpo_jax.io import storage
from grpo_jax.models import limits
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.hf.families import FAMILIES, FULL, NONE, SLIDING, Family
from grpo_jax.models.shape import DecoderConfig
from grpo_jax.sandbox import model_folder

# Our names of sizes -> those of config.json.
_KEYS = {
  "vocab": "vocab_size",
  "width": "hidden_size",
  "layers": "num_hidden_layers",
  "heads": "num_attention_heads",
  "mlp": "intermediate_size",
}

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")

# Keys whose features the decoder does not compute, unless a family reads them.
REFUSED = (
  *("attention_bias", "mlp_bias", "num_experts", "num_local_experts", "quantization_config"),
  *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
  *("use_bidirectional_attention", "per_layer_config", "transformers_weights"),
)

_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

SCORER = "ForSequenceClassification"  # end of the architecture of a reward model
CAUSAL = "ForCausalLM"  # end of the architecture of a policy

GET = "`hf download Qwen/Qwen3-0.6B --local-dir=DIR`, then --config.init_from=DIR"


def read_config(folder: str | os.PathLike) -> DecoderConfig:
  """Returns the configuration of the decoder in a Hugging Face folder."""
  path = storage.place(folder)
  if not path.is_dir():
    raise SettingError(f"init_from={str(folder)!r}: no such folder; get weights with {GET}")
  return parse_config(f"init_from={path}", read_json(path, "config.json"))


def parse_config(where: str, raw: dict) -> DecoderConfig:
  """Returns the decoder that config.json's object describes; `where` begins the messages."""
  model_folder.check(where, "config.json", raw, limits.CONFIG)
  return _decoder_config(where, raw)


def _decoder_config(where: str, raw: dict) -> DecoderConfig:
  """Returns the configuration that config.json describes; `where`: the setting and its value."""
  kind = raw.get("model_type")
  if not isinstance(kind, str) or kind not in FAMILIES:
    _refuse(where, f"model_type {model_folder.shown(kind)}")
  family = FAMILIES[kind]
  values = {k: v for k, v in raw.items() if v is not None}
  raw = {k: v for k, v in family.defaults.items() if k not in NONE or k not in raw} | values
  for key in _KEYS.values():
    if key not in raw:
      raise DataError(
        f"{where}: config.json has no {key!r}; {limits.CONFIG[key].expects} would work"
      )
  rope = _rope(where, raw)
  _check_features(where, raw, rope, family)
  act = raw.get("hidden_act", "silu")
  act = raw.get("hidden_activation", family.hidden_acts.get(act, act))
  flags = {"activation": "silu", **family.flags}
  if _ACTIVATIONS.get(act) != flags["activation"]:
    _refuse(where, f"hidden_act {model_folder.shown(act)} in a {kind}")
  head_dim = raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
  config = DecoderConfig(
    **{ours: raw[theirs] for ours, theirs in _KEYS.items()},
    kv_heads=raw.get("num_key_value_heads", raw["num_attention_heads"]),
    head_dim=head_dim,
    rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
    norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
    rope_scaling=_llama3_scaling(where, rope) if _scaling(rope) == "llama3" else None,
    rope_linear=_scaling_value(where, rope, "factor") if _scaling(rope) == "linear" else 1.0,
    tied=raw.get("tie_word_embeddings", False),
    scores=(raw.get("architectures") or [""])[0].endswith(SCORER),
    attention=period(_attention(where, raw, family, head_dim)),
    logit_soft_cap=float(raw.get("final_logit_softcapping", 0.0)),
    family=kind,
    context=raw.get("max_position_embeddings", 0),
    **flags,
  )
  limits.check_shape(
    where, "config.json", config.heads, config.kv_heads, config.head_dim, config.rope_scaling
  )
  return config


def period(specs: list[AttentionSpec]) -> tuple[AttentionSpec, ...]:
  """Returns the shortest repeating start of the layers' specs (`DecoderConfig.attention`)."""
  return tuple(specs[: next(n for n in range(1, len(specs) + 1) if specs[n:] == specs[:-n])])


def _attention(where: str, raw: dict, family: Family, head_dim: int) -> list[AttentionSpec]:
  """Returns the attention of each layer."""
  kinds, scale = _layer_types(where, raw, family), None
  if SLIDING in kinds and "sliding_window" not in raw:
    _refuse(where, "layer_types 'sliding_attention' without a sliding_window")
  if raw.get("query_pre_attn_scalar", head_dim) != head_dim:
    scale = float(raw["query_pre_attn_scalar"]) ** -0.5
  spec = AttentionSpec(scale=scale, soft_cap=float(raw.get("attn_logit_softcapping", 0.0)))
  sliding = dataclasses.replace(
    spec, window=raw.get("sliding_window", 0), rope_theta=_local_theta(where, raw, family)
  )
  specs = [sliding if kind == SLIDING else spec for kind in kinds]
  if "no_rope_layers" not in family.reads:
    return specs
  n = raw.get("no_rope_layer_interval", 4)
  has_rope = raw.get("no_rope_layers", [int((i + 1) % n != 0) for i in range(len(specs))])
  if len(has_rope) < len(specs):
    _too_few(where, "no_rope_layers", has_rope, len(specs))
  without = dataclasses.replace(spec, rope=False)  # no layer of this family has a window
  return [spec if rope else without for rope in has_rope[: len(specs)]]


def _local_theta(where: str, raw: dict, family: Family) -> float | None:
  """Returns the theta of the layers with a window, if it is not that of the others."""
  if "rope_local_base_freq" not in family.reads:
    return None
  rope = (raw.get("rope_parameters") or {}).get(SLIDING) or {}
  model_folder.check(
    where, "config.json", {SLIDING: rope}, {SLIDING: model_folder.OBJECT}, "rope_parameters."
  )
  model_folder.check(where, "config.json", rope, limits.ROPE, f"rope_parameters.{SLIDING}.")
  if _scaling(rope) != "default":
    _refuse(where, f"rope scaling {model_folder.shown(_scaling(rope))} of layers with a window")
  return float(rope.get("rope_theta") or raw["rope_local_base_freq"])


def _layer_types(where: str, raw: dict, family: Family) -> list[str]:
  """Returns FULL or SLIDING for each layer."""
  layers, n = raw["num_hidden_layers"], family.windows
  if n is None or (n == 1 and "sliding_window" not in raw):
    implied = [FULL] * layers
  elif n == 1:
    implied = [SLIDING] * layers
  else:
    n = raw.get("sliding_window_pattern", n) if "sliding_window_pattern" in family.reads else n
    implied = [FULL if (i + 1) % n == 0 else SLIDING for i in range(layers)]
  listed = raw.get("layer_types", implied)
  patterned = family.windows not in (None, 1)
  if not patterned and (other := set(listed) - set(implied)):
    _refuse(where, f"layer_types {model_folder.shown(sorted(other))} in a {raw['model_type']}")
  if patterned and (other := set(listed) - {FULL, SLIDING}):
    _refuse(where, f"layer_types {model_folder.shown(sorted(other))}")
  if patterned and len(listed) != layers:
    _too_few(where, "layer_types", listed, layers)
  return listed if patterned else implied


def write_config(config: DecoderConfig, base: dict | None = None) -> dict:
  """Returns config.json as transformers 4 and 5 read it; unknown keys of `base` are kept.

  Raises:
    SettingError: no family has these flags or this attention.
  """
  names = sorted({name for family in FAMILIES.values() for name in family.flags})
  wanted = {name: getattr(config, name) for name in names}
  off = {field.name: field.default for field in dataclasses.fields(config)}
  plain = dataclasses.replace(
    config, attention=period([config.layer_attention(i) for i in range(config.layers)])
  )
  for kind, family in FAMILIES.items():
    flags = {name: family.flags.get(name, off[name]) for name in names}
    if config.family in ("", kind) and flags == wanted:
      written = _written(kind, config, base or {})
      if _means(written, plain):
        return written
  raise SettingError(
    f"model: no Hugging Face family that can be exported has {wanted}, "
    f"attention={config.attention}, rope_linear={config.rope_linear} and "
    f"logit_soft_cap={config.logit_soft_cap}{f' as a {config.family}' if config.family else ''}; "
    f"those of {', '.join(FAMILIES)} can be exported"
  )


def _means(written: dict, config: DecoderConfig) -> bool:
  """Returns whether a config.json describes exactly this configuration."""
  try:
    return _decoder_config("model", written) == config
  except GrpoError:  # the family lacks a feature
    return False


def _written(kind: str, config: DecoderConfig, base: dict) -> dict:
  """Returns the config.json of a family for a decoder, with the features that the family has."""
  family = FAMILIES[kind]
  rope = _written_rope(config)
  act = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation)
  # transformers counts a reward model's labels by these.
  scorer = {"id2label": {"0": "score"}, "label2id": {"score": 0}}
  judge = family.scorer or family.architecture.replace(CAUSAL, SCORER)
  return {
    "max_position_embeddings": config.context or 32768,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "use_cache": True,
    "pad_token_id": None,  # a family's default may be outside this vocabulary
    **base,
    "architectures": [judge if config.scores else family.architecture],
    "model_type": kind,
    **{theirs: getattr(config, ours) for ours, theirs in _KEYS.items()},
    "num_key_value_heads": config.kv_heads,
    "head_dim": config.head_dim,
    "hidden_act": act,
    "rms_norm_eps": config.norm_eps,
    "tie_word_embeddings": config.tied,
    "rope_theta": config.rope_theta,
    "rope_parameters": {**rope, "rope_theta": config.rope_theta},
    **({"rope_scaling": rope} if rope["rope_type"] != "default" else {}),
    **_written_attention(family, config),
    **family.keys,
    **(scorer if config.scores else {}),
  }


def _written_rope(config: DecoderConfig) -> dict[str, str | float]:
  """Returns `rope_scaling`, for the layers that have no theta of their own."""
  if config.rope_linear != 1.0:
    return {"rope_type": "linear", "factor": config.rope_linear}
  if not config.rope_scaling:
    return {"rope_type": "default"}
  factor, low, high, original = config.rope_scaling
  values = (factor, low, high, int(original))
  return {"rope_type": "llama3", **dict(zip(_LLAMA3, values, strict=True))}


def _written_attention(family: Family, config: DecoderConfig) -> Json:
  """Returns the keys of config.json that describe the attention of each layer."""
  specs = [config.layer_attention(i) for i in range(config.layers)]
  keys: Json = {}
  if family.windows != 1:
    keys["layer_types"] = [SLIDING if spec.window else FULL for spec in specs]
  if family.windows:
    # null rather than no key, which would mean the family's default
    keys["sliding_window"] = max(spec.window for spec in specs) or None
  if "query_pre_attn_scalar" in family.reads:
    scale = specs[0].query_scale(config.head_dim)
    # transformers takes whole numbers
    keys["query_pre_attn_scalar"] = max(1, round(min(1 / scale / scale, 1e9)))
  if "attn_logit_softcapping" in family.reads:
    keys["attn_logit_softcapping"] = specs[0].soft_cap or None
  if "final_logit_softcapping" in family.reads:
    keys["final_logit_softcapping"] = config.logit_soft_cap or None
  if "no_rope_layers" in family.reads:
    keys["no_rope_layers"] = [int(spec.rope) for spec in specs]
  if "rope_local_base_freq" in family.reads:
    thetas = [spec.rope_theta for spec in specs if spec.rope_theta]
    theta = thetas[0] if thetas else family.defaults["rope_local_base_freq"]
    full = {**_written_rope(config), "rope_theta": config.rope_theta}
    sliding = {"rope_type": "default", "rope_theta": theta}
    keys |= {"rope_local_base_freq": theta, "rope_parameters": {FULL: full, SLIDING: sliding}}
  return keys


def _rope(where: str, raw: dict) -> dict:
  """Returns the rotary settings of transformers 4's `rope_scaling` or 5's `rope_parameters`.

  If both are there, transformers 5 uses the older one, too: model cards tell people to add it for
  longer contexts.
  """
  old, new = (_rope_section(where, raw, key) for key in ("rope_scaling", "rope_parameters"))
  return {name: new[name] for name in ("rope_theta",) if name in new} | old if old else new


def _rope_section(where: str, raw: dict, key: str) -> dict:
  """Returns the rotary settings under a key, of layers without a window; nulls are left out."""
  rope, within = raw.get(key) or {}, f"{key}."
  if "full_attention" in rope:
    model_folder.check(where, "config.json", rope, {"full_attention": model_folder.OBJECT}, within)
    rope, within = rope["full_attention"] or {}, f"{within}full_attention."
  model_folder.check(where, "config.json", rope, limits.ROPE, within)
  return {k: v for k, v in rope.items() if v is not None}


def _scaling(rope: dict) -> str:
  return rope.get("rope_type", rope.get("type")) or "default"


def _scaling_value(where: str, rope: dict, key: str) -> float:
  """Returns a number of the rope scaling, which must be there."""
  if key not in rope:
    expects, kind = limits.ROPE[key].expects, _scaling(rope)
    raise DataError(
      f"{where}: config.json has rope scaling {kind!r} without {key!r}; {expects} would work"
    )
  return float(rope[key])


def _llama3_scaling(where: str, rope: dict) -> tuple[float, float, float, float]:
  """Returns the arguments of `layers.long_context`."""
  factor, low, high, original = (_scaling_value(where, rope, key) for key in _LLAMA3)
  return factor, low, high, original


def _check_features(where: str, raw: dict, rope: dict, family: Family) -> None:
  """Refuses, by name, features that the decoder would silently compute otherwise."""
  if _scaling(rope) not in family.scalings:
    _refuse(where, f"rope scaling {model_folder.shown(_scaling(rope))}")
  if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
    _refuse(where, "partial_rotary_factor")
  if "layer_types" not in raw and raw.get("use_sliding_window"):
    _refuse(where, "use_sliding_window")
  for key in REFUSED:
    if raw.get(key) and key not in family.reads:
      _refuse(where, key)


def _too_few(where: str, key: str, listed: list, layers: int) -> NoReturn:
  raise DataError(
    f"{where}: config.json has {len(listed)} {key} for {layers} layers; one for each would work"
  )


def _refuse(where: str, feature: str) -> NoReturn:
  able = "dense " + ", ".join(FAMILIES) + " without experts or quantization"
  raise DataError(f"{where}: {feature} is not supported; {able} would work")


def read_json(path: storage.Path, name: str, most: int = model_folder.CONFIG_BYTES) -> dict:
  """Returns the object in a JSON file that a model's folder must have."""
  value = model_folder.read_json(f"init_from={path}", path, name, most)
  if value is None:
    raise DataError(f"init_from={path}: no {name}; get a Hugging Face folder with {GET}")
  return value
