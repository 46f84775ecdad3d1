"""Where a run began."""

import numpy as np
import pytest
import safetensors.numpy
from commands_test import WARM_START, write_run

from grpo_jax.loops import export
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


@pytest.mark.parametrize(
  ("exports", "last", "stale"),
  [
    ([(100, True)], 100, False),
    ([(100, True)], 150, True),  # it goes on
    ([(100, True), (200, False)], 200, True),  # and ended without another export
    ([(100, True), (200, False), (300, True)], 300, False),
    ([(100, False)], 100, False),
  ],
)
def test_an_export_is_stale_once_its_run_has_made_steps_since(
  exports, last, stale, tmp_path, monkeypatch
):
  for steps, exported in exports:
    export.write_result(str(tmp_path), {}, {}, steps, 1.0, exported)
  monkeypatch.setattr(provenance.finished, "latest", lambda directory: last)
  assert provenance.has_gone_on(str(tmp_path)) == stale
  assert provenance.ended_at(str(tmp_path)) == exports[-1][0]


def test_an_older_result_is_of_its_export(tmp_path):
  (tmp_path / "result.json").write_text('{"steps": 7}')
  assert provenance.exported_at(str(tmp_path)) is None  # it wrote none
  (tmp_path / "export").mkdir()
  (tmp_path / "export" / "config.json").write_text("{}")
  assert provenance.exported_at(str(tmp_path)) == provenance.ended_at(str(tmp_path)) == 7
  assert provenance.exported_at(str(tmp_path / "none")) is None
