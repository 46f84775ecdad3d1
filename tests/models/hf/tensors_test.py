"""Parameters from tensors, and back."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_test import assert_same, decoder, retensor, saved, stored

from grpo_jax.errors import DataError, SettingError
from grpo_jax.models.hf import files, tensors


def test_bfloat16_file(tmp_path):
  config, params = saved(tmp_path / "m", dtype="bfloat16")
  t = stored(tmp_path / "m")
  assert {x.dtype.name for x in t.values()} == {"bfloat16"}
  rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  assert_same(
    tensors.load(tmp_path / "m", decoder(config)),
    jax.tree.map(lambda x: x.astype(jnp.float32), rounded),
  )
  loaded = tensors.load(tmp_path / "m", decoder(config), "bfloat16")
  assert {x.dtype.name for x in jax.tree.leaves(loaded)} == {"bfloat16"}
  assert_same(loaded, rounded)
  # A bfloat16 model survives float32 and back, bit for bit.
  tensors.save(
    tmp_path / "again", config, tensors.load(tmp_path / "m", decoder(config)), dtype="bfloat16"
  )
  assert all(x.tobytes() == stored(tmp_path / "again")[name].tobytes() for name, x in t.items())
  with pytest.raises(SettingError, match="dtype='int8'"):
    tensors.save(tmp_path / "m", config, params, dtype="int8")


def test_missing_unexpected_and_misshapen_tensors(tmp_path):
  config, params = saved(tmp_path)
  shapes = decoder(config).shapes()
  name = "model.layers.1.mlp.up_proj.weight"
  retensor(tmp_path, drop=[name])
  with pytest.raises(DataError, match=f"no tensor {name}"):
    tensors.check(tmp_path, shapes)
  retensor(tmp_path, **{name: np.zeros((3, 32), np.float32)})
  with pytest.raises(DataError, match=rf"{name} is \[3, 32\] .* asks \[48, 32\]"):
    tensors.check(tmp_path, shapes)
  retensor(tmp_path, **{name: np.zeros((48, 32), np.int8)})
  with pytest.raises(DataError, match=f"{name} is I8"):
    tensors.check(tmp_path, shapes)
  tensors.save(tmp_path, config, params)
  retensor(tmp_path, **{"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)})
  with pytest.raises(DataError, match="unexpected tensor model.layers.0.self_attn.q_proj.bias"):
    tensors.check(tmp_path, shapes)
  # More layers than config.json says is as wrong as fewer.
  tensors.save(tmp_path, config, params)
  with pytest.raises(DataError, match="num_hidden_layers=1, the weights have 2"):
    tensors.check(tmp_path, decoder(dataclasses.replace(config, layers=1)).shapes())


def test_a_tied_model_may_carry_a_copy_of_its_embedding(tmp_path, monkeypatch):
  """Another matrix is refused: transformers 5 does not tie that, and would compute with it."""
  config, params = saved(tmp_path, "test_qwen2")
  copy = np.array(params["embed"]["weight"])
  retensor(tmp_path, **{"lm_head.weight": copy})
  monkeypatch.setattr(files, "ROWS", 10)
  assert_same(tensors.load(tmp_path, decoder(config)), params)
  copy[95, 31] += 1e-3
  for other in (copy, copy[:95]):
    retensor(tmp_path, **{"lm_head.weight": other})
    with pytest.raises(
      DataError, match="lm_head.weight is another matrix than model.embed_tokens.weight"
    ):
      tensors.load(tmp_path, decoder(config))
  scores = decoder(dataclasses.replace(config, scores=True))  # which has no use for it
  tensors.load(tmp_path, scores, left_out=("score",))
