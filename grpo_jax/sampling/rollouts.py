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
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Prompts, Rollouts

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
  """
  lifeline.compare(prompts)
  prompts, size = sizes.for_sampler(prompts, sample.layout)
  on_mesh, forced = to_device(sample.layout, (prompts, ends))
  drawn, statistics = sample(params, on_mesh, key, forced, prompt_size=size)
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
  arrays = (tokens, rollouts.lengths, rollouts.ended, is_local)
  return [
    [
      completion(ids, length, ended, tokenizer) if local else None
      for ids, length, ended, local in zip(*group)
    ]
    for group in zip(*arrays)
  ]


def completion(tokens: np.ndarray, length: int, ended: int, tokenizer: Tokenizer) -> Completion:
  """Returns one completion as rewards see it, from its tokens [L]."""
  ids, text = written(tokens, length, ended, tokenizer)
  return Completion(text, ids, int(ended), step_ends(ids, ended, tokenizer))


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
  tokens: np.ndarray, length: int, ended: int, tokenizer: Tokenizer
) -> tuple[list[int], str]:
  """Returns the ids of one completion, from its tokens [L], and its text.

  The text is without the stop token, or the stop text, that ended it.
  """
  ids = tokens[:length].tolist()
  if ended != STOPPED:
    return ids, tokenizer.decode(ids)
  text = tokenizer.before_stop(tokenizer.decode(ids))
  return ids, tokenizer.decode(ids[:-1]) if text is None else text


def statistics(rollouts: Rollouts) -> dict[str, float]:
  """Returns metrics of lengths in tokens and the share of truncated completions.

  Completions that only fill the batch do not count; without any other, there are no metrics.
  """
  real = rollouts.lengths > 0
  if not real.any():
    return {}
  lengths = rollouts.lengths[real]
  return {
    "length/mean": float(lengths.mean()),
    "length/min": int(lengths.min()),
    "length/max": int(lengths.max()),
    "truncated": float((rollouts.ended[real] == TRUNCATED).mean()),
  }
