"""Distillation from a teacher."""

import jax.numpy as jnp
import objective_cases as cases
import pytest

from grpo_jax.objectives import distill
from objectives.coefficients_test import check, on_policy, prepared

pytestmark = pytest.mark.usefixtures("float64")


def test_distill_is_the_log_ratio_to_the_teacher():
  r, out = on_policy(cases.rollouts())
  batch, cfg = prepared(distill, r)
  check(distill, out, batch, cfg, r.ref_logprobs - out.logprobs)


def test_mopd_weighs_each_token_by_icepops_ratio_within_its_bounds():
  r, out = on_policy(cases.rollouts())
  apart = jnp.linspace(-1.5, 2.5, r.tokens.size).reshape(r.tokens.shape)  # of log pi_old - log mu
  r = cases.replace(r, sampler_logprobs=out.logprobs - apart)
  batch, cfg = prepared(distill, r, **cases.of_preset("mopd"))
  w = jnp.exp(apart)
  kept = jnp.where((w >= 0.5) & (w <= 5), w, 0.0)
  assert 0 < jnp.mean(kept[batch.mask > 0] == 0) < 1
  check(distill, out, batch, cfg, kept * (r.ref_logprobs - out.logprobs))
