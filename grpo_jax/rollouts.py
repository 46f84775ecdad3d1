"""Between the sampler and the learner, on the host: text, rewards, packing."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from grpo_jax.sharding import Layout
from grpo_jax.tokenizer.reading import Tokenizer
from grpo_jax.types import Completion, Packing, Prompts, Rollouts


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


def halved(width: int, longest: int) -> int:
  """`width` halved as often as it still holds `longest`: few widths, and so few programs to compile."""
  while width > 1 and -(-width // 2) >= longest:
    width = -(-width // 2)
  return width


def trim(prompts: Prompts) -> Prompts:
  """Numpy prompts cut to a width that holds the longest."""
  return Prompts(prompts.tokens[:, : halved(prompts.tokens.shape[1], int(np.max(prompts.lengths)))], prompts.lengths)


def draw(
  sample: Callable, params: Any, prompts: Prompts, key: jax.Array, layout: Layout
) -> tuple[Rollouts, dict[str, Any]]:
  """What a sampler makes of numpy prompts, cut to a width and a list that hold them, on the host."""
  prompts = trim(prompts)
  return to_host(sample(params, to_device(layout, prompts), key, prompt_size=prompt_size(prompts, layout)))


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


def prompt_size(prompts: Prompts, layout: Layout, parts: int = 1) -> int | None:
  """Tokens in the list of the real prompt tokens of a shard and microbatch (2^n or 3 * 2^n), as the sampler computes
  them; None where that saves less than a quarter of their rectangle. Numpy prompts; `parts` as for `pack`."""
  p, width = prompts.tokens.shape
  # Part j of a rollout has prompts j, j + parts ... (`learn.interleave`), in contiguous shards.
  most = int(prompts.lengths.reshape(layout.size("prompt"), -1, parts).sum(1).max())
  size = coarse(most)
  return size if size <= 0.75 * p * width / (parts * layout.size("prompt")) else None


def pack(rollouts: Rollouts, layout: Layout, parts: int = 1) -> Packing:
  """How the learner lays tokens out; arrays and sizes are rounded up so that few shapes are compiled.

  Prompts, which the group shares, have a list of their own only where it saves a fifth of all tokens: every pair of
  sizes is a program to compile.

  Args:
    rollouts: numpy.
    layout: its shards of prompts and of samples each pack their own.
    parts: into how many microbatches the learner cuts the prompts (`learn.parts`).
  """
  lengths, max_length = rollouts.lengths, rollouts.tokens.shape[2]
  samples, lists = layout.size("sample"), parts * layout.size("prompt")
  take = lay_rows(lengths, max_length, samples, share=layout.platform != "tpu")  # see models/attention.py
  places = (lengths.size * max_length if take is None else take.size) // (lists * samples)
  of_parts = lengths.reshape(layout.size("prompt"), -1, parts, samples, lengths.shape[1] // samples)
  size = round_up(max(1, int(of_parts.sum((1, 4)).max())))
  size = size if size <= 0.95 * places else None
  of_prompts = prompt_size(rollouts.prompts, layout, parts)
  rectangle = rollouts.prompts.tokens.size // lists
  saves = of_prompts is not None and rectangle - of_prompts >= 0.2 * (rectangle + (size or places))
  return Packing(take, size, of_prompts if saves else None)


def coarse(n: int) -> int:
  """To the next 2^k or 3 * 2^k: fewer sizes than `round_up` has, for what is a small part of the work."""
  return min(m << k for m in (1, 3) for k in range(n.bit_length() + 1) if m << k >= n)


def round_up(n: int) -> int:
  """To one of eight sizes between a power of two and the next, evenly spaced in their logarithm: at most 10.6% more."""
  if n <= 32:
    return n
  grain = 1 << ((n - 1).bit_length() - 6)
  return grain * min(size for size in (35, 38, 42, 45, 49, 54, 59, 64) if size * grain >= n)


def lay_rows(lengths: np.ndarray, max_length: int, shards: int = 1, share: bool = True) -> np.ndarray | None:
  """Lays the completions of each group into as few rows as fit, first-fit decreasing; `share` or else one a row.

  Returns:
    `Packing.take [P, R, T]`. T holds the longest completion and R the most rows that a group needs, rounded up (T to
    L / 2^n, R to 2^n or 3 * 2^n). None where that saves less than a quarter of one completion a row of L.
  """
  p, g = lengths.shape
  per = g // shards
  t = halved(max_length, int(lengths.max()))
  plans, most = [], 1
  for group in lengths.reshape(p, shards, per):
    for mine in group:
      rows, room = [], []
      for i in np.argsort(-mine, kind="stable"):
        n = int(mine[i])
        if not n:
          continue
        at = next((r for r, free in enumerate(room) if free >= n and share), None)
        if at is None:
          at = len(rows)
          rows.append([])
          room.append(t)
        rows[at].append(int(i))
        room[at] -= n
      plans.append(rows)
      most = max(most, len(rows))
  most = min(per, coarse(most))
  if most * t > 0.75 * per * max_length:
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


def statistics(rollouts: Rollouts, packing: Packing, layout: Layout, parts: int = 1) -> dict[str, float]:
  """Lengths and endings of numpy rollouts, and the padding that the learner computes with them (as for `pack`)."""
  lengths = rollouts.lengths[rollouts.lengths > 0]
  if not lengths.size:
    return {}
  ended, prompts = rollouts.ended[rollouts.lengths > 0], rollouts.prompts
  places = rollouts.tokens.size if packing.take is None else packing.take.size
  lists = parts * layout.size("prompt")
  if packing.size is not None:
    places = packing.size * lists * layout.size("sample")
  prompt_places = prompts.tokens.size if packing.prompt_size is None else packing.prompt_size * lists
  return {
    "length/mean": float(lengths.mean()),
    "length/min": int(lengths.min()),
    "length/max": int(lengths.max()),
    "truncated": float((ended == 0).mean()),
    "padding_fraction": 1.0 - float(lengths.sum()) / places,
    "prompt_padding_fraction": 1.0 - float(prompts.lengths.sum()) / prompt_places,
  }
