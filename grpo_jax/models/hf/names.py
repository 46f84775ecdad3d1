"""Maps leaves of our tree to names of tensors, for reading and writing."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax

from grpo_jax.models.shape import Leaf, Params

# Path in our tree -> tensor in the file; {} is the layer.
_NAMES = {
  "embed.weight": "model.embed_tokens.weight",
  "final_norm.scale": "model.norm.weight",
  "unembed.weight": "lm_head.weight",
  "score.weight": "score.weight",
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

# In a model with norms after attention and MLP, Llama's name of the norm before the MLP is that of
# the norm after attention.
_POST_NORMS = {
  "layers.attention_post_norm.scale": "model.layers.{}.post_attention_layernorm.weight",
  "layers.mlp_norm.scale": "model.layers.{}.pre_feedforward_layernorm.weight",
  "layers.mlp_post_norm.scale": "model.layers.{}.post_feedforward_layernorm.weight",
}

# Phi-3 has tensors that hold several leaves, the rows of one after those of the other.
_QKV, _GATE_UP = (
  "model.layers.{}.self_attn.qkv_proj.weight",
  "model.layers.{}.mlp.gate_up_proj.weight",
)
_FUSED = {f"layers.attention.{name}.weight": _QKV for name in "qkv"}
_FUSED |= {f"layers.mlp.{name}.weight": _GATE_UP for name in ("gate", "up")}
_ORDER = {path: i for i, path in enumerate(_FUSED)}

COMPUTED = ("rotary_emb.inv_freq",)  # suffixes of tensors that hold no parameters
HEAD, EMBEDDING = _NAMES["unembed.weight"], _NAMES["embed.weight"]


class Place(NamedTuple):
  """Locates a leaf of our tree in a tensor, for each layer of it."""

  name: str  # of the tensor; {} is the layer
  start: int  # first row of the leaf
  rows: int  # number of its rows


def is_fused(names: Iterable[str]) -> bool:
  """Returns whether the tensors with these names hold several leaves, as Phi-3's do."""
  return any(name.endswith(_QKV.rpartition("{}")[2]) for name in names)


def by_tensor(tree: Params, fused: bool) -> dict[str, list[Leaf]]:
  """Returns the leaves of each tensor in the order of their rows; {} in a name is the layer."""
  return {name: list(leaves.values()) for name, leaves in _grouped(tree, fused).items()}


def places(tree: Params, fused: bool) -> dict[str, Place]:
  """Returns the place of each leaf, by its path with dots."""
  placed = {}
  for name, leaves in _grouped(tree, fused).items():
    start = 0
    for path, leaf in leaves.items():
      rows = leaf.shape[1 if "{}" in name else 0]
      placed[path] = Place(name, start, rows)
      start += rows
  return placed


def dotted(path: tuple) -> str:
  """Returns a path of our tree with dots between its keys."""
  return ".".join(p.key for p in path)


def _grouped(tree: Params, fused: bool) -> dict[str, dict[str, Leaf]]:
  """Returns the leaves by their paths, for each tensor of the file."""
  leaves = {dotted(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
  names = _names(leaves, fused)
  grouped: dict[str, dict[str, Leaf]] = {}
  for path in sorted(leaves, key=lambda path: _ORDER.get(path, 0)):
    grouped.setdefault(names[path], {})[path] = leaves[path]
  return grouped


def _names(paths: Mapping[str, Leaf], fused: bool) -> dict[str, str]:
  """Returns the name of the tensor that holds each leaf."""
  post = _POST_NORMS if "layers.attention_post_norm.scale" in paths else {}
  return _NAMES | post | (_FUSED if fused else {})
