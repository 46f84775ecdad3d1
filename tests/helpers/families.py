"""The models of transformers for rows of our table: what a family's own program says a decoder's
shape is.
"""

from typing import Any

import pytest

from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.shape import DecoderConfig

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _rope(c: DecoderConfig) -> dict[str, Any]:
  """`rope_parameters` of transformers 5."""
  rope = {"rope_type": "default", "rope_theta": c.rope_theta}
  if c.rope_scaling:
    rope |= {
      "rope_type": "llama3",
      **dict(zip(_LLAMA3, (*c.rope_scaling[:3], int(c.rope_scaling[3])), strict=True)),
    }
  return rope


def _specs(c: DecoderConfig) -> list[AttentionSpec]:
  return [c.layer_attention(i) for i in range(c.layers)]


def _window(c: DecoderConfig) -> dict[str, Any]:
  return {"sliding_window": max(spec.window for spec in _specs(c)) or None}


def _gemma2(c: DecoderConfig) -> dict[str, Any]:
  types = ["sliding_attention" if spec.window else "full_attention" for spec in _specs(c)]
  scalar = round(c.attention[0].query_scale(c.head_dim) ** -2)
  cap = {"final_logit_softcapping": c.logit_soft_cap or None}
  return _window(c) | cap | {"layer_types": types, "query_pre_attn_scalar": scalar}


def _gemma3(c: DecoderConfig) -> dict[str, Any]:
  full = (
    {"rope_type": "linear", "factor": c.rope_linear}
    if c.rope_linear != 1.0
    else {"rope_type": "default"}
  )
  sliding = {
    "rope_type": "default",
    "rope_theta": next(spec.rope_theta for spec in _specs(c) if spec.window),
  }
  full["rope_theta"] = c.rope_theta
  return _gemma2(c) | {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


# Of each family: the name of its classes, and what its configuration has beside the common keys.
FAMILIES = {
  "qwen3": ("Qwen3", lambda c: {}),
  "qwen2": ("Qwen2", lambda c: {}),
  "llama": ("Llama", lambda c: {}),
  "gemma": ("Gemma", lambda c: {}),
  "mistral": ("Mistral", _window),
  "gemma2": (
    "Gemma2",
    lambda c: _gemma2(c) | {"attn_logit_softcapping": c.attention[0].soft_cap or None},
  ),
  "olmo2": ("Olmo2", lambda c: {}),
  "gemma3_text": ("Gemma3", _gemma3),
  "smollm3": ("SmolLM3", lambda c: {"no_rope_layers": [int(spec.rope) for spec in _specs(c)]}),
  "phi3": ("Phi3", _window),
}


def model(c: DecoderConfig, family: str) -> Any:
  """A random model as transformers makes it, with norms and biases that are not ones and zeros."""
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  name, own = FAMILIES[family]
  common = {
    "vocab_size": c.vocab,
    "hidden_size": c.width,
    "num_hidden_layers": c.layers,
    "num_attention_heads": c.heads,
    "num_key_value_heads": c.kv_heads,
    "head_dim": c.head_dim,
    "intermediate_size": c.mlp,
    "rms_norm_eps": c.norm_eps,
    "rope_parameters": _rope(c),
    "tie_word_embeddings": c.tied,
    "initializer_range": 0.1,
    "pad_token_id": None,
  }
  config = getattr(transformers, {"Gemma3": "Gemma3Text"}.get(name, name) + "Config")(
    **common | own(c)
  )
  torch.manual_seed(0)
  made = getattr(transformers, name + "ForCausalLM")(config).eval()
  with torch.no_grad():
    for p in made.parameters():
      if p.ndim == 1:
        p += 0.2 * torch.randn(p.shape)
  return made
