"""Plans of runs: memory by part, the estimate, the page; and, slowly, small ones compiled for real
topologies.
"""

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from small_models import SMALL

from experiments import gsm8k
from experiments.measure import benchmark, benchmarks
from grpo_jax.errors import SettingError
from grpo_jax.models import costs, variants
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf.config import write_config
from grpo_jax.plan import chips, facts, lengths, memory, page, programs, scaling, sweep, topology
from grpo_jax.plan import estimate as estimates
from grpo_jax.plan.chips import GIB
from grpo_jax.plan.collectives import Collective
from grpo_jax.setup import defaults, parameters
from grpo_jax.setup.experiment import changed, make

MESHES = [(1, 8, 1, 1), (1, 2, 2, 2)]
ROW = "reward models (float32 parameters alone)"


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


@pytest.fixture(scope="module", params=MESHES, ids=str)
def workload(request):
  return programs.make_workload(make(small(request.param)), jax.devices())


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
    padding=0.0,
    learn=learn,
    weights=made("weights"),
    sample=sample,
    learn_memory=memory.learning_parts(workload, learn, 0),
    weights_memory=memory.weights_parts(workload, made("weights"), 0),
    sample_memory=memory.sampling_parts(workload, sample, 0),
    estimate=estimates.estimate(workload, of_step, 0.0, chip, learn, made("weights"), sample),
    programs="One.",
    price=price,
  )


def test_the_compilers_arguments_are_the_leaves_of_their_shards(workload):
  arguments = (
    workload.learner.abstract(),
    *programs.learn_arguments(workload, lengths.draw(workload.experiment, 0, 0)),
  )
  leaves = jax.tree.leaves(arguments)
  compiled = jax.jit(lambda leaves: [x.ravel()[:1] for x in leaves]).lower(leaves).compile()
  assert compiled.memory_analysis().argument_size_in_bytes == memory.shard_bytes(leaves)


@pytest.mark.slow
def test_the_updates_arguments_are_the_leaves_of_their_shards(workload):
  of_step = lengths.draw(workload.experiment, 0, 0)
  compiled = programs.lower_learn(workload, of_step).compile({"xla_backend_optimization_level": 0})
  arguments = jax.tree.leaves(
    (workload.learner.abstract(), *programs.learn_arguments(workload, of_step))
  )
  kept = sorted(compiled._executable._kept_var_idx)  # jit drops what the update does not read
  state = len(jax.tree.leaves(workload.learner.abstract()))
  assert kept[:state] == list(range(state))
  assert compiled.memory_analysis().argument_size_in_bytes == memory.shard_bytes(
    [arguments[i] for i in kept]
  )


def test_parts_add_up_to_what_the_compiler_says(workload):
  learn, sample = made("learn", code=7, outputs=5), made("sample", code=5, outputs=3)
  found = memory.learning_parts(workload, learn, 12)
  assert found.total == sum(size for _, size in found.rows) == learn.peak + 5
  state = memory.state_bytes(workload)
  found = memory.sampling_parts(workload, sample, 12)
  assert found.total == sum(size for _, size in found.rows) == sample.peak + sum(state.values()) + 7
  weights = made("weights", outputs=11)
  found = memory.weights_parts(workload, weights, 12)
  assert found.total == sum(state.values()) + weights.outputs + weights.temporaries + 12
  assert state["optimizer"] > 2 * state["parameters (float32)"] == 2 * state["reference (float32)"]


def test_what_the_compiler_cannot_see_is_added():
  workload = programs.make_workload(make(small()), jax.devices())
  state = sum(memory.state_bytes(workload).values())
  found = memory.sampling_parts(workload, made("sample", needs=9 * GIB, error="too large"), 3)
  assert found.total == 9 * GIB + state + 3
  assert (
    memory.learning_parts(workload, made("learn", needs=9 * GIB, error="too large"), 3).total
    == 9 * GIB + 3
  )


def test_reward_models_stay_beside_everything(tmp_path):
  """Their parameters, as they lie on a device; a folder that holds none is refused."""
  judge = dataclasses.replace(SMALL["test_qwen3"], scores=True)
  (tmp_path / "config.json").write_text(json.dumps(write_config(judge)))
  c = small(
    **{"rewards.outcome_models": (("judge", str(tmp_path), 1.0),), "rewards.process_models": ()}
  )
  alone, workload = (programs.make_workload(make(each), jax.devices()) for each in (small(), c))
  own = memory.shard_bytes(parameters.abstract(Decoder(judge, workload.decoder.layout)))
  assert memory.judge_bytes(alone) == {} and memory.judge_bytes(workload) == {ROW: own}
  for of, name in (
    (memory.learning_parts, "learn"),
    (memory.weights_parts, "weights"),
    (memory.sampling_parts, "sample"),
  ):
    for more in ({}, {"needs": 9 * GIB, "error": "too large"}):
      assert (
        of(workload, made(name, **more), 3).total == of(alone, made(name, **more), 3).total + own
      )
  c.rewards.outcome_models = (("judge", str(tmp_path / "none"), 1.0),)
  with pytest.raises(
    SettingError, match="rewards.outcome_models has 'judge', .*none': no such folder"
  ):
    programs.make_workload(make(c), jax.devices())


def test_decode_weights_and_caches_are_those_of_a_shard():
  c = small((1, 4, 1, 2), **{"sampler.slots": 16, "sampler.cache_dtype": "bfloat16"})
  workload = programs.make_workload(make(c), jax.devices())
  shape = workload.decoder.config
  s = memory.shard_slots(workload)
  assert s == memory.Slots(
    samples=8, slots=4, prompts=2, kv=2 * 2 * (shape.kv_heads // 2) * shape.head_dim * 2
  )
  assert memory.cache_bytes(workload) == ((2 + 4) * 8 + 4 * 16) * s.kv
  matrices = shape.layers * costs.layer_weights(shape) + 2 * shape.width * shape.vocab
  norms = shape.layers * (2 * shape.width + 2 * shape.head_dim) + shape.width
  assert memory.decode_weight_bytes(workload) == 4 * (matrices // 2 + norms)


def test_decode_weights_in_int8_are_counted_as_such():
  """A byte a number and four for each output channel, in what is held and in what a step reads."""
  c = small((1, 4, 1, 2), **{"sampler.weights_dtype": "int8"})
  plain, workload = (
    programs.make_workload(make(each), jax.devices()) for each in (small((1, 4, 1, 2)), c)
  )
  shape = workload.decoder.config
  q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
  # those of o and down are whole
  scales = shape.layers * ((q + 2 * kv + 2 * shape.mlp) // 2 + 2 * shape.width)
  saved = 3 * shape.layers * costs.layer_weights(shape) // 2 - 4 * scales
  assert memory.decode_weight_bytes(plain) - memory.decode_weight_bytes(workload) == saved
  of_step = lengths.draw(make(c), 0, 0)
  assert estimates.step_bytes(plain, of_step) - estimates.step_bytes(workload, of_step) == saved
  rows = dict(memory.weights_parts(workload, made("weights", outputs=11), 0).rows)
  assert rows["weights for decoding (float32, matrices of layers in int8)"] == 11
  assert "sampler.weights_dtype=int8" not in page.advice_for_sampling(workload)
  assert "sampler.weights_dtype=int8" in page.advice_for_sampling(plain)


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


@pytest.mark.parametrize("mean", [1, 4, 9, 15, 16])
def test_lengths_have_the_mean_that_is_asked_for(mean):
  c = small(**{"data.prompts": 512})
  drawn = lengths.draw(make(c), mean, 5).completions
  assert abs(drawn.mean() - mean) < 1 and 1 <= drawn.min() and drawn.max() <= 16
  assert (drawn == lengths.draw(make(c), mean, 5).completions).all()


def test_longer_lengths_than_the_config_allows_are_refused():
  with pytest.raises(SettingError, match="--mean-length=17: use 1 to 16"):
    lengths.draw(make(small()), 17, 0)


def test_programs_are_counted(workload):
  few = workload._replace(experiment=changed(workload.experiment, {"steps": 20}))
  assert lengths.count_programs(few, 0, 0) == (1, 1, 1)
  learners, samplers, steps = lengths.count_programs(few, 4, 4)
  assert steps == 20 and 1 < learners < 20 and 1 <= samplers <= 6


def test_a_page(workload):
  text = page.text(plan_of(workload, made("learn"), made("sample"), price=2.0))
  assert (
    "**It fits**" in text
    and "| **step** |" in text
    and "at 2 a chip-hour" in text
    and "\n\n\n\n" not in text
  )
  known = (
    Collective("all-gather", 10**9, 4, False, 3, (), "transpose(", ("logprobs_and_entropy",)),
  )
  text = page.text(
    plan_of(workload, dataclasses.replace(made("learn"), collectives=known), made("sample"))
  )
  assert "| head, backward pass | all-gather | 3.000 | 100.0% | 2.250 |" in text


def test_what_does_not_fit_says_what_would_help(workload):
  text = page.text(
    plan_of(workload, made("learn"), made("sample", needs=17 * GIB, error="out of memory: 17 G"))
  )
  assert (
    "**It does not fit.**" in text and "sampler.slots" in text and "out of memory: 17 G" in text
  )
  assert "a lower learner" not in text
  text = page.text(
    plan_of(workload, dataclasses.replace(made("learn"), temporaries=20 * GIB), made("sample"))
  )
  assert "**It does not fit.**" in text and "model.remat=block" in text


def test_what_the_compiler_says_of_too_large_a_program():
  said = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 16.60G of 15.75G hbm. "
    "Exceeded by 869.42M."
  )
  assert facts._needed(said) == int(16.6 * GIB)
  assert (
    facts._needed("the total memory required for HLO temporaries (800.00G) exceeds") == 800 * GIB
  )


def test_facts_are_read_back_as_they_were_written(tmp_path):
  known = Collective("all-gather", 10, 4, False, 3, ("while",), "op", ("f", "g"))
  before = dataclasses.replace(made("learn"), collectives=(known,))
  (tmp_path / "x.json").write_text(json.dumps(dataclasses.asdict(before)))
  assert facts._read(tmp_path / "x.json") == before


def test_shapes_need_no_weights():
  c = gsm8k.get_config("model=qwen3_0.6b")
  assert programs.decoder_shape(c) == variants.variant("qwen3_0.6b")
  c.model.hub = "somebody/else"
  with pytest.raises(SettingError, match="model.hub='somebody/else'.*init_from"):
    programs.decoder_shape(c)


def test_every_name_on_the_hub_has_a_row_and_every_model_of_gsm8k_a_name():
  assert set(variants.HUB.values()) <= set(variants.VARIANTS)
  assert all(hub in variants.HUB for hub, _ in gsm8k.MODELS.values())


def test_scaling_keeps_the_load_of_a_chip():
  c = gsm8k.get_config("model=qwen3_0.6b")
  found = scaling.at_size(make(c), "v5e:2x4", "v5e:16x16", 4)
  assert (found.data.prompts, found.learner.microbatch, found.sampler.slots) == (4096, 1024, 32768)
  assert found.mesh.replica == 4 and c.data.prompts == 32
  c.data.prompts = 33
  with pytest.raises(SettingError, match="data.prompts=33 with --scaling"):
    scaling.at_size(make(c), "v5e:2x4", "v5e:2x2", 1)


def test_a_sweep_tries_each_mesh_before_a_second_choice():
  c = gsm8k.get_config("model=qwen3_0.6b")
  tried = list(sweep.candidates(make(c), 8, 1))
  meshes = [(s["mesh.tensor"], s["mesh.group"]) for s in tried]
  first = list(dict.fromkeys(meshes))
  assert meshes[: len(first)] == first and (1, 1) in first and (2, 4) in first
  assert tried[0]["learner.microbatch"] == 8 and len({tuple(s.items()) for s in tried}) == len(
    tried
  )
  for settings in tried:
    made = changed(make(c), settings)
    assert made.learner.microbatch == settings["learner.microbatch"]


def test_a_sweep_puts_what_fits_before_what_is_faster(workload):
  settings = {"mesh.tensor": 1, "mesh.group": 1, "learner.microbatch": 8, "learner.chunk": 16}
  fits = plan_of(workload, made("learn"), made("sample"))
  large = plan_of(workload, made("learn", needs=17 * GIB), made("sample"))
  rows = [sweep.Row(settings | {"mesh.tensor": 2}, large), sweep.Row(settings, fits)]
  lines = [
    line
    for line in sweep.page(rows, 16 * GIB, "command").splitlines()
    if line.startswith(("| yes", "| no"))
  ]
  assert [line[:9] for line in lines] == ["| yes | 1", "| no | 2 "]


def test_scaling_has_a_row_and_a_point_for_each_size(workload, tmp_path):
  plans = [plan_of(workload, made("learn"), made("sample"))] * 2
  scaling.draw(plans, tmp_path / "docs" / "scaling.png")
  assert (tmp_path / "docs" / "scaling.png").read_bytes()[:4] == b"\x89PNG"
  text = scaling.page(plans, "command", "scaling.png")
  assert text.count("\n| 8 | 1 | 8 |") == 2 and "](scaling.png)" in text


@pytest.mark.parametrize("name", ["v5e", "v9:2x2", "2x2"])
def test_a_topology_of_no_family_is_refused(name):
  with pytest.raises(SettingError, match=f"--topology={name}: use FAMILY:SHAPE"):
    chips.find_chip(name)


def test_without_the_compiler_a_line_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "libtpu", None)
  with pytest.raises(SettingError, match=r"--topology=v5e:2x4: .*pip install 'jax\[tpu\]'"):
    topology.devices("v5e:2x4")


def test_the_command_refuses_in_a_line(program):
  done = program("launch.plan", "--config=experiments/gsm8k.py:model=tiny", "--topology=v9:2x2")
  assert done.returncode == 2 and done.stdout == ""
  assert (
    done.stderr.startswith("error: --topology=v9:2x2: use FAMILY:SHAPE")
    and done.stderr.count("\n") == 1
  )


TWO_SLICES = ("--slices=2", "--config.mesh.replica=2", "--config.mesh.group=2")


@pytest.mark.slow
@pytest.mark.parametrize(
  "where, more",
  [
    pytest.param("v5e:2x2", (), marks=pytest.mark.long),
    pytest.param("v5p:2x2x1", (), marks=pytest.mark.long),
    ("v5e:2x2", TWO_SLICES),
  ],
)
def test_a_small_run_is_planned_for_a_topology(where, more, program, tmp_path):
  pytest.importorskip("libtpu", reason="the compiler for TPUs is not installed (extra tpu)")
  arguments = (
    "--config=experiments/gsm8k.py:model=tiny",
    f"--topology={where}",
    *more,
    f"--cache={tmp_path}/cache",
  )
  page_file = tmp_path / "plans" / "tiny.md"
  first = program("launch.plan", *arguments, f"--out={page_file}", timeout=600)
  assert first.returncode == 0, first.stderr
  assert "compiling the learn program" in first.stdout and "**It fits**" in first.stdout
  text = page_file.read_text()
  assert text in first.stdout and "all-gather" in text and ("GB cross slices" in text) == bool(more)
  again = program("launch.plan", *arguments, timeout=600)
  assert "compiling" not in again.stdout and text.partition("## Memory")[2] in again.stdout
