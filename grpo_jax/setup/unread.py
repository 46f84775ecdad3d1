"""Refuses a setting that was changed although a run of this kind does not read it.

A setting is listed here if only its own loop, data or objective reads it, so that no sweep would
change it in vain. One that is read as soon as another is not 0, such as lora.alpha, is not listed.
"""

import operator
from typing import NamedTuple

from grpo_jax.config import sections
from grpo_jax.errors import SettingError
from grpo_jax.objectives import common
from grpo_jax.objectives.base import Needs, reads_reference
from grpo_jax.setup import scorers
from grpo_jax.setup.experiment import Experiment


class Row(NamedTuple):
  """A setting that not every run reads."""

  name: str
  read: bool  # whether this run reads it
  reason: str  # why not

  @property
  def default(self) -> object:
    """Returns the default of the setting."""
    return sections.SETTINGS[self.name].default


# Settings of one kind of run. The numbers of a loop are not among them: a config file may have
# those of several loops, and a comparison gives offline.prompts to all of its arms.
OFFLINE = ("data", "pairs", "require", "held_out", "steps", "continuations", "labels")
ENVIRONMENT = ("arguments", "weight", "turns", "turn_length", "workers", "discount", "role")
ITERATIVE = ("reward_model", "weight")


def check(experiment: Experiment) -> None:
  """Refuses the first setting that differs from its default and is not read."""
  for row in rows(experiment):
    value = operator.attrgetter(row.name)(experiment)
    if not row.read and value != row.default:
      raise SettingError(f"{row.name}={value!r:.80}: {row.reason}; use {row.default!r}")


def names(experiment: Experiment) -> set[str]:
  """Returns the settings that this run does not read."""
  return {row.name for row in rows(experiment) if not row.read}


def rows(experiment: Experiment) -> list[Row]:
  """Returns the settings that not every run reads."""
  source = experiment.source
  objective, loop = f"objective.name={experiment.objective.name!r}", f"loop={experiment.loop!r}"
  needs = experiment.objective.needs
  live = source == "live"
  adapted = bool(experiment.learner.entropy_target)
  loop_plays = experiment.kind in ("online", "offline")
  learns_episodes = live or not (source == "solutions" or experiment.offline.pairs)
  scored = learns_episodes and not experiment.offline.steps
  reads_folder = reads_reference(needs) and experiment.kind != "iterative"
  # true for samples of a file as well, since an experiment has a teacher besides
  sampled = not live and source != "solutions"
  no_reference = f"{objective} with {loop} and these settings reads no reference from a folder"
  no_samples = f"{loop} draws no samples of a teacher" + (
    "" if live else f" with offline.data={source!r}"
  )
  return [
    Row("learner.critic_lr", Needs.CRITIC in needs, f"{objective} has no critic"),
    Row(
      "learner.stop_reached",
      "." in experiment.objective.name  # one of the user's, which may count in its own way
      or experiment.objective.objective.bounds is not common.no_bounds,
      f"{objective} has no bound that tokens could reach",
    ),
    Row(
      "learner.entropy_target",
      "entropy_bonus" in experiment.objective.cfg,
      f"{objective} has no entropy_bonus",
    ),
    *(
      Row(f"learner.{name}", adapted, "with learner.entropy_target=0 the weight stays")
      for name in ("entropy_step", "entropy_max")
    ),
    Row("ref_from", reads_folder, no_reference),
    Row(
      "reference.ema",
      reads_reference(needs) and experiment.kind == "online",
      f"{objective} with {loop} has no reference that could move",
    ),
    Row(
      "reference.prompt",
      experiment.objective.objective.teacher == "ref_from" and experiment.kind == "online",
      f"{objective} with {loop} asks no teacher",
    ),
    Row(
      "environment.name",
      loop_plays,
      f"{loop} plays no episodes; loop='online' and loop='offline' do",
    ),
    *(
      Row(f"environment.{name}", bool(experiment.environment.name), "there is no environment.name")
      for name in ENVIRONMENT
    ),
    *(
      Row(
        f"environment.{name}",
        learns_episodes or not experiment.environment.name,
        f"{loop} with this data learns from no episode, and evaluations do not read it",
      )
      for name in ("weight", "discount")
    ),
    Row(
      "environment.role",
      experiment.data.chat or not experiment.environment.name,
      "with data.chat=False what an environment answers is text without a role",
    ),
    Row(
      "rewards.workers",
      any(each.reward.score_ahead is None for each in experiment.reward_functions),
      "the run calls no function of rewards.functions, or these score whole batches themselves "
      "(score_ahead)",
    ),
    *(
      Row(f"rewards.{name}", scored, f"{loop} with this data scores no samples in training")
      for name in scorers.MODELS
    ),
    Row("sampler.carry", live, f"{loop} samples nothing that an update could interrupt"),
    Row("sampler.max_age", experiment.sampler.carry > 0, "with sampler.carry=0 nothing is carried"),
    Row(
      "reference.max_prompt_length",
      bool(experiment.reference.prompt),
      "with reference.prompt='': the teacher is asked what the policy is",
    ),
    Row(
      "reference.success",
      "{success}" in experiment.reference.prompt,
      "is read only with {success} in reference.prompt",
    ),
    Row("offline.teacher", sampled, no_samples),
    *(Row(f"offline.{name}", not live, f"is not of {loop}") for name in OFFLINE),
    *(
      Row(f"iterative.{name}", experiment.kind == "iterative", f"is not of {loop}")
      for name in ITERATIVE
    ),
    Row("data.system", experiment.data.chat, "with data.chat=False there is no system message"),
    Row(
      "data.chat_arguments", experiment.data.chat, "with data.chat=False no chat template is asked"
    ),
  ]
