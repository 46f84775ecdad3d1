"""Which tensors of a Hugging Face folder hold the leaves of our tree: one table of names, for
reading and writing.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax

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
# another.
_POST_NORMS = {
  "layers.attention_post_norm.scale": "model.layers.{}.post_attention_layernorm.weight",
  "layers.mlp_norm.scale": "model.layers.{}.pre_feedforward_layernorm.weight",
  "layers.mlp_post_norm.scale": "model.layers.{}.post_feedforward_layernorm.weight",
}

# A tensor that holds several leaves, one's rows after the other's: Phi-3.
_QKV, _GATE_UP = (
  "model.layers.{}.self_attn.qkv_proj.weight",
  "model.layers.{}.mlp.gate_up_proj.weight",
)
_FUSED = {f"layers.attention.{name}.weight": _QKV for name in "qkv"}
_FUSED |= {f"layers.mlp.{name}.weight": _GATE_UP for name in ("gate", "up")}
_ORDER = {path: i for i, path in enumerate(_FUSED)}

COMPUTED = (
  "rotary_emb.inv_freq",
)  # ends of the names of tensors that are in some files and no parameters
HEAD, EMBEDDING = _NAMES["unembed.weight"], _NAMES["embed.weight"]


class Place(NamedTuple):
  """Where a leaf of our tree is, for each layer of it."""

  name: str  # of the tensor; {} is the layer
  start: int  # the first row that is the leaf's
  rows: int  # how many are


def is_fused(names: Iterable[str]) -> bool:
  """Returns whether the tensors with these names hold several leaves, as Phi-3's do."""
  return any(name.endswith(_QKV.rpartition("{}")[2]) for name in names)


def by_tensor(tree: Any, fused: bool) -> dict[str, list[Any]]:
  """Returns the leaves that each tensor of the file holds, in the order of their rows; in its name
  {} is the layer.
  """
  return {name: list(leaves.values()) for name, leaves in _grouped(tree, fused).items()}


def places(tree: Any, fused: bool) -> dict[str, Place]:
  """Returns where each leaf is, by its path with dots."""
  found = {}
  for name, leaves in _grouped(tree, fused).items():
    start = 0
    for path, leaf in leaves.items():
      rows = leaf.shape[1 if "{}" in name else 0]
      found[path] = Place(name, start, rows)
      start += rows
  return found


def dotted(path: tuple) -> str:
  """Returns a path of our tree with dots between its keys."""
  return ".".join(p.key for p in path)


def _grouped(tree: Any, fused: bool) -> dict[str, dict[str, Any]]:
  """Returns the leaves by their paths, for each tensor of the file."""
  leaves = {dotted(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
  names = _names(leaves, fused)
  found: dict[str, dict[str, Any]] = {}
  for path in sorted(leaves, key=lambda path: _ORDER.get(path, 0)):
    found.setdefault(names[path], {})[path] = leaves[path]
  return found


def _names(paths: Mapping[str, Any], fused: bool) -> dict[str, str]:
  """Returns the name of the tensor that holds each leaf."""
  post = _POST_NORMS if "layers.attention_post_norm.scale" in paths else {}
  return _NAMES | post | (_FUSED if fused else {})
