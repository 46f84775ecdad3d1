"""A batch to learn from: sampled, scored and, with dynamic sampling, chosen.

Each process turns its own share of the completions into text and scores it. Lengths and rewards are
then known to all; tokens and log-probs stay on the mesh, where the learner takes them.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from grpo_jax.data import loader
from grpo_jax.data.pool import Pool
from grpo_jax.distributed import hosts
from grpo_jax.loops.groups import Scored, choose, failed, padded
from grpo_jax.objectives.base import ConfiguredObjective
from grpo_jax.ops.advantages import totals
from grpo_jax.reward_models import agreement, load
from grpo_jax.reward_models.rewards import RewardModel, given_by
from grpo_jax.rewards import combine
from grpo_jax.run import compile_cache
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import rollouts, sampler
from grpo_jax.sampling.generate import Generator, completions, generate
from grpo_jax.setup import build, checks, registry, scorers
from grpo_jax.types import Completion, Example, Rollouts


class Collector(NamedTuple):
  """Where batches come from and how they are scored. Only `batches` and `generator.sizes` change."""

  batches: Iterator[list[Example | None]]
  generator: Generator
  rewards: Sequence[tuple[str, Callable, float]]  # name, function, weight
  models: Sequence[RewardModel]  # whose rewards are added to those
  ahead: Sequence[Callable]  # called with a batch before it is scored
  flat: Callable[[Rollouts], Any]  # which groups teach nothing, [P] bool
  on_error: float  # what a reward that fails counts
  deadline: float  # seconds that a reward may take for a completion, or for a group
  max_length: int  # L
  prompts: int  # P
  tries: int  # above 1: dynamic sampling, see `collect`
  # the name of the reward that says what is right, with which those of models are compared; "":
  # none
  rule: str = ""
  # the name of the reward by which `batches`, a Pool, is told what is solved; "": it is none
  solved: str = ""

  @property
  def names(self) -> list[str]:
    """The names of all reward components, N."""
    return [name for name, _, _ in self.rewards] + self.learned

  @property
  def learned(self) -> list[str]:
    """The names of those that are given by reward models."""
    return [model.name for model in self.models]


def make_collector(config: ConfigDict, model: build.Model) -> Collector:
  """What samples and scores batches of the training data.

  Raises:
    SettingError: as `check_collector`; a reward model whose weights are damaged.
  """
  return _without_models(config, model)._replace(models=load.load(config, model))


def check_collector(config: ConfigDict, model: build.Model) -> None:
  """Refuses what `make_collector` would, but reads no weights of reward models.

  Raises:
    SettingError: see `_without_models` and `judges.find`.
  """
  _without_models(config, model)
  load.find(config, model)


def _without_models(config: ConfigDict, model: build.Model) -> Collector:
  """The collector of `make_collector` without its reward models.

  Raises:
    SettingError: data or rewards that are not there, a reward that cannot work as it is set,
      sampler settings that cannot be.
  """
  d, s = config.data, config.sampler
  batches, rewards = make_batches(config, model), scorers.rewards(config.rewards)
  for (
    _,
    reward,
    _,
    # it may fail on a solution, and still work on samples: only SettingError ends the run
  ) in rewards:
    checks.try_reward(reward, batches.first(checks.FIRST_SOLUTIONS), model, config)
  sample, sizes = (
    sampler.make_sampler(model.decoder, s, model.stop),
    build.sizes(config, model.layout),
  )
  return Collector(
    batches=batches,
    generator=Generator(
      sample, sizes, model.tokenizer, model.render, d.max_prompt_length, d.on_long
    ),
    rewards=rewards,
    models=[],
    ahead=scorers.scored_ahead(config.rewards),
    flat=jitted_flat(registry.configured(config.objective)),
    on_error=config.rewards.on_error,
    deadline=config.rewards.deadline,
    max_length=s.max_length,
    prompts=d.prompts,
    tries=s.tries,
    rule=scorers.rule(config),
    solved=scorers.checked(config) if d.redraw < 1 else "",
  )


def make_batches(config: ConfigDict, model: build.Model) -> loader.Batches | Pool:
  """The batches to sample for: of the data in its order, or (`data.redraw` below 1) without some of
  what is settled.

  Raises:
    SettingError: see `build.batches`.
  """
  if config.data.redraw == 1:
    return build.batches(config, model)
  single = config.copy_and_resolve_references()
  single.data.prompts = 1
  return Pool(build.batches(single, model), config.data.prompts, config.data.redraw, config.seed)


@functools.cache
def jitted_flat(objective: ConfiguredObjective) -> Callable[[Rollouts], Any]:
  """Returns the objective's `flat`, jitted once for the same settings."""
  return jax.jit(objective.flat)


def collect(
  collector: Collector, params: Any, key: jax.Array, writer: Writer
) -> tuple[Scored, dict[str, float]]:
  """One batch to learn from, sampled from the policy `params`, and metrics of everything that was
  sampled.

  With more than one try this is DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): flat
  groups, which teach nothing, are dropped and more prompts are sampled until there are P groups, or
  that often; what is then missing is filled with empty groups, which count in no denominator.
  """
  c, sampled, flat, kept, statistics = collector, [], [], [], []
  for attempt in range(c.tries):
    with writer.phase("sample"):
      examples = next(c.batches)
      drawn, found = generate(c.generator, params, examples, jax.random.fold_in(key, attempt))
    with writer.phase("score"):
      sampled.append(score(c, examples, drawn))
      if c.solved:
        c.batches.note(examples, solved(sampled[-1], c))
      flat.append(
        rollouts.to_host(c.flat(rollouts.to_device(c.generator.sizes.layout, sampled[-1].rollouts)))
      )
    for fault in sampled[-1].faults:
      writer.warn(
        f"reward {fault.name}",
        f"the reward {fault.name!r} failed: {fault.message}; it counts as "
        f"rewards.on_error={c.on_error:g} there, and "
        "reward_faults counts how often",
      )
    for name in silent(sampled[-1], c):
      writer.warn(
        f"silent {name}",
        f"the reward {name!r} gave none of the {int((drawn.lengths > 0).sum())} completions of a "
        "step a reward: it "
        "returned None, or an empty list, for each; is a `return` missing?",
      )
    statistics.append(found)
    varied = np.flatnonzero(~flat[-1] & (drawn.prompts.lengths > 0))
    kept.extend((attempt * len(examples) + varied).tolist())
    if len(kept) >= c.prompts:
      break
  batch = sampled[0] if c.tries == 1 else choose(sampled, padded(kept, c.prompts))
  sampling = {
    "prompts_too_long": sum(found["prompts_too_long"] for found in statistics),
    "slot_use": float(np.mean([float(found["slot_use"]) for found in statistics])),
    "sampling_tries": len(statistics),
  }
  sampling |= c.batches.metrics() if c.solved else {}
  return batch, sampling | reward_metrics(sampled, flat, c.names) | agreement_metrics(sampled, c)


def silent(batch: Scored, collector: Collector) -> list[str]:
  """Returns the names of the functions that gave no completion a reward; none where there is no
  completion.
  """
  given = ~np.isnan(batch.rollouts.components[batch.rollouts.lengths > 0])  # [completions, N]
  return [
    name for n, (name, _, _) in enumerate(collector.rewards) if len(given) and not given[:, n].any()
  ]


def solved(batch: Scored, collector: Collector) -> np.ndarray:
  """Which samples are right by the reward `collector.solved` (`combine.RIGHT`), `[P, G]`: 1, 0, or
  NaN: not known.
  """
  given = judged_components(batch.rollouts)[..., collector.names.index(collector.solved)]
  return np.where(np.isnan(given) | failed(batch, collector.solved), np.nan, given >= combine.RIGHT)


def score(collector: Collector, examples: list[Example | None], drawn: Rollouts) -> Scored:
  """The batch with the rewards of every completion, of which each process scores its own share.

  Raises:
    SettingError: see `combine.score` and `combine.check_some_worked`; on every process.
    hosts.Elsewhere: scoring failed on another process.
  """
  c, shape = collector, drawn.tokens.shape
  judged = given_by(c.models, c.generator.sizes, drawn)
  texts = hosts.together(functools.partial(completions, c.generator, drawn))
  groups = (
    whole_groups(texts)
    if any(combine.looks_at_group(reward) for _, reward, _ in c.rewards)
    else None
  )
  own = hosts.together(functools.partial(score_share, c, examples, texts, judged, groups))
  found = hosts.gather((combine.given_only(own), cut_off(drawn)))
  scores = combine.join([share for share, _ in found], shape, len(c.names))
  combine.check_some_worked(scores.faults, int((drawn.lengths > 0).sum()))
  rewards, given, components, faults = scores
  scored = dataclasses.replace(drawn, rewards=rewards, given=given, components=components)
  return Scored(list(examples), scored, faults, sum(nats for _, nats in found))


def whole_groups(texts: list[list[Completion | None]]) -> list[list[Completion | None]]:
  """The [P][G] completions of all processes, of which `texts` has this process's own; every process
  calls this.
  """
  return [
    [next(filter(None, of), None) for of in zip(*groups)] for groups in zip(*hosts.gather(texts))
  ]


def score_share(
  collector: Collector,
  examples: list[Example | None],
  texts: list[list[Completion | None]],
  judged: Sequence[tuple[str, Callable, float]],
  groups: list[list[Completion | None]] | None,
) -> combine.Scores:
  """The rewards of this process's own completions, those of reward models among them; the others
  are given nothing.
  """
  c = collector
  with compile_cache.same_settings("a reward"):
    combine.ahead(c.ahead, examples, texts, c.deadline)
    return combine.score(
      c.rewards, examples, texts, c.max_length, c.on_error, c.deadline, judged, groups
    )


def cut_off(drawn: Rollouts) -> np.float32:
  """What top-k, top-p and min-p cut off of this process's own tokens, in nats; 0 where there is no
  token.
  """
  return (hosts.share(drawn.truncated_logprobs)[0] - hosts.share(drawn.sampler_logprobs)[0]).sum()


def reward_metrics(
  batches: Sequence[Scored], flat: Sequence[np.ndarray], names: Sequence[str]
) -> dict[str, float]:
  """Metrics of everything that was sampled, groups that only fill a batch left out.

  `tokens`, `reward_faults`; mean and standard deviation of the total reward; `rewards_given`, how
  many rewards a completion was given, 1 for an outcome alone; the mean of each reward component;
  `zero_variance`, the share of flat groups; `cut_off_nats`, what top-k, top-p and min-p cut off:
  the mean, over tokens, of -log of the mass that they kept.

  Args:
    batches: what was sampled.
    flat: which groups of each are flat, [P] bool.
    names: of the reward components, N.
  """
  # [P, G] each, completions that were given a reward
  real = [batch.rollouts.given.any(axis=2) for batch in batches]
  total = np.concatenate(
    [totals(b.rollouts.rewards, b.rollouts.given)[r] for b, r in zip(batches, real)]
  )
  # [completions, N]
  components = np.concatenate([batch.rollouts.components[r] for batch, r in zip(batches, real)])
  alike = np.concatenate(
    [of[batch.rollouts.prompts.lengths > 0] for batch, of in zip(batches, flat)]
  )
  tokens = sum(int(batch.rollouts.lengths.sum()) for batch in batches)
  numbers = {
    "tokens": tokens,
    "reward_faults": sum(len(batch.faults) for batch in batches),
    "zero_variance": float(np.mean(alike)) if alike.size else 0.0,
  }
  if tokens:  # both log-probs are 0 where there is no token
    numbers["cut_off_nats"] = sum(batch.cut_off for batch in batches) / tokens
  if not total.size:
    return numbers
  steps = np.concatenate([batch.rollouts.given.sum(axis=2)[r] for batch, r in zip(batches, real)])
  numbers |= {"reward/mean": total.mean(), "reward/std": total.std(), "rewards_given": steps.mean()}
  for n, name in enumerate(names):
    given = components[:, n][~np.isnan(components[:, n])]  # a reward that returned None gave none
    numbers[f"reward/{name}"] = given.mean() if given.size else float("nan")
  return numbers


def agreement_metrics(batches: Sequence[Scored], collector: Collector) -> dict[str, float]:
  """Metrics of what goes together within the groups that were sampled (agreement.py); there are
  none of NaN.

  `length/reward_correlation`, of a completion's length and its total reward; `agreement/NAME`, of
  each reward model and the rule, where there is one.
  """
  rollouts, names = [batch.rollouts for batch in batches], collector.names
  total = np.concatenate(
    [np.where(r.given.any(axis=2), totals(r.rewards, r.given), np.nan) for r in rollouts]
  )
  found = {
    "length/reward_correlation": agreement.correlation_in_groups(
      np.concatenate([r.lengths for r in rollouts]), total
    )
  }
  if collector.rule in names and collector.models:
    components = np.concatenate([judged_components(r) for r in rollouts])
    rule = components[..., names.index(collector.rule)]
    of = {name: components[..., names.index(name)] for name in collector.learned}
    found |= {
      f"agreement/{name}": agreement.pairs_in_order(learned, rule) for name, learned in of.items()
    }
  return {name: value for name, value in found.items() if not np.isnan(value)}


def disagreement(batch: Scored, collector: Collector) -> np.ndarray | None:
  """How much higher each completion ranks in its group by a reward model than by the rule, [P, G],
  from -1 to 1.

  Of several reward models it is the one that differs most. None where there is no model or no rule.
  """
  names = collector.names
  if collector.rule not in names or not collector.models:
    return None
  components = judged_components(batch.rollouts)
  rule = components[..., names.index(collector.rule)]
  each = np.stack(
    [agreement.disagreement(components[..., names.index(n)], rule) for n in collector.learned]
  )
  most = np.nan_to_num(np.abs(each), nan=-1.0).argmax(axis=0)
  return np.take_along_axis(each, most[None], axis=0)[0]


def judged_components(r: Rollouts) -> np.ndarray:
  """The reward components [P, G, N] of rollouts, NaN also for the completions that only fill the
  batch.
  """
  return np.where((r.lengths > 0)[..., None], r.components, np.nan)
