"""Between the sampler and the learner, on the host: text, rewards, packing."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from grpo_jax.sharding import Layout
from grpo_jax.tokenizer import Tokenizer
from grpo_jax.types import Completion, Prompts, Rollouts

ROW_COUNTS = sorted({m << n for m in (1, 3) for n in range(20)})


def to_device(layout: Layout, x: Any) -> Any:
  """A pytree of numpy arrays `[P, ...]`, whole on every host, onto the mesh: prompts and samples over their axes."""
  put = lambda a, s: jax.make_array_from_callback(a.shape, s, lambda index: a[index])
  x = jax.tree.map(np.asarray, x)
  return jax.tree.map(put, x, layout.batch(x))


def to_host(x: Any) -> Any:
  """A pytree of device arrays, whole, on every host."""
  if jax.process_count() == 1:
    return jax.device_get(x)
  return jax.tree.map(lambda a: multihost_utils.process_allgather(a, tiled=True), x)


def trim(prompts: Prompts, multiple: int = 16) -> Prompts:
  """Numpy prompts cut to the longest one, rounded up so that few different shapes are compiled."""
  longest = max(1, int(np.max(prompts.lengths)))
  width = min(prompts.tokens.shape[1], -(-longest // multiple) * multiple)
  return Prompts(prompts.tokens[:, :width], prompts.lengths)


def completions(rollouts: Rollouts, tokenizer: Tokenizer) -> list[list[Completion]]:
  """The sampled groups as a reward sees them; `rollouts` holds numpy arrays. Rows that only fill the batch: empty."""
  out = []
  for tokens, lengths, ended in zip(rollouts.tokens, rollouts.lengths, rollouts.ended):
    group = []
    for ids, n, why in zip(tokens, lengths, ended):
      ids = ids[:n].tolist()
      text = tokenizer.decode(ids[:-1] if why else ids)
      group.append(Completion(text, ids, int(why), tokenizer.step_ends(ids) if ids else []))
    out.append(group)
  return out


def pack(lengths: np.ndarray, max_length: int, shards: int = 1) -> np.ndarray | None:
  """Lays the completions of each group into as few rows as fit, first-fit decreasing.

  Args:
    lengths: `[P, G]`.
    max_length: L, the width of the rectangle that the completions come in.
    shards: of the group axis; each packs its own samples.

  Returns:
    `take [P, R, T]` int32 for `forward.pack`: index in G * L of the token at each place, -1 on padding. T is the
    longest completion and R the most rows that a group needs, rounded up (T to a quarter of L, R to 2^n or 3 * 2^n)
    so that few shapes are compiled. None where that saves less than a tenth of one completion a row of L.
  """
  p, g = lengths.shape
  per = g // shards
  grain = max(1, -(-max_length // 4))
  t = min(max_length, -(-max(1, int(lengths.max())) // grain) * grain)
  plans, most = [], 1
  for group in lengths.reshape(p, shards, per):
    for mine in group:
      rows, room = [], []
      for i in np.argsort(-mine, kind="stable"):
        n = int(mine[i])
        if not n:
          continue
        at = next((r for r, free in enumerate(room) if free >= n), None)
        if at is None:
          at = len(rows)
          rows.append([])
          room.append(t)
        rows[at].append(int(i))
        room[at] -= n
      plans.append(rows)
      most = max(most, len(rows))
  most = min(per, min(n for n in ROW_COUNTS if n >= most))
  if most * t > 0.9 * per * max_length:
    return None
  take = np.full((p * shards, most, t), -1, np.int32)
  for which, rows in enumerate(plans):
    for r, members in enumerate(rows):
      at = 0
      for i in members:
        n = int(lengths[which // shards, (which % shards) * per + i])
        first = ((which % shards) * per + i) * max_length
        take[which, r, at : at + n] = np.arange(first, first + n)
        at += n
  return take.reshape(p, shards * most, t)


def statistics(rollouts: Rollouts, take: np.ndarray | None) -> dict[str, float]:
  """Lengths, endings and padding of numpy rollouts."""
  lengths = rollouts.lengths[rollouts.lengths > 0]
  if not lengths.size:
    return {}
  ended = rollouts.ended[rollouts.lengths > 0]
  places = rollouts.tokens.size if take is None else take.size
  return {
    "length/mean": float(lengths.mean()),
    "length/min": int(lengths.min()),
    "length/max": int(lengths.max()),
    "truncated": float((ended == 0).mean()),
    "padding_fraction": 1.0 - float(lengths.sum()) / places,
  }
