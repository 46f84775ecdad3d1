"""Makes what the episodes of a run need of its environment."""

from grpo_jax.aliases import Json
from grpo_jax.environments.base import Environment
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling.generate import Generator
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.sandbox import worker
from grpo_jax.setup import build, environment_worker, modules
from grpo_jax.setup.experiment import Experiment


def make(experiment: Experiment, model: build.Model) -> Environment | None:
  """Returns the environment with the limits of its episodes; None: the config names none.

  A chat template that cannot show an observation is refused here, before anything is sampled.
  """
  if experiment.environment_functions is None:
    return None
  e = experiment.environment
  how: Json = {"role": e.role} | build.message_format(experiment)

  def reply(observation: str, last: int) -> list[int]:
    return model.tokenizer.reply(observation, last, **how)

  if how["chat"]:
    vocab = model.decoder.config.vocab
    build.check_embedded(
      reply("text", -1), vocab, f"data.chat=True, environment.role={e.role!r}", "message"
    )
  described = environment_worker.describe(e.name, dict(e.arguments), experiment.rewards.deadline)
  code = modules.contents([e.name])
  weights = [each.weight for each in experiment.reward_functions]
  weights += [each.weight for each in experiment.reward_models]
  return Environment(
    workers=worker.shared(environment_worker.__name__, described, e.workers, code),
    reply=reply,
    turns=e.turns,
    turn_length=e.turn_length,
    judges=not any(weights),
  )


def make_generator(
  experiment: Experiment, model: build.Model, sample: Sampler, sizes: Sizes
) -> Generator:
  """Returns the generator of a run's completions, which plays its environment if it has one.

  Args:
    experiment: of the run.
    model: the policy.
    sample: made by `sampler.make_sampler`.
    sizes: of the programs of `sample`.
  """
  d, environment = experiment.data, make(experiment, model)
  return Generator(
    sample, sizes, model.tokenizer, model.render, d.max_prompt_length, d.on_long, environment
  )
