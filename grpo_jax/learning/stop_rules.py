"""Lists the rules that end the passes over a rollout early. A new rule is a row of the table."""

from collections.abc import Callable
from typing import NamedTuple

from grpo_jax.types import Array

RAN_ALL = 0  # metric inner/stopped_by: no rule ended the inner loop


class StopRule(NamedTuple):
  """Ends the passes over a rollout early; its limit is a setting, and 0 turns it off."""

  code: int  # in the metric inner/stopped_by
  reads: tuple[str, ...]  # metrics of the objective's loss
  # (mean metrics of the pass, limit, largest surrogate of an earlier pass) -> [] bool
  ends: Callable[[dict[str, Array], float, Array], Array]


# By the setting of the limit, `learner.NAME`. If several rules hold, the last one is named.
STOP_RULES = {
  "stop_surrogate": StopRule(
    2, ("surrogate",), lambda mean, limit, best: mean["surrogate"] < best + limit
  ),
  "stop_reached": StopRule(
    1,
    ("at_bound", "past_bound"),
    lambda mean, limit, best: mean["at_bound"] + mean["past_bound"] >= limit,
  ),
  "stop_kl": StopRule(3, ("old_kl",), lambda mean, limit, best: mean["old_kl"] > limit),
}
