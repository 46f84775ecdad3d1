"""Names of tensors, and where the leaves of a tree are in them."""

import jax
import numpy as np
from hf_test import decoder
from small_models import SMALL

from grpo_jax.models.hf import names

ATTENTION = "model.layers.{}.self_attn."


def tree(name):
  return decoder(SMALL[name]).shapes()


def test_each_leaf_is_a_tensor_of_its_own():
  placed = names.places(tree("test_qwen3"), fused=False)
  assert placed["layers.attention.q.weight"].name == ATTENTION + "q_proj.weight"
  assert placed["layers.mlp_norm.scale"].name == "model.layers.{}.post_attention_layernorm.weight"
  assert len({place.name for place in placed.values()}) == len(placed)
  assert all(place.start == 0 for place in placed.values())
  assert len(placed) == len(jax.tree.leaves(tree("test_qwen3")))


def test_with_norms_after_attention_the_norm_before_the_mlp_has_another_name():
  placed = names.places(tree("test_gemma2"), fused=False)
  after = "model.layers.{}.post_attention_layernorm.weight"
  assert placed["layers.attention_post_norm.scale"].name == after
  assert placed["layers.mlp_norm.scale"].name == "model.layers.{}.pre_feedforward_layernorm.weight"


def test_rows_of_a_fused_tensor_follow_one_another():
  shapes = tree("test_phi3")
  placed = names.places(shapes, fused=True)
  q, k, v = (placed[f"layers.attention.{name}.weight"] for name in "qkv")
  assert {q.name, k.name, v.name} == {ATTENTION + "qkv_proj.weight"}
  assert (q.start, k.start, v.start) == (0, q.rows, q.rows + k.rows)
  assert [leaf.shape[1] for leaf in names.by_tensor(shapes, True)[q.name]] == [
    q.rows,
    k.rows,
    v.rows,
  ]


def test_fused_tensors_are_known_by_their_names():
  assert names.is_fused([names.HEAD, "model.layers.0.self_attn.qkv_proj.weight"])
  assert not names.is_fused(["model.layers.0.self_attn.q_proj.weight", names.HEAD])


def test_paths_have_dots():
  paths = jax.tree_util.tree_leaves_with_path({"a": {"b": np.zeros(1)}})
  assert [names.dotted(path) for path, _ in paths] == ["a.b"]
