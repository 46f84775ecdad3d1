"""Seconds of a step."""

import dataclasses

import jax
import numpy as np
import pytest
from plans import MESHES, made, small

from experiments.measure import benchmark, benchmarks
from grpo_jax.models import costs
from grpo_jax.plan import chips, programs
from grpo_jax.plan import estimate as estimates
from grpo_jax.plan.collectives import Collective
from grpo_jax.setup.experiment import make


@pytest.fixture(scope="module", params=MESHES, ids=str)
def workload(request):
  return programs.make_workload(make(small(request.param)), jax.devices())


def test_operations_are_the_benchmarks():
  c = benchmarks.get_config(
    "prompts=8,group=4,prompt_len=16,completion=32,tail,mixed,layers=2,width=64,vocab=128"
  )
  prompts, ends = benchmark.make_prompts(c, 0)
  c.model.variant = "test_qwen3"
  workload = programs.make_workload(make(c), jax.devices())
  fits = made("learn"), made("weights"), made("sample")
  of_step = programs.Lengths(prompts.lengths, ends)
  found = estimates.estimate(workload, of_step, 0.0, chips.CHIPS["v5e"], *fits)
  assert found.forward_flops == costs.flops(workload.decoder.config, prompts.lengths, ends)
  shape = workload.decoder.config
  head = 2 * shape.width * shape.vocab * ends.sum()
  # reference, forward, backward; no remat
  assert found.learn_flops == pytest.approx(4 * found.forward_flops + head)


def test_adapters_need_no_gradient_of_the_weights():
  c = small((1, 2, 1, 4), **{"lora.rank": 2})
  workload = programs.make_workload(make(c), jax.devices())
  lengths = programs.Lengths(np.full(8, 8, np.int32), np.full((8, 4), 3, np.int32))
  shape, one = workload.decoder.config, costs.flops(workload.decoder.config, *lengths)
  head = 2 * shape.width * shape.vocab * 8 * 4 * 3
  # the reference, forward, and backward through the activations
  assert estimates.update_flops(workload, lengths) == pytest.approx(3 * one + head)


def test_each_shard_of_samples_computes_its_prompts():
  of_step = programs.Lengths(np.full(8, 8, np.int32), np.full((8, 4), 3, np.int32))
  fits, found = (made("learn"), made("weights"), made("sample")), []
  for mesh in ((1, 8, 1, 1), (1, 2, 4, 1)):
    workload = programs.make_workload(make(small(mesh)), jax.devices())
    found.append(estimates.estimate(workload, of_step, 0.0, chips.CHIPS["v5e"], *fits))
  one, four = found
  once = costs.flops(workload.decoder.config, of_step.prompts, np.zeros((8, 4), np.int32))
  # the reference, forward, backward, by three more shards
  assert four.learn_flops - one.learn_flops == pytest.approx(4 * 3 * once)
  assert four.prefill_s == pytest.approx(4 * one.prefill_s)
  assert four.forward_flops == one.forward_flops


def test_the_longest_step_draws_as_often_as_it_may():
  c = small((1, 2, 1, 4), **{"sampler.tries": 3})
  workload = programs.make_workload(make(c), jax.devices())
  lengths = programs.Lengths(np.full(8, 8, np.int32), np.full((8, 4), 3, np.int32))
  fits = made("learn"), made("weights"), made("sample")
  found = estimates.estimate(workload, lengths, 0.0, chips.CHIPS["v5e"], *fits)
  assert found.step_s[0] == pytest.approx(found.learn_s[0] + found.sample_s[0])
  assert found.step_s[1] == pytest.approx(found.learn_s[1] + 3 * found.sample_s[1])


def test_steps_of_decoding():
  c = small((1, 2, 1, 4), **{"sampler.slots": 4})
  workload = programs.make_workload(make(c), jax.devices())
  completions = np.full((8, 4), 3, np.int32)
  completions[5, 2] = 9  # shard 1: 16 samples in 2 slots
  found = estimates.decode_steps(workload, programs.Lengths(np.full(8, 8, np.int32), completions))
  assert found == 20  # 3 x 2 before the long one starts, 8 of it, then 3 x 2 more


def test_a_collective_takes_as_long_as_its_ring():
  chip = chips.CHIPS["v5e"]
  each = Collective("all-reduce", 10**9, 8, False, 2, (), "", ())
  assert estimates.link_seconds(each, chip, 5) == pytest.approx(2 * 2 * 7 / 8 / 100 + 2 * 8e-6)
  across = dataclasses.replace(each, across_slices=True, unknown_loops=("while",))
  assert estimates.link_seconds(across, chip, 5) == pytest.approx(
    5 * (2 * 2 * 7 / 8 / 3.125 + 2 * 8e-6)
  )
