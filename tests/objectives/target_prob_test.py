"""Target probabilities."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases

from grpo_jax.objectives import target_prob
from grpo_jax.ops import masked
from grpo_jax.types import STOPPED, TRUNCATED


def test_targets_of_a_context_that_a_left_out_completion_shares():
  """Both tokens of one context are good; the second was also sampled by a truncated completion,
  which is left out.
  """
  r = cases.rollouts(P=1, G=3, L=1)
  p = jnp.array([0.5, 0.4, 0.4]).reshape(1, 3, 1)
  r = cases.replace(
    r,
    tokens=jnp.array([1, 2, 2]).reshape(1, 3, 1),
    lengths=jnp.ones((1, 3), int),
    ended=jnp.array([[STOPPED, STOPPED, TRUNCATED]]),
    rewards=jnp.array([1.0, 1.0, 0.0]).reshape(1, 3, 1),
    given=jnp.ones((1, 3, 1), bool),
    old_logprobs=jnp.log(p),
  )
  batch = cases.prepare(r, cases.settings(target_prob, mask_truncated=True))
  c = 0.1 / (np.sqrt(0.5) - 0.5 + np.sqrt(0.4) - 0.4)
  want = [1 + c * (np.sqrt(q) / q - 1) for q in (0.5, 0.4)]
  np.testing.assert_allclose(batch.extra["upper"][0, :2, 0], want, rtol=1e-5)
  np.testing.assert_array_equal(batch.advantages[0, :, 0], [1, 1, 0])


def test_targets_where_samples_share_a_context():
  """Three good tokens and a bad one after one prefix, each of probability 1/4: footnote 3 of the
  seed.
  """
  tokens = jnp.arange(4)[None, :, None]
  lengths, p = jnp.ones((1, 4), int), jnp.full((1, 4, 1), 0.25)
  signs = jnp.array([1.0, 1.0, 1.0, -1.0])[None, :, None]
  net, target = target_prob.targets(tokens, lengths, signs, p)
  np.testing.assert_array_equal(net, signs)
  np.testing.assert_allclose(target[0, 3, 0], 1 / 16)
  np.testing.assert_allclose(target[0, :3, 0], (1 - 1 / 16) / 3, rtol=1e-6)
  assert np.all(np.asarray(target[0, :3, 0]) > 0.25)


def test_targets_take_the_net_sign_and_count_a_token_once():
  tokens = jnp.array([[[5, 1], [5, 2], [5, 2], [6, 1]]])
  lengths = jnp.full((1, 4), 2)
  signs = jnp.array([[[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]]])
  p = jnp.array([[[0.6, 0.2], [0.6, 0.5], [0.6, 0.5], [0.2, 0.3]]])
  net, target = target_prob.targets(tokens, lengths, signs, p)
  np.testing.assert_array_equal(net[0], [[1, 1], [1, 0], [1, 0], [-1, -1]])
  # After the prompt: 5 is good (sqrt .6 = .775 fits beside .2^2), 6 is bad. After 5: 1 is good, 2
  # is undecided.
  np.testing.assert_allclose(target[0, :, 0], [0.6**0.5] * 3 + [0.04], rtol=1e-6)
  np.testing.assert_allclose(target[0, :, 1], [0.2**0.5, 0.5, 0.5, 0.09], rtol=1e-6)


def test_targets_of_one_sample_a_context_are_root_and_square():
  r = cases.rollouts(G=1)
  p = jnp.exp(r.old_logprobs)
  signs = jnp.where(jnp.arange(6) % 2 == 0, 1.0, -1.0) * masked.length_mask(r.lengths, 6)
  _, target = target_prob.targets(r.tokens, r.lengths, signs, p)
  np.testing.assert_allclose(
    target, jnp.where(signs > 0, jnp.sqrt(p), jnp.where(signs < 0, p**2, p)), rtol=1e-5
  )


def test_good_targets_of_a_context_never_add_up_to_more_than_one():
  rng = np.random.default_rng(0)
  p = rng.dirichlet(np.ones(8), size=20)[:, :, None]
  signs = rng.choice([-1.0, 0.0, 1.0], size=(20, 8, 1))
  tokens = np.broadcast_to(np.arange(8)[None, :, None], p.shape)
  net, target = map(
    np.asarray, target_prob.targets(*map(jnp.asarray, (tokens, np.ones((20, 8), int), signs, p)))
  )
  good, bad = (target * (net > 0)).sum(1), (target * (net < 0)).sum(1)
  assert np.all(good <= 1 - bad + 1e-5)
  assert np.all(target[net > 0] >= p[net > 0] - 1e-6) and np.all(target[net < 0] <= p[net < 0])
