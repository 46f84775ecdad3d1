"""Loads the reward models that score a run's samples, as the config names them."""

import functools
from collections.abc import Callable

from grpo_jax.errors import SettingError, said_of
from grpo_jax.io import storage
from grpo_jax.models.decoder import DecoderConfig
from grpo_jax.reward_models.rewards import RewardModel
from grpo_jax.setup import build, scorers, weights
from grpo_jax.setup.experiment import Experiment
from grpo_jax.tokenizer import reading


def load(experiment: Experiment, model: build.Model) -> list[RewardModel]:
  """Loads `rewards.outcome_models` and `rewards.process_models` onto the policy's mesh."""
  return [load_one() for load_one in find(experiment, model)]


def find(
  experiment: Experiment, model: build.Model, absent: str = ""
) -> list[Callable[[], RewardModel]]:
  """Checks the reward models, and returns a function for each that loads its weights.

  Args:
    experiment: names the reward models.
    model: the policy.
    absent: a folder that an earlier run will write; a reward model from there is left out.
  """
  rows = scorers.reward_models(experiment.rewards)
  return [
    _check_model(experiment, model, *row) for row in rows if not storage.inside(row.folder, absent)
  ]


def shapes(experiment: Experiment) -> list[DecoderConfig]:
  """Returns the shapes of these models, read without their weights."""
  return [_read_shape(name, folder, steps) for name, folder, _, steps in experiment.reward_models]


def _setting(steps: bool) -> str:
  return f"rewards.{'process' if steps else 'outcome'}_models"


def _shown(name: str, folder: str, steps: bool) -> str:
  return f"{_setting(steps)} has {name!r}, {folder!r}"


def _read_shape(name: str, folder: str, steps: bool) -> DecoderConfig:
  setting = _shown(name, folder, steps)
  if not storage.place(folder).is_dir():
    raise SettingError(
      f"{setting}: no such folder; give a Hugging Face folder or the workdir of a run"
    )
  with said_of(_setting(steps)):
    shape = weights.read_shape(weights.find_source(folder)[0])
  if not shape.scores:
    raise SettingError(
      f"{setting}: is no reward model; train one, as experiments/arithmetic_rm.py does"
    )
  return shape


def _check_model(
  experiment: Experiment, policy: build.Model, name: str, folder: str, weight: float, steps: bool
) -> Callable[[], RewardModel]:
  setting = _shown(name, folder, steps)
  _read_shape(name, folder, steps)
  own = build.of_another(experiment, folder, tokenizer="")
  with said_of(_setting(steps)):
    model = build.model(own, scores=True)
  check_tokenizer(policy, model, setting)
  return functools.partial(_load, name, weight, steps, model)


def _load(name: str, weight: float, steps: bool, model: build.Model) -> RewardModel:
  with said_of(_setting(steps)):
    return RewardModel(name, weight, steps, model.decoder, model.load())


def check_tokenizer(policy: build.Model, reward_model: build.Model, setting: str) -> None:
  """Refuses a reward model that does not read the policy's tokens.

  Args:
    policy: its samples are scored.
    reward_model: the model that scores them.
    setting: the setting that names it, with its value, for the message.
  """
  if not reading.alike(policy.tokenizer, reward_model.tokenizer):
    raise SettingError(
      f"{setting}: has another tokenizer than the policy; use a reward model that reads its tokens"
    )
