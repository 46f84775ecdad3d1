"""Scores completions with a reward model, and measures how well it tells the better of two."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.learning import forward
from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.objectives import common
from grpo_jax.packing.microbatches import join_microbatches, split_microbatches
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling import rollouts
from grpo_jax.types import Array, HostRollouts, Rollouts

BINS = 10  # of confidence, in the calibration error


def scores(
  decoder: Decoder, microbatches: int, params: Params, batch: Rollouts, packing: Packing
) -> Array:
  """Returns a reward model's score after each token, `[P, G, L]` float32.

  Args:
    decoder: the reward model's.
    microbatches: the number of parts of the prompts, scored in turn; `packing` is made for it.
    params: its tree.
    batch: P prompts with G completions each.
    packing: of `packing.plan.pack`, as the learner packs.
  """

  def score_microbatch(x: tuple[Rollouts, Packing]) -> Array:
    some, packing = x
    return forward.scores(decoder, params, some.prompts, some.tokens, some.lengths, packing)

  parts = split_microbatches(decoder.layout, (batch, packing), microbatches)
  return join_microbatches(jax.lax.map(score_microbatch, parts))


@functools.cache
def jitted_scores(decoder: Decoder, microbatches: int) -> Callable:
  """Returns `scores` of a decoder, jitted once for the same arguments."""
  return jax.jit(functools.partial(scores, decoder, microbatches))


@jax.jit
def after_last_token(scores: Array, lengths: Array) -> Array:
  """Returns the scores `[P, G]` after the last token of each completion, of all `[P, G, L]`."""
  return jnp.take_along_axis(scores, jnp.maximum(lengths, 1)[..., None] - 1, axis=2)[..., 0]


def scores_of_all(
  decoder: Decoder,
  params: Params,
  batch: HostRollouts,
  sizes: Sizes,
  prompts: int,
  progress: Callable[[int, int], None],
) -> np.ndarray:
  """Returns `scores` of a batch, `[N, G, L]` float32 on the host, computed P prompts at a time.

  Args:
    decoder, params: the reward model.
    batch: `[N, ...]`.
    sizes: of the programs made so far.
    prompts: P, a multiple of the mesh's shards of prompts.
    progress: called with the number of groups done and N after each P of them.
  """
  parts, n = [], len(batch.lengths)
  for start in range(0, n, prompts):
    few = jax.tree.map(functools.partial(_filled, start, prompts), common.written(batch))
    on_mesh = rollouts.to_device(sizes.layout, sizes.for_learner(few))
    parts.append(rollouts.to_host(jitted_scores(decoder, sizes.microbatches)(params, *on_mesh)))
    progress(min(start + prompts, n), n)
  return np.concatenate(parts)[:n]


def _filled(start: int, prompts: int, x: np.ndarray) -> np.ndarray:
  """Returns entries `start` to `start + prompts` of `[N, ...]`, filled up with zeros."""
  few = x[start : start + prompts]
  return np.concatenate([few, np.zeros((prompts - len(few), *x.shape[1:]), x.dtype)])


def margins(scores: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """Returns the score of the chosen minus that of the rejected after their last tokens, `[N]`.

  Args:
    scores: of pairs, after each token, `[N, 2, L]`; the chosen comes first.
    lengths: `[N, 2]`.
  """
  last = np.asarray(after_last_token(scores, lengths))
  return last[:, 0] - last[:, 1]


def pair_metrics(margin: np.ndarray) -> dict[str, float]:
  """Returns how well a reward model tells the better of two, of margins `[N]` (see `margins`).

  p = sigma(margin) is the probability of the choice that was made (Bradley-Terry).

    pair_accuracy   share with margin > 0; a tie counts half
    pair_margin     mean margin
    pair_loss       mean of -log p
    pair_brier      mean of (1 - p)^2: 0 is best, 0.25 is chance (Brier 1950, for one of two)
    pair_ece        `calibration_error` of the confidence max(p, 1 - p) in the model's own choice
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
  """Returns the expected calibration error (Guo et al., arXiv 1706.04599, equation 3).

  It is the sum over BINS equal bins of confidence of n_bin / N |mean right - mean confidence|.

  Args:
    confidence: `[N]`, from 0.5 to 1.
    right: `[N]`, 1 where the choice was right, 0 where not.
  """
  bins = np.clip(((confidence - 0.5) * 2 * BINS).astype(int), 0, BINS - 1)
  gaps = [abs((right - confidence)[bins == b].sum()) for b in range(BINS)]
  return float(sum(gaps) / len(confidence))
