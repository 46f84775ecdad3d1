"""What a GGUF says of a model, as config.json says it; import_gguf_test.py reads whole files."""

import numpy as np
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.models import layers
from grpo_jax.models.hf import gguf as names
from grpo_jax.models.hf.config import parse_config


def test_llama_3s_scaling_is_recovered_from_its_factors():
  half = 5e5 ** -(np.arange(0, 64, 2) / 64)
  factors = half / np.asarray(layers.long_context(half, 32.0, 1.0, 4.0, 8192.0))
  sizes = {"context_length": 131072, "embedding_length": 128, "block_count": 1}
  sizes |= {"feed_forward_length": 8, "attention.head_count": 2, "rope.freq_base": 5e5}
  sizes |= {"attention.layer_norm_rms_epsilon": 1e-5}
  metadata = {f"llama.{key}": value for key, value in sizes.items()}
  metadata["general.architecture"] = "llama"
  shapes = {names.EMBEDDING: (10, 128)}
  scaling = names.make_config("F", metadata, shapes, factors.astype(np.float32))["rope_scaling"]
  assert scaling == {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
  }
  assert names.make_config("F", metadata, shapes, np.ones(32))["rope_scaling"] is None
  with pytest.raises(SettingError, match="F: the scaling of rotary positions .* is not Llama 3's"):
    names.make_config("F", metadata, shapes, factors**2)


def test_a_window_of_0_is_none():
  sizes = {"context_length": 16384, "embedding_length": 128, "block_count": 1}
  sizes |= {"feed_forward_length": 8, "attention.head_count": 2, "rope.dimension_count": 64}
  sizes |= {"attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": 0}
  metadata = {f"phi3.{key}": value for key, value in sizes.items()}
  found = names.make_config(
    "F", metadata | {"general.architecture": "phi3"}, {names.EMBEDDING: (10, 128)}
  )
  assert not parse_config("F", found).attention[0].window
