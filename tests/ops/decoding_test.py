import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.ops.decoding import sample, soft_cap

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
LARGE = 64 * 80  # enough blocks for a search among candidates


@functools.cache
def _compiled(settings):
  return jax.jit(functools.partial(sample, **dict(settings)))


def _sample(logits, uniforms, **settings):
  function = _compiled(tuple((OFF | settings).items()))
  return [np.asarray(x) for x in function(jnp.asarray(logits), jnp.asarray(uniforms, jnp.float32))]


def _naive(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
  """Probabilities of one distribution and which tokens are kept, by sorting; ties with the last one
  kept are kept.
  """
  z = logits.astype(np.float32).astype(np.float64) / temperature
  p = np.exp(z - z.max())

  def ties(threshold):
    return p >= threshold * (1 - 1e-7)

  kept = p > 0
  if top_k:
    kept &= ties(np.sort(p)[::-1][min(top_k, len(p)) - 1])
  if top_p < 1:
    ordered = np.sort(np.where(kept, p, 0))[::-1]
    mass = np.cumsum(ordered)
    kept &= ties(ordered[np.argmax(mass >= top_p * mass[-1])])
  kept &= p >= min_p
  return p / p.sum(), kept


def _check(row, uniforms, **settings):
  return _check_found(
    row, uniforms, _sample(np.tile(row, (len(uniforms), 1)), uniforms, **settings), **settings
  )


def _check_found(row, uniforms, found, **settings):
  """Every token is where its uniform number falls in the naive distribution, and both log-probs are
  right.
  """
  tokens, logprobs, truncated = found
  p, kept = _naive(row, **settings)
  assert kept[tokens].all()
  mass = p[kept].sum()
  sums = np.cumsum(np.where(kept, p, 0)) / mass
  np.testing.assert_array_less(sums[tokens] - (p / mass)[tokens] - 1e-6, uniforms)
  np.testing.assert_array_less(uniforms, sums[tokens] + 1e-6)
  np.testing.assert_allclose(logprobs, np.log(p[tokens]), atol=1e-5)
  np.testing.assert_allclose(truncated, np.log(p[tokens] / mass), atol=1e-5)
  return tokens


@pytest.mark.parametrize(
  "vocab,settings",
  [
    (1, {}),
    (7, {"temperature": 0.6}),
    (131, {}),  # a prime: its last block is padded
    (192, {"top_k": 5, "top_p": 0.9, "temperature": 1.3}),
  ],
)
def test_counts_over_a_grid_of_uniforms_are_the_probabilities(vocab, settings):
  row = np.random.default_rng(vocab).normal(size=vocab).astype(np.float32)
  grid = 4096
  tokens = _check(row, (np.arange(grid) + 0.5) / grid, **settings)
  p, kept = _naive(row, **settings)
  p = np.where(kept, p, 0) / p[kept].sum()
  assert np.max(np.abs(np.bincount(tokens, minlength=vocab) - grid * p)) <= 1 + 1e-2


def test_a_token_is_drawn_with_its_probability_rounded_to_a_multiple_of_2_to_the_minus_23():
  step = 2.0**-23
  u = jax.random.uniform(jax.random.key(0), (4096,))
  assert np.all(u % step == 0) and np.any(u % (2 * step) != 0) and np.max(u) < 1
  rare = np.log([0.125 * step, 0.125 * step])
  tops = 1 - step * np.arange(1, 5)
  last, first = (
    np.concatenate(order).astype(np.float32) for order in (([0.0], rare), (rare, [0.0]))
  )
  assert not _sample(np.tile(last, (4, 1)), tops)[0].any()  # never
  assert _sample(np.tile(first, (4, 1)), step * np.arange(4))[0].tolist() == [
    0,
    2,
    2,
    2,
  ]  # one for both


def _rows():
  rng = np.random.default_rng(0)
  n = LARGE
  spikes = rng.normal(size=n)
  spikes[rng.integers(0, n, 9)] += 11.0
  return {
    "narrow": rng.normal(size=n) * 0.3,
    "wide": rng.normal(size=n) * 3,
    "peaked": rng.normal(size=n) * 6,
    "zipf": rng.permutation(-1.5 * np.log(np.arange(1, n + 1)) + rng.normal(size=n) * 0.1),
    "spikes": spikes,
    "ties": np.round(rng.normal(size=n) * 2),
    "constant": np.zeros(n),
    "one": np.where(np.arange(n) == 4321, 200.0, 0.0),
  }


SETTINGS = [
  {"top_k": 1},
  {"top_k": 40, "temperature": 0.7},
  {"top_k": 3000},
  {"top_p": 0.1},
  {"top_p": 0.9},
  {"top_p": 0.999, "temperature": 1.5},
  {"min_p": 0.05},
  {"min_p": 1.0},
  {"top_k": 100, "top_p": 0.8},
  {"top_k": 1500, "top_p": 0.95, "min_p": 0.01},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_truncations_equal_those_by_sorting(settings):
  rng = np.random.default_rng(1)
  rows = [row.astype(np.float32) for row in _rows().values()]
  uniforms = rng.uniform(0, 1 - 1e-6, size=(len(rows), 8))
  found = _sample(np.repeat(rows, 8, axis=0), uniforms.reshape(-1), **settings)
  for i, row in enumerate(rows):
    _check_found(row, uniforms[i], [x[8 * i : 8 * i + 8] for x in found], **settings)


def test_truncations_of_a_small_vocabulary_with_ties():
  row = np.round(np.random.default_rng(1).normal(size=30), 1).astype(np.float32)
  for settings in ({"top_k": 8, "top_p": 0.8}, {"top_k": 100}, {"top_p": 0.5}):
    _check(row, (np.arange(16) + 0.5) / 16, **settings)


def test_rows_do_not_depend_on_each_other():
  rows = np.stack(list(_rows().values())).astype(np.float32)
  uniforms = np.linspace(0.05, 0.95, len(rows))
  together = _sample(rows, uniforms, top_p=0.9)
  for i in (1, 3):
    token, logprob, truncated = _sample(rows[i : i + 1], uniforms[i : i + 1], top_p=0.9)
    assert token[0] == together[0][i]
    np.testing.assert_allclose(
      [logprob[0], truncated[0]], [together[1][i], together[2][i]], atol=1e-5
    )


@pytest.mark.parametrize(
  "vocab,settings",
  [(3, {}), (131, {"top_k": 2}), (LARGE, {"top_p": 0.99}), (LARGE, {"min_p": 1e-30})],
)
def test_impossible_tokens_are_never_sampled(vocab, settings):
  row = np.full(vocab, -np.inf, np.float32)
  row[[1, vocab // 2]] = [0.5, 0.0]
  uniforms = np.float32([0.0, 1e-45, 0.3, 0.999, 1 - 2.0**-24])
  tokens, logprobs, _ = _sample(np.tile(row, (5, 1)), uniforms, **settings)
  assert set(tokens) <= {1, vocab // 2}
  assert tokens[0] == min(1, vocab // 2) and tokens[-1] == max(1, vocab // 2)
  assert np.isfinite(logprobs).all()


def test_without_truncation_both_logprobs_are_the_same_number():
  logits = np.random.default_rng(0).normal(size=(4, 300))
  _, logprobs, truncated = _sample(logits, np.linspace(0, 0.9, 4))
  np.testing.assert_array_equal(logprobs, truncated)


def test_what_is_off_costs_nothing():
  def trace(**settings):
    return str(
      jax.make_jaxpr(functools.partial(sample, **(OFF | settings)))(
        jnp.zeros((2, LARGE)), jnp.zeros(2)
      )
    )

  for name in ("top_k", "while"):
    assert name not in trace()
  assert "top_k" in trace(top_k=3) and "while" in trace(top_p=0.9)


@pytest.mark.parametrize("vocab", [7, 131, LARGE])
def test_greedy_takes_the_first_of_the_most_probable(vocab):
  logits = np.round(np.random.default_rng(0).normal(size=(6, vocab)))
  token, logprob, truncated = _sample(logits, np.full(6, 0.99), temperature=0.0, top_p=0.5, top_k=2)
  np.testing.assert_array_equal(token, logits.argmax(-1))
  np.testing.assert_allclose(logprob, jax.nn.log_softmax(logits)[np.arange(6), token], atol=1e-5)
  np.testing.assert_array_equal(logprob, truncated)


def test_bfloat16_logits_are_computed_with_in_float32():
  row = jnp.asarray(np.random.default_rng(0).normal(size=LARGE), jnp.bfloat16)
  _check(np.asarray(row), np.linspace(0.01, 0.99, 16), top_p=0.7)


def test_a_soft_cap_bounds_logits():
  x = np.float32([-1e4, -0.1, 0.0, 0.1, 1e4])
  np.testing.assert_allclose(
    soft_cap(x, 5.0), [-5, -5 * np.tanh(0.02), 0, 5 * np.tanh(0.02), 5], rtol=1e-6
  )
  assert soft_cap(x, 0.0) is x


@pytest.mark.parametrize(
  "settings,named",
  [
    ({"temperature": -0.5}, "temperature=-0.5"),
    ({"temperature": float("nan")}, "temperature=nan"),
    ({"top_k": -1}, "top_k=-1"),
    ({"top_p": 0.0}, r"top_p=0\.0"),
    ({"top_p": 1.5}, r"top_p=1\.5"),
    ({"min_p": 1.5}, r"min_p=1\.5"),
  ],
)
def test_bad_settings_are_named(settings, named):
  with pytest.raises(SettingError, match=named):
    sample(jnp.zeros((1, 4)), jnp.zeros(1), **(OFF | settings))
