"""What the files of a folder hold."""

import pytest
from hf_test import decoder, saved

from grpo_jax.errors import DataError
from grpo_jax.models.hf import tensors


@pytest.mark.parametrize("how", ["cut", "noise", "empty", "header"])
def test_corrupt_weights(how, tmp_path):
  config, _ = saved(tmp_path)
  file = tmp_path / "model.safetensors"
  data = file.read_bytes()
  file.write_bytes(
    {"cut": data[:-100], "noise": b"\xff" * 999, "empty": b"", "header": data[:50]}[how]
  )
  with pytest.raises(DataError, match="model.safetensors is corrupt.*download it again") as error:
    tensors.check(tmp_path, decoder(config).shapes())
  assert "\n" not in str(error.value)
