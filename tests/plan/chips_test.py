"""The chips that are known."""

import pytest

from grpo_jax.errors import SettingError
from grpo_jax.plan import chips


@pytest.mark.parametrize("name", ["v5e", "v9:2x2", "2x2", "v5e:abc", "v5e:0x4", "v5e:2x"])
def test_a_topology_of_no_family_is_refused(name):
  with pytest.raises(SettingError, match=f"--topology={name}: use FAMILY:SHAPE"):
    chips.find_chip(name)
