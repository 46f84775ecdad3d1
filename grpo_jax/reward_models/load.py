"""The reward models that score a run's samples, as the config names them."""

import functools
from collections.abc import Callable

from ml_collections import ConfigDict

from grpo_jax.errors import SettingError, said_of
from grpo_jax.io import storage
from grpo_jax.models.decoder import DecoderConfig
from grpo_jax.reward_models.rewards import RewardModel
from grpo_jax.setup import build, parameters, scorers

PROBE = (
  "What is 12 + 7?\nIt is 12 + 7 = 19.\n#### 19"  # a text that two tokenizers should read alike
)


def load(config: ConfigDict, model: build.Model) -> list[RewardModel]:
  """The reward models of `rewards.outcome_models` and `rewards.process_models`, on the policy's
  mesh.

  Raises:
    SettingError: as `find`; weights that are damaged.
  """
  return [load_one() for load_one in find(config, model)]


def find(config: ConfigDict, model: build.Model) -> list[Callable[[], RewardModel]]:
  """What loads each of `load`'s; no weights are read yet.

  Raises:
    SettingError: a folder that is not there, holds no reward model, or one of another tokenizer.
  """
  return [_find(config, model, *row) for row in scorers.reward_models(config.rewards)]


def shapes(config: ConfigDict) -> list[DecoderConfig]:
  """The shapes of those models, read without their weights.

  Raises:
    SettingError: a folder that is not there, or holds no reward model.
  """
  return [
    _read_shape(name, folder, steps)
    for name, folder, _, steps in scorers.reward_models(config.rewards)
  ]


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
    shape = parameters.read_shape(parameters.find_source(folder)[0])
  if not shape.scores:
    raise SettingError(
      f"{setting}: is no reward model; train one, as experiments/arithmetic_rm.py does"
    )
  return shape


def _find(
  config: ConfigDict, policy: build.Model, name: str, folder: str, weight: float, steps: bool
) -> Callable[[], RewardModel]:
  setting = _shown(name, folder, steps)
  _read_shape(name, folder, steps)
  given = build.of_another(config, folder)
  given.tokenizer = ""
  with said_of(_setting(steps)):
    found = build.model(given, scores=True)
  check_tokenizer(policy, found, setting)
  return functools.partial(_load, name, weight, steps, found)


def _load(name: str, weight: float, steps: bool, found: build.Model) -> RewardModel:
  with said_of(_setting(steps)):
    return RewardModel(name, weight, steps, found.decoder, found.load())


def check_tokenizer(policy: build.Model, found: build.Model, setting: str) -> None:
  """Refuses a reward model that does not read the policy's tokens.

  Args:
    policy: whose samples are scored.
    found: the reward model.
    setting: that names it, and its value, for the message.
  """
  ours, theirs = (each.tokenizer.encode(PROBE) for each in (policy, found))
  if ours != theirs or policy.tokenizer.eos_ids != found.tokenizer.eos_ids:
    raise SettingError(
      f"{setting}: has another tokenizer than the policy; use a reward model that reads its tokens"
    )
