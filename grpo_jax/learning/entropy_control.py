"""Adapts the weight of the entropy bonus to a target, as Skywork-OR1 does (arXiv 2505.22312).

With c the weight, which starts at `objective.entropy_bonus`, and H the mean entropy of the policy
on the tokens of the last step:

    c <- c + step where H is below the target, else c - step, kept from 0 to a largest weight
    the bonus of a step is c H in the first, and where the last H was below the target, else 0

The defaults of step and largest weight, 1e-4 and 5e-3, are the paper's; its target is 0.2 nats.
The authors take H of the same step's rollouts before they learn from them; here it is that of the
step before, which costs no pass.
"""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Control:
  """Holds what is carried from step to step; checkpoints keep it."""

  weight: float  # c
  entropy: float | None = None  # H of the last step, in nats; None: there was none


def bonus(control: Control, target: float) -> float:
  """Returns the weight of the entropy in the next step's loss."""
  below = control.entropy is None or control.entropy < target
  return control.weight if below else 0.0


def after(control: Control, entropy: float, target: float, step: float, largest: float) -> Control:
  """Returns the control after a step in which the policy's mean entropy was `entropy`.

  A step that trained no token (its mean is 0) or was not finite says nothing of the policy.
  """
  if not math.isfinite(entropy) or entropy == 0.0:
    return control
  change = step if entropy < target else -step
  return Control(min(max(control.weight + change, 0.0), largest), entropy)
