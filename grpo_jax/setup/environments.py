"""Makes what the episodes of a run need of its environment."""

import functools

from grpo_jax.environments.base import Environment
from grpo_jax.setup import build
from grpo_jax.setup.experiment import Experiment


def make(experiment: Experiment, model: build.Model) -> Environment | None:
  """Returns the environment with the limits of its episodes; None: the config names none."""
  if experiment.environment_functions is None:
    return None
  e, d = experiment.environment, experiment.data
  reply = functools.partial(
    model.tokenizer.reply,
    role=e.role,
    template=d.template,
    chat=d.chat,
    system=d.system,
    arguments=tuple(map(tuple, d.chat_arguments)),
  )
  return Environment(
    *experiment.environment_functions,
    reply=reply,
    turns=e.turns,
    turn_length=e.turn_length,
    discount=e.discount,
    deadline=experiment.rewards.deadline,
  )
