"""Folders that appear when they are complete."""

import json

from hf_test import assert_same, decoder, saved

from grpo_jax.models.hf import tensors


def test_what_is_left_of_an_earlier_export_is_not_read(tmp_path):
  """An index that does not name model.safetensors; transformers, too, reads the latter."""
  config, params = saved(tmp_path, "test_qwen2")
  index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
  assert_same(tensors.load(tmp_path, decoder(config)), params)
