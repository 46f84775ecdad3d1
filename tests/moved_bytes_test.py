"""What the compiled update moves between devices, counted from its text, against the bytes of the parameters."""

import collections

import jax
import pytest
import tiny

from grpo_jax import rollouts as host
from grpo_jax import state as states
from grpo_jax.packing.plan import Packing
from grpo_jax.plan.collectives import collectives

MESH = (1, 4, 2, 1)
CHUNK = 4  # of the 32 completion tokens that a device has of a microbatch: eight turns of the head's loop


@pytest.mark.parametrize("microbatch", [0, 4])
def test_weights_are_gathered_once_a_pass_and_gradients_scattered_once_a_microbatch(microbatch):
  """The reference's pass, the policy's forwards and backwards; what is not cut (norms) and metrics are all-reduced."""
  layout, weights = tiny.layout(MESH), tiny.params(mesh=MESH)
  state = states.create({"policy": tiny.params(mesh=MESH)}, tiny.GRADIENT)
  update = tiny.make_learn(MESH, chunk=CHUNK, microbatch=microbatch, objective_=tiny.objective(beta=0.1))
  text = update.lower(state, weights, None, host.to_device(layout, tiny.rollouts()), Packing()).compile().as_text()
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
  assert max(each.times for each in found) == turns  # none in the head's loop, which would be eight to a microbatch
