"""config.json, read and refused."""

import json

import pytest
from hf_test import decoder, edit, saved

from grpo_jax.errors import DataError, SettingError
from grpo_jax.models.hf import tensors
from grpo_jax.models.hf.config import read_config


def test_config_old_and_new(tmp_path):
  config, _ = saved(tmp_path)
  raw = json.loads((tmp_path / "config.json").read_text())
  assert raw["rope_theta"] == raw["rope_parameters"]["rope_theta"] == config.rope_theta
  assert raw["dtype"] == raw["torch_dtype"] == "float32" and raw["architectures"] == [
    "Qwen3ForCausalLM"
  ]
  old = {k: v for k, v in raw.items() if k not in ("rope_parameters", "dtype", "layer_types")}
  (tmp_path / "config.json").write_text(
    json.dumps(old | {"rope_scaling": None, "sliding_window": 4096})
  )
  assert read_config(tmp_path) == config
  new = {k: v for k, v in raw.items() if k not in ("rope_theta", "torch_dtype")}
  (tmp_path / "config.json").write_text(json.dumps(new))
  assert read_config(tmp_path) == config
  edit(tmp_path, rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 7.0}})
  assert read_config(tmp_path).rope_theta == 7.0
  edit(tmp_path, head_dim=None)
  assert read_config(tmp_path).head_dim == 128  # what Qwen3 means without it
  edit(tmp_path, model_type="llama", num_key_value_heads=None)
  assert (read_config(tmp_path).head_dim, read_config(tmp_path).kv_heads) == (8, 4)


@pytest.mark.parametrize(
  "changes, named",
  [
    ({"model_type": "mamba"}, "model_type 'mamba'"),
    ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe'"),
    ({"model_type": None}, "model_type None"),
    (
      {"rope_parameters": {"rope_type": "llama3", "factor": 32.0}},
      "rope scaling 'llama3' without 'low_freq_factor'",
    ),
    ({"rope_parameters": {"rope_type": "linear", "factor": 4.0}}, "rope scaling 'linear'"),
    (
      {"rope_parameters": None, "rope_scaling": {"type": "yarn", "factor": 4.0}},
      "rope scaling 'yarn'",
    ),
    (
      {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
      "rope scaling 'yarn'",
    ),  # beside rope_parameters
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"per_layer_config": {"0": {}}}, "per_layer_config"),
    ({"transformers_weights": "other.safetensors"}, "transformers_weights"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
    ({"layer_types": None, "use_sliding_window": True}, "use_sliding_window"),
    ({"attention_bias": True}, "attention_bias"),
    ({"num_experts": 8}, "num_experts"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"hidden_act": "relu"}, "hidden_act 'relu'"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu' in a qwen3"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ({"query_pre_attn_scalar": 256}, "query_pre_attn_scalar"),
    ({"num_key_value_heads": 3}, "4 heads do not divide over 3"),
    ({"hidden_size": None}, "no 'hidden_size'; a whole number from 1"),
  ],
)
def test_refused_by_name(changes, named, tmp_path):
  saved(tmp_path)
  edit(tmp_path, **changes)
  with pytest.raises(DataError, match=named) as error:
    read_config(tmp_path)
  assert "\n" not in str(error.value) and "init_from" in str(error.value)


def test_missing_folder_config_and_weights(tmp_path):
  with pytest.raises(SettingError, match="no such folder.*hf download.*--config.init_from=DIR"):
    read_config(tmp_path / "nowhere")
  with pytest.raises(DataError, match="no config.json.*hf download"):
    read_config(tmp_path)
  config, _ = saved(tmp_path / "m")
  (tmp_path / "m/model.safetensors").unlink()
  with pytest.raises(DataError, match="no weights: model.safetensors is missing.*hf download"):
    tensors.load(tmp_path / "m", decoder(config))
  (tmp_path / "m/config.json").write_text("{,")
  with pytest.raises(DataError, match="config.json is not JSON"):
    read_config(tmp_path / "m")
