"""Clip-Cov."""

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import clip_cov, grpo, kl_cov
from objectives.coefficients_test import check, on_policy, prepared

pytestmark = pytest.mark.usefixtures("float64")

WIDE = dict(share=0.25, cov_low=0.0, cov_high=100.0)


def test_as_many_tokens_are_drawn_among_those_within_the_bounds():
  r = cases.rollouts()
  plain, _ = prepared(grpo, r, aggregation="token_mean")
  batch, _ = prepared(clip_cov, r, **WIDE)
  inside = np.asarray(batch.mask) > 0
  cov = np.asarray(kl_cov.covariance(plain.advantages, r.old_logprobs, plain.mask))
  among = inside & (cov > 0)
  count = int(0.25 * inside.sum())
  assert count < among.sum()
  drawn = np.asarray((batch.advantages == 0) & (plain.advantages != 0))
  assert drawn.sum() == count and not drawn[~among].any()
  np.testing.assert_array_equal(batch.advantages[~drawn], plain.advantages[~drawn])
  np.testing.assert_array_equal(batch.weights, plain.weights)  # the denominators stay


def test_none_above_the_upper_bound_is_drawn_and_all_where_they_are_few():
  r = cases.rollouts()
  plain, _ = prepared(grpo, r, aggregation="token_mean")
  cov = np.asarray(kl_cov.covariance(plain.advantages, r.old_logprobs, plain.mask))
  above = np.sort(cov[np.asarray(plain.mask) > 0])[-4]
  batch, _ = prepared(clip_cov, r, share=1.0, cov_low=0.0, cov_high=float(above))
  among = (np.asarray(plain.mask) > 0) & (cov > 0)
  np.testing.assert_array_equal(np.asarray(batch.advantages == 0)[among], (cov < above)[among])


def test_each_is_drawn_alike_and_as_many_as_asked():
  """Two of five, in 4,000 draws: each with probability 2/5, to four standard errors."""
  among = jnp.array([True, False, True, True, False, True, True])
  keys = jax.random.split(jax.random.key(3), 4000)
  one = jnp.zeros(1, jnp.int32)

  def draw(key):
    return clip_cov.draw(key, one, among[None, None] | True, among[None, None], 2)[0, 0]

  drawn = np.asarray(jax.vmap(draw)(keys))
  np.testing.assert_array_equal(drawn.sum(1), 2)
  share = drawn.mean(0)
  np.testing.assert_array_equal(share[~np.asarray(among)], 0)
  np.testing.assert_allclose(share[np.asarray(among)], 0.4, atol=4 * np.sqrt(0.24 / 4000))


def test_padding_and_the_order_of_groups_change_no_draw():
  """Microbatches and the mesh put groups into another order."""
  among = jnp.array([[[True, True, False], [True, True, True]], [[True, True, True]] * 2])
  wide = ((0, 0), (0, 1), (0, 4))
  key, groups, real = jax.random.key(1), jnp.array([40, 7]), jnp.ones((2, 2, 3), bool)
  found = clip_cov.draw(key, groups, real, among, 5)
  padded = clip_cov.draw(key, groups, jnp.pad(real, wide), jnp.pad(among, wide), 5)
  np.testing.assert_array_equal(padded[:, :2, :3], found)
  assert found.sum() == padded.sum() == 5
  other = clip_cov.draw(key, groups[::-1], real, among[::-1], 5)
  np.testing.assert_array_equal(other[::-1], found)


def test_a_group_s_number_is_of_its_tokens_in_their_order_and_of_no_padding():
  tokens = jnp.array([[[3, 4, 0], [5, 0, 0]], [[4, 3, 0], [5, 0, 0]], [[3, 4, 0], [5, 0, 0]]])
  real = jnp.array([[[True, True, False], [True, False, False]]] * 3)
  first, swapped, same = clip_cov.numbers_of(tokens, real).tolist()
  assert first == same != swapped
  wide = ((0, 0), (0, 1), (0, 2))
  padded = clip_cov.numbers_of(jnp.pad(tokens, wide, constant_values=9), jnp.pad(real, wide))
  assert padded.tolist() == [first, swapped, same]


def test_other_tokens_draw_others():
  """Draws by the batch's tokens, so that the draw differs from step to step."""
  r = cases.rollouts()
  found = [
    np.asarray(
      prepared(clip_cov, cases.replace(r, tokens=r.tokens + more), **WIDE)[0].advantages == 0
    )
    for more in (0, 0, 1)
  ]
  np.testing.assert_array_equal(found[0], found[1])
  assert (found[0] != found[2]).any()


def test_the_coefficient_is_the_ratio_within_0_and_2_and_0_on_the_drawn_tokens():
  r = cases.rollouts()
  batch, cfg = prepared(clip_cov, r, **WIDE)
  plain, _ = prepared(grpo, r, aggregation="token_mean")
  a, drawn = plain.advantages, (batch.advantages == 0) & (plain.advantages != 0)
  assert drawn.any()
  _, out = on_policy(r)
  check(clip_cov, out, batch, cfg, jnp.where(drawn, 0.0, a))
  out = cases.outputs(r, spread=2.0)
  rho = jnp.exp(out.logprobs - r.old_logprobs)
  assert jnp.any((rho > 2) & (a > 0) & ~drawn) and jnp.any((rho > 1.2) & (rho < 2) & (a > 0))
  check(clip_cov, out, batch, cfg, jnp.where(drawn | ((rho > 2) & (a > 0)), 0.0, rho * a))


@pytest.mark.parametrize(
  ("changes", "says"),
  [
    (dict(share=0.0), "share=0.0: use a number from 1e-06 to 1"),
    (dict(cov_low=5.0), "cov_low=5.0: use a number below cov_high=5.0"),
  ],
)
def test_what_draws_nothing_is_refused(changes, says):
  with pytest.raises(SettingError, match=says):
    cases.settings(clip_cov, **changes)
