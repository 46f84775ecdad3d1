"""Computes the metrics of what was sampled: rewards, lengths, and how rewards agree.

`names` are those of the N reward components; of these `learned` are given by reward models, and
`rule` is the reward that they are compared with ("": there is none).
"""

from collections.abc import Sequence

import jax
import numpy as np

from grpo_jax.loops.groups import Scored
from grpo_jax.ops.advantages import totals
from grpo_jax.reward_models import agreement
from grpo_jax.sampling import rollouts
from grpo_jax.types import KnownScored


def reward_metrics(
  batches: Sequence[Scored], flat: Sequence[jax.Array | np.ndarray], names: Sequence[str]
) -> dict[str, float]:
  """Returns the metrics of everything that was sampled, except groups that only fill a batch.

  `tokens`, `reward_faults`; mean and standard deviation of the total reward; `rewards_given`, the
  mean number of rewards of a completion, 1 for an outcome alone; the mean of each reward component;
  `zero_variance`, the share of flat groups; `cut_off_nats`, the mean over tokens of -log of the
  mass that top-k, top-p and min-p kept.

  Args:
    batches: what was sampled.
    flat: which groups of each batch are flat, [P] bool.
    names: of the reward components, N.
  """
  # [P, G] each, completions that were given a reward that counts
  real = [batch.rollouts.given.any(axis=2) for batch in batches]
  total = np.concatenate(
    [totals(b.rollouts.rewards, b.rollouts.given)[r] for b, r in zip(batches, real)]
  )
  # [completions, N], of those with a reward of weight 0 alone, too
  components = np.concatenate(
    [batch.rollouts.components[batch.rollouts.lengths > 0] for batch in batches]
  )
  is_flat = np.concatenate(
    [mask[batch.rollouts.prompts.lengths > 0] for batch, mask in zip(batches, flat)]
  )
  tokens = sum(int(rollouts.sampled_lengths(batch.rollouts).sum()) for batch in batches)
  metrics = {
    "tokens": tokens,
    "reward_faults": sum(len(batch.faults) for batch in batches),
    "zero_variance": float(np.mean(is_flat)) if is_flat.size else 0.0,
  }
  if tokens:  # both log-probs are 0 where there is no token
    metrics["cut_off_nats"] = sum(batch.cut_off for batch in batches) / tokens
  for n, name in enumerate(names if len(components) else ()):
    given = components[:, n][~np.isnan(components[:, n])]  # a reward that returned None gave none
    metrics[f"reward/{name}"] = given.mean() if given.size else float("nan")
  if not total.size:
    return metrics
  steps = np.concatenate([batch.rollouts.given.sum(axis=2)[r] for batch, r in zip(batches, real)])
  return metrics | {
    "reward/mean": total.mean(),
    "reward/std": total.std(),
    "rewards_given": steps.mean(),
  }


def agreement_metrics(
  batches: Sequence[Scored], names: Sequence[str], learned: Sequence[str], rule: str
) -> dict[str, float]:
  """Returns how rewards vary together within the sampled groups (reward_models/agreement.py).

  Metrics that are NaN are left out.

  `length/reward_correlation` is of a completion's length and its total reward; `agreement/NAME` of
  each reward model and the rule, where there is one.
  """
  all_rollouts = [batch.rollouts for batch in batches]
  total = np.concatenate(
    [np.where(r.given.any(axis=2), totals(r.rewards, r.given), np.nan) for r in all_rollouts]
  )
  metrics = {
    "length/reward_correlation": agreement.correlation_in_groups(
      np.concatenate([rollouts.sampled_lengths(r) for r in all_rollouts]), total
    )
  }
  if rule in names and learned:
    components = np.concatenate([judged_components(r) for r in all_rollouts])
    by_rule = components[..., names.index(rule)]
    for name in learned:
      by_model = components[..., names.index(name)]
      metrics[f"agreement/{name}"] = agreement.pairs_in_order(by_model, by_rule)
  return {name: value for name, value in metrics.items() if not np.isnan(value)}


def disagreement(
  batch: Scored, names: Sequence[str], learned: Sequence[str], rule: str
) -> np.ndarray | None:
  """Returns how much higher each completion ranks by a reward model than by the rule, `[P, G]`.

  Ranks are within the group, so the differences go from -1 to 1. Of several reward models the one
  that differs most counts. None without a model or a rule.
  """
  if rule not in names or not learned:
    return None
  components = judged_components(batch.rollouts)
  by_rule = components[..., names.index(rule)]
  by_model = np.stack(
    [agreement.disagreement(components[..., names.index(n)], by_rule) for n in learned]
  )
  most = np.nan_to_num(np.abs(by_model), nan=-1.0).argmax(axis=0)
  return np.take_along_axis(by_model, most[None], axis=0)[0]


def judged_components(r: KnownScored) -> np.ndarray:
  """Returns the reward components `[P, G, N]`, NaN for completions that only fill the batch."""
  return np.where((r.lengths > 0)[..., None], r.components, np.nan)
