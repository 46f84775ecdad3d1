"""Devices that are not there."""

import sys

import pytest

from grpo_jax.errors import SettingError
from grpo_jax.plan import topology


def test_without_the_compiler_a_line_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "libtpu", None)
  with pytest.raises(SettingError, match=r"--topology=v5e:2x4: .*pip install 'jax\[tpu\]'"):
    topology.devices("v5e:2x4")
