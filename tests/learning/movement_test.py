"""How an update moved the probabilities of its own samples."""

import numpy as np
import pytest
import tiny
from learn_test import movement_of, run, table, table_logprobs

from grpo_jax.learning import movement
from grpo_jax.objectives import cispo, grpo, gspo, sft


@pytest.mark.parametrize("objective", [grpo, gspo, cispo])
def test_movement_says_where_the_ratio_that_is_clipped_stands(objective):
  """Of a token, of a sequence (GSPO); CISPO has no lower bound."""
  r = tiny.rollouts()
  state, _, trace = run(3.0, ref=table(1), mu=2)
  bounds = (0.0, 1.2) if objective is cispo else (0.8, 1.2)
  trace = trace._replace(
    **{k: np.full_like(trace.lower, v) for k, v in zip(("lower", "upper"), bounds)}
  )
  shares, *_, ratios, stands = movement_of(objective, state, trace)
  log_ratio = np.asarray(table_logprobs(state.params["policy"], r)) - np.asarray(
    table_logprobs(table(), r)
  )
  if objective is gspo:
    log_ratio = (
      np.where(tiny.real(r), log_ratio, 0).sum(2, keepdims=True)
      / np.maximum(r.lengths, 1)[..., None]
    )
  ratio = np.broadcast_to(np.exp(log_ratio), r.tokens.shape)
  acting = tiny.real(r) & (trace.advantages != 0)
  up = trace.advantages > 0
  past = np.where(up, ratio > 1.2, ratio < bounds[0])[acting].mean()
  assert 0.02 < past < 0.98
  np.testing.assert_allclose(ratios[tiny.real(r)], ratio[tiny.real(r)], rtol=1e-4)
  assert (stands[~acting] == movement.NO_BOUND).all()
  for stand, name in enumerate(("short", "at_bound", "past_bound")):
    assert (stands[acting] == stand).mean() == pytest.approx(shares[f"tokens/{name}"], abs=1e-5)
  assert shares["tokens/past_bound"] == pytest.approx(past, abs=0.01)
  # few lie at a bound, or are certain
  assert shares["tokens/short"] == pytest.approx(1 - past, abs=0.03)
  assert sum(
    shares[f"tokens/{name}"] for name in ("short", "at_bound", "past_bound")
  ) == pytest.approx(1, abs=1e-5)


def test_moved_nats_is_the_mean_change_towards_the_advantage():
  r = tiny.rollouts()
  state, _, trace = run(3.0, ref=table(1), mu=2)
  turned = np.where(np.arange(r.tokens.shape[1]) % 3 == 0, -1.0, 1.0)[:, None]
  trace = trace._replace(advantages=turned.astype(np.float32) * trace.advantages)
  moved = movement.Movement(*movement_of(sft, state, trace))
  after, before = (
    np.where(tiny.real(r), table_logprobs(of, r), 0).sum(2)
    for of in (state.params["policy"], table())
  )
  sign = np.sign(trace.advantages.sum(2))
  towards = (sign * (after - before))[sign != 0]
  assert {-1, 1} <= set(sign.ravel().tolist()) and 0.1 < (towards > 0).mean() < 0.9
  assert moved.metrics["moved_nats"] == pytest.approx(towards.mean(), rel=1e-4)
  assert moved.metrics["moved_right_way"] == pytest.approx((towards > 0).mean())


def test_movement_under_an_objective_without_a_ratio():
  state, _, trace = run(0.5)
  moved = movement.Movement(*movement_of(sft, state, trace))
  assert set(moved.metrics) == {"moved_right_way", "moved_nats"}
  assert moved.ratios is None and moved.stands is None


@pytest.mark.parametrize("objective", [grpo, sft])
def test_nothing_moved_the_right_way_or_the_wrong_one_without_an_advantage(objective):
  """Under GKD, say; the log-probs after the update are told all the same."""
  state, _, trace = run(0.5)
  some = movement.Movement(*movement_of(objective, state, trace))
  none = movement.Movement(
    *movement_of(objective, state, trace._replace(advantages=0 * trace.advantages))
  )
  assert set(none.metrics) == set(some.metrics)
  assert np.isfinite(list(some.metrics.values())).all()
  assert np.isnan(list(none.metrics.values())).all()
  np.testing.assert_array_equal(none.after, some.after)
