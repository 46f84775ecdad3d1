"""TPO."""

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import tpo
from grpo_jax.objectives.coefficients import gradient_coefficient
from objectives.coefficients_test import check, prepared

pytestmark = pytest.mark.usefixtures("float64")


def completions(logprobs, mask):
  return jnp.sum(jnp.where(mask > 0, logprobs, 0.0), axis=2)


def standardised(r):
  """u, by numpy."""
  total = np.asarray(jnp.sum(jnp.where(r.given, r.rewards, 0.0), axis=2), np.float64)
  std = total.std(axis=1, keepdims=True)
  return np.where(
    std > 1e-6, (total - total.mean(axis=1, keepdims=True)) / np.maximum(std, 1e-6), 0
  )


def test_the_coefficient_is_q_less_p():
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(tpo, r, eta=0.7)
  q = jax.nn.softmax(completions(r.old_logprobs, batch.mask) + standardised(r) / 0.7, axis=1)
  p = jax.nn.softmax(completions(out.logprobs, batch.mask), axis=1)
  check(tpo, out, batch, cfg, (q - p)[..., None] * batch.mask)

  def gain(logprobs):
    return jnp.mean(
      jnp.sum(q * jax.nn.log_softmax(completions(logprobs, batch.mask), axis=1), axis=1)
    )

  found = gradient_coefficient(tpo.OBJECTIVE, out, batch, cfg)
  np.testing.assert_allclose(found, jax.grad(gain)(out.logprobs), rtol=1e-6, atol=1e-9)


def test_a_group_adds_up_to_0_and_rests_at_its_target():
  r = cases.rollouts()
  batch, cfg = prepared(tpo, r)
  sums = batch.extra["target"] - tpo.of_group(completions(r.old_logprobs, batch.mask), batch.mask)
  np.testing.assert_allclose(jnp.sum(sums, axis=1), 0.0, atol=1e-9)
  share = standardised(r)[..., None] / jnp.maximum(r.lengths, 1)[..., None] * batch.mask
  out = cases.replace(cases.outputs(r), logprobs=r.old_logprobs + share)
  check(tpo, out, batch, cfg, 0.0 * batch.mask, atol=1e-7)  # rewards are added up in float32


def test_equal_rewards_teach_nothing_at_first_and_pull_back_later():
  r = cases.rollouts()
  r = cases.replace(r, rewards=jnp.where(r.given, 0.7, 0.0))
  batch, cfg = prepared(tpo, r)
  start = cases.replace(cases.outputs(r), logprobs=r.old_logprobs)
  check(tpo, start, batch, cfg, 0.0 * batch.mask)
  found = gradient_coefficient(tpo.OBJECTIVE, cases.outputs(r), batch, cfg)
  p, q = (
    jax.nn.softmax(completions(x, batch.mask), axis=1)
    for x in (cases.outputs(r).logprobs, r.old_logprobs)
  )
  assert jnp.abs(q - p).max() > 0.01
  np.testing.assert_allclose(found, batch.weights * (q - p)[..., None], rtol=1e-6, atol=1e-9)
  assert not tpo.OBJECTIVE.flat(r, cfg, None).any()


def test_a_truncated_completion_that_is_left_out_has_no_share():
  """Lets the shares of the others add up to 1; u still counts its reward, as advantages do."""
  r = cases.rollouts()
  batch, cfg = prepared(tpo, r, mask_truncated=True)
  cut = np.asarray(r.lengths == 6)
  assert 0 < cut.sum(axis=1).max() < 4
  out = cases.outputs(r)

  def shares(scores):
    scores = np.where(cut, -np.inf, np.asarray(scores, np.float64))
    return jax.nn.softmax(scores, axis=1)

  q = shares(completions(r.old_logprobs, batch.mask) + standardised(r))
  p = shares(completions(out.logprobs, batch.mask))
  np.testing.assert_allclose(batch.extra["target"], q, rtol=1e-6, atol=1e-9)
  check(tpo, out, batch, cfg, (q - p)[..., None] * batch.mask)


def test_a_completion_without_a_reward_counts_nowhere():
  """Takes the last one out of each group: the others are a group of three."""
  r = cases.rollouts()
  unjudged = cases.replace(r, given=r.given.at[:, 3].set(False))
  fewer = jax.tree.map(lambda x: x[:, :3] if x.ndim > 1 else x, r)
  fewer = cases.replace(fewer, prompts=r.prompts)
  batch, cfg = prepared(tpo, unjudged)
  want, _ = prepared(tpo, fewer)
  out, its = cases.outputs(r), jax.tree.map(lambda x: x[:, :3], cases.outputs(r))
  found = gradient_coefficient(tpo.OBJECTIVE, out, batch, cfg)
  np.testing.assert_allclose(
    found[:, :3], gradient_coefficient(tpo.OBJECTIVE, its, want, cfg), rtol=1e-6, atol=1e-9
  )
  np.testing.assert_array_equal(found[:, 3], 0.0)


def test_a_group_of_one_is_flat():
  one = jax.tree.map(lambda x: x[:, :1] if x.ndim > 1 else x, cases.rollouts())
  assert tpo.OBJECTIVE.flat(one, cases.settings(tpo), None).all()


def test_far_from_a_target_it_is_grpo_with_a_std_that_divides_by_n():
  """Takes equal old probabilities and a large eta, where q - p is u / (G eta)."""
  r = cases.rollouts()
  old = -2.0 / jnp.maximum(r.lengths, 1)[..., None] * jnp.ones_like(r.old_logprobs)
  r = cases.replace(r, old_logprobs=old)
  out = cases.replace(cases.outputs(r), logprobs=old)
  batch, cfg = prepared(tpo, r, eta=1e3)
  found = gradient_coefficient(tpo.OBJECTIVE, out, batch, cfg) * 4 * 1e3 / batch.weights
  group = cases.prepare(r, cases.settings(ddof=0, eps=0.0)).advantages
  np.testing.assert_allclose(
    jnp.where(batch.mask > 0, found, 0.0), group * batch.mask, rtol=5e-3, atol=2e-3
  )


def test_one_of_several_long_completions_has_all_of_the_probability():
  """Adds up log-probs, with no division by the length: the targets of 4,000 tokens are 0 or 1."""
  r = cases.rollouts(L=4000)
  batch, _ = prepared(tpo, r)
  assert batch.extra["target"].max(axis=1).min() > 0.999


def test_one_completion_has_nothing_to_move_to():
  r = cases.rollouts(G=1)
  batch, cfg = prepared(tpo, r)
  check(tpo, cases.outputs(r), batch, cfg, 0.0 * batch.mask)


def test_completions_that_only_fill_the_batch_have_no_share():
  scores, real = (
    jnp.array([[1.0, 2.0, 9.0], [0.0, 0.0, 0.0]]),
    jnp.array([[1, 1, 0], [0, 0, 0]], bool),
  )
  found = tpo.of_group(scores, real[..., None])
  np.testing.assert_allclose(found[0, :2], jax.nn.softmax(jnp.array([1.0, 2.0])), rtol=1e-6)
  np.testing.assert_array_equal(found[:, 2], 0.0)
  np.testing.assert_array_equal(found[1], 0.0)
