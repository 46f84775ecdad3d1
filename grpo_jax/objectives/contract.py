"""What a module has to hold to be an objective, and how one is refused that does not.

An objective is a file of this folder, or a file or module of yours that the config names.
Everything in `Objective` below must be there. Most of it is a line: `importance_ratio = None`,
`bounds = common.no_bounds`, `weights = common.weights`, `live_advantages =
common.prepared_advantages`, `flat = common.flat_totals`. Of the files here sft.py is the shortest
whole example and grpo.py the one to read.

What happens to the functions, in this order:

    settings()   makes the config's `objective` section when a config is loaded
    check        refuses settings out of range or that contradict each other, before anything is compiled; their kinds
                 and that numbers are finite were looked at before it
    needs        says which forward passes are made before `prepare`
    prepare      turns a whole batch of rollouts into a TrainBatch, inside the jitted update
    loss         is differentiated on slices of that batch along P, once or more times

`cfg` is always the `objective` section: the names of `settings()`, and `name`, the objective's own.
A setting `advantage` is the exception: there `cfg.advantage(rollouts)` calls the function that it
names (advantages.py).
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.types import Array, Metrics, Outputs, Rollouts, TrainBatch


class Objective(Protocol):
  """The names that a module needs, none of them optional."""

  # What it can learn from: "live" samples of the policy (loop "online"), or offline "samples",
  # "pairs", "solutions"; "steps" where it is a process reward model.
  DATA: tuple[str, ...]

  # The setting that must name another model to learn from, such as "ref_from"; "" where there is
  # none.
  TEACHER: str

  # (logprobs, old, mask, cfg) -> the ratio pi / pi_old that the objective clips, [P, G, L] or [P,
  # G, 1] by sequence; None where it has no ratio to the old policy. Log-probs are [P, G, L] and 0
  # off the mask.
  importance_ratio: Callable[[Array, Array, Array, Any], Array] | None

  @staticmethod
  def settings() -> ConfigDict:
    """Returns the settings that the objective reads, each with its default; no others can be set.

    `max_length`, if it is among them, is tied to sampler.max_length whatever its default.
    """
    ...

  @staticmethod
  def check(cfg: Any) -> None:
    """Refuses values that the objective does not know, and settings that contradict each other.

    Raises:
      SettingError: the setting, its value, and what would work.
    """
    ...

  @staticmethod
  def needs(cfg: Any) -> frozenset[str]:
    """Returns the forward passes to make before `prepare`, of "ref", "old", "values"; or "scores"
    alone.

    They fill `ref_logprobs` (of the reference or teacher), `old_logprobs` (of the policy that
    sampled) and `old_values` (of the critic) of the rollouts. Several updates on a rollout add
    "old" by themselves. "values" makes a critic.

    With "scores" it is a reward model that is trained: the policy's tree with a head that scores in
    place of the unembedding (`DecoderConfig.scores`). No pass is made before `prepare`;
    `Outputs.values` holds the scores, entry t after token t is read, and there are no log-probs.
    """
    ...

  @staticmethod
  def prepare(rollouts: Rollouts, cfg: Any) -> TrainBatch:
    """Returns the batch to learn from: masks, advantages, weights. It sees the whole batch at once."""
    ...

  @staticmethod
  def loss(outputs: Outputs, batch: TrainBatch, cfg: Any) -> tuple[Array, Metrics]:
    """Returns (sum(batch.weights * token loss), metrics) of a slice of the batch along P.

    Slices add up to the batch, so nothing here may be divided by what is in the slice. metrics.py
    has the common ones.
    """
    ...

  @staticmethod
  def weights(mask: Array, lengths: Array, cfg: Any) -> Array:
    """Returns the weights [P, G, L] of a set of completions, for the batch in `prepare` and for
    each minibatch.

    Their denominators are those of the completions given: mask is [P, G, L], lengths [P, G].
    """
    ...

  @staticmethod
  def bounds(batch: TrainBatch, cfg: Any) -> tuple[Array | float, Array | float]:
    """Returns the least ratio that a token with A < 0 is driven to, and the largest of one with A >
    0.

    Each is a number or [P, G, L]; (0, infinity) where there is no bound.
    """
    ...

  @staticmethod
  def live_advantages(logprobs: Array, batch: TrainBatch) -> Array:
    """Returns the advantages [P, G, L] under the policy as it is: those of `prepare`, unless they
    move with it.
    """
    ...

  @staticmethod
  def flat(rollouts: Rollouts, cfg: Any) -> Array:
    """Returns which groups of scored rollouts teach nothing, [P] bool.

    Dynamic sampling drops them, and the metric `zero_variance` is their share of what was sampled.
    """
    ...


NAMES = (
  *Objective.__annotations__,
  *(name for name in vars(Objective) if name.isidentifier() and name[0] != "_"),
)


def missing(module: ModuleType) -> list[str]:
  """Returns the names of the contract that a module lacks; none: it is an objective."""
  return [each for each in NAMES if each not in vars(module)]


def wrong(module: ModuleType) -> str:
  """Returns what is wrong with the names of a module that lacks none, "" where nothing is."""
  kinds = ("live", "samples", "pairs", "solutions", "steps")
  if (
    not isinstance(module.DATA, tuple | list)
    or not module.DATA
    or not all(each in kinds for each in module.DATA)
  ):
    return (
      f"DATA is {module.DATA!r:.80}; use a tuple of some of {', '.join(kinds)}, with a comma after "
      "a single one"
    )
  if not isinstance(module.TEACHER, str):
    return (
      f"TEACHER is {module.TEACHER!r:.80}; use the name of a setting, such as 'ref_from', or ''"
    )
  for name in NAMES[2:]:
    if not callable(vars(module)[name]) and (
      name != "importance_ratio" or vars(module)[name] is not None
    ):
      return (
        f"{name} is {vars(module)[name]!r:.80}; it should be a function, see contract.py of "
        "grpo_jax.objectives"
      )
  return ""


def check_names(objective: Objective, cfg: Any) -> None:
  """Refuses a section that is another objective's.

  Args:
    objective: a module that is complete.
    cfg: the `objective` section of the config.

  Raises:
    SettingError: the section's names, and what would work.
  """
  own, given = {"name", *objective.settings()}, set(cfg)
  if own != given:
    wrong = []
    if own - given:
      wrong.append(f"lacks {', '.join(sorted(own - given))}")
    if given - own:
      wrong.append(f"has {', '.join(sorted(given - own))}, which {cfg.name} does not read")
    raise SettingError(
      f"objective.name={cfg.name!r}: use --config=FILE:objective={cfg.name}, or in a config file "
      "of your own "
      f"c.objective = defaults.objective({cfg.name!r}, c); the name alone does not change the "
      "settings, and the "
      f"section {' and '.join(wrong)}"
    )
