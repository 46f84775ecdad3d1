"""What is compiled for chips that are not there."""

import jax
import numpy as np
import pytest
from plans import MESHES, small

from experiments import gsm8k
from grpo_jax.errors import SettingError
from grpo_jax.models import variants
from grpo_jax.plan import lengths, memory, programs, sweep
from grpo_jax.setup import defaults
from grpo_jax.setup.experiment import make


@pytest.fixture(scope="module", params=MESHES, ids=str)
def workload(request):
  return programs.make_workload(make(small(request.param)), jax.devices())


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


def test_shapes_need_no_weights():
  c = gsm8k.get_config("model=qwen3_0.6b")
  assert programs.decoder_shape(c) == variants.variant("qwen3_0.6b")
  c.model.hub = "somebody/else"
  with pytest.raises(SettingError, match="model.hub='somebody/else'.*init_from"):
    programs.decoder_shape(c)


def test_a_page_is_named_after_what_gives_the_shape():
  c = gsm8k.get_config("model=qwen3_0.6b")
  assert programs.model_name(make(c)) == "Qwen/Qwen3-0.6B"
  c.model.variant = "qwen3_1.7b"
  assert programs.model_name(make(c)) == "qwen3_1.7b"
  c.init_from = "/weights"
  assert programs.model_name(make(c)) == "/weights"


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_with_an_environment_the_sampler_is_that_of_a_later_turn(mesh):
  """It takes half of each completion besides, sharded over prompts and samples."""
  plain = make(small(mesh))
  c = small(mesh, **{"environment.name": "calculator", "sampler.stop": (">>",)})
  sizes = []
  for experiment in (plain, make(c)):
    workload = programs.make_workload(experiment, jax.devices())
    lowered = programs.lower_sampler(workload, lengths.draw(experiment, 0, 0))
    leaves = jax.tree.leaves(lowered.in_avals)
    sizes.append(sum(x.size for x in leaves if x.ndim == 3 and x.shape[:2] == (8, 4)))
  assert sizes == [0, 8 * 4 * 16]


def test_with_carried_rollouts_the_sampler_holds_the_groups_of_two_steps():
  """P + C prompts, of which the carried ones have half of their completions."""
  experiment = make(small((2, 2, 1, 2), **{"sampler.carry": 4}))
  workload = programs.make_workload(experiment, jax.devices())
  of_step = lengths.draw(experiment, 0, 0)
  lowered = programs.lower_sampler(workload, of_step)
  shapes = [x.shape for x in jax.tree.leaves(lowered.in_avals)]
  assert (4, 4, 16) in shapes and (12,) in shapes and (8, 4, 16) not in shapes
  begun = programs.begun_lengths(workload, of_step)
  np.testing.assert_array_equal(begun.completions, of_step.completions[:4] // 2)


@pytest.mark.parametrize(
  "loop, objective, data",
  [
    ("offline", "sft", "solutions"),
    ("offline", "dpo", "pairs"),
    ("reward_model", "reward_model", "pairs"),
    ("iterative", "grpo", "pairs"),
  ],
)
def test_only_online_runs_are_planned(loop, objective, data):
  c = small(loop=loop, **{"offline.data": data})
  c.objective = defaults.objective(objective, c)
  says = f"^loop='{loop}': .* loop='online'"
  with pytest.raises(SettingError, match=says):
    programs.make_workload(make(c), jax.devices())
  with pytest.raises(SettingError, match=says):  # not once for each mesh
    sweep.text(make(c), "v5e:2x4", 1, 2, command="")
