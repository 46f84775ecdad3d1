"""Makes a plan: compiles the programs, splits their memory into parts and estimates the time."""

from typing import TypedDict

from grpo_jax.plan import chips, facts, lengths, memory, programs, topology
from grpo_jax.plan.estimate import estimate
from grpo_jax.plan.page import Plan
from grpo_jax.setup.experiment import Experiment


class Options(TypedDict, total=False):
  """Arguments of `make_plan` that sweep.py and scaling.py pass on."""

  mean_length: int
  mean_prompt: int
  cache: str


def make_plan(
  experiment: Experiment,
  where: str,
  slices: int = 1,
  *,
  mean_length: int = 0,
  mean_prompt: int = 0,
  price: float = 0.0,
  note: str = "",
  cache: str = "",
  command: str = "",
) -> Plan:
  """Returns the plan of an online run on `slices` slices of a topology.

  Args:
    experiment: of the run.
    where: the topology, such as v5e:2x4.
    slices: their number.
    mean_length, mean_prompt: see `lengths.draw`.
    price: of a chip for an hour; 0: unknown.
    note: text below the estimate.
    cache: the folder of facts about compiled programs; "" for none.
    command: the command that makes the page, which shows it.
  """
  chip = chips.find_chip(where)
  workload = programs.make_workload(experiment, topology.devices(where, slices))
  drawn = lengths.draw(experiment, mean_length, mean_prompt)
  mesh = workload.decoder.layout.mesh
  slice_of = topology.slice_of_each(mesh)
  label = f"{slices} slices of {where}" if slices > 1 else where
  learn = facts.compiled("learn", programs.lower_learn(workload, drawn), slice_of, label, cache)
  weights = facts.compiled("weights", programs.lower_weights(workload), slice_of, label, cache)
  sample = facts.compiled("sample", programs.lower_sampler(workload, drawn), slice_of, label, cache)
  code = learn.code + weights.code + sample.code
  padding = programs.padding(workload, drawn)
  return Plan(
    command=command,
    topology=where,
    slices=slices,
    chip=chip,
    workload=workload,
    lengths=drawn,
    padding=padding,
    learn=learn,
    weights=weights,
    sample=sample,
    learn_memory=memory.learning_parts(workload, learn, code),
    weights_memory=memory.weights_parts(workload, weights, code),
    sample_memory=memory.sampling_parts(workload, sample, code),
    estimate=estimate(workload, drawn, padding, chip, learn, weights, sample),
    programs=_programs_of_run(workload, mean_length, mean_prompt),
    price=price,
    note=note,
  )


LATER_TURN = (
  "The sampler is that of a later turn of the environment's episodes: half of each completion is "
  "there, and is computed first. "
)


def _programs_of_run(workload: programs.Workload, mean_length: int, mean_prompt: int) -> str:
  """Returns a sentence about the number of programs that a run compiles."""
  learners, samplers, steps = lengths.count_programs(workload, mean_length, mean_prompt)
  turn = LATER_TURN if workload.experiment.environment.name else ""
  if carry := workload.experiment.sampler.carry:
    turn += f"Beside the groups of a step it holds sampler.carry={carry} that are carried. "
  if steps == 1:
    return turn + (
      "With all lengths full, as here, a run compiles one program of the update and one of the "
      "sampler; --mean-length and --mean-prompt count those of lengths that vary."
    )
  means = " and ".join(
    f"{name} of {value} tokens in the mean"
    for name, value in (("completions", mean_length), ("prompts", mean_prompt))
    if value
  )
  return turn + (
    f"With {means}, {steps} steps compile {learners} programs of the update and {samplers} of the "
    "sampler."
  )
