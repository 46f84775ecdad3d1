"""Where a run began."""

import numpy as np
import safetensors.numpy
from commands_test import WARM_START, write_run

from grpo_jax.run import provenance


def test_the_dtype_is_that_of_the_first_weights(tmp_path):
  """Through a run that started from a run; float32 where nothing is known."""
  import ml_dtypes

  folder = tmp_path / "weights"
  folder.mkdir()
  (folder / "config.json").write_text("{}")
  tensors = {"a": np.zeros(3, ml_dtypes.bfloat16)}
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")
  first = write_run(tmp_path / "first", {"init_from": str(folder)})
  second = write_run(tmp_path / "second", {"init_from": first})
  assert provenance.weights_dtype(str(folder)) == provenance.weights_dtype(second) == "bfloat16"
  assert (
    provenance.weights_dtype(WARM_START)
    == provenance.weights_dtype("")
    == provenance.weights_dtype("gone")
    == "float32"
  )
  safetensors.numpy.save_file(
    tensors | {"b": np.zeros(3, np.float32)}, folder / "model.safetensors"
  )
  assert provenance.weights_dtype(second) == "float32"
