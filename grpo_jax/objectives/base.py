"""An objective is one value, `OBJECTIVE = Objective(...)`, at the end of its file.

The file is one of this folder, or one of yours that `objective.name` names by its path. A whole
one, REINFORCE:

    import jax.numpy as jnp
    from grpo_jax.objectives import common, metrics
    from grpo_jax.objectives.base import Objective

    def loss(outputs, batch, cfg):
      logprobs, _, _ = common.policies(outputs, batch)
      gain = batch.advantages * logprobs
      return -jnp.sum(batch.weights * gain), metrics.policy_metrics(outputs, batch)

    OBJECTIVE = Objective(loss)

The functions are called in this order:

    settings()   makes the config's `objective` section when a config is loaded
    check        refuses settings that contradict each other, before anything is compiled
    needs        says which forward passes are made before `prepare`
    prepare      turns a whole batch of rollouts into a TrainBatch, inside the jitted update
    loss         is differentiated on slices of that batch along P, once or more times

`cfg` is the `objective` section: the names of `settings()`, and `name`, the objective's own.
"""

import dataclasses
import enum
from collections.abc import Callable
from types import ModuleType

from ml_collections import ConfigDict, FrozenConfigDict

from grpo_jax.objectives import advantages, common, shared_settings
from grpo_jax.ops.distillation import Divergence
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, Scores, TrainBatch

DATA = ("live", "samples", "pairs", "solutions", "steps")  # that an objective can learn from


class Needs(enum.Flag):
  """Forward passes that are made before `prepare`, joined by `|`.

  Several updates on a rollout add OLD_POLICY by themselves.
  """

  NOTHING = 0
  REFERENCE = enum.auto()  # fills `ref_logprobs`, by the reference or the teacher
  TEACHER = enum.auto()  # fills `ref_hidden`, by the same: `outputs.divergence` follows from it
  OLD_POLICY = enum.auto()  # fills `old_logprobs`, by the policy that sampled
  CRITIC = enum.auto()  # fills `old_values`; a critic is trained with the policy


def needs_nothing(cfg: ConfigDict) -> Needs:
  """Returns the `needs` of an objective that reads the trained model alone."""
  del cfg
  return Needs.NOTHING


def needs_old_policy(cfg: ConfigDict) -> Needs:
  """Returns the `needs` of an objective that reads the policy that sampled."""
  del cfg
  return Needs.OLD_POLICY


def reads_reference(needs: Needs) -> bool:
  """Returns whether there is a reference or teacher."""
  return bool(needs & (Needs.REFERENCE | Needs.TEACHER))


def needs_reference(cfg: ConfigDict) -> Needs:
  """Returns the `needs` of an objective that always compares with the reference or teacher."""
  del cfg
  return Needs.REFERENCE


def needs_teacher(cfg: ConfigDict) -> Needs:
  """Returns the `needs` of an objective that reads a teacher's whole distributions."""
  del cfg
  return Needs.TEACHER


def no_divergence(cfg: ConfigDict) -> None:
  """Returns None: whole distributions are not compared."""
  del cfg


@dataclasses.dataclass(frozen=True)
class Objective:
  """Functions and constants that make an algorithm; only `loss` has no default."""

  # (outputs, batch, cfg) -> (sum(batch.weights * token loss), metrics) of a slice of the batch
  # along P. `outputs` are types.Outputs, or types.Scores of a reward model. Slices add up to the
  # batch, so nothing here may be divided by what is in the slice.
  loss: Callable[..., tuple[Array, Metrics]]

  # (rollouts, cfg, advantages) -> the batch to learn from. It sees the whole batch at once;
  # `advantages` [P, G, L] are those that the setting `advantage` names, None without that setting.
  prepare: Callable[[Rollouts, ConfigDict, Array | None], TrainBatch] = common.prepare

  # The settings that the objective reads, each with its default; no others can be set.
  # `max_length`, if it is among them, is tied to sampler.max_length.
  settings: Callable[[], ConfigDict] = shared_settings.policy_gradient

  # Raises SettingError for values that are unknown or contradict each other.
  check: Callable[[ConfigDict], None] = shared_settings.check

  needs: Callable[[ConfigDict], Needs] = needs_nothing

  # (cfg) -> what `outputs.divergence` is, with Needs.TEACHER; None without it.
  divergence: Callable[[ConfigDict], Divergence | None] = no_divergence

  # What it can learn from: "live" samples of the policy (loop "online"), or offline "samples",
  # "pairs", "solutions"; "steps" for a process reward model.
  data: tuple[str, ...] = ("live",)

  # The setting that must name another model to learn from, such as "ref_from"; "" without one.
  teacher: str = ""

  # Whether the model has a head that scores (`DecoderConfig.scores`) in place of the unembedding.
  # It needs no other pass, and its loss is given Scores.
  trains_reward_model: bool = False

  # (logprobs, old, mask, cfg) -> the ratio pi / pi_old that the objective clips, [P, G, L], or
  # [P, G, 1] by sequence. Log-probs are 0 off the mask. None: it has no ratio to the old policy.
  importance_ratio: Callable[[Array, Array, Array, ConfigDict], Array] | None = None

  # (mask, lengths, cfg) -> weights [P, G, L] of a set of completions, in `prepare` and of each
  # minibatch, with the denominators of these completions; mask is [P, G, L], lengths [P, G].
  weights: Callable[[Array, Array, ConfigDict], Array] = common.weights

  # (batch, cfg) -> the least ratio that a token with A < 0 is driven to, and the largest of one
  # with A > 0. Each is a number or [P, G, L]; (0, infinity) without a bound.
  bounds: Callable[[TrainBatch, ConfigDict], tuple[Array | float, Array | float]] = common.no_bounds

  # (logprobs, batch) -> the advantages [P, G, L] under the policy as it is now, for what is
  # measured and shown of an update. The loss does not read them.
  live_advantages: Callable[[Array, TrainBatch], Array] = common.prepared_advantages

  # (rollouts, cfg, advantages) -> which groups teach nothing, [P] bool. Dynamic sampling drops
  # them, and the metric `zero_variance` is their share of what was sampled.
  flat: Callable[[Rollouts, ConfigDict, Array | None], Array] = common.flat


@dataclasses.dataclass(frozen=True)
class ConfiguredObjective:
  """An objective with its settings, and with the advantage that they name."""

  objective: Objective
  cfg: FrozenConfigDict
  advantage: Callable[[Rollouts], Array] | None  # None: the objective has no such setting

  @property
  def name(self) -> str:
    """Name of the objective, the value of `objective.name`."""
    return self.cfg.name

  @property
  def needs(self) -> Needs:
    """Forward passes that the objective or its advantage needs."""
    needs = self.objective.needs(self.cfg)
    return needs | Needs.OLD_POLICY if self.advantage_reads_old_policy else needs

  @property
  def advantage_reads_old_policy(self) -> bool:
    return self.cfg.get("advantage") in advantages.READ_OLD_POLICY

  @property
  def trains_reward_model(self) -> bool:
    return self.objective.trains_reward_model

  @property
  def divergence(self) -> Divergence | None:
    """Returns how the policy's distributions are compared with the teacher's; None: not at all."""
    return self.objective.divergence(self.cfg)

  @property
  def has_ratio(self) -> bool:
    return self.objective.importance_ratio is not None

  def advantages(self, rollouts: Rollouts) -> Array | None:
    """Returns the advantages [P, G, L] that `prepare` and `flat` are given, 0 on padding."""
    if self.advantage is None:
      return None
    common.require(rollouts.rewards, "rewards", self.cfg.name)
    return common.on_mask(self.advantage(rollouts), common.sampled_mask(rollouts))

  def prepare(self, rollouts: Rollouts) -> TrainBatch:
    return self.objective.prepare(rollouts, self.cfg, self.advantages(rollouts))

  def flat(self, rollouts: Rollouts) -> Array:
    """Returns which groups teach nothing, [P] bool, of rollouts as the sampler leaves them.

    There is no pass of the old policy yet: where the advantage reads it, rewards are compared.
    """
    advantages = None if self.advantage_reads_old_policy else self.advantages(rollouts)
    return self.objective.flat(rollouts, self.cfg, advantages)

  def loss(self, outputs: Outputs | Scores, batch: TrainBatch) -> tuple[Array, Metrics]:
    return self.objective.loss(outputs, batch, self.cfg)

  def weights(self, mask: Array, lengths: Array) -> Array:
    return self.objective.weights(mask, lengths, self.cfg)

  def bounds(self, batch: TrainBatch) -> tuple[Array | float, Array | float]:
    return self.objective.bounds(batch, self.cfg)

  def live_advantages(self, logprobs: Array, batch: TrainBatch) -> Array:
    return self.objective.live_advantages(logprobs, batch)


def find_objective(module: ModuleType) -> Objective | None:
  """Returns the OBJECTIVE of a module, if it has one."""
  objective = vars(module).get("OBJECTIVE")
  return objective if isinstance(objective, Objective) else None
