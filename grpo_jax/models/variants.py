"""A row a size: the shapes of published models (from their config.json) and a few small ones.

A row shapes a fresh model. Weights from a folder bring their own config.json, read by
`hf.config.read_config`.
"""

import dataclasses
from typing import Any

from grpo_jax.errors import SettingError
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.shape import DecoderConfig


def _qwen3(**shape: Any) -> DecoderConfig:
  return DecoderConfig(
    **{"head_dim": 128, "qk_norm": True, "rope_theta": 1e6, "vocab": 151936, **shape}
  )


def _qwen2(**shape: Any) -> DecoderConfig:
  return DecoderConfig(**{"attention_bias": True, "rope_theta": 1e6, "vocab": 151936, **shape})


def _llama(**shape: Any) -> DecoderConfig:
  row = {
    "norm_eps": 1e-5,
    "rope_theta": 5e5,
    "rope_scaling": (32.0, 1.0, 4.0, 8192.0),
    "vocab": 128256,
  }
  return DecoderConfig(**{**row, **shape})


def _gemma(**shape: Any) -> DecoderConfig:
  return DecoderConfig(
    **{"norm_plus_one": True, "embed_scale": True, "activation": "gelu_tanh", **shape}
  )


def _gemma2(
  window: int = 4096, soft_cap: float = 50.0, scale: float | None = None, **shape: Any
) -> DecoderConfig:
  full = AttentionSpec(soft_cap=soft_cap, scale=scale)
  attention = (dataclasses.replace(full, window=window), full)
  row = {
    "post_norms": True,
    "logit_soft_cap": 30.0,
    "vocab": 256000,
    "attention": attention,
    "family": "gemma2",
  }
  return _gemma(**{**row, **shape})


def _gemma3(
  window: int = 512, each: int = 6, scale: float | None = None, local: float = 1e4, **shape: Any
) -> DecoderConfig:
  full = AttentionSpec(scale=scale)
  attention = (dataclasses.replace(full, window=window, rope_theta=local),) * (each - 1) + (full,)
  row = {
    "post_norms": True,
    "qk_norm": True,
    "rope_theta": 1e6,
    "vocab": 262144,
    "attention": attention,
  }
  return _gemma(**{**row, "family": "gemma3_text", **shape})


def _olmo2(**shape: Any) -> DecoderConfig:
  row = {
    "pre_norms": False,
    "post_norms": True,
    "qk_norm_whole": True,
    "tied": False,
    "rope_theta": 5e5,
  }
  return DecoderConfig(**{**row, "family": "olmo2", **shape})


def _smollm3(each: int = 4, **shape: Any) -> DecoderConfig:
  attention = (AttentionSpec(),) * (each - 1) + (AttentionSpec(rope=False),)
  row = {"rope_theta": 5e6, "vocab": 128256, "attention": attention, "family": "smollm3"}
  return DecoderConfig(**{**row, **shape})


def _mistral(window: int = 0, **shape: Any) -> DecoderConfig:
  row = {
    "norm_eps": 1e-5,
    "tied": False,
    "family": "mistral",
    "attention": (AttentionSpec(window=window),),
  }
  return DecoderConfig(**{**row, **shape})


_LLAMA_3_1 = {
  "kv_heads": 8,
  "head_dim": 128,
  "rope_scaling": (8.0, 1.0, 4.0, 8192.0),
  "tied": False,
}

VARIANTS = {
  "qwen3_0.6b": _qwen3(width=1024, layers=28, heads=16, kv_heads=8, mlp=3072),
  "qwen3_1.7b": _qwen3(width=2048, layers=28, heads=16, kv_heads=8, mlp=6144),
  "qwen3_4b": _qwen3(width=2560, layers=36, heads=32, kv_heads=8, mlp=9728),
  "qwen3_8b": _qwen3(width=4096, layers=36, heads=32, kv_heads=8, mlp=12288, tied=False),
  "qwen2.5_0.5b": _qwen2(width=896, layers=24, heads=14, kv_heads=2, head_dim=64, mlp=4864),
  "qwen2.5_1.5b": _qwen2(width=1536, layers=28, heads=12, kv_heads=2, head_dim=128, mlp=8960),
  "qwen2.5_3b": _qwen2(width=2048, layers=36, heads=16, kv_heads=2, head_dim=128, mlp=11008),
  "qwen2.5_7b": _qwen2(
    width=3584, layers=28, heads=28, kv_heads=4, head_dim=128, mlp=18944, vocab=152064, tied=False
  ),
  "llama3.2_1b": _llama(width=2048, layers=16, heads=32, kv_heads=8, head_dim=64, mlp=8192),
  "llama3.2_3b": _llama(width=3072, layers=28, heads=24, kv_heads=8, head_dim=128, mlp=8192),
  "llama3.1_8b": _llama(**_LLAMA_3_1, width=4096, layers=32, heads=32, mlp=14336),
  "llama3.1_70b": _llama(**_LLAMA_3_1, width=8192, layers=80, heads=64, mlp=28672),
  "deepseekmath_7b": DecoderConfig(
    vocab=102400, width=4096, layers=30, heads=32, kv_heads=32, head_dim=128, mlp=11008, tied=False
  ),
  "mistral_7b": _mistral(
    vocab=32768,
    width=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    mlp=14336,
    rope_theta=1e6,
  ),
  "gemma2_2b": _gemma2(width=2304, layers=26, heads=8, kv_heads=4, head_dim=256, mlp=9216),
  "gemma3_1b": _gemma3(width=1152, layers=26, heads=4, kv_heads=1, head_dim=256, mlp=6912),
  "olmo2_1b": _olmo2(
    vocab=100352, width=2048, layers=16, heads=16, kv_heads=16, head_dim=128, mlp=8192
  ),
  "smollm2_135m": DecoderConfig(
    vocab=49152,
    width=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    mlp=1536,
    rope_theta=1e5,
    norm_eps=1e-5,
  ),
  "smollm3_3b": _smollm3(width=2048, layers=36, heads=16, kv_heads=4, head_dim=128, mlp=11008),
  "phi3_mini": _mistral(
    vocab=32064,
    width=3072,
    layers=32,
    heads=32,
    kv_heads=32,
    head_dim=96,
    mlp=8192,
    window=2047,
    family="phi3",
  ),
  # Small enough to train from nothing on a CPU; the tokenizer decides the vocabulary.
  "tiny": _qwen3(
    width=256, layers=4, heads=4, kv_heads=2, head_dim=64, mlp=768, vocab=4096, rope_theta=1e4
  ),
  "mini": _qwen3(
    width=128, layers=4, heads=4, kv_heads=2, head_dim=32, mlp=384, vocab=512, rope_theta=1e4
  ),
  # For tests: one of each family.
  "test_qwen3": _qwen3(
    width=32, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=48, vocab=96, tied=False
  ),
  "test_qwen2": _qwen2(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=48, vocab=96),
  "test_llama": _llama(
    width=32,
    layers=2,
    heads=4,
    kv_heads=1,
    head_dim=8,
    mlp=48,
    vocab=96,
    tied=False,
    rope_scaling=None,
  ),
  "test_llama3": _llama(
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    mlp=48,
    vocab=96,
    rope_theta=10.0,
    rope_scaling=(8.0, 0.5, 2.0, 24.0),
  ),
  "test_gemma": _gemma(width=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp=48, vocab=96),
  "test_mistral": _mistral(
    width=32, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=48, vocab=97, window=4
  ),
  "test_gemma2": _gemma2(
    width=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=12,
    mlp=48,
    vocab=101,
    window=4,
    soft_cap=5.0,
    scale=20**-0.5,
    logit_soft_cap=8.0,
  ),
  "test_olmo2": _olmo2(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=48, vocab=97),
  "test_gemma3": _gemma3(
    width=32,
    layers=5,
    heads=4,
    kv_heads=1,
    head_dim=12,
    mlp=48,
    vocab=98,
    window=4,
    each=3,
    scale=20**-0.5,
    local=100.0,
    rope_theta=1e3,
    rope_linear=8.0,
  ),
  "test_smollm3": _smollm3(
    width=32, layers=3, heads=4, kv_heads=2, head_dim=8, mlp=48, vocab=99, each=2
  ),
  "test_phi3": _mistral(
    width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=48, vocab=97, window=5, family="phi3"
  ),
  # Windows, soft caps and a scale, as Gemma 2 and 3 have them; three layers of a pattern of two.
  "test_windows": _qwen3(
    width=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=16,
    mlp=48,
    vocab=96,
    attention=(
      AttentionSpec(window=4, soft_cap=5.0, scale=0.2),
      AttentionSpec(soft_cap=5.0, scale=0.2),
    ),
    logit_soft_cap=8.0,
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
  """Returns a row of the table, with changes such as `vocab=tokenizer.vocab_size`.

  Raises:
    SettingError: no such row.
  """
  if name not in VARIANTS:
    raise SettingError(
      f"model.variant={name!r}: no such row; one of {', '.join(VARIANTS)} would work"
    )
  return dataclasses.replace(VARIANTS[name], **changes)
