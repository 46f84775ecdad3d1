"""Values exchanged between processes, where there is one; multihost_test.py has several."""

import jax
import numpy as np
import pytest

from grpo_jax.distributed import hosts


def test_one_process_has_its_own_values():
  assert hosts.gather({"a": 1}) == [{"a": 1}] and hosts.text_of_process_0("text") == "text"
  assert hosts.together(lambda: 3) == 3
  with pytest.raises(KeyError):
    hosts.together(lambda: {}["missing"])


def test_an_array_that_several_devices_hold_belongs_to_the_process_once():
  values = np.arange(2 * 4 * 3).reshape(2, 4, 3)
  mesh = jax.make_mesh((2, 2), ("prompt", "copy"), devices=jax.devices()[:4])
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("prompt"))
  for array in (values, jax.device_put(values, sharding)):
    share, mask = hosts.share(array)
    assert (share == values).all() and mask.shape == (2, 4) and mask.all()
