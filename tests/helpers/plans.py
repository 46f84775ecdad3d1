"""Makes small runs to plan for, and facts and plans of them without a compiler."""

import small_models  # noqa: F401  adds the variants named test_*
from ml_collections import ConfigDict

from grpo_jax.plan import chips, facts, lengths, memory, page, programs
from grpo_jax.plan import estimate as estimates
from grpo_jax.plan.chips import GIB
from grpo_jax.setup import defaults

MESHES = [(1, 8, 1, 1), (1, 2, 2, 2)]


def small(mesh: tuple[int, ...] = (1, 8, 1, 1), **changes) -> ConfigDict:
  c = defaults.get_config()
  c.model.variant = "test_qwen3"
  c.data.prompts, c.data.max_prompt_length = 8, 8
  c.sampler.group, c.sampler.max_length = 4, 16
  c.objective.beta = 0.04
  c.learner.chunk = 16
  c.update_from_flattened_dict(
    dict(zip((f"mesh.{axis}" for axis in ("replica", "fsdp", "group", "tensor")), mesh))
  )
  c.update_from_flattened_dict(changes)
  return c


def made(name: str, **fields) -> facts.Facts:
  return facts.Facts(name, 1.0, arguments=2 * GIB, temporaries=3 * GIB, collectives=(), **fields)


def plan_of(
  workload: programs.Workload, learn: facts.Facts, sample: facts.Facts, price: float = 0.0
) -> page.Plan:
  chip, of_step = chips.find_chip("v5e:2x4"), lengths.draw(workload.experiment, 0, 0)
  return page.Plan(
    command="python -m launch.plan",
    topology="v5e:2x4",
    slices=1,
    chip=chip,
    workload=workload,
    lengths=of_step,
    padding=programs.Padding(),
    learn=learn,
    weights=made("weights"),
    sample=sample,
    learn_memory=memory.learning_parts(workload, learn, 0),
    weights_memory=memory.weights_parts(workload, made("weights"), 0),
    sample_memory=memory.sampling_parts(workload, sample, 0),
    estimate=estimates.estimate(
      workload, of_step, programs.Padding(), chip, learn, made("weights"), sample
    ),
    programs="One.",
    price=price,
  )
