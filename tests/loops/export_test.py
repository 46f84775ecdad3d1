"""The results of a run."""

import types
from typing import Any

import numpy as np

from grpo_jax.loops.export import progress_of


def test_an_export_shows_how_much_is_written():
  shown: list[tuple] = []
  writer: Any = types.SimpleNamespace(progress=lambda *x: shown.append(x))
  show = progress_of(writer, {"a": np.zeros(2_000_000), "b": np.zeros(1_000_000)}, "bfloat16")
  show(4_000_000)
  show(6_000_000)
  assert shown == [("MB exported", 4, 6), ("MB exported", 6, 6)]
