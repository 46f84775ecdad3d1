"""Groups with their rewards, and the choice of some of them, of one batch or of several."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards import combine
from grpo_jax.types import TRUNCATED, Example, Prompts, Rollouts


class Scored(NamedTuple):
  """P groups, what they answer and what they were given; the same on every process."""

  examples: list[Example | None]  # [P]
  rollouts: Rollouts  # sampled, with rewards as numpy arrays; see rollouts.py
  faults: list[combine.Fault]
  cut_off: float  # nats that top-k, top-p and min-p cut off, summed over all tokens


def known(batch: Scored) -> np.ndarray:
  """Where a batch on the host has rewards that say how good a step is, `[P, G, L]` bool.

  A step that was cut off is not known to be whole, and of a sample on which a reward failed nothing
  is known.
  """
  r = batch.rollouts
  return r.given & ~failed(batch)[..., None] & ~(last_tokens(r) & (r.ended == TRUNCATED)[..., None])


def failed(batch: Scored, reward: str = "") -> np.ndarray:
  """On which samples that reward failed, or without its name any, `[P, G]` bool."""
  found = np.zeros(batch.rollouts.lengths.shape, bool)
  for fault in batch.faults:
    found[fault.prompt, fault.sample] |= reward in ("", fault.name)
  return found


def last_tokens(r: Rollouts) -> np.ndarray:
  """Where the last token of each completion is, `[P, G, L]` bool."""
  return np.arange(r.tokens.shape[2]) == r.lengths[..., None] - 1


def select(batch: Scored, keep: Sequence[int]) -> Scored:
  """The groups of those indices, in that order."""
  return choose([batch], keep)


def fill(batches: Sequence[Scored], prompts: int) -> Scored:
  """The first `prompts` groups of several batches; empty groups where there are fewer."""
  return choose(batches, padded(range(sum(len(batch.examples) for batch in batches)), prompts))


def padded(places: Sequence[int], prompts: int) -> list[int]:
  """The first `prompts` of the places, and -1 for each that is missing."""
  return [*places[:prompts], *[-1] * (prompts - len(places))]


def choose(batches: Sequence[Scored], places: Sequence[int]) -> Scored:
  """The groups at those places of several batches, one after the other; -1 stands for an empty
  group.

  Where arrays are on the mesh they stay there, and the mesh must divide the number of places.
  """
  width = max(batch.rollouts.prompts.tokens.shape[1] for batch in batches)
  examples = [example for batch in batches for example in batch.examples] + [None]
  starts = np.cumsum([0] + [len(batch.examples) for batch in batches])
  at = {old: new for new, old in enumerate(places)}
  faults = [
    f._replace(prompt=int(f.prompt + start))
    for batch, start in zip(batches, starts)
    for f in batch.faults
  ]
  faults = [fault._replace(prompt=at[fault.prompt]) for fault in faults if fault.prompt in at]
  index = np.asarray(places, np.int32)
  chosen = jax.tree.map(
    functools.partial(_chosen, index), *[widen(batch.rollouts, width) for batch in batches]
  )
  return Scored(
    [examples[place] for place in places], chosen, faults, sum(batch.cut_off for batch in batches)
  )


def widen(rollouts: Rollouts, width: int) -> Rollouts:
  """Rollouts with prompts padded to `width`."""
  prompts = rollouts.prompts
  tokens = np.pad(prompts.tokens, [(0, 0), (0, width - prompts.tokens.shape[1])])
  return dataclasses.replace(rollouts, prompts=Prompts(tokens, prompts.lengths))


def _chosen(index: np.ndarray, *arrays: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
  """The entries at `index` of arrays [P, ...], one after the other; zeros where that is -1."""
  if isinstance(arrays[0], jax.Array):
    return _jitted_choice(arrays[0].sharding)(arrays, index)
  nothing = np.zeros((1, *arrays[0].shape[1:]), arrays[0].dtype)
  return np.concatenate([*arrays, nothing])[index]


@functools.cache
def _jitted_choice(sharding: jax.sharding.Sharding) -> Callable:
  return jax.jit(_choice, out_shardings=sharding)


def _choice(arrays: tuple[jax.Array, ...], index: jax.Array) -> jax.Array:
  there = (index >= 0).reshape(-1, *[1] * (arrays[0].ndim - 1))
  return jnp.where(there, jnp.concatenate(arrays)[jnp.maximum(index, 0)], 0)
