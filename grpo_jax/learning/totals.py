"""Combines metrics, which are (total, count) pairs, over microbatches, minibatches and passes."""

from collections.abc import Collection

import jax.numpy as jnp

from grpo_jax.errors import SettingError
from grpo_jax.types import Array, Metrics

# Names of metrics that the learner and the loops add, which an objective's metrics cannot have.
TAKEN = """
  step loss grad_norm critic_grad_norm skipped skipped_steps lr tokens truncated iteration
  reward_faults rewards_given zero_variance cut_off_nats slot_use sampling_tries
  prompts_too_long pairs_too_long solutions_cut padding_fraction prompt_padding_fraction
  moved_right_way moved_nats mismatch_ess entropy_weight
""".split()
TAKEN_SECTIONS = tuple(
  """
  reward/ agreement/ eval/ time/ length/ inner/ pool/ tokens_per_s/ tokens/ turns/ carry/ teacher/
  reward_model/
""".split()
)


def check_names(names: Collection[str], objective: str) -> None:
  """Refuses metrics of an objective's loss that have names of a run's own."""
  if taken := sorted(name for name in names if name in TAKEN or name.startswith(TAKEN_SECTIONS)):
    section, slash, _ = taken[0].rpartition("/")
    why = f"names that begin with {section}/ are a run's own" if slash else "a run has one itself"
    raise SettingError(
      f"objective.name={objective!r}: its loss returns the metric {taken[0]!r}, and {why}; give it "
      "another name"
    )


def combine(name: str, values: Array) -> Array:
  """Returns the sum over the leading axis, or the maximum for names that end in `_max`."""
  return jnp.max(values, axis=0) if name.endswith("_max") else jnp.sum(values, axis=0)


def combine_metrics(metrics: Metrics) -> Metrics:
  """Returns (total, count) pairs combined over their leading axis."""
  return {k: (combine(k, total), combine(k, count)) for k, (total, count) in metrics.items()}


def empty_metric(name: str) -> tuple[Array, Array]:
  """Returns the neutral element of `combine`."""
  return jnp.float32(-jnp.inf if name.endswith("_max") else 0.0), jnp.float32(0.0)


def means(metrics: Metrics) -> dict[str, Array]:
  """Returns total / count of each metric."""
  return {name: total / jnp.maximum(count, 1e-9) for name, (total, count) in metrics.items()}
