"""Moves rollouts between host and mesh, reads their tokens as text, and measures their lengths.

Sampled rollouts have arrays of two kinds. Those with an entry for every token (`tokens`, log-probs)
stay on the mesh, each process holding its share; `prompts`, `lengths` and `ended` are numpy arrays,
whole on every process.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from grpo_jax.aliases import Json
from grpo_jax.distributed import hosts, lifeline
from grpo_jax.distributed.sharding import Layout
from grpo_jax.models.shape import Params
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling import stream
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.sampling.stream import Seen
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import STOPPED, TRUNCATED, Completion, KnownRollouts, Prompts, Rollouts

Tree = TypeVar("Tree")  # a pytree of arrays


def to_device(layout: Layout, batch: Tree) -> Tree:
  """Returns a batch on the mesh, its prompts and samples sharded as `Layout.batch` says.

  Its arrays `[P, ...]` are numpy, whole on every process, or on the mesh already.
  """
  return jax.tree.map(_put, batch, layout.batch(batch))


def _put(x: np.ndarray | jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
  if isinstance(x, jax.Array):
    return jax.device_put(x, sharding)
  return jax.make_array_from_callback(x.shape, sharding, x.__getitem__)


def to_host(tree: Tree) -> Tree:
  """Returns a pytree of device or numpy arrays as numpy arrays, whole on every process."""
  if jax.process_count() == 1:
    return jax.device_get(tree)
  return jax.tree.map(_gather, tree)


def _gather(x: np.ndarray | jax.Array) -> np.ndarray:
  # what a jitted function makes of none of its arguments lies on a device of each process, whole
  if isinstance(x, jax.Array) and not x.is_fully_addressable:
    return multihost_utils.process_allgather(x, tiled=True)
  return np.asarray(x)


def rows(layout: Layout, tree: Tree, places: Sequence[tuple[int, int]]) -> Tree:
  """Returns the rows `[n, ...]`, numpy, at n places (prompt, sample) of arrays `[P, G, ...]`."""
  prompts, samples = np.asarray(places, np.int32).reshape(-1, 2).T
  return to_host(_jitted_rows(layout.replicated())(tree, prompts, samples))


@functools.cache
def _jitted_rows(sharding: jax.sharding.Sharding) -> Callable[..., Any]:
  return jax.jit(_rows, out_shardings=sharding)


def _rows(tree: Tree, prompts: jax.Array, samples: jax.Array) -> Tree:
  return jax.tree.map(lambda x: x[prompts, samples], tree)


def draw(
  sample: Sampler,
  params: Params,
  prompts: Prompts,
  key: jax.Array,
  sizes: Sizes,
  ends: np.ndarray | None = None,
  see: Callable[[Seen], None] | None = None,
) -> tuple[Rollouts, Json]:
  """Returns the sampled rollouts of prompts, and the sampler's statistics on every process.

  The prompts are cut to a width that holds them, and become a list where that saves enough, so that
  few programs are compiled.

  Args:
    sample: made by `sampler.make_sampler`.
    params: the policy.
    prompts: numpy arrays `[P, Lp]`.
    key: of this rollout.
    sizes: of the programs made so far; the rollouts are placed by its layout, the learner's.
    ends: `[P, G]`, forced lengths of completions (benchmarks); None: stop tokens end them.
    see: called with what is sampled so far, while the rest is sampled; then without `ends`.
  """
  lifeline.compare(prompts)
  prompts, size = sizes.for_sampler(prompts, sample.layout)
  on_mesh, forced = to_device(sample.layout, (prompts, ends))
  if see is None:
    drawn, statistics = sample(params, on_mesh, key, forced, prompt_size=size)
  else:
    ready = sample.ready(params)
    drawn, statistics = stream.watched(sample, ready, on_mesh, key, see, prompt_size=size)
  drawn = to_device(sizes.layout, drawn)
  lengths, ended, statistics = to_host((drawn.lengths, drawn.ended, statistics))
  return dataclasses.replace(drawn, prompts=prompts, lengths=lengths, ended=ended), statistics


def completions(rollouts: Rollouts, tokenizer: Tokenizer) -> list[list[Completion | None]]:
  """Returns P groups of G completions as rewards see them; None if another process has them.

  Completions of length 0, which fill the batch, are empty.

  Args:
    rollouts: sampled, or all numpy.
    tokenizer: of the policy.
  """
  tokens, is_local = hosts.share(rollouts.tokens)
  sampled = [[None] * tokens.shape[1]] * len(tokens)
  if rollouts.sampled is not None:
    sampled = rollouts.sampled
  arrays = (tokens, rollouts.lengths, rollouts.ended, sampled, last_rewards(rollouts), is_local)
  return [
    [
      completion(ids, length, ended, tokenizer, own)._replace(reward=reward) if local else None
      for ids, length, ended, own, reward, local in zip(*group)
    ]
    for group in zip(*arrays)
  ]


def last_rewards(rollouts: Rollouts) -> list[list[float | None]]:
  """Returns the last reward that an environment gave each of P groups of G episodes, or None."""
  if rollouts.sampled is None or rollouts.rewards is None or rollouts.given is None:
    return [[None] * len(group) for group in rollouts.lengths]
  return [
    [float(r[g][-1]) if g.any() else None for r, g in zip(*group)]
    for group in zip(rollouts.rewards, rollouts.given)
  ]


def completion(
  tokens: np.ndarray,
  length: int,
  ended: int,
  tokenizer: Tokenizer,
  sampled: np.ndarray | None = None,
) -> Completion:
  """Returns one completion as rewards see it, from its tokens [L].

  Where an environment gave some of them, `sampled` [L] is false there, and a turn is a step.
  """
  ids, text = written(tokens, length, ended, tokenizer, sampled)
  if sampled is None:
    return Completion(text, ids, int(ended), step_ends(ids, ended, tokenizer))
  return Completion(text, ids, int(ended), turn_ends(sampled[:length]))


def turn_ends(sampled: np.ndarray) -> list[int]:
  """Returns the index of the last token of each turn of a completion, from `sampled` [length]."""
  following = np.append(sampled[1:], False)
  return np.flatnonzero(sampled & ~following).tolist()


def step_ends(ids: Sequence[int], ended: int, tokenizer: Tokenizer) -> list[int]:
  """Returns the index in `ids` of the last token of each step of a completion.

  A stop text belongs to the last step, as a stop token does.
  """
  if not ids:
    return []
  if ended == STOPPED and (kept := tokenizer.tokens_before_stop(ids)) is not None:
    return [*tokenizer.step_ends(ids[:kept])[:-1], len(ids) - 1]
  return tokenizer.step_ends(ids)


def written(
  tokens: np.ndarray,
  length: int,
  ended: int,
  tokenizer: Tokenizer,
  sampled: np.ndarray | None = None,
) -> tuple[list[int], str]:
  """Returns the ids of one completion, from its tokens [L], and its text.

  The text is without the stop token, or the stop text, that ended it. `sampled` [L] is false on
  tokens that an environment gave: then only the last turn is looked at for what ended it.
  """
  ids = tokens[:length].tolist()
  if ended != STOPPED:
    return ids, tokenizer.decode(ids)
  before = ""
  if sampled is not None:
    before = tokenizer.decode(ids[: _last_turn(sampled[:length])])
  text = tokenizer.before_stop(tokenizer.decode(ids)[len(before) :])
  return ids, tokenizer.decode(ids[:-1]) if text is None else before + text


def _last_turn(sampled: np.ndarray) -> int:
  """Returns the index of the first token of the last turn."""
  given = np.flatnonzero(~sampled[: np.flatnonzero(sampled)[-1]])
  return int(given[-1]) + 1 if given.size else 0


def sampled_lengths(rollouts: KnownRollouts) -> np.ndarray:
  """Returns the number of tokens of each completion that the policy sampled, [P, G]."""
  return rollouts.lengths if rollouts.sampled is None else rollouts.sampled.sum(axis=2)


def turn_statistics(rollouts: KnownRollouts) -> dict[str, float]:
  """Returns metrics of episodes: turns, and the share of tokens that the environment wrote."""
  assert rollouts.sampled is not None
  real = rollouts.lengths > 0
  sampled = rollouts.sampled[real]
  ends = sampled & ~np.pad(sampled[:, 1:], [(0, 0), (0, 1)])
  return {
    "turns/mean": float(ends.sum(1).mean()),
    "turns/max": int(ends.sum(1).max()),
    "turns/read_share": 1.0 - float(sampled.sum() / rollouts.lengths.sum()),
  }


def statistics(rollouts: Rollouts) -> dict[str, float]:
  """Returns metrics of lengths in tokens and the share of truncated completions.

  Completions that only fill the batch do not count; without any other, there are no metrics.
  """
  real = rollouts.lengths > 0
  if not real.any():
    return {}
  lengths = sampled_lengths(rollouts)[real]
  turns = {} if rollouts.sampled is None else turn_statistics(rollouts)
  return turns | {
    "length/mean": float(lengths.mean()),
    "length/min": int(lengths.min()),
    "length/max": int(lengths.max()),
    "truncated": float((rollouts.ended[real] == TRUNCATED).mean()),
  }
