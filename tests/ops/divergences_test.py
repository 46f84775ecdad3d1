"""KL estimators, and the gradient table of ops/divergences.py by enumeration of a small softmax: no
sampling anywhere.

Each row runs through the objective that a run uses, with the tokens' probabilities as the batch's
weights; but the two with a detached weight, sg(w), which no objective offers, are written out here
from the estimators.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import grpo, rpg
from grpo_jax.ops import divergences, surrogate
from grpo_jax.types import STOPPED, Prompts, Rollouts


def test_estimators_by_hand():
  logprobs, ref = jnp.log(jnp.array([0.5, 0.2])), jnp.log(jnp.array([0.25, 0.4]))
  np.testing.assert_allclose(divergences.k1(logprobs, ref), [np.log(2), -np.log(2)], rtol=1e-6)
  np.testing.assert_allclose(divergences.k2(logprobs, ref), [np.log(2) ** 2 / 2] * 2, rtol=1e-6)
  np.testing.assert_allclose(
    divergences.k3(logprobs, ref), [0.5 + np.log(2) - 1, 2 - np.log(2) - 1], rtol=1e-6
  )
  with pytest.raises(SettingError, match="kl_estimator='k4'"):
    divergences.kl_estimate(logprobs, ref, "k4")


def test_k3_is_never_negative_in_float32():
  rng = np.random.default_rng(0)
  logprobs = jnp.asarray(-rng.exponential(1.0, 10000), jnp.float32)
  ref = logprobs + jnp.asarray(rng.normal(0, 1e-4, 10000), jnp.float32)
  d = ref - logprobs
  assert divergences.k3(logprobs, ref).min() >= 0
  assert np.mean(np.asarray(jnp.exp(d) - d - 1) < 0) > 0.01  # as it is often written


def test_an_impossible_reference_is_not_clamped_and_an_enormous_one_is_finite():
  np.testing.assert_allclose(
    divergences.k3(jnp.log(0.6), jnp.float32(-115.0)), 115 + np.log(0.6) - 1, rtol=1e-6
  )
  np.testing.assert_allclose(jax.grad(divergences.k3)(jnp.log(0.6), -115.0), 1.0, rtol=1e-6)
  assert np.isfinite(divergences.k3(-300.0, 0.0)) and np.isfinite(
    jax.grad(divergences.k3)(-300.0, 0.0)
  )


@pytest.mark.parametrize(
  "new, old, ref",
  [
    (-1.0, -1.2, -0.7),
    (-20.9, -20.9, -1.0),
    (-21.1, -21.1, -1.0),
    (-22.0, -4.0, -0.5),
    (-0.6, -0.6, -115.0),
  ],
)
def test_a_weighted_k3_pulls_towards_the_reference_however_far_it_is(new, old, ref):
  """Has the gradient w log(pi / pi_ref), w included; in float32 the product loses it."""

  def value(logprobs):
    return divergences.weighted_k3(jnp.exp(logprobs - old), logprobs, jnp.float32(ref))

  np.testing.assert_allclose(
    jax.grad(value)(jnp.float32(new)), np.exp(new - old) * (new - ref), rtol=1e-5
  )
  want = np.exp(new - old) * divergences.k3(jnp.float32(new), jnp.float32(ref))
  np.testing.assert_allclose(value(jnp.float32(new)), want, rtol=1e-5)


LOGITS = jnp.array([0.3, -0.5, 1.1, 0.0])
OLD = jax.nn.log_softmax(jnp.array([0.9, 0.2, -0.3, 0.1]))
REF = jax.nn.log_softmax(jnp.array([-0.7, 0.6, 0.4, 0.2]))


def kl(p, q):
  return jnp.sum(jnp.exp(p) * (p - q))


REVERSE = jax.grad(lambda x: kl(jax.nn.log_softmax(x), REF))(LOGITS)
FORWARD = jax.grad(lambda x: kl(REF, jax.nn.log_softmax(x)))(LOGITS)


def gradient_in_loss(objective, on_policy, **changes):
  """Gradient of the loss with A = 0 and beta = 1, in expectation over tokens of the policy that
  sampled.
  """
  cfg = cases.settings(objective, beta=1.0, **changes)
  sampler = jax.nn.log_softmax(LOGITS) if on_policy else OLD

  def loss(logits):
    logprobs = jax.nn.log_softmax(logits)
    batch = cases.one_token_batch(logprobs, 0.0, jnp.exp(sampler), None if on_policy else OLD, REF)
    return objective.loss(cases.one_token_outputs(logprobs), batch, cfg)[0]

  return jax.grad(loss)(LOGITS)


def parallel(a, b):
  return abs(float(jnp.vdot(a, b) / jnp.linalg.norm(a) / jnp.linalg.norm(b))) > 0.9999


def test_the_two_directions_can_be_told_apart():
  assert not parallel(REVERSE, FORWARD)


@pytest.mark.parametrize(
  "estimator, weighted, on_policy, expected",
  [
    ("k1", False, True, 0 * REVERSE),
    ("k2", False, True, REVERSE),
    ("k3", False, True, FORWARD),
    ("k1", True, True, REVERSE),
    ("k1", True, False, REVERSE),
    ("k3", True, True, REVERSE),
    ("k3", True, False, REVERSE),
  ],
)
def test_in_the_loss(estimator, weighted, on_policy, expected):
  got = gradient_in_loss(grpo, on_policy, kl_estimator=estimator, kl_weighted=weighted)
  np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(
  "estimator, weighted, on_policy",
  [
    ("k2", True, True),
    ("k2", True, False),
    ("k1", False, False),
    ("k2", False, False),
    ("k3", False, False),
  ],
)
def test_in_the_loss_no_divergence_at_all(estimator, weighted, on_policy):
  got = gradient_in_loss(grpo, on_policy, kl_estimator=estimator, kl_weighted=weighted)
  assert not parallel(got, REVERSE) and not parallel(got, FORWARD)


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("estimator, expected", [("k2", REVERSE), ("k3", FORWARD)])
def test_in_the_loss_with_a_detached_weight(estimator, expected, on_policy):
  sampler = jax.nn.log_softmax(LOGITS) if on_policy else OLD

  def loss(logits):
    logprobs = jax.nn.log_softmax(logits)
    weight = jax.lax.stop_gradient(surrogate.token_ratio(logprobs, sampler))
    return jnp.sum(jnp.exp(sampler) * weight * divergences.kl_estimate(logprobs, REF, estimator))

  np.testing.assert_allclose(jax.grad(loss)(LOGITS), expected, atol=1e-6)


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("divergence", rpg.DIVERGENCES)
def test_rpg_has_the_gradient_of_its_name_on_and_off_policy(divergence, on_policy):
  got = gradient_in_loss(rpg, on_policy, divergence=divergence)
  np.testing.assert_allclose(
    got, FORWARD if divergence.startswith("forward") else REVERSE, atol=1e-6
  )


def sequences_as_rollouts(tokens, logprobs, ref) -> Rollouts:
  """Rollouts [N, 1, L] of all sequences of a tiny policy, each a group of its own, without any
  reward.
  """
  n, length = tokens.shape

  def as_groups(x):
    return jnp.reshape(x, (n, 1, length))

  return Rollouts(
    prompts=Prompts(jnp.zeros((n, 1), jnp.int32), jnp.ones((n,), jnp.int32)),
    tokens=as_groups(tokens),
    lengths=jnp.full((n, 1), length),
    ended=jnp.full((n, 1), STOPPED),
    sampler_logprobs=as_groups(logprobs),
    truncated_logprobs=as_groups(logprobs),
    rewards=jnp.zeros((n, 1, length)),
    given=as_groups(jnp.broadcast_to(jnp.arange(length) == length - 1, tokens.shape)),
    old_logprobs=as_groups(logprobs),
    ref_logprobs=as_groups(ref),
  )


@functools.partial(jax.jit, static_argnums=(1, 4))
def gradient_in_reward(params, policy, reference, tokens, estimator):
  """Gradient of GRPO's loss with the KL in the reward, in expectation over all sequences."""
  cfg = cases.settings(
    beta=1.0, kl_in_reward=True, kl_estimator=estimator, max_length=tokens.shape[1]
  )
  logprobs = jax.lax.stop_gradient(policy(params))
  batch = cases.prepare(sequences_as_rollouts(tokens, logprobs, reference), cfg)
  weights = jnp.exp(logprobs.sum(1))[:, None, None] * batch.mask

  def loss(params):
    lp = policy(params)[:, None, :]
    out = cases.replace(cases.one_token_outputs(lp), logprobs=lp, entropy=jnp.zeros_like(lp))
    return grpo.loss(out, cases.replace(batch, weights=weights), cfg)[0]

  return jax.grad(loss)(params)


def test_in_the_reward():
  tokens = jnp.arange(4)[:, None]

  def policy(x):
    return jax.nn.log_softmax(x)[:, None]

  got = {k: gradient_in_reward(LOGITS, policy, REF[:, None], tokens, k) for k in ("k1", "k2", "k3")}
  np.testing.assert_allclose(got["k1"], REVERSE, atol=1e-6)
  for estimator in ("k2", "k3"):
    assert not parallel(got[estimator], REVERSE) and not parallel(got[estimator], FORWARD)


# Two steps: the first token's logits [3] and the second's [3, 3], given the first. Only the first
# token can change how much the second one costs.
FIRST, SECOND = (
  jnp.array([0.4, -0.2, 0.1]),
  jnp.array([[0.5, 0.0, -0.3], [-1.0, 0.3, 0.8], [0.2, 0.2, -0.9]]),
)
REF_FIRST, REF_SECOND = (
  jnp.zeros(3),
  jnp.array([[0.5, 0.0, -0.3], [2.0, -1.0, 0.0], [0.1, 0.9, -0.2]]),
)
PAIRS = jnp.stack(jnp.meshgrid(jnp.arange(3), jnp.arange(3), indexing="ij"), -1).reshape(-1, 2)


def two_steps(params):
  """[9, 2] log-probs of the two tokens of every sequence."""
  first, second = params
  a, b = PAIRS[:, 0], PAIRS[:, 1]
  return jnp.stack([jax.nn.log_softmax(first)[a], jax.nn.log_softmax(second, axis=-1)[a, b]], 1)


def test_over_two_steps_only_k1_in_the_reward_sees_what_a_token_does_to_the_next():
  params, reference = (FIRST, SECOND), two_steps((REF_FIRST, REF_SECOND))
  exact = jax.jit(jax.grad(lambda p: kl(two_steps(p).sum(1), reference.sum(1))))(params)
  got = gradient_in_reward(params, two_steps, reference, PAIRS, "k1")
  np.testing.assert_allclose(got[0], exact[0], atol=1e-6)
  np.testing.assert_allclose(got[1], exact[1], atol=1e-6)

  def per_token(params):
    lp = two_steps(params)
    batch = cases.one_token_batch(
      lp, 0.0, jnp.repeat(jnp.exp(jax.lax.stop_gradient(lp).sum(1)), 2), None, reference
    )
    cfg = cases.settings(beta=1.0, kl_weighted=True)
    return grpo.loss(cases.one_token_outputs(lp), batch, cfg)[0]

  missed = jax.jit(jax.grad(per_token))(params)
  np.testing.assert_allclose(missed[1], exact[1], atol=1e-6)
  assert not np.allclose(missed[0], exact[0], atol=1e-2)
  immediate = jax.grad(lambda x: kl(jax.nn.log_softmax(x), jax.nn.log_softmax(REF_FIRST)))(FIRST)
  np.testing.assert_allclose(missed[0], immediate, atol=1e-6)


def test_the_baseline_of_the_kl_in_the_reward_leaves_the_sample_itself_out():
  r = cases.rollouts(P=2, G=3)
  mask = (jnp.arange(6) < r.lengths[..., None]) * 1.0
  cfg = cases.settings(beta=1.0, kl_in_reward=True, kl_estimator="k1")
  k = np.asarray((r.old_logprobs - r.ref_logprobs) * mask)
  to_come = np.cumsum(k[..., ::-1], -1)[..., ::-1]
  others = np.stack([np.delete(to_come, g, axis=1).mean(1) for g in range(3)], 1)
  np.testing.assert_allclose(grpo.kl_return(r, cfg, mask), to_come - others, atol=1e-5)


@pytest.mark.parametrize("name", divergences.ESTIMATORS)
def test_shapes_that_do_not_fit_are_refused(name):
  x = jnp.zeros((3, 4, 5))
  for shape in ((4, 5), (3, 4, 1), (3, 4), ()):
    with pytest.raises(AssertionError):
      divergences.kl_estimate(x, jnp.zeros(shape), name)
