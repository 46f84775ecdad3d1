"""The shape of a decoder: sizes, and the flags in which families differ. Each flag names the
families that have it.
"""

import dataclasses
from typing import Any

from grpo_jax.models.attention import AttentionSpec


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """The shape of a decoder; hashable."""

  vocab: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp: int
  rope_theta: float = 10000.0
  rope_scaling: tuple[float, float, float, float] | None = None  # Llama 3: see layers.long_context
  rope_linear: float = 1.0  # positions are divided by it: the larger ones of Gemma 3
  norm_eps: float = 1e-6
  pre_norms: bool = True  # of what attention and MLP get: all but OLMo 2
  post_norms: bool = False  # of what they give, before it is added: Gemma 2 and 3, OLMo 2
  qk_norm: bool = False  # queries and keys, each head by itself: Qwen3, Gemma 3
  qk_norm_whole: bool = False  # all heads of a token as one: OLMo 2
  attention_bias: bool = False  # biases of q, k and v: Qwen2
  tied: bool = True  # the unembedding is the embedding
  norm_plus_one: bool = False  # Gemma
  embed_scale: bool = False  # multiply embeddings by sqrt(width): Gemma
  activation: str = "silu"  # silu or gelu_tanh
  attention: tuple[AttentionSpec, ...] = (
    AttentionSpec(),
  )  # layer i has attention[i % len(attention)]
  # logits become soft_cap * tanh(logits / soft_cap); 0: they stay as they are: Gemma 2
  logit_soft_cap: float = 0.0
  # a reward model: a head of one number (heads.init_score) in place of the unembedding
  scores: bool = False
  # The `model_type` that it is exported as: of those with the same flags and attention. "": the
  # first that has them. It says nothing of what is computed, so that two that differ in it alone
  # are equal.
  family: str = dataclasses.field(default="", compare=False)

  @classmethod
  def from_json(cls, fields: dict[str, Any]) -> "DecoderConfig":
    """Returns the config whose `dataclasses.asdict` went through JSON.

    Raises:
      TypeError: fields that a config does not have.
    """
    specs = tuple(AttentionSpec(**spec) for spec in fields["attention"])
    scaling = fields.get("rope_scaling")
    return cls(**fields | {"attention": specs, "rope_scaling": scaling and tuple(scaling)})

  def attention_of(self, layer: int) -> AttentionSpec:
    """Returns what the attention of that layer computes."""
    return self.attention[layer % len(self.attention)]
