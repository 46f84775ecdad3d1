"""The benchmark: what it counts, what it prints, and what it asks of peers."""

import sys
import types

import jax
import numpy as np
import pytest
from absl import flags
from conftest import ROOT
from ml_collections import config_flags

from experiments.measure import benchmark, benchmarks, peer_commands
from grpo_jax.config import kinds
from grpo_jax.errors import SettingError
from grpo_jax.models import variants
from grpo_jax.run import writer

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


@pytest.mark.long
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


def test_the_programs_of_the_machines_rate_are_not_counted(monkeypatch):
  """Leaves out the product between two steps, which is compiled, too."""

  def compiles(count):
    for _ in range(count):
      jax.monitoring.record_event_duration_secs(writer.COMPILED, 2.0)

  def one_step(workload, state, i):
    compiles(3 if i == 0 else 0)
    return state, i

  def rate(dtype=None):
    compiles(1)
    return 1.0

  empty = types.SimpleNamespace(base=None, params=None)
  monkeypatch.setattr(benchmark, "make_workload", lambda config: (empty, empty))
  monkeypatch.setattr(benchmark, "one_step", one_step)
  monkeypatch.setattr(benchmark.rates, "matmul_rate", rate)
  monkeypatch.setattr(benchmark.rates, "copy_rate", rate)
  monkeypatch.setattr(benchmark, "summary", lambda config, steps, *rates: {"steps": steps})
  found = benchmark.measure(benchmarks.get_config(TINY))
  assert found["steps"] == [1, 2] and found["programs"] == 3 and found["compile_s"] == 6.0


def test_a_setting_that_is_refused_is_one_line(monkeypatch, capsys):
  monkeypatch.setattr(
    flags, "FLAGS", type("Values", (), {"config": benchmarks.get_config("remat=full"), "vs": None})
  )
  with pytest.raises(SystemExit) as end:
    benchmark.main([])
  assert end.value.code == 2
  assert capsys.readouterr().err == "error: model.remat='full': use none, block or dots\n"


@pytest.fixture
def flagged(monkeypatch):
  """Returns a function that measures by a command line, and then what was run, without running."""
  values, run = flags.FlagValues(), []
  monkeypatch.setattr(flags, "FLAGS", values)
  monkeypatch.setattr(peer_commands, "check_peer", lambda *peer: run.append(peer))
  numbers = {"tok_per_s_generate": 1, "tok_per_s_step": 1, "peak_rss_gb": 1}
  monkeypatch.setattr(peer_commands, "last_json", lambda command: run.append(command) or numbers)
  config_flags.DEFINE_config_file("config", flag_values=values)
  for name in ("vs", "peer"):
    flags.DEFINE_string(name, None, "", flag_values=values)
  flags.DEFINE_integer("rounds", 3, "", flag_values=values)

  def main(*arguments):
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    benchmark.main(values(sys.argv))
    return run

  return main


WORKLOAD = f"--config={ROOT}/experiments/measure/benchmarks.py:prompts=4"


@pytest.mark.parametrize(
  "more",
  [
    ["--vs=trl", "--peer=python", "--rounds=1"],
    ["--vs", "trl", "--peer", "python", "--rounds", "1"],
    ["-vs=trl", "-peer=python", "-rounds=1"],
  ],
)
def test_its_own_process_is_given_the_workload_alone(flagged, more):
  """Checks the peer first; the two then take turns, and neither starts a peer of its own."""
  checked, ours, theirs = flagged(WORKLOAD, *more)
  assert checked == ("trl", "python")
  assert ours == [sys.executable, "-m", "experiments.measure.benchmark", WORKLOAD]
  assert theirs[:2] == ["python", "experiments/measure/peers/trl_step.py"]


@pytest.mark.parametrize("override", ["--config.steps=3", "-config.steps=3"])
def test_a_peer_is_given_no_single_setting(flagged, override, capsys):
  with pytest.raises(SystemExit):
    flagged(WORKLOAD, override, "--vs=trl")
  assert capsys.readouterr().err.startswith("error: --config.steps with --vs=trl: a peer takes")


@pytest.mark.long
@pytest.mark.slow
def test_adapters_are_measured_over_weights_in_bfloat16():
  found = benchmark.measure(benchmarks.get_config(TINY + ",lora=4,dtype=bfloat16"))
  plain = benchmark.measure(benchmarks.get_config(TINY))
  assert plain["params_m"] < found["params_m"] < 1.5 * plain["params_m"]
  assert found["learn_of_limit"] > 0


def test_several_minibatches_need_the_pass_of_the_old_policy_too():
  step = benchmark.Step(
    0, 2.0, 8, 8, 6.0, 0, 0, {"padding_fraction": 0, "prompt_padding_fraction": 0}
  )
  config = benchmarks.get_config("beta=0,sample=false")
  shares = []
  for mu, minibatches in ((1, 1), (1, 2), (2, 1)):
    config.learner.mu, config.learner.minibatches = mu, minibatches
    shares.append(benchmark.summary(config, [step], 1.0, 1.0)["learn_of_limit"] / 3)
  assert shares == [3, 3 + 1, 2 * 3 + 1]


def test_a_width_without_a_head_is_refused():
  config = benchmarks.get_config("width=32,head_dim=64")
  with pytest.raises(SettingError, match="^benchmark.width=32: use at least head_dim=64$"):
    benchmark.measure(config)


def test_a_workload_may_have_the_shape_of_a_published_model():
  shape = benchmark.make_shape(benchmarks.get_config("variant=qwen3_8b,width=64").benchmark)
  assert shape == variants.variant("qwen3_8b")
  with pytest.raises(SettingError, match="qwen3_8b"):
    kinds.check(benchmarks.get_config("variant=qwen8").benchmark, benchmark.WORKLOAD, "benchmark.")
