"""Slices of the tensors in files."""

import json

import pytest
from hf_test import assert_same, decoder, parameters, saved

from grpo_jax.errors import DataError
from grpo_jax.models.hf import tensors


def test_several_files(tmp_path):
  config, params = saved(tmp_path / "m", max_bytes=20_000)
  files = sorted(p.name for p in (tmp_path / "m").glob("*.safetensors"))
  assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
  index = json.loads((tmp_path / "m/model.safetensors.index.json").read_text())
  assert sorted(set(index["weight_map"].values())) == files
  assert index["metadata"]["total_size"] == 4 * parameters(config)
  assert all(
    (tmp_path / "m" / f).stat().st_size < 24_000
    or sum(g == f for g in index["weight_map"].values()) == 1
    for f in files
  )
  assert_same(tensors.load(tmp_path / "m", decoder(config)), params)
  (tmp_path / "m" / files[1]).unlink()
  with pytest.raises(DataError, match=f"{files[1]} is missing"):
    tensors.load(tmp_path / "m", decoder(config))
