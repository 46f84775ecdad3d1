"""Collects what the numbers of a run depend on besides its settings (distributed/inputs.py)."""

from collections.abc import Iterator
from typing import Protocol

from grpo_jax.config import settings
from grpo_jax.distributed import inputs
from grpo_jax.run import checkpoint
from grpo_jax.setup import loop_names, modules, registry, scorers, weights
from grpo_jax.setup.experiment import Experiment
from grpo_jax.tokenizer.tokenizer import Tokenizer


class Contents(Protocol):
  """Data that says what it holds."""

  def contents(self) -> dict[str, str]:
    """Returns a description of each data set by name; {} if its files are all that it has."""
    ...


def gather(experiment: Experiment, tokenizer: Tokenizer, *data: Contents) -> dict[str, str]:
  """Returns everything except settings that the numbers of a run depend on.

  Args:
    experiment: of the run, whose code and data have been loaded.
    tokenizer: of the policy.
    *data: what the run is trained and evaluated on.
  """
  records = (
    inputs.describe_versions() | inputs.describe_code(modules.loaded) | of_folders(experiment)
  )
  if experiment.tokenizer in ("words", "bpe"):  # made from the training data
    tokens = [tokenizer.text(token) for token in range(tokenizer.vocab_size)]
    records["tokenizer"] = (
      f"{len(tokens)} tokens, {inputs.digest(repr(tokens).encode(errors='replace'))}"
    )
  for source in data:
    records |= source.contents()
  return records


def of_folders(values: settings.Settings) -> dict[str, str]:
  """Returns a description of the files of data and weights that settings name."""
  records: dict[str, str] = {}
  for setting, path in _data(values):
    records |= inputs.describe_path(setting, path)
  for setting, path in _weights(values):
    if path:
      folder, run = weights.find_source(path)
      records |= inputs.describe_path(setting, folder)
      records |= {f"{setting} checkpoint": str(checkpoint.latest(run))} if run else {}
  return records


def _data(values: settings.Settings) -> Iterator[tuple[str, str]]:
  """Yields each setting that names a file or folder of data, with its value."""
  for i, (_, path, _) in enumerate(registry.train_entries(values.data)):
    yield f"data.mixture[{i}]" if values.data.mixture else "data.path", path
  yield "data.test_path", values.data.test_path
  yield "offline.pairs", values.offline.pairs
  yield "offline.steps", values.offline.steps


def _weights(values: settings.Settings) -> Iterator[tuple[str, str]]:
  """Yields each setting that names weights, a tokenizer or a run, with its value."""
  yield "init_from", values.init_from
  yield "ref_from", values.ref_from
  if values.tokenizer not in ("words", "bpe"):
    yield "tokenizer", values.tokenizer
  yield "offline.teacher", values.offline.teacher
  if loop_names.kind(values.loop) == "iterative":
    yield "iterative.reward_model", values.iterative.reward_model
  for name, folder, _, _ in scorers.reward_models(values.rewards):
    yield f"rewards.{name}", folder
