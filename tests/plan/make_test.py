"""What a plan says of the programs of a run; pod_plan_test.py makes whole plans."""

import jax
from plans import small

from grpo_jax.plan import lengths, make, programs
from grpo_jax.setup import experiment


def test_with_full_lengths_there_is_one_program_of_each():
  workload = programs.make_workload(experiment.make(small()), jax.devices())
  said = make._programs_of_run(workload, 0, 0)
  assert "one program of the update and one of the sampler" in said


def test_lengths_that_vary_are_named_and_their_programs_counted():
  workload = programs.make_workload(experiment.make(small()), jax.devices())
  few = workload._replace(experiment=experiment.changed(workload.experiment, {"steps": 20}))
  learners, samplers, steps = lengths.count_programs(few, 4, 5)
  said = make._programs_of_run(few, 4, 5)
  assert said.startswith("With completions of 4 tokens in the mean and prompts of 5 tokens")
  assert f"{steps} steps compile {learners} programs of the update and {samplers} of" in said
