"""Memory by part."""

import dataclasses
import json

import jax
import pytest
import tiny
import tiny_runs
from passed_on_test import stub
from plans import MESHES, made, small
from small_models import SMALL

from grpo_jax.errors import SettingError
from grpo_jax.models import costs
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import tensors
from grpo_jax.models.hf.config import write_config
from grpo_jax.plan import estimate as estimates
from grpo_jax.plan import lengths, memory, page, programs
from grpo_jax.plan.chips import GIB
from grpo_jax.setup import parameters
from grpo_jax.setup.experiment import make


@pytest.mark.parametrize(("slots", "tokens"), [(8, 2 * 5 + 8 * 7), (4, (2 + 4) * 5 + 4 * 7)])
def test_slots_that_are_refilled_have_copies_of_their_prompts(monkeypatch, slots, tokens):
  monkeypatch.setattr(
    memory, "shard_slots", lambda workload: memory.Slots(samples=8, slots=slots, prompts=2, kv=10)
  )
  config = tiny_runs.config({"data.max_prompt_length": 5, "sampler.max_length": 7})
  assert memory.cache_bytes(stub(experiment=config)) == 10 * tokens


@pytest.mark.parametrize(
  ("dtype", "vector"), [("float32", 4 * 16), ("bfloat16", 2 * 16), ("int8", 16 + 4)]
)
def test_keys_and_values_of_a_token(monkeypatch, dtype, vector):
  """Two for each head and layer; in int8 each has a float32 scale."""
  shape, layout = (
    stub(kv_heads=2, head_dim=16, layers=3),
    stub(shards=lambda name, n: 2, size=lambda name: 1),
  )
  setup = stub(decoder=stub(config=shape, layout=layout), cache_dtype=dtype, slots=0)
  monkeypatch.setattr(memory, "decode_setup", lambda workload: setup)
  config = tiny_runs.config({"data.prompts": 2, "sampler.group": 4})
  found = memory.shard_slots(stub(experiment=config, sample=stub(layout=layout)))
  assert found == memory.Slots(samples=8, slots=8, prompts=2, kv=2 * 3 * 1 * vector)


ROW = "reward models (float32 parameters alone)"


@pytest.fixture(scope="module", params=MESHES, ids=str)
def workload(request):
  return programs.make_workload(make(small(request.param)), jax.devices())


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


@pytest.mark.parametrize(
  "source, held",
  [
    ("bfloat16", "bfloat16"),
    ("float32", "float32"),
    ("config.json alone", "bfloat16"),  # not downloaded yet
    ("hub", "bfloat16"),  # likewise
    ("fresh", "float32"),
    ("moving", "float32"),  # it is a copy of the policy
  ],
)
def test_a_plan_holds_the_reference_as_its_run_does(source, held, tmp_path):
  c = small(**{"model.dtype": "bfloat16"})
  if source in ("bfloat16", "float32", "config.json alone"):
    c.init_from = str(tmp_path)
    dtype = source.partition(" ")[0].replace("config.json", "float32")
    tensors.save(c.init_from, tiny.decoder().config, tiny.params(), dtype=dtype)
  if source == "config.json alone":
    (tmp_path / "model.safetensors").unlink()
  if source == "hub":
    c.model.hub = "Qwen/Qwen3-0.6B"
  if source == "moving":
    c.model.hub, c.reference.ema = "Qwen/Qwen3-0.6B", 0.1
  rows = memory.state_bytes(programs.make_workload(make(c), jax.devices()))
  size = {"bfloat16": 2, "float32": 4}[held]
  assert rows["parameters (float32)"] * size == 4 * rows[f"reference ({held})"]


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


def test_slots_of_carried_rollouts_are_counted():
  experiment = make(small((2, 2, 1, 2), **{"sampler.carry": 4}))
  workload = programs.make_workload(experiment, jax.devices())
  s = memory.shard_slots(workload)
  assert (s.prompts, s.samples, s.slots) == ((8 + 4) // 4, 3 * 4, 12)
  # a step's own groups are as many as without
  assert estimates.decode_steps(workload, lengths.draw(experiment, 0, 0)) == 15


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
