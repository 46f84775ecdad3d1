"""Checks a run before those that it starts from are made, as its own start would.

What an earlier run will write is not there yet: a policy from one has the shape of the first
weights, adapters stand on its export, and a setting may name a policy or a reward model only where
such a one will be. jax is imported here.
"""

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from experiments import stages
from grpo_jax.errors import SettingError
from grpo_jax.evaluation.evaluator import Evaluator
from grpo_jax.evaluation.pair_evaluator import PairEvaluator
from grpo_jax.evaluation.step_evaluator import StepEvaluator
from grpo_jax.io import storage
from grpo_jax.loops import (
  collector,
  iterative,
  offline,
  process_reward_model,
  reward_model,
  teacher_prompts,
  teaching,
)
from grpo_jax.loops.reward_data import continuations
from grpo_jax.objectives.base import reads_reference
from grpo_jax.setup import adapters, build, checks, references
from grpo_jax.setup.experiment import LIVE, Experiment, changed

EVALUATORS = {"reward_model": PairEvaluator, "process_reward_model": StepEvaluator}


class Earlier(NamedTuple):
  """Holds the runs before one, in their order, and their folders; each is in that of the next."""

  runs: Sequence[Experiment]
  folders: Sequence[str]

  @property
  def outer(self) -> str:
    """Returns the folder that holds all of them."""
    return self.folders[-1]

  def around(self, path: str, before: int | None = None) -> int | None:
    """Returns the place of the run, among the first `before`, in whose folder a path is."""
    inside = (i for i, f in enumerate(self.folders[:before]) if storage.inside(path, f))
    return next(inside, None)

  def maker(self, path: str) -> int | None:
    """Returns the place of the run whose folder, or export, a path is: what it trains is there."""
    mine = os.fspath(storage.absolute(path)).rstrip("/").removesuffix("/export") if path else ""
    places = (os.fspath(storage.absolute(f)).rstrip("/") for f in self.folders)
    return next((i for i, place in enumerate(places) if place == mine), None)

  def name(self, place: int) -> str:
    """Returns the section of a run in the config of the last one, such as "first"."""
    return ".".join([stages.FIRST] * (len(self.runs) - place))

  def root(self, place: int) -> Experiment:
    """Returns the run that a run starts from in the end: its weights are there already."""
    while (before := self.around(self.runs[place].init_from, place)) is not None:
      place = before
    return self.runs[place]

  def trains_judge(self, path: str) -> bool | None:
    """Returns whether the run whose folder a path is trains a reward model; None: it is of none."""
    place = self.maker(path)
    return None if place is None else self.runs[place].kind in checks.REWARD_LOOPS


def check(experiment: Experiment, earlier: Earlier) -> None:
  """Refuses settings of a later run before the first one starts."""
  with tempfile.TemporaryDirectory() as scratch:
    check_within(experiment, earlier, scratch)


def check_within(experiment: Experiment, earlier: Earlier, scratch: str) -> None:
  """Refuses them; `scratch` is a folder for the tokenizer that the first run will make."""
  start, bare = experiment, {}
  place = earlier.around(experiment.init_from)
  if place is not None:
    check_start(experiment, earlier, place)
    root, bare = earlier.root(place), {"lora.rank": 0}
    tokenizer = experiment.tokenizer or root.tokenizer
    if not experiment.tokenizer and root.tokenizer in build.MADE:  # from its data, not from ours
      build.make_tokenizer(root, "").save(scratch)
      tokenizer = scratch
    shape = {
      "init_from": root.init_from,
      "tokenizer": tokenizer,
      "model.variant": experiment.model.variant or root.model.variant,
    }
    start = changed(experiment, shape)
  judges = start.kind in checks.REWARD_LOOPS
  model = build.model(changed(start, bare), scores=judges)
  adapted = dataclasses.replace(model.decoder, lora=adapters.make_lora(start.lora))
  model = model._replace(decoder=adapted)
  checks.check(start, model.decoder)
  if start.kind == "online":
    teacher_prompts.check(start)
  if start.kind == "iterative":
    check_iterative(experiment, model, earlier)
  if start.offline.steps:
    process_reward_model.read_solutions(start, model)
  live, filed = start.kind in LIVE, bool(start.offline.steps)
  drawn = not live and not filed and offline.make_batches(start, model)[0] is not None
  check_kinds(experiment, earlier, drawn)
  EVALUATORS.get(start.kind, Evaluator)(start, model)
  if judges and drawn and not storage.inside(start.offline.teacher, earlier.outer):
    start, model = reward_model.sampled_policy(start)
    if start.offline.continuations:
      continuations.make_labeller(start, model)
  if live or drawn:  # it samples
    collector.check_collector(start, model, absent=earlier.outer)
  if drawn and not storage.inside(start.offline.teacher, earlier.outer):
    references.check(start, start.offline.teacher, model, "offline.teacher")
  if reads_reference(start.objective.needs) and not storage.inside(start.ref_from, earlier.outer):
    references.check(start, start.ref_from, references.owner(start, model), "ref_from")


def check_start(experiment: Experiment, earlier: Earlier, place: int) -> None:
  """Refuses a run of an earlier run's weights that are a reward model's, or no base of adapters."""
  source, name = earlier.runs[place], earlier.name(place)
  if source.kind in checks.REWARD_LOOPS and experiment.kind not in checks.REWARD_LOOPS:
    models = "process" if source.kind == "process_reward_model" else "outcome"
    raise SettingError(
      f"{name}.loop={source.loop!r}: trains a reward model, and this run would start from it; "
      f"write {stages.RUN!r} where it is used, as in "
      f"rewards.{models}_models=(('judge', {stages.RUN!r}, 1.0),)"
    )
  check_export(experiment, earlier, place)


def check_export(experiment: Experiment, earlier: Earlier, place: int) -> None:
  """Refuses adapters on an earlier run that will have no export."""
  name = earlier.name(place)
  if experiment.lora.rank and not earlier.runs[place].checkpoint.export:
    raise SettingError(
      f"lora.rank={experiment.lora.rank} with {name}.checkpoint.export=False: adapters stand on "
      f"the export of that run; use {name}.checkpoint.export=True"
    )


def check_iterative(experiment: Experiment, model: build.Model, earlier: Earlier) -> None:
  """Refuses a reward model that cannot learn in an iterative run."""
  iterative.check(experiment, absent=earlier.outer)
  # its kind is not known here; the number of pairs is checked for either
  iterative.check_batches(experiment, model, teaching.STEPS)
  source = experiment.iterative.reward_model
  if (place := earlier.maker(source)) is not None:
    check_export(experiment, earlier, place)
  if source and not storage.inside(source, earlier.outer):  # with the tokenizer of its own
    iterative.find_judge(experiment, model, teaching.OUTCOME)


def check_kinds(experiment: Experiment, earlier: Earlier, drawn: bool) -> None:
  """Refuses a reward model of an earlier run where a policy is needed, and the other way round.

  Args:
    experiment: of the later run.
    earlier: the runs before it.
    drawn: whether it learns from samples that it draws first.
  """
  teacher = experiment.offline.teacher
  policies = []
  if drawn:
    judges = experiment.kind in checks.REWARD_LOOPS
    own = "init_from" if judges and not teacher else "offline.teacher"
    policies.append((own, teacher or (experiment.init_from if judges else "")))
  if reads_reference(experiment.objective.needs):
    policies.append(("ref_from", experiment.ref_from))
  for setting, path in policies:
    if earlier.trains_judge(path):
      where = "a policy in offline.teacher" if setting == "init_from" else "the folder of a policy"
      raise SettingError(
        f"{setting}={path!r}: that run trains a reward model, which samples nothing; give {where}"
      )
  for name, path, _, steps in experiment.reward_models:
    if earlier.trains_judge(path) is False:
      raise SettingError(
        f"rewards.{'process' if steps else 'outcome'}_models has {name!r}, {path!r}: that run "
        "trains a policy; give the folder of a reward model"
      )
