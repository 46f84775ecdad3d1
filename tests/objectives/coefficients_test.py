"""The "one paradigm" table: each objective's coefficient of grad log pi, by autodiff, against its
closed form.

A coefficient here includes the batch's weight of the token (its 1/|o|, 1/G ...), so closed forms
are multiplied by it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import (
  grpo,
  gspo,
  target_prob,
)
from grpo_jax.objectives.coefficients import gradient_coefficient
from grpo_jax.ops import advantages as adv


def prepared(objective, r, **changes):
  cfg = cases.settings(objective, **changes)
  return cases.prepare(r, cfg), cfg


def on_policy(r):
  """(rollouts without old log-probs, outputs of the policy that sampled them)."""
  out = cases.outputs(r, spread=0.0)
  return cases.replace(r, old_logprobs=None), out


def check(objective, out, batch, cfg, expected, atol=1e-9):
  """Compares coefficients under the fixture `float64`; `expected` is without the weights."""
  got = gradient_coefficient(objective.OBJECTIVE, out, batch, cfg)
  assert got.dtype == jnp.float64
  np.testing.assert_allclose(got, batch.weights * expected, rtol=1e-6, atol=atol)


def value_and_slope(objective, out, batch, cfg):
  """Returns the loss, and its gradient by the log-probs."""

  def loss(logprobs):
    return objective.loss(cases.replace(out, logprobs=logprobs), batch, cfg)[0]

  return jax.value_and_grad(loss)(out.logprobs)


@pytest.mark.usefixtures("float64")
def test_target_prob_is_the_sign_until_the_target():
  r = cases.rollouts()
  batch, cfg = prepared(target_prob, r)
  at_start = cases.outputs(r, spread=0.0)
  check(target_prob, at_start, batch, cfg, batch.advantages)
  assert set(np.unique(batch.advantages)) == {-1.0, 0.0, 1.0}
  for side in ("upper", "lower"):
    log_bound = jnp.log(
      jnp.where(jnp.isfinite(batch.extra[side]) & (batch.extra[side] > 0), batch.extra[side], 1.0)
    )
    past = log_bound + (0.01 if side == "upper" else -0.01)
    sign = 1.0 if side == "upper" else -1.0
    got = gradient_coefficient(
      target_prob, cases.replace(at_start, logprobs=r.old_logprobs + past), batch, cfg
    )
    np.testing.assert_array_equal(jnp.where(batch.advantages == sign, got, 0.0), 0.0)


def test_one_update_per_rollout_is_reinforce():
  """Without old log-probs every ratio is exactly 1 and the coefficient is A to the last bit."""
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(grpo, r)
  got = gradient_coefficient(grpo, out, batch, cfg)
  np.testing.assert_array_equal(got, batch.weights * batch.advantages)
  metrics = grpo.loss(out, batch, cfg)[1]
  assert metrics["ratio_max"][0] == 1.0 and metrics["ratio"][0] == metrics["ratio"][1]
  assert metrics["clip_low"][0] == metrics["clip_high"][0] == 0.0


def test_under_gdpo_a_group_of_equal_totals_has_advantages():
  r = cases.rollouts(P=2, G=2)
  components = jnp.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
  r = cases.replace(r, components=components, rewards=jnp.where(r.given, 1.0, 0.0))
  for changes, want in (
    (dict(), [1, 1]),
    (dict(advantage="gdpo", reward_weights=(2.0, 1.0)), [0, 1]),
  ):
    batch = cases.prepare(r, cases.settings(**changes))
    np.testing.assert_array_equal(jnp.all(batch.advantages == 0, axis=(1, 2)), np.array(want) == 1)


def test_a_zero_variance_group_has_no_gradient_without_a_kl():
  r = cases.rollouts()
  r = cases.replace(r, rewards=r.rewards.at[1].set(0.7))
  batch, cfg = prepared(grpo, r)
  got = gradient_coefficient(grpo.OBJECTIVE, cases.outputs(r), batch, cfg)
  np.testing.assert_array_equal(got[1], 0.0)
  np.testing.assert_array_equal(adv.flat(r.rewards, r.given), [False, True, False, False])


def test_completions_of_one_token_make_gspo_grpo():
  r = cases.rollouts()
  r = cases.replace(
    r, lengths=jnp.ones_like(r.lengths), given=jnp.zeros_like(r.given).at[..., 0].set(True)
  )
  out = cases.outputs(r)
  batch, _ = prepared(grpo, r)
  bounds = dict(clip_low=0.2, clip_high=0.2)

  one, two = (
    value_and_slope(objective, out, batch, cases.settings(objective, **bounds))
    for objective in (grpo, gspo)
  )
  np.testing.assert_array_equal(one[0], two[0])
  np.testing.assert_array_equal(one[1], two[1])
