"""Distillation by whole distributions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest
import tiny_runs

from grpo_jax.errors import SettingError
from grpo_jax.objectives import gkd
from grpo_jax.ops.distillation import Divergence
from grpo_jax.setup import defaults
from grpo_jax.setup.resolve import resolve
from objectives.coefficients_test import on_policy, prepared


def slopes(out, batch, cfg):
  """Returns the gradient of the loss by every output."""
  return jax.grad(lambda out: gkd.loss(out, batch, cfg)[0])(out)


def test_the_loss_is_the_weighted_divergence_and_nothing_else_has_a_gradient():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(gkd, r)
  value, metrics = gkd.loss(out, batch, cfg)
  np.testing.assert_allclose(value, np.sum(batch.weights * out.divergence), rtol=1e-6)
  total, count = metrics["divergence"]
  np.testing.assert_allclose(total / count, out.divergence[batch.mask > 0].mean(), rtol=1e-6)
  got = slopes(out, batch, cfg)
  np.testing.assert_array_equal(got.divergence, batch.weights)
  for name in ("logprobs", "entropy", "sum_of_squares"):
    np.testing.assert_array_equal(getattr(got, name), 0)


def test_a_token_weighs_its_ratio_up_to_the_cap():
  """SDPO's weight: it is no gradient of its own, and 1 where the policy has not moved."""
  r = cases.rollouts()
  out = cases.outputs(r)
  batch, cfg = prepared(gkd, r, ratio_cap=1.1)
  ratio = np.exp(out.logprobs - r.old_logprobs)
  inside = batch.mask > 0
  assert 0.1 < np.mean(ratio[inside] > 1.1) < 0.9
  got = slopes(out, batch, cfg)
  np.testing.assert_allclose(got.divergence, batch.weights * np.minimum(ratio, 1.1), rtol=1e-5)
  np.testing.assert_array_equal(got.logprobs, 0)
  batch, cfg = prepared(gkd, dataclasses.replace(r, old_logprobs=None), ratio_cap=1.1)
  np.testing.assert_array_equal(slopes(out, batch, cfg).divergence, batch.weights)


def test_padding_of_any_content_adds_nothing():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(gkd, r)
  odd = dataclasses.replace(out, divergence=jnp.where(batch.mask > 0, out.divergence, jnp.inf))
  assert gkd.loss(odd, batch, cfg)[0] == gkd.loss(out, batch, cfg)[0]


def test_settings_say_what_is_compared():
  cfg = cases.settings(gkd, divergence="reverse", top_k=100, top_k_of="teacher")
  assert gkd.divergence(cfg) == Divergence("reverse", 0.5, 100, "teacher")
  assert cases.configured(gkd).divergence == Divergence("jensen_shannon", 0.5, 0, "student")


@pytest.mark.parametrize(
  "changes,named",
  [
    ({"divergence": "js"}, "divergence='js'"),
    ({"jensen_shannon_beta": 0.0}, "jensen_shannon_beta=0.0: .*'forward'"),
    ({"ratio_cap": -1.0}, "ratio_cap=-1.0"),
  ],
)
def test_bad_settings_are_named(changes, named):
  with pytest.raises(SettingError, match=named):
    cases.settings(gkd, **changes)


def test_rollouts_without_a_teacher_are_refused():
  with pytest.raises(SettingError, match="objective='gkd' needs ref_hidden"):
    prepared(gkd, dataclasses.replace(cases.rollouts(), ref_hidden=None))


def test_worked_solutions_have_no_sampler_to_correct_for():
  """Its log-probs were zeros once, which made the weight pi itself."""
  c = tiny_runs.config({"loop": "offline", "offline.data": "solutions", "sampler.group": 1})
  c.objective = defaults.objective("gkd", c)
  c.ref_from = "x"
  resolve(c)
  for changes in ({"mismatch": "token"}, {"keep": "token", "keep_low": 0.5}):
    wrong = c.copy_and_resolve_references()
    wrong.objective.update(changes)
    with pytest.raises(SettingError, match="gkd.* needs sampler_logprobs"):
      resolve(wrong)
