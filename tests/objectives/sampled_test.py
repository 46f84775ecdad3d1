"""Tokens that nobody sampled change no objective: it is as if they were not there."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.objectives import common, grpo
from grpo_jax.types import Rollouts

NEW = 11  # L of the rollouts with given tokens: 6 sampled, 2 before, 2 between, 1 after
OF_PAIRS = ("dpo", "reward_model", "process_reward_model")  # of data that nobody sampled


def places(lengths: np.ndarray, first: Any = 2) -> np.ndarray:
  """Returns where the sampled tokens [P, G, 6] come to lie: two tokens further, and two more after
  the `first` ones, a number or one for each of the group's samples.
  """
  t = np.arange(6)
  moved = np.where(t < np.reshape(first, (-1, 1)), t + 2, t + 4)
  return np.broadcast_to(moved, (*lengths.shape, 6))


def spread(x: Any, lengths: np.ndarray, filler: np.random.Generator, first: Any = 2) -> jax.Array:
  """The entries [P, G, 6, ...] at their new places, with any numbers at the other ones."""
  x = np.asarray(x)
  shape = (*x.shape[:2], NEW, *x.shape[3:])
  if x.dtype == bool:
    out = np.zeros(shape, bool)
  elif np.issubdtype(x.dtype, np.integer):
    out = np.broadcast_to(np.arange(NEW) + 5, shape).astype(x.dtype).copy()
  else:
    out = filler.normal(-1, 3, shape).astype(x.dtype)
  p, g, _ = np.indices((*lengths.shape, 6))
  inside = (np.arange(6) < lengths[..., None]).reshape(*lengths.shape, 6, *[1] * (x.ndim - 3))
  to = places(lengths, first)
  out[p, g, to] = np.where(inside, x, out[p, g, to])
  return jnp.asarray(out)


def with_given_tokens(r: Rollouts, first: Any = 2) -> Rollouts:
  """Returns rollouts with tokens given at the start, after the `first` ones and at the end."""
  lengths, filler = np.asarray(r.lengths), np.random.default_rng(3)
  p, g = np.indices(lengths.shape)
  last = places(lengths, first)[p, g, lengths - 1]
  longer = last + 1 + (np.arange(lengths.shape[1]) % 2)  # every second one ends in a given token
  longer = np.where(lengths == 2, 6, longer)  # all that share a prefix are given the same after it
  inside = np.arange(6) < lengths[..., None]
  sampled = np.zeros((*lengths.shape, NEW), bool)
  full_p, full_g, _ = np.indices((*lengths.shape, 6))
  sampled[full_p, full_g, places(lengths, first)] = inside
  changes = {
    field.name: spread(value, lengths, filler, first)
    for field in dataclasses.fields(r)
    if getattr(value := getattr(r, field.name), "ndim", 0) >= 3 and field.name != "components"
  }
  return dataclasses.replace(
    r, **changes, lengths=jnp.asarray(longer), sampled=jnp.asarray(sampled)
  )


def loss_and_gradient(objective: Any, cfg: Any, r: Rollouts, out: Any) -> tuple[Any, Any, Any]:
  batch = cases.prepare(r, cfg)
  run = jax.value_and_grad(lambda o: objective.loss(o, batch, cfg), has_aux=True)
  (loss, metrics), gradient = run(out)
  return loss, metrics, gradient


@pytest.mark.parametrize("name", [name for name in cases.CASES if name not in OF_PAIRS])
def test_given_tokens_are_as_if_they_were_not_there(name):
  """Loss, metrics and gradients; numbers at given tokens have no influence."""
  objective, cfg, r = cases.given(name)
  out = cases.predictions(objective, r)
  episodes = dataclasses.replace(r, sampled=common.sampled_mask(r) > 0)
  loss, metrics, gradient = loss_and_gradient(objective, cfg, episodes, out)
  longer = with_given_tokens(r)
  lengths, filler = np.asarray(r.lengths), np.random.default_rng(4)
  wide = jax.tree.map(lambda x: spread(x, lengths, filler), out)
  got, got_metrics, got_gradient = loss_and_gradient(objective, cfg, longer, wide)
  np.testing.assert_allclose(got, loss, rtol=2e-5)
  for key, (total, count) in metrics.items():
    np.testing.assert_allclose(
      np.asarray(got_metrics[key]), np.asarray([total, count]), rtol=1e-4, atol=1e-5, err_msg=key
    )
  inside = np.arange(6) < lengths[..., None]
  p, g, _ = np.indices(inside.shape)
  for own, other in zip(jax.tree.leaves(got_gradient), jax.tree.leaves(gradient)):
    own, other = np.asarray(own), np.where(inside, np.asarray(other), 0.0)
    np.testing.assert_allclose(own[p, g, places(lengths)], other, rtol=1e-4, atol=1e-6)
    assert not own[~np.asarray(longer.sampled)].any()


def test_the_mask_is_that_of_sampled_tokens():
  r = cases.rollouts()
  longer = with_given_tokens(r)
  np.testing.assert_array_equal(common.sampled_mask(longer), longer.sampled)
  np.testing.assert_array_equal(common.sampled_mask(longer).sum(2), r.lengths)
  np.testing.assert_array_equal(common.sampled_mask(r).sum(2), r.lengths)


# The turns of a group's samples are of different lengths.
TURNS = np.array([1, 3, 2, 4, 2, 1, 3, 2])
KL = {"beta": 0.5, "kl_in_reward": True, "kl_estimator": "k1"}  # part of REINFORCE++'s returns


@pytest.mark.parametrize(
  "advantage, changes",
  [
    ("maxrl", {}),
    ("pass_at_k", {"attempts": 2}),
    ("pkpo", {"attempts": 2}),
    ("opo", {}),
    ("otb", {}),
    ("reinforce_pp", {}),
    ("reinforce_pp", KL),
    ("reinforce_pp_baseline", {}),
  ],
)
def test_lengths_are_those_of_sampled_tokens(advantage, changes):
  """Checks the advantages of which `CASES` have but one."""
  of = cases.configured(advantage=advantage, **changes).advantages
  assert_the_same(lambda r: of(r))


def assert_the_same(of: Callable[[Rollouts], jax.Array]) -> None:
  """Checks that a function [P, G, L] of rollouts is the same on sampled tokens in any places."""
  r = cases.rollouts()
  lengths = np.asarray(r.lengths)
  first = TURNS[: lengths.shape[1]]
  longer = with_given_tokens(r, first)
  p, g, _ = np.indices((*lengths.shape, 6))
  inside = np.arange(6) < lengths[..., None]
  got = np.asarray(of(longer))[p, g, places(lengths, first)]
  np.testing.assert_allclose(got[inside], np.asarray(of(r))[inside], rtol=2e-5, atol=1e-6)


def test_the_kl_of_the_reward_is_compared_at_the_same_sampled_token():
  cfg = cases.configured(**KL).cfg
  assert_the_same(lambda r: grpo.kl_return(r, cfg, common.sampled_mask(r)))
