"""Makes devices of a TPU topology that is not attached, to compile for; this needs libtpu only."""

import os
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from grpo_jax.errors import SettingError
from grpo_jax.plan import chips

# With these libtpu looks neither for chips nor for a cloud's metadata server, and several processes
# may use it at once.
_ENVIRONMENT = {
  "TPU_SKIP_MDS_QUERY": "1",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-8",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
}
# JAX uses the two cores of a v4 chip as one device, which the compiler has to be told. (It knows of
# v5p; the two cores of a tpu7x are two devices.)
_AS_USED = {"v4": {"chip_config_name": "megacore"}}


def devices(name: str, slices: int = 1) -> Sequence[jax.Device]:
  """Returns the devices of `slices` slices of a topology such as "v5e:2x4", for the compiler."""
  chips.find_chip(name)
  try:
    import libtpu
  except ImportError as error:
    raise SettingError(
      f"--topology={name}: the compiler for TPUs is missing; pip install 'jax[tpu]' -c "
      "constraints.txt"
    ) from error
  del libtpu  # jax loads it
  for variable, value in _ENVIRONMENT.items():
    os.environ.setdefault(variable, value)
  more = _AS_USED.get(name.partition(":")[0], {}) | ({"num_slices": slices} if slices > 1 else {})
  try:
    return topologies.get_topology_desc(platform="tpu", topology_name=name, **more).devices
  except Exception as error:  # jax raises the compiler's errors, which are of several kinds
    raise SettingError(
      f"--topology={name}{f', --slices={slices}' * (slices > 1)}: the compiler refuses it "
      f"({str(error).splitlines()[0]}); v4, v5p and tpu7x have three sizes, as 4x4x4, v5e and v6e "
      "two, as 4x4"
    ) from error


def slice_of_each(mesh: jax.sharding.Mesh) -> list[int]:
  """Returns the slice of each device of a mesh, in the mesh's order; 0 outside slices."""
  return [getattr(device, "slice_index", 0) for device in mesh.devices.flat]
