"""A damaged checkpoint never becomes other numbers: a run goes on from the one before it, or from
the same numbers.
"""

import itertools
import pathlib
import shutil

import checkpoint_test
import damage
import jax
import jax.numpy as jnp
import pytest

from grpo_jax.errors import CheckpointError
from grpo_jax.learning import state
from grpo_jax.run import checkpoint


def make_state(step: int) -> state.TrainState:
  weight = jax.random.normal(jax.random.key(step), (64, 50))
  made = state.create(
    {"policy": {"weight": weight, "bias": jnp.arange(8.0) + step}}, checkpoint_test.TX
  )
  return jax.tree.map(lambda x: x + jnp.asarray(step, x.dtype), made)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
  """A folder with checkpoints of the steps 2 and 4."""
  folder = tmp_path_factory.mktemp("good")
  checkpoints = checkpoint.Checkpoints(str(folder), keep=2)
  for step in (2, 4):
    checkpoints.save(step, {"policy": make_state(step)}, {"index": step}, {"seen": step}, wait=True)
  checkpoints.close()
  return folder


def restored(folder: pathlib.Path) -> checkpoint.Restored:
  """What is restored; it is what was saved at its step, and the step can be saved anew."""
  abstract = {"policy": state.abstract(make_state(2).params, checkpoint_test.TX)}
  checkpoints = checkpoint.Checkpoints(str(folder), keep=2)
  got = checkpoints.restore_latest(abstract)
  assert checkpoint_test.equal(got.states["policy"], make_state(got.step))
  assert (got.data, got.extra) == ({"index": got.step}, {"seen": got.step})
  assert (got.step == 4) == (not got.passed_over)
  for said in got.passed_over:
    assert "\n" not in said and "<" not in said and len(said) < 300, said
  checkpoints.save(4, {"policy": make_state(4)}, {"index": 4}, {"seen": 4}, wait=True)
  again = checkpoints.restore_latest(abstract)
  assert again.step == 4 and not again.passed_over
  checkpoints.close()
  return got


@pytest.mark.slow
@pytest.mark.long
def test_every_kind_of_damage_to_every_file(good, tmp_path):
  newest, before = good / "checkpoints" / "4", good / "checkpoints" / "2"
  passed_over, tried = set(), set()
  for number, (kind, file, apply) in enumerate(damage.cases(newest, before)):
    folder = tmp_path / str(number)
    shutil.copytree(good, folder)
    apply(folder / file.relative_to(good))
    tried.add((kind, file))
    if restored(folder).passed_over:
      passed_over.add((kind, file.relative_to(newest).parts[0]))
    shutil.rmtree(folder)
  # A checkpoint has 15 to 17 files: in how many the arrays are cut is up to the system's timing.
  assert (
    tried == set(itertools.product([*damage.KINDS, "exchange"], damage.files(newest)))
    and len(tried) >= 6 * 12
  )
  assert {(kind, "about") for kind in damage.KINDS} <= passed_over
  assert {(kind, "state") for kind in damage.KINDS} <= passed_over


def test_changed_bytes_of_the_arrays_are_noticed(good, tmp_path):
  noticed = 0
  for seed in range(12):
    folder = tmp_path / str(seed)
    shutil.copytree(good, folder)
    damage.flip(
      max(damage.files(folder / "checkpoints" / "4"), key=lambda file: file.stat().st_size), seed
    )
    got = restored(folder)  # the same numbers at step 4, where the byte means nothing
    noticed += got.step == 2 and (folder / "damaged" / "4").is_dir()
  assert noticed >= 8


@pytest.mark.parametrize("kind", ["delete", "truncate", "flip", "garbage"])
def test_damage_to_what_a_checkpoint_says_of_itself(good, tmp_path, kind):
  shutil.copytree(good, tmp_path / "run")
  getattr(damage, kind)(tmp_path / "run" / "checkpoints" / "4" / "about" / "metadata")
  assert restored(tmp_path / "run").step == 2


def test_damage_to_another_run_never_becomes_other_parameters(good, tmp_path):
  refused, abstract = 0, state.abstract(make_state(4).params, checkpoint_test.TX).params
  for seed in range(8):
    folder = tmp_path / str(seed)
    shutil.copytree(good, folder)
    damage.flip(
      max(damage.files(folder / "checkpoints" / "4"), key=lambda file: file.stat().st_size), seed
    )
    try:
      found = checkpoint.restore_params(str(folder), abstract)
      # where the byte is one of the optimizer's
      assert checkpoint_test.equal(found, make_state(4).params)
    except CheckpointError as error:
      assert "checkpoint 4 cannot be read (" in str(error)
      refused += 1
  assert refused
