"""What a checkpoint holds."""

import json

import damage_test
import pytest
from fuzz_checkpoint_test import FEW, VALUES, try_with
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_jax.run import checkpoint_files

good = damage_test.good


@pytest.fixture(scope="module")
def copy(good, tmp_path_factory):
  """The folder in which a checkpoint is changed."""
  return good, tmp_path_factory.mktemp("copy") / "run"


@FEW
@given(key=st.sampled_from(["step", "data", "extra", "lengths", "arrays"]), value=VALUES)
@example(key="lengths", value={"metrics.jsonl": -1})
@example(key="lengths", value={"metrics.jsonl": "x"})
@example(key="arrays", value=5)
@example(key="step", value=None)
def test_any_value_with_its_right_checksum(copy, key, value):
  about = json.loads((copy[0] / "checkpoints" / "4" / "about" / "metadata").read_bytes())
  del about["checksum"]
  about[key] = json.loads(json.dumps(value))
  try_with(
    copy,
    "about/metadata",
    json.dumps(about | {"checksum": checkpoint_files.checksum(about)}).encode(),
  )
