"""Named sizes: the shapes of published models, from their config.json, and two small ones.

A named size shapes a fresh model. Weights from a folder bring their own config.json, which
`hf.config.read_config` reads.
"""

import dataclasses
from typing import Any

from grpo_jax.aliases import Json
from grpo_jax.errors import SettingError
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.shape import DecoderConfig

# Flags and common values of a family.
Family = Json
PLAIN: Family = {}
QWEN3: Family = {"head_dim": 128, "qk_norm": True, "rope_theta": 1e6, "vocab": 151936}
QWEN2: Family = {"attention_bias": True, "rope_theta": 1e6, "vocab": 151936}
LLAMA3_2: Family = {
  "norm_eps": 1e-5,
  "rope_theta": 5e5,
  "rope_scaling": (32.0, 1.0, 4.0, 8192.0),
  "vocab": 128256,
}
LLAMA3_1: Family = LLAMA3_2 | {
  "kv_heads": 8,
  "head_dim": 128,
  "rope_scaling": (8.0, 1.0, 4.0, 8192.0),
  "tied": False,
}
GEMMA: Family = {"norm_plus_one": True, "embed_scale": True, "activation": "gelu_tanh"}
OLMO2: Family = {
  "pre_norms": False,
  "post_norms": True,
  "qk_norm_whole": True,
  "tied": False,
  "rope_theta": 5e5,
  "family": "olmo2",
}
MISTRAL: Family = {"norm_eps": 1e-5, "tied": False, "family": "mistral"}


def gemma2(window: int = 4096, soft_cap: float = 50.0, scale: float | None = None) -> Family:
  """Returns Gemma 2's flags; its layers alternate between a window and full attention."""
  full = AttentionSpec(soft_cap=soft_cap, scale=scale)
  attention = (dataclasses.replace(full, window=window), full)
  flags = {"post_norms": True, "logit_soft_cap": 30.0, "attention": attention}
  return {**GEMMA, **flags, "vocab": 256000, "family": "gemma2"}


def gemma3(
  window: int = 512, period: int = 6, scale: float | None = None, local_theta: float = 1e4
) -> Family:
  """Returns Gemma 3's flags; the last layer of each period has full attention."""
  full = AttentionSpec(scale=scale)
  sliding = dataclasses.replace(full, window=window, rope_theta=local_theta)
  attention = (sliding,) * (period - 1) + (full,)
  flags = {"post_norms": True, "qk_norm": True, "rope_theta": 1e6, "attention": attention}
  return {**GEMMA, **flags, "vocab": 262144, "family": "gemma3_text"}


def smollm3(period: int = 4) -> Family:
  """Returns SmolLM3's flags; the last layer of each period has no rotary positions."""
  attention = (AttentionSpec(),) * (period - 1) + (AttentionSpec(rope=False),)
  return {"rope_theta": 5e6, "vocab": 128256, "attention": attention, "family": "smollm3"}


def phi3(window: int = 2047) -> Family:
  """Returns Phi-3's flags; every layer has a window."""
  return {**MISTRAL, "attention": (AttentionSpec(window=window),), "family": "phi3"}


def shape(family: Family, **sizes: Any) -> DecoderConfig:
  """Returns the shape of a model of that family; `sizes` also override the family's values."""
  return DecoderConfig(**{**family, **sizes})


VARIANTS = {
  "qwen3_0.6b": shape(QWEN3, width=1024, layers=28, heads=16, kv_heads=8, mlp=3072),
  "qwen3_1.7b": shape(QWEN3, width=2048, layers=28, heads=16, kv_heads=8, mlp=6144),
  "qwen3_4b": shape(QWEN3, width=2560, layers=36, heads=32, kv_heads=8, mlp=9728),
  "qwen3_8b": shape(QWEN3, width=4096, layers=36, heads=32, kv_heads=8, mlp=12288, tied=False),
  "qwen2.5_0.5b": shape(QWEN2, width=896, layers=24, heads=14, kv_heads=2, head_dim=64, mlp=4864),
  "qwen2.5_1.5b": shape(QWEN2, width=1536, layers=28, heads=12, kv_heads=2, head_dim=128, mlp=8960),
  "qwen2.5_3b": shape(QWEN2, width=2048, layers=36, heads=16, kv_heads=2, head_dim=128, mlp=11008),
  "qwen2.5_7b": shape(
    QWEN2 | {"vocab": 152064, "tied": False},
    width=3584,
    layers=28,
    heads=28,
    kv_heads=4,
    head_dim=128,
    mlp=18944,
  ),
  "llama3.2_1b": shape(
    LLAMA3_2, width=2048, layers=16, heads=32, kv_heads=8, head_dim=64, mlp=8192
  ),
  "llama3.2_3b": shape(
    LLAMA3_2, width=3072, layers=28, heads=24, kv_heads=8, head_dim=128, mlp=8192
  ),
  "llama3.1_8b": shape(LLAMA3_1, width=4096, layers=32, heads=32, mlp=14336),
  "llama3.1_70b": shape(LLAMA3_1, width=8192, layers=80, heads=64, mlp=28672),
  "deepseekmath_7b": shape(
    {"vocab": 102400, "tied": False},
    width=4096,
    layers=30,
    heads=32,
    kv_heads=32,
    head_dim=128,
    mlp=11008,
  ),
  "mistral_7b": shape(
    MISTRAL | {"vocab": 32768, "rope_theta": 1e6},
    width=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    mlp=14336,
  ),
  "gemma2_2b": shape(gemma2(), width=2304, layers=26, heads=8, kv_heads=4, head_dim=256, mlp=9216),
  "gemma3_1b": shape(gemma3(), width=1152, layers=26, heads=4, kv_heads=1, head_dim=256, mlp=6912),
  "olmo2_1b": shape(
    OLMO2, vocab=100352, width=2048, layers=16, heads=16, kv_heads=16, head_dim=128, mlp=8192
  ),
  "smollm2_135m": shape(
    {"vocab": 49152, "rope_theta": 1e5, "norm_eps": 1e-5},
    width=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    mlp=1536,
  ),
  "smollm3_3b": shape(
    smollm3(), width=2048, layers=36, heads=16, kv_heads=4, head_dim=128, mlp=11008
  ),
  "phi3_mini": shape(
    phi3(), vocab=32064, width=3072, layers=32, heads=32, kv_heads=32, head_dim=96, mlp=8192
  ),
  # Small enough to train from scratch on a CPU; the tokenizer decides the vocabulary.
  "tiny": shape(
    QWEN3 | {"vocab": 4096, "rope_theta": 1e4},
    width=256,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=64,
    mlp=768,
  ),
  "mini": shape(
    QWEN3 | {"vocab": 512, "rope_theta": 1e4},
    width=128,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=32,
    mlp=384,
  ),
}

# Names on the Hugging Face hub of models that have a row, for plans without their folder.
HUB = {
  "Qwen/Qwen3-0.6B": "qwen3_0.6b",
  "Qwen/Qwen3-1.7B": "qwen3_1.7b",
  "Qwen/Qwen3-4B": "qwen3_4b",
  "Qwen/Qwen3-8B": "qwen3_8b",
  "Qwen/Qwen2.5-0.5B-Instruct": "qwen2.5_0.5b",
  "Qwen/Qwen2.5-1.5B-Instruct": "qwen2.5_1.5b",
  "Qwen/Qwen2.5-3B-Instruct": "qwen2.5_3b",
  "Qwen/Qwen2.5-7B-Instruct": "qwen2.5_7b",
  "meta-llama/Llama-3.2-1B-Instruct": "llama3.2_1b",
  "meta-llama/Llama-3.2-3B-Instruct": "llama3.2_3b",
  "meta-llama/Llama-3.1-8B-Instruct": "llama3.1_8b",
  "meta-llama/Llama-3.1-70B-Instruct": "llama3.1_70b",
  "deepseek-ai/deepseek-math-7b-instruct": "deepseekmath_7b",
  "mistralai/Mistral-7B-Instruct-v0.3": "mistral_7b",
  "google/gemma-2-2b-it": "gemma2_2b",
  "google/gemma-3-1b-it": "gemma3_1b",
  "allenai/OLMo-2-0425-1B-Instruct": "olmo2_1b",
  "HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2_135m",
  "HuggingFaceTB/SmolLM3-3B": "smollm3_3b",
  "microsoft/Phi-3-mini-4k-instruct": "phi3_mini",
}


def variant(name: str, **changes: Any) -> DecoderConfig:
  """Returns the shape of that name, with changes such as `vocab=tokenizer.vocab_size`."""
  if name not in VARIANTS:
    raise SettingError(
      f"model.variant={name!r}: no such variant; one of {', '.join(VARIANTS)} would work"
    )
  return dataclasses.replace(VARIANTS[name], **changes)
