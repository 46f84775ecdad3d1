"""Random content of what a checkpoint says of itself: a run goes on from what was saved, or from
what was before.
"""

import json
import pathlib
import shutil

import checkpoint_test
import damage_test
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from grpo_jax.errors import CheckpointError
from grpo_jax.learning import state
from grpo_jax.run import checkpoint

ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
  ATOMS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3)
)
FILES = ("about/metadata", "state/_METADATA", "state/_sharding", "state/array_metadatas/process_0")
FEW = settings(
  max_examples=12, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

good = damage_test.good


@pytest.fixture(scope="module")
def copy(good, tmp_path_factory):
  """The folder in which a checkpoint is changed."""
  return good, tmp_path_factory.mktemp("copy") / "run"


def try_with(copy: tuple[pathlib.Path, pathlib.Path], name: str, text: bytes) -> None:
  """Restores where a file of the newest checkpoint holds `text`."""
  good, folder = copy
  shutil.rmtree(folder, ignore_errors=True)
  shutil.copytree(good, folder)
  (folder / "metrics.jsonl").write_text("")
  (folder / "checkpoints" / "4" / name).write_bytes(text)
  abstract = {"policy": state.abstract(damage_test.make_state(2).params, checkpoint_test.TX)}
  checkpoints = checkpoint.Checkpoints(str(folder), keep=2)
  try:
    got = checkpoints.restore_latest(abstract)
    assert checkpoint_test.equal(got.states["policy"], damage_test.make_state(got.step))
  except CheckpointError as error:
    assert "\n" not in str(error)
  finally:
    checkpoints.close()


@FEW
@given(name=st.sampled_from(FILES), value=VALUES)
@example(name="about/metadata", value=[])
def test_any_json(copy, name, value):
  try_with(copy, name, json.dumps(value).encode())


@FEW
@given(
  name=st.sampled_from(FILES),
  edits=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1),
)
def test_any_bytes(copy, name, edits):
  text = bytearray((copy[0] / "checkpoints" / "4" / name).read_bytes())
  for place, byte in edits:
    text[place % len(text)] = byte
  try_with(copy, name, bytes(text))
