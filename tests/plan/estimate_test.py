"""Seconds of a step."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from plans import MESHES, made, small
from small_models import SMALL

from experiments.measure import benchmark, benchmarks
from grpo_jax.models import costs
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import tensors
from grpo_jax.plan import chips, memory, programs
from grpo_jax.plan import estimate as estimates
from grpo_jax.plan.collectives import Collective
from grpo_jax.setup import defaults, parameters
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
  found = estimates.estimate(workload, of_step, programs.Padding(), chips.CHIPS["v5e"], *fits)
  assert found.forward_flops == costs.flops(workload.decoder.config, prompts.lengths, ends)
  shape = workload.decoder.config
  head = 2 * shape.width * shape.vocab * ends.sum()
  # reference, forward, backward; no remat
  assert found.learn_flops == pytest.approx(4 * found.forward_flops + head)


def test_padding_of_prompts_and_of_completions_is_their_own():
  """Computes two prompts a shard: a rectangle of 16 tokens in the learner, a list of 12 before."""
  workload = programs.make_workload(make(small((1, 4, 1, 2))), jax.devices())
  of_step = programs.Lengths(np.full(8, 5, np.int32), np.full((8, 4), 16, np.int32))
  padding = programs.padding(workload, of_step)
  assert padding == pytest.approx((0.0, 6 / 16, 2 / 12))
  fits = made("learn"), made("weights"), made("sample")
  bare, found = (
    estimates.estimate(workload, of_step, each, chips.CHIPS["v5e"], *fits)
    for each in (programs.Padding(), padding)
  )
  prompts = costs.flops(workload.decoder.config, of_step.prompts, np.zeros((8, 4), np.int32))
  # the reference, forward, backward
  assert found.learn_flops - bare.learn_flops == pytest.approx(4 * prompts * 3 / 5)
  assert found.prefill_s == pytest.approx(bare.prefill_s * 12 / 10)
  half = estimates.update_flops(workload, of_step, programs.Padding(completions=0.5))
  head = 2 * workload.decoder.config.width * workload.decoder.config.vocab * 8 * 4 * 16
  own = bare.forward_flops - prompts
  assert half - bare.learn_flops == pytest.approx(4 * own + head)


def test_adapters_need_no_gradient_of_the_weights():
  c = small((1, 2, 1, 4), **{"lora.rank": 2})
  workload = programs.make_workload(make(c), jax.devices())
  lengths = programs.Lengths(np.full(8, 8, np.int32), np.full((8, 4), 3, np.int32))
  shape, one = workload.decoder.config, costs.flops(workload.decoder.config, *lengths)
  head = 2 * shape.width * shape.vocab * 8 * 4 * 3
  # the reference, forward, and backward through the activations
  assert estimates.update_flops(workload, lengths, programs.Padding()) == pytest.approx(
    3 * one + head
  )


def test_each_shard_of_samples_computes_its_prompts():
  of_step = programs.Lengths(np.full(8, 8, np.int32), np.full((8, 4), 3, np.int32))
  fits, found = (made("learn"), made("weights"), made("sample")), []
  for mesh in ((1, 8, 1, 1), (1, 2, 4, 1)):
    workload = programs.make_workload(make(small(mesh)), jax.devices())
    found.append(
      estimates.estimate(workload, of_step, programs.Padding(), chips.CHIPS["v5e"], *fits)
    )
  one, four = found
  once = costs.flops(workload.decoder.config, of_step.prompts, np.zeros((8, 4), np.int32))
  # the reference, forward, backward, by three more shards
  assert four.learn_flops - one.learn_flops == pytest.approx(4 * 3 * once)
  assert four.prefill_s == pytest.approx(4 * one.prefill_s)
  assert four.forward_flops == one.forward_flops


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
  """Returns the folder and shape of a teacher, wider than small runs and without a tokenizer."""
  shape = dataclasses.replace(SMALL["test_qwen3"], width=64, layers=3)
  folder = str(tmp_path_factory.mktemp("teacher") / "model")
  tensors.save(folder, shape, Decoder(shape, tiny.layout()).init(jax.random.key(0)))
  return folder, shape


@pytest.mark.parametrize("objective, heads", [("distill", 1), ("gkd", 2 * 2)])
def test_a_teacher_of_another_shape_is_counted_by_its_own(objective, heads, teacher):
  """Whole distributions need its logits twice in each of mu passes."""
  folder, shape = teacher
  c = small((1, 2, 1, 4), ref_from=folder, **{"learner.mu": 2})
  c.objective = defaults.objective(objective, c)
  workload = programs.make_workload(make(c), jax.devices())
  of_step = programs.Lengths(np.full(8, 8, np.int32), np.full((8, 4), 3, np.int32))
  assert programs.lower_learn(workload, of_step)
  size = memory.shard_bytes(parameters.abstract(Decoder(shape, workload.decoder.layout)))
  assert memory.state_bytes(workload)["reference (float32)"] == size
  (one, head), (asked, logits) = (
    (costs.flops(of, *of_step), 2 * of.width * of.vocab * 8 * 4 * 3)
    for of in (workload.decoder.config, shape)
  )
  expected = asked + (heads - 1) * logits + one + 2 * (3 * one + head)  # mu > 1: the old policy's
  assert estimates.update_flops(workload, of_step, programs.Padding()) == pytest.approx(expected)


def test_the_longest_step_draws_as_often_as_it_may():
  c = small((1, 2, 1, 4), **{"sampler.tries": 3})
  workload = programs.make_workload(make(c), jax.devices())
  lengths = programs.Lengths(np.full(8, 8, np.int32), np.full((8, 4), 3, np.int32))
  fits = made("learn"), made("weights"), made("sample")
  found = estimates.estimate(workload, lengths, programs.Padding(), chips.CHIPS["v5e"], *fits)
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
