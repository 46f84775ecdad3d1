"""What objectives share."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import coefficients, common, gkd, grpo, kimi, rft

pytestmark = pytest.mark.usefixtures("float64")


def test_the_stop_token_is_trained_and_counts():
  r = cases.rollouts()
  batch = cases.prepare(r, cases.settings())
  np.testing.assert_array_equal(batch.mask.sum(2), r.lengths)
  last = common.last_token(r.lengths, 6)
  np.testing.assert_array_equal(batch.mask[last], 1.0)
  assert np.all(np.asarray(batch.advantages[last]) != 0)


def test_advantages_without_meaning_on_padding_are_0_there():
  """Lets a function of the user's own divide by the length that is left, which is 0 there."""
  r = cases.rollouts()
  mask = common.completion_mask(r, mask_truncated=False)
  advantages = jnp.where(mask > 0, 2.0, jnp.nan)
  assert not mask.all()
  np.testing.assert_array_equal(common.train_batch(r, advantages, mask, mask).advantages, 2 * mask)


def test_what_advantages_are_on_padding_makes_no_group_teach():
  r = cases.rollouts()
  mask = common.sampled_mask(r)
  own = dataclasses.replace(
    cases.configured(), advantage=lambda r: jnp.where(mask > 0, 0.0, jnp.nan)
  )
  assert not mask.all() and own.flat(r).all()


def test_prefix_credit_adds_up_to_the_advantage():
  r = cases.rollouts()
  end = common.last_token(r.lengths, 6)
  # no two completions alike
  r = cases.replace(r, tokens=jnp.where(end, 10 + jnp.arange(4)[None, :, None], r.tokens))
  whole, split = (
    cases.prepare(r, cases.settings(advantage=a)).advantages
    for a in ("group_relative", "prefix_credit")
  )
  np.testing.assert_allclose(split.sum(2), whole[..., 0], atol=1e-4)


def stale(spread=1.0):
  """Returns a batch with log mu, log pi_old and log pi all apart, and advantages of both signs."""
  _, _, batch, out = cases.case("grpo")
  noise = spread * jax.random.normal(jax.random.key(3), batch.mask.shape)
  batch = cases.replace(batch, sampler_logprobs=batch.old_logprobs + noise)
  assert (batch.advantages * batch.mask > 0).any() and (batch.advantages * batch.mask < 0).any()
  return batch, out


def of_preset(name):
  """Returns the settings of a row of presets.py."""
  return cases.settings(**cases.of_preset(name))


def expected(name, batch, out):
  """Returns weight and kept tokens of a row, by loops over completions."""
  d, live, mask, a = (
    np.asarray(x, np.float64)
    for x in (
      batch.old_logprobs - batch.sampler_logprobs,
      out.logprobs - batch.sampler_logprobs,
      batch.mask,
      batch.advantages,
    )
  )
  weight, keep = np.ones_like(d), np.ones_like(d)
  for p, g in np.ndindex(*d.shape[:2]):
    on = mask[p, g] > 0
    own, now = d[p, g], live[p, g]
    if name == "tis":
      weight[p, g] = np.minimum(np.exp(own), 2)
    elif name == "icepop":
      weight[p, g] = np.exp(own)
      keep[p, g] = (np.exp(own) >= 0.5) & (np.exp(own) <= 5)
    elif name == "tis_sequence":
      weight[p, g] = min(np.exp(own[on].sum()), 2)
    elif name == "mis":
      weight[p, g] = np.exp(own[on].sum())
      keep[p, g] = np.exp(own[on].sum()) <= 3
    elif name == "geometric_mask":
      keep[p, g] = 0.999 <= np.exp(own[on].mean() if on.any() else 0.0) <= 1.001
    elif name == "trm":
      keep[p, g] = (np.expm1(own) - own)[on].sum() <= 0.001 * on.sum()
    elif name == "vaco":
      weight[p, g] = np.minimum(np.exp(own), 2)
      apart = np.abs(np.exp(own) - 1)[on].sum() > 2.0 * on.sum()
      keep[p, g] = ~(apart & (own * a[p, g] > 0))
    else:
      unlike = on.any() and (-now[on]).mean() > 0.5
      keep[p, g] = ~((a[p, g] < 0) & unlike)
  return weight, keep


# Each with how far its sampler was from pi_old, so that some is kept and some left out.
ROWS = {
  "tis": 1.0,
  "tis_sequence": 1.0,
  "icepop": 1.0,
  "mis": 1.0,
  "geometric_mask": 2e-3,
  "trm": 0.05,
  "v32_mask": 1.0,
  "vaco": 2.0,
}


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_presets_is_what_its_paper_says(name):
  """The coefficient is w times that of PPO around pi_old, not around mu: decoupled PPO."""
  batch, out = stale(ROWS[name])
  if name == "v32_mask":  # the sampler found them all likelier
    batch = cases.replace(batch, sampler_logprobs=batch.sampler_logprobs + 0.5)
  weight, keep = expected(name, batch, out)
  ratio = np.exp(np.asarray(out.logprobs - batch.old_logprobs))
  a = np.asarray(batch.advantages)
  inside = np.where(a > 0, ratio <= 1.2, ratio >= 0.8)
  coefficient = batch.weights * weight * keep * inside * ratio * a * batch.mask
  found = coefficients.gradient_coefficient(grpo.OBJECTIVE, out, batch, of_preset(name))
  np.testing.assert_allclose(found, coefficient, rtol=1e-6, atol=1e-9)
  real = np.asarray(batch.mask) > 0
  assert not inside[real].all() and inside[real].any()
  if of_preset(name).keep != "all":
    assert set(keep[real]) == {0.0, 1.0}
  if name == "v32_mask":
    likely = np.asarray((out.logprobs - batch.sampler_logprobs) * batch.mask).sum(2)
    unlike = likely / batch.mask.sum(2) < -0.5
    assert (unlike & (a[..., 0] > 0)).any() and (unlike & (a[..., 0] < 0)).any()


def test_where_the_old_policy_sampled_decoupled_ppo_is_ppo():
  """Takes a policy that has moved since, so that some tokens are clipped."""
  batch, out = stale()
  batch = cases.replace(batch, sampler_logprobs=batch.old_logprobs)
  plain, found = (
    coefficients.gradient_coefficient(grpo.OBJECTIVE, out, batch, cases.settings(mismatch=level))
    for level in ("none", "token")
  )
  assert 0 < jnp.mean(plain[batch.mask > 0] == 0) < 0.9
  np.testing.assert_array_equal(found, plain)


def test_before_the_policy_moves_decoupled_ppo_is_reinforce_weighed_by_w():
  """Clips nothing, however far the sampler is."""
  batch, out = stale()
  out = cases.replace(out, logprobs=batch.old_logprobs)
  found = coefficients.gradient_coefficient(grpo.OBJECTIVE, out, batch, of_preset("tis"))
  w = np.minimum(np.exp(np.asarray(batch.old_logprobs - batch.sampler_logprobs)), 2.0)
  assert (w[np.asarray(batch.mask) > 0] > 1.2).any()
  np.testing.assert_allclose(
    found, batch.weights * w * batch.advantages * batch.mask, rtol=1e-6, atol=1e-9
  )


@pytest.mark.parametrize("name", ROWS)
def test_where_the_sampler_was_the_policy_every_row_is_grpo(name):
  _, _, batch, out = cases.case("grpo")
  batch = cases.replace(batch, sampler_logprobs=batch.old_logprobs, old_logprobs=batch.old_logprobs)
  out = cases.replace(out, logprobs=batch.old_logprobs)
  plain, found = (
    coefficients.gradient_coefficient(grpo.OBJECTIVE, out, batch, cfg)
    for cfg in (cases.settings(), of_preset(name))
  )
  assert jnp.abs(plain).max() > 0
  np.testing.assert_array_equal(found, plain)


def test_the_mask_of_the_live_policy_forgets_the_old_one():
  batch, out = stale()
  batch = cases.replace(batch, sampler_logprobs=out.logprobs)
  cfg = of_preset("v32_mask")
  _, old, _ = common.policies(out, batch)
  np.testing.assert_array_equal(common.kept(out.logprobs, old, batch, cfg), 1.0)


def test_the_share_that_is_kept_is_reported():
  batch, out = stale()
  cfg = of_preset("icepop")
  total, count = grpo.loss(out, batch, cfg)[1]["kept"]
  _, keep = expected("icepop", batch, out)
  np.testing.assert_allclose(total / count, keep[np.asarray(batch.mask) > 0].mean(), rtol=1e-6)
  assert "kept" not in grpo.loss(out, batch, cases.settings())[1]


@pytest.mark.parametrize("objective", [rft, kimi, gkd])
def test_so_it_is_where_there_is_no_ratio(objective):
  """Reports what a mask leaves out, which may be nearly everything."""
  r = cases.rollouts()
  cfg = cases.settings(objective, keep="token", keep_high=1.0)
  batch, out = cases.prepare(r, cfg), cases.outputs(r)
  total, count = objective.loss(out, batch, cfg)[1]["kept"]
  _, old, _ = common.policies(out, batch)
  np.testing.assert_allclose(total, np.sum(common.kept(out.logprobs, old, batch, cfg) * batch.mask))
  assert 0 < total < count
  assert "kept" not in objective.loss(out, batch, cases.settings(objective))[1]


@pytest.mark.parametrize(
  "objective, condition, refused",
  [
    (gkd, "negative", True),
    (gkd, "onwards", True),
    (rft, "negative", True),
    (rft, "onwards", False),
  ],
)
def test_a_condition_on_advantages_that_there_are_not_is_refused(objective, condition, refused):
  mask = {"keep": "token", "keep_high": 1.0, "keep_condition": condition}
  if refused:
    with pytest.raises(SettingError, match=f"keep_condition='{condition}': use one of always"):
      cases.settings(objective, **mask)
  else:
    assert cases.settings(objective, **mask).keep_condition == condition
