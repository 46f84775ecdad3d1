"""Checks of settings by themselves and against each other, before anything is compiled."""

import operator
from collections.abc import Callable, Sequence

import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from grpo_jax import guard, ranges, sharding
from grpo_jax.errors import SettingError
from grpo_jax.loops import build, imports
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf.config import write_config
from grpo_jax.objectives.contract import Objective
from grpo_jax.rewards import combine
from grpo_jax.sampler import decode_layout
from grpo_jax.sharding import Layout
from grpo_jax.types import STOPPED, Completion, Example, Prompts, Rollouts

FIRST_SOLUTIONS = 8  # worked solutions of a data set, scored before a run starts
# Completions of a prompt, by kind of offline data; samples have as many as the sampler makes.
COMPLETIONS = {"solutions": 1, "pairs": 2}


def check_settings(config: ConfigDict) -> None:
  """Refuses what is wrong with the settings whatever the weights, data and devices are; loops call it first.

  Raises:
    SettingError: a setting that is missing or out of range, or a name of something that is not there.
  """
  ranges.check(config)
  imports.objective_settings(config.objective)
  if source_of_data(config) != "solutions":  # those are not scored
    imports.rewards(config.rewards)
  imports.eval_reward(config.eval)
  for name, *_ in imports.train_entries(config.data):
    imports.data(name, "data.mixture" if config.data.mixture else "data.name")
  if config.data.test_name:
    imports.data(config.data.test_name, "data.test_name")


def check(config: ConfigDict, decoder: Decoder, objective: Objective) -> None:
  """Refuses settings that do not go together.

  Raises:
    SettingError: names the settings and what would work.
  """
  check_batch(config, decoder.layout)
  check_learner(config, decoder.layout)
  check_rewards(config)
  check_data(config, objective)
  check_group(config, imports.objective_settings(config.objective))
  if config.checkpoint.export:
    check_export(decoder)


def check_export(decoder: Decoder) -> None:
  """Refuses a policy that could not be written as a Hugging Face folder after the last step."""
  try:
    write_config(decoder.config)
  except SettingError as error:
    raise SettingError(f"checkpoint.export=True: {error}; use checkpoint.export=False") from error


def check_batch(config: ConfigDict, layout: Layout) -> None:
  """Refuses a batch that the mesh does not divide."""
  sharding.check_batch(layout, config.data.prompts, config.sampler.group)
  check_decoding(config, layout)
  completions = COMPLETIONS.get(config.offline.data) if config.loop == "offline" else None
  if completions and completions % layout.size("sample"):
    raise SettingError(
      f"mesh.group={layout.size('sample')} with offline.data={config.offline.data!r}, {completions} a prompt: use 1"
    )


def check_decoding(config: ConfigDict, layout: Layout) -> None:
  """Refuses a batch that the sampler's own mesh does not divide."""
  mine = decode_layout(layout, config.sampler.tensor)
  for setting, name in (("data.prompts", "prompt"), ("sampler.group", "sample")):
    value, shards = config.data.prompts if name == "prompt" else config.sampler.group, mine.size(name)
    if value % shards:
      raise SettingError(
        f"sampler.tensor={config.sampler.tensor}: {setting}={value} does not divide over the {shards} shards of the "
        f"sampler's mesh {dict(mine.mesh.shape)}; use a larger sampler.tensor, or a multiple of {shards}"
      )


def check_learner(config: ConfigDict, layout: Layout) -> None:
  """Refuses minibatches and microbatches that the prompts or the mesh do not divide into."""
  cfg, shards, prompts = config.learner, layout.size("prompt"), config.data.prompts
  if prompts % (cfg.minibatches * shards):
    raise SettingError(
      f"learner.minibatches={cfg.minibatches}: data.prompts={prompts} does not divide into so many over "
      f"{shards} shards; use a divisor of {prompts // shards}"
    )
  minibatch = prompts // cfg.minibatches
  if cfg.microbatch and (minibatch % cfg.microbatch or cfg.microbatch % shards):
    raise SettingError(
      f"learner.microbatch={cfg.microbatch}: use a multiple of {shards} that divides the minibatch of {minibatch} "
      "prompts"
    )


def check_rewards(config: ConfigDict) -> None:
  """Refuses weights that are not one for each reward."""
  weights, functions = config.objective.get("reward_weights"), config.rewards.functions
  if weights and len(weights) != len(functions):
    raise SettingError(f"objective.reward_weights={weights}: give {len(functions)}, one for each of rewards.functions")


def check_group(config: ConfigDict, settings: FrozenConfigDict) -> None:
  """Refuses groups of one under an advantage that compares the completions of a group.

  Args:
    config: of the run.
    settings: of the objective, as `imports.objective_settings` returns them.

  Raises:
    SettingError: names sampler.group.
  """
  if config.loop == "offline" and config.offline.data == "pairs" and config.sampler.group < 2:
    raise SettingError(f"sampler.group={config.sampler.group} with offline.data='pairs': use at least 2")
  if config.sampler.group > 1 or "advantage" not in settings or source_of_data(config) == "solutions":
    return
  # Three prompts with one completion each, of different rewards: does any of them get an advantage?
  tokens, rewards = np.ones((3, 1, 2), np.int32), np.array([[[0, 0.0]], [[0, 1.0]], [[0, 3.0]]], np.float32)
  some = Rollouts(
    Prompts(tokens[:, 0], np.full(3, 2, np.int32)),
    tokens,
    np.full((3, 1), 2, np.int32),
    np.full((3, 1), STOPPED, np.int32),
    np.zeros(tokens.shape, np.float32),
    np.zeros(tokens.shape, np.float32),
    rewards=rewards,
    given=np.array([[[False, True]]] * 3),  # on the last token
    components=np.repeat(rewards.sum(2)[..., None], len(config.rewards.functions), axis=2),
  )
  if not np.nan_to_num(settings.advantage(some)).any():
    raise SettingError(
      f"sampler.group=1: objective.advantage={config.objective.advantage!r} compares the completions of a prompt, and "
      "is 0 where there is only one; use at least 2"
    )


def check_eval_reward(reward: Callable, problems: Sequence[Example], model: build.Model, config: ConfigDict) -> None:
  """Scores the worked solutions of the first problems, and refuses a reward that fails on all of them.

  Raises:
    SettingError: names eval.reward and what it said.
  """
  messages = try_reward(reward, problems, model, config)
  if all(messages):
    raise SettingError(
      f"eval.reward={config.eval.reward!r}: cannot score the test data: {messages[0]}; use a reward for such "
      "answers, as math.answer_correct for numbers or choice.choice_correct for letters"
    )


def try_reward(reward: Callable, examples: Sequence[Example], model: build.Model, config: ConfigDict) -> list[str]:
  """Scores the worked solutions of the first examples, and returns what went wrong with each, "" where nothing did.

  Raises:
    SettingError: the reward says that it cannot work as it is set.
  """
  messages = []
  with guard.Guard(config.rewards.deadline) as call:
    for example in examples[:FIRST_SOLUTIONS]:
      ids = [*model.tokenizer.encode(example.solution), model.tokenizer.eos_id]
      written = Completion(example.solution, ids, STOPPED, model.tokenizer.step_ends(ids))
      messages.append(combine.attempt(call, reward, example, written)[1])
  return messages


def source_of_data(config: ConfigDict) -> str:
  """Where the completions come from: "live", or the kind of offline data."""
  return config.offline.data if config.loop == "offline" else "live"


def check_data(config: ConfigDict, objective: Objective) -> None:
  """Refuses an objective that is not for the data of this loop, and one without the teacher that it needs."""
  found, name = source_of_data(config), config.objective.name
  if found not in objective.DATA:
    raise SettingError(
      f"objective.name={name!r} with {_shown(found)}: use {', or '.join(_shown(kind) for kind in objective.DATA)}"
    )
  teacher = objective.TEACHER
  if teacher and not operator.attrgetter(teacher)(config):
    raise SettingError(f"{teacher}='': {name} learns from another model; give its folder, or a run's")


def _shown(kind: str) -> str:
  """The settings that choose a kind of data."""
  return "loop='online'" if kind == "live" else f"loop='offline', offline.data={kind!r}"
