"""Computes the coefficient of grad log pi of an objective (DeepSeekMath, arXiv 2402.03300, 5.2).

    gradient = E over D of sum over tokens of GC(q, o, t, reward) * grad log pi(o_t | q, o_<t)

    objective        data source                      coefficient, up to its 1/|o|, 1/G
    sft              offline answers                  1
    distill_offline  the teacher's samples            1
    rft              the SFT model's samples          1 if correct, else 0
    online rft       the live policy's samples        1 if correct, else 0
    dpo              offline pairs                    +-beta sigma(beta (h_rejected - h_chosen))
    ppo              the live policy's samples        A by GAE, while the clip lets it through
    grpo             the live policy's samples        A + beta (pi_ref / pi - 1)
    distill          the live policy's samples        log(pi_teacher / pi)

The tests in tests/objectives/ compare the rows with this function.
"""

import dataclasses

import jax
from ml_collections import ConfigDict

from grpo_jax.objectives.base import Objective
from grpo_jax.types import Array, Outputs, TrainBatch


def gradient_coefficient(
  objective: Objective, outputs: Outputs, batch: TrainBatch, cfg: ConfigDict
) -> Array:
  """Returns d(-loss) / d log pi of every token, [P, G, L], the batch's weights included."""

  def gain(logprobs: Array) -> Array:
    return -objective.loss(dataclasses.replace(outputs, logprobs=logprobs), batch, cfg)[0]

  return jax.grad(gain)(outputs.logprobs)
