"""Makes what the episodes of a run need of its environment."""

import functools
from collections.abc import Callable, Sequence

from grpo_jax.aliases import Json
from grpo_jax.environments.base import Environment
from grpo_jax.sandbox import worker
from grpo_jax.setup import build, environment_worker
from grpo_jax.setup.experiment import Experiment


def make(experiment: Experiment, model: build.Model) -> Environment | None:
  """Returns the environment with the limits of its episodes; None: the config names none.

  A chat template that cannot show an observation is refused here, before anything is sampled.
  """
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
  if d.chat:
    reply("text", -1)
  described = environment_worker.describe(e.name, dict(e.arguments), experiment.rewards.deadline)
  return Environment(
    ask=in_processes(described, e.workers),
    reply=reply,
    turns=e.turns,
    turn_length=e.turn_length,
    discount=e.discount,
  )


@functools.cache
def in_processes(described: str, workers: int) -> Callable[[Sequence[Json]], list[Json]]:
  """Returns the function that asks the environment, in worker processes that all callers share.

  Args:
    described: by `environment_worker.describe`.
    workers: number of processes.
  """
  module = environment_worker.__name__
  return functools.partial(
    worker.ask_all, [worker.Process(module, described) for _ in range(workers)]
  )
