"""The benchmark: what it counts, what it prints, and what it asks of peers."""

import numpy as np
import pytest
from absl import flags

from experiments.measure import benchmark, benchmarks
from grpo_jax.config import kinds
from grpo_jax.errors import SettingError
from grpo_jax.models import variants

KEYS = """generate_s learn_s step_s completion_tokens tok_per_s_generate tok_per_s_step peak_rss_gb matmul_gflops
generate_of_limit generate_of_bandwidth learn_of_limit copy_gb_per_s slot_use padding_fraction""".split()
TINY = "layers=1,width=64,mlp=64,vocab=32,head_dim=32,prompts=8,group=2,prompt_len=4,completion=8,steps=2"


def test_long_tailed_lengths_have_a_mean_of_a_quarter():
  lengths = benchmark.forced_lengths(100_000, 128, 0)
  assert lengths.min() == 2 and lengths.max() == 128
  # exponential, cut off at four means
  assert lengths.mean() == pytest.approx(32 * (1 - np.exp(-4)), abs=1)
  assert (lengths == 128).mean() == pytest.approx(np.exp(-4), abs=0.003)


@pytest.mark.slow
def test_one_line_has_every_number():
  found = benchmark.measure(benchmarks.get_config(TINY))
  assert set(KEYS) <= set(found)
  assert found["completion_tokens"] == 8 * 2 * 8 and found["slot_use"] == 1
  assert found["step_s"] >= max(found["generate_s"], found["learn_s"]) > 0
  assert found["tok_per_s_generate"] == pytest.approx(128 / found["generate_s"])
  # a CPU does not count it
  assert 0 < found["generate_of_bandwidth"] < 1 and found["peak_device_gb"] is None
  assert 0 < found["generate_of_limit"] < 1 and 0 < found["learn_of_limit"] < 1


@pytest.mark.slow
def test_the_learner_is_measured_alone_and_without_a_reference():
  alone = TINY + ",sample=false,beta=0,dtype=bfloat16,remat=dots"
  found = benchmark.measure(benchmarks.get_config(alone))
  assert found["completion_tokens"] == 8 * 2 * 8 and found["learn_of_limit"] > 0
  assert found["tok_per_s_learn"] == pytest.approx(8 * (4 + 2 * 8) / found["learn_s"])
  assert found["params_m"] > 0 and not {"generate_s", "step_s", "slot_use"} & set(found)
  workload, _ = benchmark.make_workload(benchmarks.get_config(alone))
  assert workload.ref_params is None


@pytest.mark.slow
@pytest.mark.long
def test_lengths_are_mixed_slots_are_not_refilled_and_no_step_that_compiles_counts():
  mixed = TINY.replace("prompts=8", "prompts=16") + ",tail=true,mixed=true,slots=16,refill=false"
  found = benchmark.measure(benchmarks.get_config(mixed))
  assert (
    found["slot_use"] < 1
    and found["completion_tokens"] < 16 * 2 * 8
    and found["prompt_padding_fraction"] > 0
  )
  # of two steps that compiled, the median is at least half of it
  assert 4 * found["step_s"] < found["compile_s"]


def test_a_setting_that_is_refused_is_one_line(monkeypatch, capsys):
  monkeypatch.setattr(
    flags, "FLAGS", type("Values", (), {"config": benchmarks.get_config("remat=full"), "vs": None})
  )
  with pytest.raises(SystemExit) as end:
    benchmark.main([])
  assert end.value.code == 2
  assert capsys.readouterr().err == "error: model.remat='full': use none, block or dots\n"


@pytest.mark.slow
def test_adapters_are_measured_over_weights_in_bfloat16():
  found = benchmark.measure(benchmarks.get_config(TINY + ",lora=4,dtype=bfloat16"))
  plain = benchmark.measure(benchmarks.get_config(TINY))
  assert plain["params_m"] < found["params_m"] < 1.5 * plain["params_m"]
  assert found["learn_of_limit"] > 0


def test_a_workload_may_have_the_shape_of_a_published_model():
  shape = benchmark.make_shape(benchmarks.get_config("variant=qwen3_8b,width=64").benchmark)
  assert shape == variants.variant("qwen3_8b")
  with pytest.raises(SettingError, match="qwen3_8b"):
    kinds.check(benchmarks.get_config("variant=qwen8").benchmark, benchmark.WORKLOAD, "benchmark.")
