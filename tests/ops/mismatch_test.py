"""Weights and masks for what a sampler was not, against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.ops import mismatch

# ratios pi_old / mu of 4, 1.5 and, off the mask, anything
OLD = jnp.log(jnp.array([[[0.4, 0.9, 0.5]]]))
SAMPLER = jnp.log(jnp.array([[[0.1, 0.6, 0.1]]]))
D = (OLD - SAMPLER).at[0, 0, 2].set(jnp.nan)
MASK = jnp.array([[[1.0, 1.0, 0.0]]])
ROOT = 6**0.5  # of the product
LN4, LN15 = np.log(4), np.log(1.5)


def on_tokens(x):
  """The values on the two tokens that are trained."""
  return np.asarray(jnp.broadcast_to(x, (1, 1, 3)))[0, 0, :2]


@pytest.mark.parametrize(
  "level, low, high, expected",
  [
    ("none", 0.0, 2.0, [1, 1]),
    ("token", 0.0, 2.0, [2, 1.5]),
    ("token", 2.0, 3.0, [3, 2]),
    ("token", 0.0, 0.0, [4, 1.5]),
    ("sequence", 0.0, 5.0, [5, 5]),
    ("sequence", 0.0, 7.0, [6, 6]),
    ("geometric", 0.0, 7.0, [ROOT, ROOT]),
    ("geometric", 0.0, 2.0, [2, 2]),
  ],
)
def test_weight(level, low, high, expected):
  np.testing.assert_allclose(on_tokens(mismatch.weight(D, MASK, level, low, high)), expected, 1e-5)


K3 = [3 - LN4, 0.5 - LN15]  # e^d - 1 - d


@pytest.mark.parametrize(
  "level, by, low, high, expected",
  [
    ("all", "ratio", 9.0, 9.1, [1, 1]),
    ("token", "ratio", 0.5, 2.0, [0, 1]),
    ("token", "ratio", 2.0, 5.0, [1, 0]),  # bounds on the ratio, not on its inverse
    ("token", "ratio", 2.0, 0.0, [1, 0]),
    ("token", "tv", 0.0, 2.9, [0, 1]),
    ("token", "tv", 0.0, 3.1, [1, 1]),
    ("mean", "tv", 0.0, 1.7, [0, 0]),  # of 3 and 0.5
    ("mean", "tv", 0.0, 1.8, [1, 1]),
    ("token", "k2", 0.0, LN4**2 / 2 - 1e-4, [0, 1]),
    ("token", "k2", 0.0, LN4**2 / 2 + 1e-4, [1, 1]),
    ("token", "k3", 0.0, K3[0] - 1e-4, [0, 1]),
    ("token", "k3", 0.0, K3[0] + 1e-4, [1, 1]),
    ("sequence", "ratio", 0.0, 5.9, [0, 0]),
    ("sequence", "ratio", 0.0, 6.1, [1, 1]),
    ("geometric", "ratio", 0.0, ROOT - 1e-3, [0, 0]),
    ("geometric", "ratio", 0.0, ROOT + 1e-3, [1, 1]),
    ("max", "ratio", 0.0, 3.9, [0, 0]),
    ("max", "ratio", 0.0, 4.1, [1, 1]),
    ("max", "k3", 0.0, K3[0] - 1e-4, [0, 0]),
    ("max", "k3", 0.0, K3[0] + 1e-4, [1, 1]),
    ("mean", "k3", 0.0, sum(K3) / 2 - 1e-4, [0, 0]),
    ("mean", "k3", 0.0, sum(K3) / 2 + 1e-4, [1, 1]),
    ("mean", "k2", 0.0, (LN4**2 + LN15**2) / 4 + 1e-4, [1, 1]),
    ("mean", "k2", 0.0, (LN4**2 + LN15**2) / 4 - 1e-4, [0, 0]),
  ],
)
def test_kept(level, by, low, high, expected):
  np.testing.assert_array_equal(on_tokens(mismatch.kept(D, MASK, level, by, low, high)), expected)


def test_which_tokens_may_be_left_out():
  """Crosses likelier and less likely tokens with good, no and bad advantages."""
  d = jnp.array([[[1.0, 1.0, 1.0, -1.0, -1.0, 0.0]]])
  a = jnp.array([[[2.0, 0.0, -2.0, 2.0, -2.0, 2.0]]])
  for condition, expected in (
    ("always", [1, 1, 1, 1, 1, 1]),
    ("negative", [0, 0, 1, 0, 1, 0]),
    ("onwards", [1, 0, 0, 0, 1, 0]),
  ):
    found = mismatch.may_go(d, a, condition)
    np.testing.assert_array_equal(found[0, 0], np.array(expected, bool), condition)


def test_where_the_sampler_was_the_policy_nothing_changes():
  zero = jnp.zeros((2, 3, 4))
  mask = jnp.ones((2, 3, 4)).at[0, 0].set(0.0)  # a completion without tokens
  for level in mismatch.WEIGHTS:
    np.testing.assert_array_equal(mismatch.weight(zero, mask, level, 0.5, 1.0), 1.0)
  for level in mismatch.LEVELS:
    np.testing.assert_array_equal(mismatch.kept(zero, mask, level, "ratio", 1.0, 1.0) * mask, mask)
    for by in ("tv", "k2", "k3"):
      np.testing.assert_array_equal(mismatch.kept(zero, mask, level, by, 0.0, 1e-30) * mask, mask)


def test_without_bounds_nothing_is_left_out():
  d = jax.random.normal(jax.random.key(0), (2, 3, 4)) * 5
  for level in mismatch.LEVELS:
    for by in mismatch.STATISTICS:
      np.testing.assert_array_equal(mismatch.kept(d, jnp.ones_like(d), level, by, 0.0, 0.0), 1.0)


def test_on_one_token_the_levels_agree():
  d = jax.random.normal(jax.random.key(0), (2, 3, 1))
  mask = jnp.ones_like(d)
  token, *others = [mismatch.weight(d, mask, level, 0.0, 0.0) for level in mismatch.WEIGHTS[1:]]
  for other in others:
    np.testing.assert_allclose(other, token, rtol=1e-6)
  kept = [mismatch.kept(d, mask, level, "ratio", 0.5, 1.5) for level in mismatch.LEVELS[1:]]
  assert 0 < kept[0].mean() < 1
  for other in kept[1:]:
    np.testing.assert_array_equal(other, kept[0])


def test_of_equal_tokens_the_mean_is_one_of_them_and_the_product_their_power():
  d = jnp.full((1, 1, 5), 0.3)
  mask = jnp.array([[[1.0, 1.0, 1.0, 1.0, 0.0]]])
  found = [mismatch.weight(d, mask, level, 0.0, 0.0)[0, 0, 0] for level in mismatch.WEIGHTS[1:]]
  np.testing.assert_allclose(found, np.exp([0.3, 0.3, 1.2]), rtol=1e-6)


def test_padding_changes_nothing():
  d = jax.random.normal(jax.random.key(0), (2, 3, 4))
  mask = jnp.ones_like(d)
  wide = jnp.concatenate([d, jnp.full((2, 3, 2), jnp.inf)], axis=2)
  padded = jnp.concatenate([mask, jnp.zeros((2, 3, 2))], axis=2)

  def same(f):
    narrow, broad = (jnp.broadcast_to(f(x, m), m.shape) for x, m in ((d, mask), (wide, padded)))
    np.testing.assert_allclose(broad[..., :4], narrow, rtol=1e-6)

  for level in mismatch.WEIGHTS:
    same(lambda x, m, level=level: mismatch.weight(x, m, level, 0.0, 0.0))
  for level in mismatch.LEVELS:
    for by in mismatch.STATISTICS:
      same(lambda x, m, level=level, by=by: mismatch.kept(x, m, level, by, 0.2, 0.9))


@pytest.mark.parametrize("level", mismatch.WEIGHTS)
def test_no_weight_has_a_gradient(level):
  def total(x):
    return jnp.sum(MASK * mismatch.weight(x, MASK, level, 0.0, 9.0))

  np.testing.assert_array_equal(jax.grad(total)(OLD - SAMPLER), 0.0)


def test_names_are_known():
  with pytest.raises(SettingError, match="mismatch='clip': use one of none, token"):
    mismatch.weight(D, MASK, "clip", 0.0, 2.0)
  with pytest.raises(SettingError, match="keep='word': use one of all, token"):
    mismatch.kept(D, MASK, "word", "ratio", 0.0, 2.0)
  with pytest.raises(SettingError, match="keep_by='k1': use one of ratio, tv, k2"):
    mismatch.kept(D, MASK, "token", "k1", 0.0, 2.0)
  with pytest.raises(SettingError, match="keep_condition='never': use one of always, negative"):
    mismatch.may_go(D, MASK, "never")


@pytest.mark.parametrize("shape", [(4, 5), (5,), (3, 4), (3, 4, 6), (1, 3, 4, 5)])
def test_shapes_that_do_not_fit_are_refused(shape):
  x = jnp.ones((3, 4, 5))
  with pytest.raises(AssertionError):
    mismatch.weight(x, jnp.ones(shape), "token", 0.0, 2.0)
  with pytest.raises(AssertionError):
    mismatch.kept(x, jnp.ones(shape), "token", "ratio", 0.0, 2.0)
