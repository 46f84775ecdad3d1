"""Checks of settings by themselves and against each other, before anything is compiled."""

import operator

import numpy as np

from grpo_jax.distributed import sharding
from grpo_jax.distributed.sharding import Layout
from grpo_jax.errors import GrpoError, SettingError
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf.config import write_config
from grpo_jax.sampling.sampler import decode_layout
from grpo_jax.setup import outputs, room, tracing, unread
from grpo_jax.setup.experiment import COMPLETIONS, LIVE, Experiment
from grpo_jax.types import STOPPED, Prompts, Rollouts

# Loops that train reward models, with their offline.data.
REWARD_LOOPS = {"reward_model": "pairs", "process_reward_model": "steps"}
OUTCOME = "grpo_jax.environments.textarena:outcome"  # reads what the environment gave


def check_settings(experiment: Experiment) -> None:
  """Refuses settings that are wrong whatever the weights, data and devices are."""
  check_rewards(experiment)  # their number is the N of what is traced
  check_entropy(experiment)
  room.check_sizes(experiment)
  tracing.check_objective(experiment)
  unread.check(experiment)
  for name in experiment.log.writers:
    outputs.find(name)


def check(experiment: Experiment, decoder: Decoder) -> None:
  """Refuses settings that contradict each other or do not fit the mesh."""
  check_batch(experiment, decoder.layout)
  check_learner(experiment, decoder.layout)
  check_rewards(experiment)
  check_data(experiment)
  check_pool(experiment)
  check_pairs(experiment)
  check_steps(experiment)
  check_group(experiment)
  check_weights(experiment)
  check_reference(experiment)
  if experiment.checkpoint.export:
    check_export(decoder)


def check_export(decoder: Decoder) -> None:
  """Refuses a policy that could not be written as a Hugging Face folder after the last step."""
  try:
    write_config(decoder.config)
  except GrpoError as error:
    raise SettingError(f"checkpoint.export=True: {error}; use checkpoint.export=False") from error


def check_batch(experiment: Experiment, layout: Layout) -> None:
  """Refuses a batch that the mesh does not divide."""
  sharding.check_batch(layout, experiment.data.prompts, experiment.sampler.group)
  check_decoding(experiment, layout)
  check_carry(experiment, layout)
  completions = COMPLETIONS.get(experiment.source)
  if completions and completions % layout.size("sample"):
    raise SettingError(
      f"mesh.group={layout.size('sample')} with offline.data={experiment.offline.data!r}, "
      f"{completions} a prompt: use 1"
    )


def check_decoding(experiment: Experiment, layout: Layout) -> None:
  """Refuses a batch that the sampler's own mesh does not divide."""
  mine = decode_layout(layout, experiment.sampler.tensor)
  prompts, group = experiment.data.prompts, experiment.sampler.group
  for setting, value, axis in (
    ("data.prompts", prompts, "prompt"),
    ("sampler.group", group, "sample"),
  ):
    shards = mine.size(axis)
    if value % shards:
      raise SettingError(
        f"sampler.tensor={experiment.sampler.tensor}: {setting}={value} does not divide over the "
        f"{shards} shards of the sampler's mesh {dict(mine.mesh.shape)}; use a larger "
        f"sampler.tensor, or a multiple of {shards}"
      )


def check_carry(experiment: Experiment, layout: Layout) -> None:
  """Refuses carried rollouts that do not fit the batch or the sampler's mesh."""
  s, prompts = experiment.sampler, experiment.data.prompts
  if not s.carry:
    return
  mine = decode_layout(layout, s.tensor)
  shards, name = mine.size("prompt"), f"sampler.carry={s.carry}"
  if s.carry > prompts:
    raise SettingError(
      f"{name}: a step learns from data.prompts={prompts} groups, and from those that were carried "
      f"first; use at most {prompts}"
    )
  if s.carry % shards:
    raise SettingError(
      f"{name}: does not divide over the {shards} shards of prompts of the sampler's mesh "
      f"{dict(mine.mesh.shape)}; use a multiple of {shards}"
    )
  if mine.size("sample") > 1:
    raise SettingError(
      f"{name}: the sampler's mesh {dict(mine.mesh.shape)} spreads the samples of a group over "
      f"{mine.size('sample')} shards, and a shard has to see when a group is complete; use "
      "mesh.group=1 (fsdp and data shard prompts), or sampler.carry=0"
    )


def check_eval_batch(experiment: Experiment, layout: Layout) -> None:
  """Refuses batches of an evaluation that the mesh does not divide."""
  shards = layout.size("prompt")
  if experiment.eval.batch % shards:
    raise SettingError(f"eval.batch={experiment.eval.batch}: use a multiple of {shards}")


def check_reference(experiment: Experiment) -> None:
  """Refuses a moving reference that is not of the policy's own kind."""
  ema, rank, source = experiment.reference.ema, experiment.lora.rank, experiment.ref_from
  if ema and rank and source:
    raise SettingError(
      f"reference.ema={ema} with lora.rank={rank} and ref_from={source!r}: a reference that moves "
      "with adapters starts from them; use ref_from='', or reference.ema=0"
    )


def check_learner(experiment: Experiment, layout: Layout) -> None:
  """Refuses minibatches and microbatches that do not fit, and passes over offline data."""
  cfg, shards, prompts = experiment.learner, layout.size("prompt"), experiment.data.prompts
  if cfg.mu != 1 and experiment.kind not in LIVE:
    raise SettingError(
      f"learner.mu={cfg.mu}: data that does not change is gone through by steps; use 1"
    )
  if prompts % (cfg.minibatches * shards):
    of_each = f"data.prompts={prompts}"
    if shards > 1:
      of_each = (
        f"the {prompts // shards} prompts of each of {shards} shards (data.prompts={prompts})"
      )
    raise SettingError(
      f"learner.minibatches={cfg.minibatches}: does not divide {of_each}; use a divisor of "
      f"{prompts // shards}"
    )
  minibatch = prompts // cfg.minibatches
  cut = 0 < cfg.microbatch < minibatch  # a larger one is the whole minibatch
  if cut and (minibatch % cfg.microbatch or cfg.microbatch % shards):
    multiple = f"a multiple of {shards} that divides {minibatch}" if shards > 1 else "a divisor"
    raise SettingError(
      f"learner.microbatch={cfg.microbatch}: a minibatch has {minibatch} prompts (data.prompts / "
      f"learner.minibatches); use {multiple}, or 0 for the whole minibatch"
    )


def check_entropy(experiment: Experiment) -> None:
  """Refuses a weight of the entropy that starts above its largest value."""
  cfg, start = experiment.learner, experiment.objective.cfg.get("entropy_bonus", 0.0)
  if cfg.entropy_target and start > cfg.entropy_max:
    raise SettingError(
      f"objective.entropy_bonus={start}: with learner.entropy_target the weight starts there; use "
      f"at most learner.entropy_max={cfg.entropy_max}, or a larger maximum"
    )


def check_rewards(experiment: Experiment) -> None:
  """Refuses `reward_weights` that do not match the rewards, and to judge games that none plays."""
  if experiment.environment_functions is None and experiment.eval.reward == OUTCOME:
    raise SettingError(
      f"eval.reward={OUTCOME!r} with environment.name='': no game is played that it could judge; "
      "use environment.name='textarena', or another reward"
    )
  weights, components = experiment.objective.cfg.get("reward_weights"), experiment.components
  names = [name for name, _ in components]
  if weights and len(weights) != len(names):
    raise SettingError(
      f"objective.reward_weights={weights}: give {len(names)}, one for each of rewards.functions, "
      f"the environment and the reward models: {', '.join(names)}"
    )
  unseen = [name for name, weight in components if not weight]
  if experiment.objective.cfg.get("advantage") == "gdpo" and not weights and unseen:
    raise SettingError(
      f"objective.reward_weights=(): gdpo gives each reward the weight 1, and {unseen[0]!r} has 0 "
      "(rewards.functions, a reward model or iterative.weight); give one for each of "
      f"{', '.join(names)}"
    )


def check_weights(experiment: Experiment) -> None:
  """Refuses rewards that all have weight 0, if what is learned follows from their sum."""
  objective, o = experiment.objective, experiment.offline
  advantage = objective.cfg.get("advantage", "")
  own = ":" in advantage or "." in objective.name
  if objective.objective.teacher or own or advantage == "gdpo":
    return
  summed = {
    "live": True,
    "samples": "threshold" in objective.cfg,
    "pairs": not o.pairs,
    "steps": not (o.steps or o.continuations),
  }
  if not summed.get(experiment.source):
    return
  if not any(weight for _, weight in experiment.components):
    names = ", ".join(experiment.reward_names)
    raise SettingError(
      f"rewards.functions: {names} has the weight 0, and so every completion the reward 0: nothing "
      "would be learned; give one of them another weight (learner.lr=0 measures without learning)"
    )


def check_group(experiment: Experiment) -> None:
  """Refuses groups of one under an objective that compares the completions of a group."""
  group, configured = experiment.sampler.group, experiment.objective
  if experiment.source == "pairs" and not experiment.offline.pairs and group < 2:
    raise SettingError(f"sampler.group={group} with offline.data='pairs': use at least 2")
  if group > 1 or experiment.source != "live":
    return
  # Three prompts with one completion each, whose rewards are on either side of any threshold.
  tokens, rewards = (
    np.ones((3, 1, 2), np.int32),
    np.array([[[0, -1e6]], [[0, 0.0]], [[0, 1e6]]], np.float32),
  )
  some = Rollouts(
    Prompts(tokens[:, 0], np.full(3, 2, np.int32)),
    tokens,
    np.full((3, 1), 2, np.int32),
    np.full((3, 1), STOPPED, np.int32),
    np.zeros(tokens.shape, np.float32),
    np.zeros(tokens.shape, np.float32),
    rewards=rewards,
    given=np.array([[[False, True]]] * 3),  # on the last token
    components=np.repeat(rewards.sum(2)[..., None], len(experiment.components), axis=2),
  )
  by = (
    "advantage"
    if "advantage" in configured.cfg
    else "group_baseline"
    if configured.cfg.get("group_baseline")
    else "name"
  )
  if by == "group_baseline" or np.all(configured.flat(some)):
    raise SettingError(
      f"sampler.group=1: objective.{by}={configured.cfg[by]!r} compares the completions of a "
      "prompt, and learns nothing where there is only one; use at least 2"
    )


def check_pairs(experiment: Experiment) -> None:
  """Refuses settings of pairs if there are none, or if they are those of a file."""
  o = experiment.offline
  if experiment.kind in LIVE:
    return
  if o.pairs and o.data != "pairs":
    raise SettingError(
      f"offline.pairs={o.pairs!r} with offline.data={o.data!r}: use offline.data='pairs'"
    )
  if o.require and (o.data != "pairs" or o.pairs):
    raise SettingError(
      f"offline.require={o.require!r}: is asked of samples that pairs are made of; use '' where "
      "offline.data is not 'pairs' or they are those of offline.pairs"
    )
  if o.held_out and experiment.kind not in REWARD_LOOPS:
    raise SettingError(
      f"offline.held_out={o.held_out} with loop={experiment.loop!r}: is for reward models; use 0"
    )


def check_steps(experiment: Experiment) -> None:
  """Refuses settings of labelled steps if there are none, and continuations of a file's steps."""
  o = experiment.offline
  for setting, value in (("steps", o.steps), ("continuations", o.continuations)):
    if value and experiment.kind != "online" and o.data != "steps":
      raise SettingError(
        f"offline.{setting}={value!r} with offline.data={o.data!r}: use offline.data='steps'"
      )
  if o.steps and o.continuations:
    raise SettingError(
      f"offline.continuations={o.continuations} with offline.steps={o.steps!r}: the steps of a "
      "file have labels; use 0"
    )
  if o.labels != "hard" and not o.continuations and experiment.kind not in LIVE:
    raise SettingError(
      f"offline.labels={o.labels!r} with offline.continuations=0: says what is made of "
      "continuations, and there are none; use 'hard', or some continuations"
    )


def check_pool(experiment: Experiment) -> None:
  """Refuses `data.redraw` if nothing is sampled, or if no reward tells what is solved."""
  redraw, solved = experiment.data.redraw, experiment.eval.reward
  if redraw < 1 and experiment.kind not in LIVE:
    raise SettingError(
      f"data.redraw={redraw} with loop={experiment.loop!r}: is for {', '.join(LIVE)}; use 1"
    )
  if redraw < 1 and not experiment.checked:
    raise SettingError(
      f"data.redraw={redraw}: none of rewards.functions is eval.reward={solved!r}, and "
      f"so nothing says what is solved; add ('correct', {solved!r}, 0.0), or use 1"
    )


def check_data(experiment: Experiment) -> None:
  """Refuses an objective that is not for the data of this loop, and one without its teacher."""
  objective, name = experiment.objective.objective, experiment.objective.name
  loop, kind, source = experiment.loop, experiment.kind, experiment.source
  loops = [other for other, data in REWARD_LOOPS.items() if data in objective.data]
  if objective.trains_reward_model and kind not in loops:
    use = " or ".join(map(repr, loops))
    raise SettingError(
      f"objective.name={name!r} with loop={loop!r}: trains a reward model; use loop={use}"
    )
  if not objective.trains_reward_model and kind in REWARD_LOOPS:
    raise SettingError(
      f"objective.name={name!r} with loop={loop!r}: use objective={kind}, or loop='offline'"
    )
  if source not in objective.data:
    raise SettingError(
      f"objective.name={name!r} with {_shown(source)}: use "
      f"{', or '.join(_shown(data) for data in objective.data)}"
    )
  teacher = objective.teacher
  if teacher == "ref_from" and kind == "iterative":
    raise SettingError(
      f"objective.name={name!r} with loop={loop!r}: learns from another model, and the reference "
      "of this loop is the policy of the start of an iteration; use loop='online'"
    )
  by_itself = teacher == "ref_from" and experiment.reference.prompt
  if teacher and not by_itself and not operator.attrgetter(teacher)(experiment):
    raise SettingError(
      f"{teacher}='': {name} learns from another model; give its folder, or a run's"
    )


def _shown(kind: str) -> str:
  """Returns the settings that choose a kind of data."""
  return "loop='online'" if kind == "live" else f"loop='offline', offline.data={kind!r}"
