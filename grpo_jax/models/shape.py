"""Describes the shape of a decoder: its sizes and the flags in which families differ."""

import dataclasses
from typing import Any

from grpo_jax.aliases import Json
from grpo_jax.models.attention import AttentionSpec

# A tree of parameters: nested dicts of arrays, or of their shapes or shardings.
Params = Any
Leaf = Any  # of such a tree


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """Describes a decoder's sizes and flags; hashable. Comments name the families with a flag."""

  vocab: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp: int
  rope_theta: float = 10000.0
  rope_scaling: tuple[float, float, float, float] | None = None  # Llama 3: layers.long_context
  rope_linear: float = 1.0  # positions are divided by it: the larger models of Gemma 3
  norm_eps: float = 1e-6
  pre_norms: bool = True  # norms before attention and MLP: all but OLMo 2
  post_norms: bool = False  # norms after attention and MLP: Gemma 2 and 3, OLMo 2
  qk_norm: bool = False  # norms of queries and keys, each head by itself: Qwen3, Gemma 3
  qk_norm_whole: bool = False  # the same over all heads of a token: OLMo 2
  attention_bias: bool = False  # biases of q, k and v: Qwen2
  tied: bool = True  # the unembedding is the embedding
  norm_plus_one: bool = False  # Gemma
  embed_scale: bool = False  # multiply embeddings by sqrt(width): Gemma
  activation: str = "silu"  # silu or gelu_tanh
  attention: tuple[AttentionSpec, ...] = (AttentionSpec(),)  # layer i: attention[i % len]
  logit_soft_cap: float = 0.0  # logits become cap * tanh(logits / cap); 0: no cap: Gemma 2
  scores: bool = False  # a reward model: a scalar head (heads.init_score) replaces the unembedding
  # `model_type` of its export, among those with the same flags and attention; "": the first. It
  # changes nothing that is computed, so that it does not take part in comparisons.
  family: str = dataclasses.field(default="", compare=False)
  # positions that the model was trained for, `max_position_embeddings`; 0: not known. Likewise.
  context: int = dataclasses.field(default=0, compare=False)

  @classmethod
  def from_json(cls, fields: Json) -> "DecoderConfig":
    """Returns the config from the JSON of its `dataclasses.asdict`; TypeError: unknown fields."""
    specs = tuple(AttentionSpec(**spec) for spec in fields["attention"])
    scaling = fields.get("rope_scaling")
    return cls(**fields | {"attention": specs, "rope_scaling": scaling and tuple(scaling)})

  def layer_attention(self, layer: int) -> AttentionSpec:
    """Returns the attention of that layer."""
    return self.attention[layer % len(self.attention)]
