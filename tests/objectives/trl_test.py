"""Agreement with TRL 1.16's GRPOTrainer, value and gradient, to 1e-5 in float32.

Against stored numbers (tests/data/trl.npz, made by tests/data/make_trl_fixture.py), and against TRL
itself where it
is installed. What differs on purpose: TRL's cispo cap is `epsilon_high` itself, ours 1 + clip_high;
log-ratios are cut to [-20, 20] here and not there; k3 goes through expm1 here; a group of equal
rewards has advantage 0 exactly
here. The same: ddof 1, eps 1e-4.
"""

import importlib.util
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import cispo, grpo, gspo
from grpo_jax.types import STOPPED, Outputs, Prompts, Rollouts

DATA = pathlib.Path(__file__).parents[1] / "data"
spec = importlib.util.spec_from_file_location("make_trl_fixture", DATA / "make_trl_fixture.py")
maker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(maker)

STORED = dict(np.load(DATA / "trl.npz"))
SETTINGS = json.loads(str(STORED["settings"]))
AGGREGATION = {
  "grpo": "sequence_mean",
  "bnpo": "token_mean",
  "dapo": "token_mean",
  "cispo": "token_mean",
  "dr_grpo": "constant",
}


def ours(case):
  """(loss, gradient, advantages) of one case, in TRL's shapes."""
  shape = (maker.PROMPTS, maker.GROUP, maker.LENGTH)

  def as_groups(name):
    return jnp.asarray(STORED[f"input/{name}"]).reshape(shape)

  lengths = as_groups("mask").sum(2).astype(int)
  given = jnp.arange(maker.LENGTH) == lengths[..., None] - 1
  rollouts = Rollouts(
    prompts=Prompts(jnp.zeros((shape[0], 1), int), jnp.ones(shape[0], int)),
    tokens=jnp.zeros(shape, int),
    lengths=lengths,
    ended=jnp.full(shape[:2], STOPPED),
    sampler_logprobs=as_groups("sampler"),
    truncated_logprobs=as_groups("sampler"),
    rewards=given * jnp.asarray(STORED["input/rewards"]).reshape(shape[:2])[..., None],
    given=given,
    old_logprobs=as_groups("old"),
    ref_logprobs=as_groups("ref"),
  )
  is_cispo = case["loss_type"] == "cispo"
  objective = cispo if is_cispo else gspo if case["level"] == "sequence" else grpo
  clip = dict(clip_low=case["low"], clip_high=case["high"], clip_delta=case["delta"] or 0.0)
  cfg = cases.settings(
    objective,
    aggregation=AGGREGATION[case["loss_type"]],
    max_length=maker.LENGTH,
    beta=case["beta"],
    kl_weighted=case["bias"],
    scale=case["scale"],
    mismatch="token" if case["is_cap"] else "none",
    mismatch_high=case["is_cap"] or 2.0,
    **(dict(clip_high=case["high"] - 1.0) if is_cispo else clip),
  )
  batch = cases.prepare(rollouts, cfg)
  logprobs = as_groups("logps")

  def loss(lp):
    return objective.loss(Outputs(lp, jnp.zeros(shape), jnp.zeros(shape)), batch, cfg)[0]

  value, slope = jax.value_and_grad(loss)(logprobs)
  return value, slope.reshape(-1, maker.LENGTH), batch.advantages[..., 0].ravel()


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_value_and_gradient_are_those_of_trl(name):
  loss, gradient, advantages = ours(SETTINGS[name])
  np.testing.assert_allclose(advantages, STORED[f"{name}/advantages"], atol=1e-5)
  np.testing.assert_allclose(loss, STORED[f"{name}/loss"], atol=1e-5, rtol=1e-5)
  np.testing.assert_allclose(gradient, STORED[f"{name}/gradient"], atol=1e-5, rtol=1e-5)


def test_the_stored_cases_exercise_what_they_name():
  """Clips bite, masks are uneven, and the cases are not one another."""
  mask = STORED["input/mask"]
  assert 1 < len(set(mask.sum(1)))
  assert 0.05 < np.mean(STORED["grpo/gradient"][mask > 0] == 0) < 0.7
  losses = [float(STORED[f"{n}/loss"]) for n in SETTINGS]
  assert len({round(x, 6) for x in losses}) == len(losses)


def test_the_stored_numbers_are_trls():
  pytest.importorskip("torch")
  pytest.importorskip("trl")
  fresh = maker.make()
  for name, value in fresh.items():
    if name != "settings":
      np.testing.assert_allclose(value, STORED[name], atol=1e-6, err_msg=name)
