"""One small model of each family, named `test_FAMILY`; importing this adds them to the variants."""

from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.variants import (
  GEMMA,
  LLAMA3_2,
  MISTRAL,
  OLMO2,
  QWEN2,
  QWEN3,
  VARIANTS,
  gemma2,
  gemma3,
  phi3,
  shape,
  smollm3,
)

_SIZES = {"width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 48}
_SIZES |= {"vocab": 96}

SMALL = {
  "test_qwen3": shape(QWEN3, **_SIZES | {"head_dim": 16, "tied": False}),
  "test_qwen2": shape(QWEN2, **_SIZES),
  "test_llama": shape(LLAMA3_2, **_SIZES | {"kv_heads": 1, "tied": False, "rope_scaling": None}),
  "test_llama3": shape(
    LLAMA3_2, **_SIZES | {"head_dim": 16, "rope_theta": 10.0, "rope_scaling": (8.0, 0.5, 2.0, 24.0)}
  ),
  "test_gemma": shape(GEMMA, **_SIZES | {"heads": 2, "kv_heads": 1, "head_dim": 16}),
  "test_mistral": shape(
    MISTRAL, **_SIZES | {"head_dim": 16, "vocab": 97, "attention": (AttentionSpec(window=4),)}
  ),
  "test_gemma2": shape(
    gemma2(window=4, soft_cap=5.0, scale=20**-0.5),
    **_SIZES | {"layers": 3, "head_dim": 12, "vocab": 101, "logit_soft_cap": 8.0},
  ),
  "test_olmo2": shape(OLMO2, **_SIZES | {"vocab": 97}),
  "test_gemma3": shape(
    gemma3(window=4, period=3, scale=20**-0.5, local_theta=100.0),
    **_SIZES | {"layers": 5, "kv_heads": 1, "head_dim": 12, "vocab": 98},
    rope_theta=1e3,
    rope_linear=8.0,
  ),
  "test_smollm3": shape(smollm3(period=2), **_SIZES | {"layers": 3, "vocab": 99}),
  "test_phi3": shape(phi3(window=5), **_SIZES | {"vocab": 97}),
  # Windows, soft caps and a scale, as in Gemma 2 and 3; three layers of a pattern of two.
  "test_windows": shape(
    QWEN3,
    **_SIZES | {"layers": 3, "head_dim": 16, "logit_soft_cap": 8.0},
    attention=(
      AttentionSpec(window=4, soft_cap=5.0, scale=0.2),
      AttentionSpec(soft_cap=5.0, scale=0.2),
    ),
  ),
}
VARIANTS.update(SMALL)
