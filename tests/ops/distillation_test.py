"""Divergences of whole distributions: by hand, by automatic differentiation, and at their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.ops import distillation
from grpo_jax.ops.distillation import Divergence

KINDS = distillation.KINDS
EVERY = [
  Divergence(kind, beta=0.3, top_k=k, top_k_of=owner)
  for kind in KINDS
  for k, owner in ((0, "student"), (3, "student"), (3, "teacher"), (7, "student"))
]


def pair(seed=0, shape=(5, 7), scale=1.5):
  """Returns the log-probs of a student and a teacher."""
  keys = jax.random.split(jax.random.key(seed))
  return [jax.nn.log_softmax(scale * jax.random.normal(key, shape)) for key in keys]


def by_definition(spec, log_s, log_t):
  """Returns D as the papers write it, of the outcomes alone: sums of p log(p / q)."""
  s, t = jnp.exp(log_s), jnp.exp(log_t)
  if spec.top_k and spec.top_k < s.shape[-1]:
    owner = jax.lax.stop_gradient(s if spec.top_k_of == "student" else t)
    order = jnp.argsort(-owner, axis=-1)
    s, t = (jnp.take_along_axis(p, order, axis=-1) for p in (s, t))
    s, t = (
      jnp.concatenate([p[:, : spec.top_k], p[:, spec.top_k :].sum(-1, keepdims=True)], axis=-1)
      for p in (s, t)
    )

  def kl(p, q):
    return jnp.sum(p * jnp.log(p / q), axis=-1)

  m = spec.beta * t + (1 - spec.beta) * s
  return {
    "forward": kl(t, s),
    "reverse": kl(s, t),
    "jensen_shannon": spec.beta * kl(t, m) + (1 - spec.beta) * kl(s, m),
  }[spec.kind]


def test_two_tokens_by_hand():
  log_s, log_t = jnp.log(jnp.array([0.5, 0.5])), jnp.log(jnp.array([0.25, 0.75]))
  forward, reverse, middle = (distillation.value(Divergence(k), log_s, log_t) for k in KINDS)
  np.testing.assert_allclose(forward, 0.25 * np.log(0.5) + 0.75 * np.log(1.5), rtol=1e-6)
  np.testing.assert_allclose(reverse, 0.5 * np.log(2) + 0.5 * np.log(2 / 3), rtol=1e-6)
  m = np.array([0.375, 0.625])
  by_hand = 0.5 * np.sum([0.25, 0.75] * np.log([0.25, 0.75] / m)) + 0.5 * np.sum(
    0.5 * np.log(0.5 / m)
  )
  np.testing.assert_allclose(middle, by_hand, rtol=1e-6)
  np.testing.assert_allclose(
    distillation.gradient(Divergence("forward"), log_s, log_t), [0.25, -0.25], atol=1e-7
  )


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_value_is_the_definition_and_the_gradient_its_derivative(spec):
  with jax.enable_x64(True):
    z, log_t = (x.astype(jnp.float64) for x in pair())

    def of_logits(z):
      return jnp.sum(by_definition(spec, jax.nn.log_softmax(z), log_t))

    log_s = jax.nn.log_softmax(z)
    np.testing.assert_allclose(
      distillation.value(spec, log_s, log_t), by_definition(spec, log_s, log_t), atol=1e-12
    )
    np.testing.assert_allclose(
      distillation.gradient(spec, log_s, log_t), jax.grad(of_logits)(z), atol=1e-12
    )


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_equal_distributions_do_not_diverge_and_have_no_gradient(spec):
  log_s, _ = pair()
  np.testing.assert_allclose(distillation.value(spec, log_s, log_s), 0, atol=1e-12)
  np.testing.assert_allclose(distillation.gradient(spec, log_s, log_s), 0, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("owner", distillation.OWNERS)
def test_with_the_tail_it_rises_with_k_to_the_whole(kind, owner):
  log_s, log_t = pair(seed=1)
  whole = distillation.value(Divergence(kind), log_s, log_t)
  values = [
    distillation.value(Divergence(kind, top_k=k, top_k_of=owner), log_s, log_t) for k in range(1, 8)
  ]
  for less, more in zip(values, values[1:]):
    assert np.all(less <= more + 1e-6)
  assert np.all(values[0] < whole)
  np.testing.assert_array_equal(values[-1], whole)


def test_the_mixture_goes_to_the_forward_and_the_reverse_kl():
  with jax.enable_x64(True):
    pairs = [x.astype(jnp.float64) for x in pair()]
    for beta, kind, share in ((1e-6, "forward", 1e-6), (1 - 1e-6, "reverse", 1e-6)):
      mixed = distillation.value(Divergence("jensen_shannon", beta=beta), *pairs)
      np.testing.assert_allclose(
        mixed / share, distillation.value(Divergence(kind), *pairs), rtol=1e-4
      )


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_not_negative_and_small_ones_are_right_in_float32(kind):
  log_s, _ = pair(shape=(200, 4000))
  apart = 1e-3 * jax.random.normal(jax.random.key(5), log_s.shape)
  log_t = jax.nn.log_softmax(log_s + apart)
  got = distillation.value(Divergence(kind), log_s, log_t)
  with jax.enable_x64(True):
    exact = by_definition(
      Divergence(kind), *(jax.nn.log_softmax(x.astype(jnp.float64)) for x in (log_s, log_t))
    )
  assert np.all(got >= 0)
  np.testing.assert_allclose(got, exact, rtol=2e-3)


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_what_one_finds_impossible_stays_finite(spec):
  log_s = jax.nn.log_softmax(jnp.array([[300.0, 0, 0, 0, 0, 0, 0]]))
  log_t = jnp.roll(log_s, 3, axis=1)
  for a, b in ((log_s, log_t), (log_s, log_s)):
    assert np.all(np.isfinite(distillation.value(spec, a, b)))
    assert np.all(np.isfinite(distillation.gradient(spec, a, b)))


def test_the_expected_sampled_gradient_is_that_of_the_reverse_kl():
  """E_S[log(T / S) grad log S] = -grad KL(S || T): what `distill` samples, `gkd` sums."""
  log_s, log_t = pair(shape=(1, 7))
  s = jnp.exp(log_s[0])
  score = jnp.eye(7) - s  # grad log S of each token by the logits
  sampled = jnp.sum(s[:, None] * (log_t - log_s)[0][:, None] * score, axis=0)
  np.testing.assert_allclose(
    distillation.gradient(Divergence("reverse"), log_s, log_t)[0], -sampled, atol=1e-6
  )


@pytest.mark.parametrize(
  "settings,named",
  [
    ({"kind": "js"}, "divergence='js'"),
    ({"kind": "forward", "beta": 0.0}, "jensen_shannon_beta=0.0"),
    ({"kind": "forward", "beta": 1.0}, "jensen_shannon_beta=1.0"),
    ({"kind": "forward", "top_k": -1}, "top_k=-1"),
    ({"kind": "forward", "top_k_of": "both"}, "top_k_of='both'"),
  ],
)
def test_bad_settings_are_named(settings, named):
  with pytest.raises(SettingError, match=named):
    Divergence(**settings)
