"""Folders that appear when they are complete."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from hf_test import assert_same, decoder, saved

from grpo_jax.models.hf import tensors, writing


def test_what_is_left_of_an_earlier_export_is_not_read(tmp_path):
  """An index that does not name model.safetensors; transformers, too, reads the latter."""
  config, params = saved(tmp_path, "test_qwen2")
  index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
  assert_same(tensors.load(tmp_path, decoder(config)), params)


def test_all_layers_of_a_leaf_are_gathered_by_one_program():
  """Saves compiling: 36 layers would take 36 programs for each leaf on several hosts."""
  mesh = jax.make_mesh((2,), ("fsdp",))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "fsdp"))
  leaf = jax.device_put(jnp.arange(24, dtype=jnp.float32).reshape(3, 4, 2), sharding)
  everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  for layer in range(3):
    whole = writing.gathered(leaf, layer, "bfloat16")
    assert whole.dtype == "bfloat16" and whole.sharding.is_fully_replicated
    np.testing.assert_array_equal(whole, leaf[layer])
  np.testing.assert_array_equal(writing.gathered(leaf, None, "float32"), leaf)
  assert writing.jitted_selected(everywhere)._cache_size() == 2
