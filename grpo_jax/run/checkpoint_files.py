"""Reads the files of one checkpoint and compares them with the checksums in it."""

import json
import zlib
from collections.abc import Mapping
from typing import Required, TypedDict

import jax
import orbax.checkpoint as ocp

from grpo_jax.aliases import Json, Tree
from grpo_jax.io import storage
from grpo_jax.models.decoder import Params
from grpo_jax.run.checksums import checksums


class Extra(TypedDict, total=False):
  """Holds what a run needs to resume besides its learners and the position in the data."""

  wall_s: Required[float]  # seconds spent in the run
  # by the name of a learner: the step and fingerprints of its reference and of its base
  references: Required[dict[str, Json]]
  sizes: dict[str, Json]  # of the programs, by the name of a learner
  before: dict[str, float]  # the first evaluation
  tested: list[object]  # the test data of the first evaluation, see `Evaluation.tested`
  evaluation_due: bool  # a signal stopped the evaluation of this step
  samples: str  # fingerprint of samples.npz
  kind: str  # of the reward model of an iterative run: the objective that trains it


class About(TypedDict):
  """JSON of a checkpoint; the file has its checksum too."""

  step: int
  data: Json  # position in the data
  extra: Extra
  lengths: dict[str, int]  # bytes that each of the run's own logs had
  arrays: dict[str, str]  # checksum of every array


_TYPES = {"step": int, "data": dict, "extra": dict, "lengths": dict, "arrays": dict}


class Damaged(Exception):
  """A checkpoint differs from what was saved."""


def read_about(path: storage.Path) -> About:
  """Returns the JSON of the checkpoint in a folder, if its checksum is right."""
  try:
    about = json.loads((path / "about" / "metadata").read_bytes())
  except (ValueError, RecursionError):
    raise Damaged("about/metadata is not JSON") from None
  if not isinstance(about, dict) or about.pop("checksum", None) != checksum(about):
    raise Damaged("about/metadata is not what was saved")
  wrong = [name for name, kind in _TYPES.items() if not isinstance(about.get(name), kind)]
  if wrong or not all(isinstance(n, int) and n >= 0 for n in about["lengths"].values()):
    raise Damaged(f"about/metadata has no valid {(wrong or ['lengths'])[0]}")
  if str(about["step"]) != path.name:
    raise Damaged(f"it is the checkpoint of step {about['step']}")
  return About(
    step=about["step"],
    data=about["data"],
    extra=about["extra"],
    lengths=about["lengths"],
    arrays=about["arrays"],
  )


def checksum(about: Mapping[str, object]) -> str:
  """Returns the checksum of a checkpoint's JSON."""
  return f"{zlib.crc32(json.dumps(about, sort_keys=True).encode()):08x}"


def check_fits(path: storage.Path, learner: str, params: dict[str, Params]) -> None:
  """Refuses a checkpoint whose parameters of a learner lack some of `params` or differ in shape."""
  stored_learners = ocp.PyTreeCheckpointHandler().metadata(path / "state").tree
  if learner not in stored_learners:
    raise ValueError(f"it holds {', '.join(stored_learners)} and no {learner}")
  stored = _shapes(stored_learners[learner]["params"])
  for name, shape in _shapes(params).items():
    if name not in stored:
      raise ValueError(f"it has no {name}")
    if stored[name] != shape:
      raise ValueError(f"{name} is {stored[name]} there and {shape} here")


def _shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
  return {
    jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
    for path, leaf in jax.tree.leaves_with_path(tree)
  }


def read_arrays(handler: ocp.CheckpointHandler, path: storage.Path, args: object) -> Tree:
  """Restores arrays with a handler of orbax; each process reads its own part without waiting.

  The `restore` of a manager or a checkpointer ends with a barrier, at which a process that could
  read would wait for one that could not.
  """
  try:
    return handler.restore(path, args=args)
  finally:
    handler.close()


def compare(saved: dict[str, str], tree: Tree) -> None:
  """Compares restored arrays with the checksums of those that were saved."""
  wrong = [name for name, value in checksums(tree).items() if saved.get(name) != value]
  if wrong:
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    raise Damaged(f"the numbers of {wrong[0]}{more} are not those that were saved")
