"""What a run's folder says of where it began: its config, and the dtype that its first weights came
in.

jax is not imported before weights are looked at: commands that only look for a folder answer at
once.
"""

from typing import Any

from grpo_jax.config import kinds
from grpo_jax.io import storage
from grpo_jax.run import finished
from grpo_jax.sandbox import model_folder


def is_run(path: str) -> bool:
  """Returns whether a folder is the workdir of a run."""
  return (
    finished.directory(path).is_dir() or (storage.place(path) / "export" / "config.json").exists()
  )


def run_of(path: str) -> str:
  """Returns the run that a folder belongs to: itself, or that of which it is DIR/export; "" where
  it is no run's.
  """
  if is_run(path):
    return path
  place = storage.absolute(path)
  return str(place.parent) if place.name == "export" and is_run(str(place.parent)) else ""


def ended_at(run: str) -> int | None:
  """Returns the step at which a run ended and wrote its export; None where it has not ended.

  Raises:
    SettingError: its result.json cannot be read.
  """
  result = model_folder.read_json(f"workdir={run}", storage.place(run), "result.json") or {}
  model_folder.check(f"workdir={run}", "result.json", result, {"steps": kinds.Whole(0)})
  return result.get("steps")


def has_gone_on(run: str) -> bool:
  """Returns whether a run has a checkpoint of after its end: it was given more steps, and its
  export is of before.

  Raises:
    SettingError: its result.json cannot be read.
  """
  end, last = ended_at(run), finished.latest(finished.directory(run))
  return end is not None and last is not None and end < last


def saved_config(path: str) -> dict[str, Any]:
  """Returns the config that a run's folder belongs to, as JSON has it; {} where it is no run's.

  Raises:
    SettingError: it cannot be read.
  """
  if not is_run(path):
    return {}
  return model_folder.read_json(f"workdir={path}", storage.place(path), "config.json") or {}


def weights_dtype(source: str) -> str:
  """Returns the dtype that weights came in: of a folder's tensors; of a run, that of what it
  started from.

  float32 also where that is float16, which is not written, where the run began with fresh weights,
  and where the folder is not there any more.

  Args:
    source: a Hugging Face folder or the workdir of a run; "": fresh weights.

  Raises:
    SettingError: its files cannot be read.
  """
  from grpo_jax.models.hf import headers  # imports jax
  from grpo_jax.models.hf.names import COMPUTED

  passed = set()
  while source and is_run(source) and source not in passed:
    passed.add(source)
    source = str(saved_config(source).get("init_from") or "")
  if not source or not (storage.place(source) / "config.json").exists():
    return "float32"
  found = {
    t.dtype
    for name, t in headers.read_headers(storage.place(source)).items()
    if not name.endswith(COMPUTED)
  }
  return "bfloat16" if found == {"BF16"} else "float32"
