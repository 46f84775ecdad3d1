"""Between the sampler and the learner: arrays to devices and back, tokens to what a reward sees, metrics of lengths."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from grpo_jax.packing.sizes import Sizes
from grpo_jax.sharding import Layout
from grpo_jax.tokenizer.reading import Tokenizer
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Prompts, Rollouts


def to_device(layout: Layout, batch: Any) -> Any:
  """Returns a batch on the mesh, its prompts and samples cut as `Layout.batch` says.

  Args:
    batch: a pytree of numpy arrays `[P, ...]`; every host holds all of it.
  """
  batch = jax.tree.map(np.asarray, batch)
  return jax.tree.map(_put, batch, layout.batch(batch))


def _put(x: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
  return jax.make_array_from_callback(x.shape, sharding, x.__getitem__)


def to_host(tree: Any) -> Any:
  """Returns a pytree of device arrays as numpy arrays, all of it on every host."""
  if jax.process_count() == 1:
    return jax.device_get(tree)
  return jax.tree.map(lambda x: multihost_utils.process_allgather(x, tiled=True), tree)


def draw(
  sample: Callable, params: Any, prompts: Prompts, key: jax.Array, sizes: Sizes
) -> tuple[Rollouts, dict[str, Any]]:
  """Returns the rollouts and the statistics that a sampler makes of prompts, as numpy arrays.

  The prompts are cut to a width that holds them, and have a list where that saves enough: few programs are compiled.

  Args:
    sample: made by `sampler.make_sampler`.
    params: the policy.
    prompts: numpy arrays `[P, Lp]`.
    key: of this rollout.
    sizes: of the programs made so far.
  """
  prompts, size = sizes.for_sampler(prompts)
  return to_host(sample(params, to_device(sizes.layout, prompts), key, prompt_size=size))


def completions(rollouts: Rollouts, tokenizer: Tokenizer) -> list[list[Completion]]:
  """Returns the P groups of G completions as rewards see them; those of length 0, which fill the batch, are empty.

  Args:
    rollouts: numpy arrays.
    tokenizer: the one whose ids they hold.
  """
  out = []
  for tokens, lengths, ended in zip(rollouts.tokens, rollouts.lengths, rollouts.ended):
    group = []
    for ids, n, why in zip(tokens, lengths, ended):
      ids = ids[:n].tolist()
      text = tokenizer.decode(ids[:-1] if why == STOPPED else ids)
      group.append(Completion(text, ids, int(why), tokenizer.step_ends(ids) if ids else []))
    out.append(group)
  return out


def statistics(rollouts: Rollouts) -> dict[str, float]:
  """Returns metrics of the lengths of numpy rollouts, in tokens, and the share that was cut off (`truncated`).

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
