"""Scores of completions by an outcome reward model, on the mesh, and how well they tell the better of two."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import forward, rollouts
from grpo_jax.models.decoder import Decoder
from grpo_jax.objectives import common
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.sizes import Sizes
from grpo_jax.types import Array, Rollouts

BINS = 10  # of confidence, in the calibration error


def last_scores(decoder: Decoder, params: Any, batch: Rollouts, packing: Packing) -> Array:
  """Returns the score of each completion after its last token, `[P, G]` float32; 0 where there is no token.

  Args:
    decoder, params: the reward model.
    batch: its prompts, tokens and lengths are read.
    packing: of `packing.plan.pack`.
  """
  each = forward.scores(decoder, params, batch.prompts, batch.tokens, batch.lengths, packing)
  return jnp.sum(jnp.where(common.last_token(batch.lengths, each.shape[2]), each, 0.0), axis=2)


def make_scorer(decoder: Decoder) -> Callable:
  """Returns `last_scores` of a decoder, jitted: `(params, batch, packing) -> [P, G]`."""
  return jax.jit(functools.partial(last_scores, decoder))


def score(scorer: Callable, params: Any, batch: Rollouts, sizes: Sizes, prompts: int) -> np.ndarray:
  """Returns the scores of all completions of a batch, `[N, G]` float32 on the host, computed P prompts at a time.

  Args:
    scorer: of `make_scorer`.
    params: of the reward model.
    batch: numpy, `[N, ...]`.
    sizes: of the programs made so far.
    prompts: P, a multiple of the mesh's shards of prompts.
  """
  found = []
  for start in range(0, len(batch.lengths), prompts):
    few = jax.tree.map(functools.partial(_filled, start, prompts), common.written(batch))
    on_mesh = rollouts.to_device(sizes.layout, sizes.for_learner(few))
    found.append(rollouts.to_host(scorer(params, *on_mesh)))
  return np.concatenate(found)[: len(batch.lengths)]


def _filled(start: int, prompts: int, x: np.ndarray) -> np.ndarray:
  """Returns entries `start` to `start + prompts` of an array `[N, ...]`, zeros where there are fewer."""
  few = x[start : start + prompts]
  return np.concatenate([few, np.zeros((prompts - len(few), *x.shape[1:]), x.dtype)])


def pair_metrics(margin: np.ndarray) -> dict[str, float]:
  """Returns how well a reward model tells the better of two, of margins `[N]`: score of the chosen less the rejected.

  p = sigma(margin) is the probability that it gives to the choice that was made (Bradley-Terry).

    pair_accuracy   share with margin > 0; a tie counts half
    pair_margin     mean margin
    pair_loss       mean of -log p
    pair_brier      mean of (1 - p)^2: 0 is best, 0.25 says nothing (Brier 1950, for one of two outcomes)
    pair_ece        expected calibration error (Guo et al., arXiv 1706.04599, equation 3): `calibration_error` of the
                    confidence max(p, 1 - p) in the choice that the model would have made
  """
  margin = np.asarray(margin, np.float64)
  right = (margin > 0) + 0.5 * (margin == 0)
  p = 0.5 * (1 + np.tanh(margin / 2))  # sigma, without overflow
  return {
    "pair_accuracy": float(right.mean()),
    "pair_margin": float(margin.mean()),
    "pair_loss": float(np.logaddexp(0.0, -margin).mean()),
    "pair_brier": float(((1 - p) ** 2).mean()),
    "pair_ece": calibration_error(np.maximum(p, 1 - p), right),
  }


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
  """Returns sum over bins of n_bin / N |mean right - mean confidence|, in BINS equal bins of confidence in [0.5, 1].

  Args:
    confidence: `[N]`, from 0.5 to 1.
    right: `[N]`, 1 where the choice was right, 0 where not.
  """
  of = np.clip(((confidence - 0.5) * 2 * BINS).astype(int), 0, BINS - 1)
  gaps = [abs((right - confidence)[of == b].sum()) for b in range(BINS)]
  return float(sum(gaps) / len(confidence))
