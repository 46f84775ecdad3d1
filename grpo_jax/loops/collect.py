"""Collects a batch to learn from: samples it, scores it and, with dynamic sampling, chooses groups.

Each process decodes and scores its own share of the completions. Lengths and rewards are then known
to all; tokens and log-probs stay on the mesh, where the learner takes them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from grpo_jax.data.pool import Pool
from grpo_jax.distributed import hosts
from grpo_jax.environments.base import Failed
from grpo_jax.loops import carried, sample_metrics
from grpo_jax.loops.collector import Collector
from grpo_jax.loops.groups import Scored, choose, failed, last_tokens, padded, with_rewards
from grpo_jax.loops.reward_workers import Asked
from grpo_jax.models.decoder import Params
from grpo_jax.packing import balance
from grpo_jax.reward_models.rewards import given_by
from grpo_jax.rewards import attempts, combine
from grpo_jax.run import compile_cache, watch
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import rollouts
from grpo_jax.sampling.generate import Generated, completions, generate
from grpo_jax.setup.experiment import ENVIRONMENT
from grpo_jax.types import TRUNCATED, Completion, Example, KnownRollouts, KnownScored


class Collected(NamedTuple):
  """A batch to learn from."""

  batch: Scored
  metrics: dict[str, float]  # of everything that was sampled
  seconds: dict[str, float]  # of the phases "sample" and "score"
  sampled: list[Scored]  # everything: a batch a try


def collect(collector: Collector, params: Params, key: jax.Array, writer: Writer) -> Collected:
  """Samples and scores one batch with the policy `params`.

  With more than one try this is DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): flat
  groups, which teach nothing, are dropped and more prompts are sampled, up to `tries` times, until
  there are P groups. Missing ones are filled with empty groups, which count in no denominator.
  """
  c, sampled, flat, kept, statistics = collector, [], [], [], []
  seconds = {"sample": 0.0, "score": 0.0}
  for attempt in range(c.tries):
    with writer.phase("sample") as sampling:
      examples, generated, asked = draw(c, params, key, attempt)
    drawn, numbers, failures = generated
    with writer.phase("score") as scoring:
      sampled.append(score(c, examples, drawn, failures, asked))
      if isinstance(c.batches, Pool):
        c.batches.note(examples, solved(sampled[-1], c))
      on_mesh = rollouts.to_device(c.generator.sizes.layout, sampled[-1].rollouts)
      flat.append(rollouts.to_host(c.flat(on_mesh)))
    seconds["sample"] += sampling.seconds
    seconds["score"] += scoring.seconds
    _warn(sampled[-1], c, writer)
    statistics.append(numbers)
    varied = np.flatnonzero(~flat[-1] & (drawn.prompts.lengths > 0))
    kept.extend((attempt * len(examples) + varied).tolist())
    if len(kept) >= c.prompts:
      break
  places = [*range(c.prompts)] if c.tries == 1 else padded(kept, c.prompts)
  batch = balanced(c, sampled, places)
  metrics = {
    "prompts_too_long": sum(numbers["prompts_too_long"] for numbers in statistics),
    "slot_use": float(np.mean([float(numbers["slot_use"]) for numbers in statistics])),
    "sampling_tries": len(statistics),
  }
  metrics |= carried.joined_metrics(statistics)
  metrics |= c.batches.metrics() if isinstance(c.batches, Pool) else {}
  metrics |= sample_metrics.reward_metrics(sampled, flat, c.names)
  metrics |= sample_metrics.agreement_metrics(sampled, c.names, c.learned, c.rule)
  if metrics["zero_variance"] == 1 and "reward/mean" in metrics:
    _warn_of_flat(sampled, metrics["reward/mean"], c, writer)
  return Collected(batch, metrics, seconds, sampled)


def balanced(collector: Collector, sampled: Sequence[Scored], places: Sequence[int]) -> Scored:
  """Returns the groups at `places` of the joined batches, in the order of packing/balance.py."""
  sizes = collector.generator.sizes
  lengths = [batch.rollouts.lengths.sum(1) + batch.rollouts.prompts.lengths for batch in sampled]
  tokens = np.concatenate([*lengths, [0]])[places]  # the last is that of an empty group
  new = balance.order(
    tokens, sizes.layout.size("prompt"), collector.minibatches, sizes.microbatches
  )
  ordered = np.asarray(places)[new].tolist()
  unchanged = len(sampled) == 1 and ordered == [*range(len(sampled[0].examples))]
  return sampled[0] if unchanged else choose(sampled, ordered)


def draw(
  collector: Collector, params: Params, key: jax.Array, attempt: int
) -> tuple[list[Example | None], Generated, Asked | None]:
  """Returns P groups of completions, with their examples and what workers were asked of them.

  Args:
    collector: of the training data.
    params: the policy.
    key: of the step.
    attempt: the number of the batch in its step.
  """
  c = collector
  if c.carrier is not None:
    examples, generated = c.carrier.next_batch(c.generator, params, updated=not attempt)
    return examples, generated, _ask(c, examples)
  examples = [*next(c.batches)]
  asked, key = _ask(c, examples), jax.random.fold_in(key, attempt)
  see = asked.see if asked else None
  return examples, generate(c.generator, params, examples, key, see), asked


def _ask(collector: Collector, examples: list[Example | None]) -> Asked | None:
  """Returns what workers are asked about a batch, nothing yet; None: there are no workers."""
  c = collector
  if c.workers is None:
    return None
  return Asked(c.workers, c.generator.tokenizer, examples, c.generator.sample.setup.group)


def _gave(r: KnownScored) -> bool:
  """Returns whether the environment gave a reward; 0 at a limit may stand for none."""
  at_a_limit = last_tokens(r) & (r.ended == TRUNCATED)[..., None]
  return bool((r.given & ~(at_a_limit & (r.rewards == 0))).any())


def _warn(batch: Scored, collector: Collector, writer: Writer) -> None:
  """Warns of rewards that failed, and of those that gave nothing at all."""
  for fault in batch.faults:
    writer.warn(
      f"reward {fault.name}",
      f"the reward {fault.name!r} failed: {fault.message}; it counts as "
      f"rewards.on_error={collector.on_error:g} there, and reward_faults counts how often",
    )
  completions = int((batch.rollouts.lengths > 0).sum())
  environment = collector.generator.environment
  if environment and environment.judges and completions and not _gave(batch.rollouts):
    writer.warn(
      f"silent {ENVIRONMENT}",
      f"the environment gave none of the {completions} episodes of a step a reward, and no other "
      "reward has a weight, so that nothing is learned; is the third value of a Turn missing, or a "
      "reward of rewards.functions?",
    )
  for name in silent(batch, collector):
    writer.warn(
      f"silent {name}",
      f"the reward {name!r} gave none of the {completions} completions of a step a reward: it "
      "returned None, or an empty list, for each; is a `return` missing?",
    )


def _warn_of_flat(
  sampled: Sequence[Scored], mean: float, collector: Collector, writer: Writer
) -> None:
  """Warns of a step in which no group teaches anything; `mean` is that of its rewards."""
  reason = f"the mean reward is {mean:.3g}"
  drawn = [batch.rollouts for batch in sampled]
  if all((r.ended[r.lengths > 0] == TRUNCATED).all() for r in drawn):
    reason += f", and {_what_ended_all(collector)}"
  count = sum(int((r.prompts.lengths > 0).sum()) for r in drawn)
  writer.warn(
    "flat groups",
    f"none of the {count} groups of a step teaches anything: {reason}; most objectives need groups "
    "in which some samples do better than others",
  )


def _what_ended_all(collector: Collector) -> str:
  """Returns what may have ended completions, or episodes, all of which are truncated."""
  environment, length = collector.generator.environment, collector.max_length
  if environment is None:
    return f"all completions were cut off at {watch.limits_of(length)}"
  limits = watch.limits_of(length, environment.turn_length, environment.turns)
  return f"all episodes reached {limits}, or failed"


def silent(batch: Scored, collector: Collector) -> list[str]:
  """Returns the names of the functions that gave no completion of the batch a reward."""
  given = ~np.isnan(batch.rollouts.components[batch.rollouts.lengths > 0])  # [completions, N]
  if not len(given):
    return []
  return [name for n, (name, _, _) in enumerate(collector.rewards) if not given[:, n].any()]


def solved(batch: Scored, collector: Collector) -> np.ndarray:
  """Returns 1 for samples that the reward `solved` calls right, 0, or NaN if unknown, `[P, G]`.

  Where it rewards steps, all of them must be right; an evaluation asks for the last.
  """
  place = collector.names.index(collector.solved)
  given = sample_metrics.judged_components(batch.rollouts)[..., place]
  return np.where(np.isnan(given) | failed(batch, collector.solved), np.nan, given >= combine.RIGHT)


def score(
  collector: Collector,
  examples: Sequence[Example | None],
  drawn: KnownRollouts,
  failures: Mapping[tuple[int, int], str] | None = None,
  asked: Asked | None = None,
) -> Scored:
  """Returns the batch with the rewards of all completions; each process scores its own share.

  Args:
    collector: the rewards.
    examples: [P].
    drawn: sampled; with the rewards of the environment, if there is one.
    failures: messages of the environment where it failed, see `Generated`; None: there is none.
    asked: what workers were asked about the batch; None: there are no workers.

  Raises:
    hosts.Elsewhere: scoring failed on another process.
  """
  c = collector
  from_models: list[tuple[str, Callable, float]] = []
  if c.generator.environment is not None:
    given = functools.partial(_of_turns, drawn, failures or {}, c.discount)
    from_models = [(ENVIRONMENT, given, c.played)]
  from_models += given_by(c.models, c.generator.sizes, drawn)
  texts = hosts.together(functools.partial(completions, c.generator, drawn))
  at_groups = any(attempts.looks_at_group(reward) for _, reward, _ in c.rewards)
  groups = whole_groups(texts) if at_groups else None
  share = hosts.together(
    functools.partial(score_share, c, examples, texts, from_models, groups, asked)
  )
  shares = hosts.gather((combine.given_only(share), cut_off(drawn)))
  scores = combine.join([given for given, _ in shares], drawn.tokens.shape, len(c.names))
  combine.check_some_worked(scores.faults, int((drawn.lengths > 0).sum()))
  scored = with_rewards(drawn, scores.rewards, scores.given, scores.components)
  return Scored(list(examples), scored, scores.faults, sum(nats for _, nats in shares))


def _of_turns(
  drawn: KnownRollouts,
  failures: Mapping[tuple[int, int], str],
  discount: float,
  p: int,
  g: int,
  completion: Completion,
) -> attempts.Values:
  """Returns what the environment gave a completion, by the last tokens of its turns.

  The reward of turn k counts discount^(k - 1) times.
  """
  if (p, g) in failures:
    raise Failed(failures[p, g])
  assert drawn.rewards is not None and drawn.given is not None  # sampling/episodes.py made it
  rewards, given = drawn.rewards[p, g], drawn.given[p, g]
  turns = enumerate(completion.step_ends)
  return [(t, float(rewards[t]) * discount**k) for k, t in turns if given[t]]


def whole_groups(texts: list[list[Completion | None]]) -> list[list[Completion | None]]:
  """Returns the `[P][G]` completions of all processes; `texts` has those of this process."""
  return [
    [next(filter(None, copies), None) for copies in zip(*groups)]
    for groups in zip(*hosts.gather(texts))
  ]


def score_share(
  collector: Collector,
  examples: Sequence[Example | None],
  texts: list[list[Completion | None]],
  from_models: Sequence[tuple[str, Callable, float]],
  groups: list[list[Completion | None]] | None,
  asked: Asked | None = None,
) -> combine.Scores:
  """Returns the rewards of this process's completions, those of reward models included."""
  c = collector
  with compile_cache.same_settings("a reward"):
    combine.ahead(c.ahead, examples, texts, c.deadline)
    known = asked.outcomes(texts, groups) if asked else None
    return combine.score(
      c.rewards, examples, texts, c.max_length, c.on_error, c.deadline, from_models, groups, known
    )


def cut_off(drawn: KnownRollouts) -> float:
  """Returns the nats that top-k, top-p and min-p cut off this process's tokens."""
  return (hosts.share(drawn.truncated_logprobs)[0] - hosts.share(drawn.sampler_logprobs)[0]).sum()
