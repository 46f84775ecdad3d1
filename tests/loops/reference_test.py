"""A reference that moves with the policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs

from grpo_jax.errors import SettingError
from grpo_jax.loops import online, reference
from grpo_jax.run import checkpoint
from grpo_jax.setup import build, checks, defaults, parameters, weights
from grpo_jax.setup.resolve import resolve

SHORT = {
  "eval.problems": 0,
  "checkpoint.every": 1,
  "checkpoint.export": False,
  "learner.schedule": "constant",
  "learner.lr": 1e-2,
  "objective.beta": 0.1,
  "mesh.fsdp": 4,
  "mesh.group": 2,
}


def run(folder, steps, **changes):
  """Runs or resumes, and returns the lines of metrics and the parameters of both trees."""
  experiment = resolve(tiny_runs.config(SHORT | {"steps": steps} | changes))
  online.train(experiment, str(folder))
  decoder = build.model(experiment).decoder
  abstract = {"policy": parameters.abstract(decoder)}
  trees = [
    checkpoint.restore_params(str(folder), abstract, learner=name)["policy"]
    for name in ("policy", weights.REFERENCE)
  ]
  return tiny_runs.metrics_of_steps(folder), *jax.device_get(trees)


def test_it_goes_a_share_of_the_way():
  old, new = {"w": jnp.array([0.0, 2.0])}, {"w": jnp.array([1.0, 1e30])}
  np.testing.assert_allclose(reference.move(old, new, 0.25)["w"], [0.25, 0.25e30])
  np.testing.assert_array_equal(reference.move(old, new, 1.0)["w"], new["w"])
  np.testing.assert_array_equal(reference.move(old, new, 0.0)["w"], old["w"])


@pytest.mark.slow
def test_a_run_moves_it_and_is_resumed_with_it(tmp_path):
  _, first, moved = run(tmp_path / "two", 1, **{"reference.ema": 0.5})
  start = jax.device_get(build.model(resolve(tiny_runs.config(SHORT))).load())
  for a, b, c in zip(*map(jax.tree.leaves, (start, first, moved)), strict=True):
    np.testing.assert_allclose(c, 0.5 * (a + b), rtol=1e-6, atol=1e-8)
  resumed, _, of_resumed = run(tmp_path / "two", 2, **{"reference.ema": 0.5})
  whole, _, of_whole = run(tmp_path / "one", 2, **{"reference.ema": 0.5})
  assert [line["kl"] for line in resumed] == [line["kl"] for line in whole]
  assert whole[1]["kl"] > 0
  jax.tree.map(np.testing.assert_array_equal, of_resumed, of_whole)


def test_with_a_share_of_one_it_is_the_policy_of_the_steps_start(tmp_path):
  lines, policy, tree = run(tmp_path, 2, **{"reference.ema": 1.0})
  assert [line["kl"] for line in lines] == [0.0, 0.0]
  jax.tree.map(np.testing.assert_array_equal, policy, tree)


@pytest.mark.long
@pytest.mark.slow
def test_a_resumed_run_needs_its_first_reference_no_more(tmp_path):
  """The reference is in the checkpoints; a fresh run still reads the folder."""
  teacher, moved = tmp_path / "teacher", tmp_path / "moved"
  changes = {"reference.ema": 0.5, "ref_from": str(teacher)}
  run(teacher, 1, **{"reference.ema": 0.5})
  run(tmp_path / "two", 1, **changes)
  whole, _, of_whole = run(tmp_path / "one", 2, **changes)
  teacher.rename(moved)
  resumed, _, of_resumed = run(tmp_path / "two", 2, **changes)
  assert [line["kl"] for line in resumed] == [line["kl"] for line in whole]
  assert whole[0]["kl"] > 0
  jax.tree.map(np.testing.assert_array_equal, of_resumed, of_whole)
  with pytest.raises(SettingError, match="ref_from=.*teacher': no such folder"):
    run(tmp_path / "fresh", 1, **changes)


def test_without_a_reference_it_is_refused():
  with pytest.raises(SettingError, match="reference.ema=0.5: .*no reference that could move"):
    checks.check_settings(
      resolve(tiny_runs.config(SHORT | {"objective.beta": 0.0, "reference.ema": 0.5}))
    )


def test_adapters_and_a_folder_are_refused():
  changes = {"reference.ema": 0.5, "lora.rank": 2, "ref_from": "x"}
  with pytest.raises(SettingError, match="reference.ema=0.5 with lora.rank=2 and ref_from='x'"):
    checks.check_reference(resolve(tiny_runs.config(SHORT | changes)))


@pytest.mark.long
@pytest.mark.slow
def test_a_teacher_of_another_shape_teaches_and_the_run_is_resumed(tmp_path):
  plain = SHORT | {"objective.beta": 0.0}
  teacher = resolve(tiny_runs.config(plain | {"steps": 1, "model.variant": "test_gemma2"}))
  online.train(teacher, str(tmp_path / "teacher"))

  def lines(folder, steps):
    c = tiny_runs.config(plain | {"steps": steps, "ref_from": str(tmp_path / "teacher")})
    c.objective = defaults.objective("gkd", c)
    online.train(resolve(c), str(folder))
    return tiny_runs.metrics_of_steps(folder)

  assert lines(tmp_path / "two", 1)[0]["grad_norm"] > 0
  resumed, whole = lines(tmp_path / "two", 2), lines(tmp_path / "one", 2)
  assert [line["divergence"] for line in resumed] == [line["divergence"] for line in whole]
  assert whole[1]["divergence"] < whole[0]["divergence"]
