"""Reads from a run's folder where the run began: its config, and the dtype of its first weights.

jax is imported only when weights are read, so that commands which look for a folder answer at once.
"""

from grpo_jax.aliases import Json
from grpo_jax.config import kinds
from grpo_jax.errors import CheckpointError, as_kind
from grpo_jax.io import storage
from grpo_jax.run import finished
from grpo_jax.sandbox import model_folder


def is_run(path: str) -> bool:
  """Returns whether a folder is the workdir of a run."""
  return (
    finished.directory(path).is_dir() or (storage.place(path) / "export" / "config.json").exists()
  )


def run_of(path: str) -> str:
  """Returns the run of a folder that is a run or its DIR/export; else ""."""
  if is_run(path):
    return path
  place = storage.absolute(path)
  return str(place.parent) if place.name == "export" and is_run(str(place.parent)) else ""


@as_kind(CheckpointError)
def ended_at(run: str) -> int | None:
  """Returns the step at which a run ended; None if it has not ended."""
  return _result(run).get("steps")


@as_kind(CheckpointError)
def exported_at(run: str) -> int | None:
  """Returns the step of a run's export; None if it has none.

  A run may end later without another (`checkpoint.export`). Before that was told apart, it was the
  step at which the run ended.
  """
  result, export = _result(run), storage.place(run) / "export" / "config.json"
  return result.get("exported", result.get("steps") if export.exists() else None)


def _result(run: str) -> Json:
  """Returns the result.json of a run, {} if there is none."""
  result = model_folder.read_json(f"workdir={run}", storage.place(run), "result.json") or {}
  steps = dict.fromkeys(("steps", "exported"), kinds.Whole(0))
  model_folder.check(f"workdir={run}", "result.json", result, steps)
  return result


def has_gone_on(run: str) -> bool:
  """Returns whether a run has made steps since its export, which is stale then."""
  end, last = exported_at(run), finished.latest(finished.directory(run))
  return end is not None and last is not None and end < last


@as_kind(CheckpointError)
def saved_config(path: str) -> Json:
  """Returns the config of a run's folder, as JSON; {} if it is no run's folder."""
  if not is_run(path):
    return {}
  return model_folder.read_json(f"workdir={path}", storage.place(path), "config.json") or {}


def weights_dtype(source: str) -> str:
  """Returns the dtype of the tensors of a folder, or of the first weights of a run.

  It is "bfloat16" or "float32"; the latter also for float16, which is not written, for fresh
  weights, and if the folder of the weights is gone.

  Args:
    source: a Hugging Face folder or the workdir of a run; "": fresh weights.
  """
  from grpo_jax.models.hf import headers  # imports jax
  from grpo_jax.models.hf.names import COMPUTED

  visited = set()
  while source and is_run(source) and source not in visited:
    visited.add(source)
    source = str(saved_config(source).get("init_from") or "")
  if not source or not (storage.place(source) / "config.json").exists():
    return "float32"
  dtypes = {
    t.dtype
    for name, t in headers.read_headers(storage.place(source)).items()
    if not name.endswith(COMPUTED)
  }
  return "bfloat16" if dtypes == {"BF16"} else "float32"
