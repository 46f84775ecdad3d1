"""Between the sampler and the learner: arrays to devices and back, tokens to what a reward sees,
metrics of lengths.

Rollouts on the way from one to the other are `sampled`: what has an entry for every token
(`tokens`, log-probs) stays on the mesh, each process holding its share; `prompts`, `lengths` and
`ended` are numpy arrays, whole on every process.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from grpo_jax.distributed import hosts, lifeline
from grpo_jax.distributed.sharding import Layout
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Prompts, Rollouts


def to_device(layout: Layout, batch: Any) -> Any:
  """Returns a batch on the mesh, its prompts and samples cut as `Layout.batch` says.

  Args:
    batch: a pytree of arrays `[P, ...]`: numpy, all of it on every process; or on the mesh already.
  """
  return jax.tree.map(_put, batch, layout.batch(batch))


def _put(x: np.ndarray | jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
  if isinstance(x, jax.Array):
    return jax.device_put(x, sharding)
  return jax.make_array_from_callback(x.shape, sharding, x.__getitem__)


def to_host(tree: Any) -> Any:
  """Returns a pytree of device arrays as numpy arrays, all of it on every process; numpy arrays
  stay as they are.
  """
  if jax.process_count() == 1:
    return jax.device_get(tree)
  return jax.tree.map(_gathered, tree)


def _gathered(x: Any) -> Any:
  return multihost_utils.process_allgather(x, tiled=True) if isinstance(x, jax.Array) else x


def rows(layout: Layout, tree: Any, places: Sequence[tuple[int, int]]) -> Any:
  """Returns `[n, ...]` numpy arrays, the rows at n places (prompt, sample) of `[P, G, ...]` arrays
  on the mesh.
  """
  prompts, samples = np.asarray(places, np.int32).reshape(-1, 2).T
  return to_host(_jitted_rows(layout.replicated())(tree, prompts, samples))


@functools.cache
def _jitted_rows(sharding: jax.sharding.Sharding) -> Callable:
  return jax.jit(_rows, out_shardings=sharding)


def _rows(tree: Any, prompts: jax.Array, samples: jax.Array) -> Any:
  return jax.tree.map(lambda x: x[prompts, samples], tree)


def draw(
  sample: Sampler,
  params: Any,
  prompts: Prompts,
  key: jax.Array,
  sizes: Sizes,
  ends: np.ndarray | None = None,
) -> tuple[Rollouts, dict[str, Any]]:
  """Returns the sampled rollouts that a sampler makes of prompts, and its statistics on every
  process.

  The prompts are cut to a width that holds them, and have a list where that saves enough: few
  programs are compiled.

  Args:
    sample: made by `sampler.make_sampler`.
    params: the policy.
    prompts: numpy arrays `[P, Lp]`.
    key: of this rollout.
    sizes: of the programs made so far; the rollouts will lie as its layout says, that of the
      learner.
    ends: `[P, G]`, lengths that completions are forced to (benchmarks); None: stop tokens end them.
  """
  lifeline.compare(prompts)
  prompts, size = sizes.for_sampler(prompts, sample.layout)
  given, ends = to_device(sample.layout, (prompts, ends))
  found, statistics = sample(params, given, key, ends, prompt_size=size)
  found = to_device(sizes.layout, found)
  lengths, ended, statistics = to_host((found.lengths, found.ended, statistics))
  return dataclasses.replace(found, prompts=prompts, lengths=lengths, ended=ended), statistics


def completions(rollouts: Rollouts, tokenizer: Tokenizer) -> list[list[Completion | None]]:
  """Returns P groups of G completions as rewards see them: this process's own share, and None where
  another has it.

  Those of length 0, which fill the batch, are empty.

  Args:
    rollouts: sampled, or all numpy.
    tokenizer: the one whose ids they hold.
  """
  tokens, own = hosts.share(rollouts.tokens)
  arrays = (tokens, rollouts.lengths, rollouts.ended, own)
  return [
    [completion(*each, tokenizer) if mine else None for *each, mine in zip(*group)]
    for group in zip(*arrays)
  ]


def completion(tokens: np.ndarray, length: int, ended: int, tokenizer: Tokenizer) -> Completion:
  """Returns one completion as rewards see it, of its tokens [L]."""
  ids, text = written(tokens, length, ended, tokenizer)
  return Completion(text, ids, int(ended), tokenizer.step_ends(ids) if ids else [])


def written(
  tokens: np.ndarray, length: int, ended: int, tokenizer: Tokenizer
) -> tuple[list[int], str]:
  """Returns the ids of one completion, of its tokens [L], and its text without the stop token."""
  ids = tokens[:length].tolist()
  return ids, tokenizer.decode(ids[:-1] if ended == STOPPED else ids)


def statistics(rollouts: Rollouts) -> dict[str, float]:
  """Returns metrics of the lengths of rollouts, in tokens, and the share that was cut off
  (`truncated`).

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
