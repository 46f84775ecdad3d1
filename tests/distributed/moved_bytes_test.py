"""What the compiled update moves between devices, counted from its text, against the bytes of the
parameters.
"""

import collections

import jax
import pytest
import tiny

from experiments import gsm8k
from grpo_jax.learning.state import create
from grpo_jax.packing.plan import Packing
from grpo_jax.plan import facts, lengths, programs, topology
from grpo_jax.plan.collectives import collectives
from grpo_jax.sampling import rollouts as host
from grpo_jax.setup.experiment import make

MESH = (1, 4, 2, 1)
# of the 32 completion tokens that a device has of a microbatch: eight turns of the head's loop
CHUNK = 4


@pytest.mark.slow
@pytest.mark.parametrize("microbatch", [0, 4])
def test_weights_are_gathered_once_a_pass_and_gradients_scattered_once_a_microbatch(microbatch):
  """The reference's pass, the policy's forwards and backwards; what is not cut (norms) and metrics
  are all-reduced.
  """
  layout, weights = tiny.layout(MESH), tiny.params(mesh=MESH)
  state = create({"policy": tiny.params(mesh=MESH)}, tiny.GRADIENT)
  update = tiny.make_learn(
    MESH, chunk=CHUNK, microbatch=microbatch, objective_=tiny.objective(beta=0.1)
  )
  text = (
    update.lower(state, weights, None, host.to_device(layout, tiny.rollouts()), Packing())
    .compile()
    .as_text()
  )
  found, moved = collectives(text, layout.mesh.size), collections.Counter()
  for each in found:
    moved[each.kind] += each.total
  whole = sum(x.nbytes for x in jax.tree.leaves(weights))
  cut = sum(x.nbytes for x in jax.tree.leaves(weights) if not x.sharding.is_fully_replicated)
  microbatches = tiny.P // microbatch if microbatch else 1
  assert cut <= moved["all-gather"] <= 3 * microbatches * cut
  assert moved["reduce-scatter"] == microbatches * cut
  assert moved["all-reduce"] <= 2 * microbatches * (whole - cut)
  assert moved.keys() <= {"all-gather", "reduce-scatter", "all-reduce"}
  turns = microbatches * tiny.decoder().config.layers
  # none in the head's loop, which would be eight to a microbatch
  assert max(each.times for each in found) == turns


SEVEN_B = {
  "model.hub": "deepseek-ai/deepseek-math-7b-instruct",
  "mesh.group": 4,
  "mesh.tensor": 4,
  "learner.microbatch": 16,
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
  "arguments, changes, where, most",
  [
    ("model=qwen3_0.6b", {}, "v5e:2x4", 22e9),
    ("model=qwen3_0.6b,deepseekmath", SEVEN_B, "v5e:16x16", 48e9),
  ],
)
def test_shipped_configs_fit_the_topologies_that_they_name_and_move_few_bytes(
  arguments, changes, where, most
):
  """As gsm8k.py's header says; bytes of one chip and update, of which 29 GB are 7B's activations
  over tensor.
  """
  pytest.importorskip("libtpu", reason="the compiler for TPUs is not installed (extra tpu)")
  config = gsm8k.get_config(arguments)
  config.update_from_flattened_dict(changes)
  workload = programs.make_workload(make(config), topology.devices(where))
  lowered = programs.lower_learn(workload, lengths.draw(make(config), 0, 0))
  found = facts.compiled(
    "learn", lowered, topology.slice_of_each(workload.decoder.layout.mesh), where, cache=""
  )
  assert not found.error and found.peak < 15.75 * 2**30
  assert sum(each.total for each in found.collectives) <= most
  assert not any(each.unknown_loops for each in found.collectives)
