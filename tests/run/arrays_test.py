"""The arrays of a checkpoint, read a few at a time."""

import jax
import jax.numpy as jnp
import pytest
from checkpoint_test import TX

from grpo_jax.learning import state
from grpo_jax.run import arrays, checkpoint


def test_checksums_are_those_of_the_save_whatever_is_read_at_once(tmp_path, monkeypatch):
  weight = jax.random.normal(jax.random.key(0), (64, 50))
  made = state.create({"policy": {"weight": weight, "bias": jnp.arange(8.0)}}, TX)
  checkpoints = checkpoint.Checkpoints(str(tmp_path), keep=1)
  checkpoints.save(3, {"policy": made}, {}, {}, wait=True)
  checkpoints.close()
  saved = checkpoint.about(str(tmp_path), 3)["arrays"]
  whole = list(arrays.read(str(tmp_path), 3))
  assert [sums for sums, _ in whole] == [saved]
  monkeypatch.setattr(arrays, "AT_ONCE", 1)
  single = list(arrays.read(str(tmp_path), 3))
  assert len(single) == len(saved) and all(len(sums) == 1 for sums, _ in single)
  assert {name: value for sums, _ in single for name, value in sums.items()} == saved
  assert sum(size for _, size in single) == sum(size for _, size in whole)


def test_a_checkpoint_that_is_not_there(tmp_path):
  with pytest.raises(Exception, match="checkpoints"):
    list(arrays.read(str(tmp_path), 3))
