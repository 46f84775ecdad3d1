"""GSPO."""

import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import (
  gmpo,
  grpo,
  gspo,
)
from grpo_jax.objectives.coefficients import gradient_coefficient
from objectives.coefficients_test import check, prepared, value_and_slope

pytestmark = pytest.mark.usefixtures("float64")


def test_a_sequence_is_not_at_its_bound_because_its_tokens_are_certain():
  """Three of four tokens cannot become likelier; the completion, which is what GSPO clips, can."""
  r = cases.rollouts(P=1, G=1, L=4)
  old = jnp.log(jnp.array([0.9995, 0.9992, 0.9999, 0.3])).reshape(1, 1, 4)
  r = cases.replace(r, lengths=jnp.full((1, 1), 4), old_logprobs=old)
  out = cases.replace(cases.outputs(r), logprobs=old)
  for objective, at in ((grpo, 0.75), (gspo, 0.0)):
    cfg = cases.settings(objective, clip_low=0.2, clip_high=0.2)
    batch = cases.replace(cases.prepare(r, cfg), advantages=jnp.ones((1, 1, 4)))
    total, count = objective.loss(out, batch, cfg)[1]["at_bound"]
    assert total / count == pytest.approx(at)


def test_gspo_token_has_the_value_and_gradient_of_gspo_for_one_advantage_a_completion():
  _, _, batch, out = cases.case("gspo")
  bounds = dict(clip_low=0.2, clip_high=0.2)
  a, b = (
    value_and_slope(gspo, out, batch, cases.settings(gspo, token_level=t, **bounds))
    for t in (False, True)
  )
  np.testing.assert_allclose(a[0], b[0], rtol=1e-6)
  np.testing.assert_allclose(a[1], b[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("token_level", [False, True])
def test_gspo_is_the_sequence_ratio_inside_the_bounds(token_level):
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(gspo, r, token_level=token_level, clip_low=0.2, clip_high=0.2)
  log_ratio = ((out.logprobs - r.old_logprobs) * batch.mask).sum(2, keepdims=True) / r.lengths[
    ..., None
  ]
  s, a = jnp.exp(log_ratio), batch.advantages
  check(gspo, out, batch, cfg, jnp.where(jnp.where(a > 0, s < 1.2, s > 0.8), s * a, 0.0))


def test_luspo_is_gspo_times_the_length_of_each_completion():
  """Compares the sums of both losses, which differ by the constant of `aggregation`."""
  r = cases.rollouts()
  out = cases.outputs(r, spread=0.01)
  bounds = dict(clip_low=2e-3, clip_high=2.5e-3)
  luspo, cfg = prepared(gspo, r, **cases.of_preset("luspo"))
  plain, of_gspo = prepared(gspo, r, **bounds)
  found = gradient_coefficient(gspo.OBJECTIVE, out, luspo, cfg)
  by_length = gradient_coefficient(gspo.OBJECTIVE, out, plain, of_gspo) * r.lengths[..., None]
  assert jnp.any(found != 0) and jnp.any((found == 0) & (luspo.mask > 0))  # some are clipped
  np.testing.assert_allclose(found * r.tokens.shape[2], by_length, rtol=1e-6, atol=1e-12)


def test_a_sequence_cannot_leave_out_tokens_by_entropy():
  with pytest.raises(SettingError, match="top_entropy=0.2 with token_level=False"):
    cases.settings(gspo, top_entropy=0.2)
  cases.settings(gspo, top_entropy=0.2, token_level=True)


@pytest.mark.parametrize("objective", [gspo, gmpo], ids=["gspo", "gmpo"])
@pytest.mark.parametrize(
  "setting, changes",
  [
    ("keep='token'", {"keep": "token", "keep_high": 2.0}),
    (
      "keep_condition='onwards'",
      {"keep": "mean", "keep_high": 2.0, "keep_condition": "onwards"},
    ),
    ("advantage='prefix_credit'", {"advantage": "prefix_credit"}),
  ],
)
def test_one_ratio_for_all_tokens_does_not_treat_them_apart(objective, setting, changes):
  with pytest.raises(SettingError, match=setting):
    cases.settings(objective, **changes)
  cases.settings(gspo, token_level=True, **changes)
