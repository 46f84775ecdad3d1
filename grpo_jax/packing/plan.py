"""Assigns completions to rows and sizes the lists of tokens, on the host, from the lengths.

Every size is the shape of an array in a compiled program, so all of them are rounded up to a few.
The picture is in `grpo_jax/packing/__init__.py`.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from grpo_jax.distributed.sharding import Layout
from grpo_jax.types import Array, HostPrompts, HostRollouts, Prompts

# Rows are used where they have at most this share of the places of the rectangle [G, L]: attention
# over rows needs a mask and gathers on the way in and out, which a smaller saving would not pay.
MOST_PLACES_OF_ROWS = 0.75
# A list is used where it has at most this share of the places of the rows: below that, two gathers
# in every layer cost less than what is computed on padding.
MOST_PLACES_OF_LIST = 0.95
# Prompts are computed as a list where that has at most this share of the rectangle [P, Lp]: the
# sampler computes them once, so that another program to compile has to save more.
MOST_PLACES_OF_PROMPT_LIST = 0.75
# The learner gives prompts a list only where that saves this share of all its tokens: every pair of
# the two lists' sizes is one more program to compile.
LEAST_SAVED_BY_PROMPT_LIST = 0.2
# Sizes of lists of completions, which are most of the work: eight between a power of two and the
# next, evenly spaced in their logarithm, so that at most 10.6% is added. Up to the power of two,
# every size is used.
FINE_SIZES = (35, 38, 42, 45, 49, 54, 59, 64)
FINE_FROM = 32
# Sizes of lists of prompts and numbers of rows, which matter less: 2^k and 3 * 2^k.
COARSE_SIZES = (1, 3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packing:
  """Layout of the learner's tokens; `Packing()` has a row for each completion and no lists."""

  # [P, R, T] int32: the token at each place of the rows, counted in the G * L of its shard of
  # samples; -1 on padding. None: a row for each completion.
  token_index: Array | np.ndarray | None = None
  # Entries of the list of completion tokens, of one shard and microbatch. None: no list.
  list_size: int | None = dataclasses.field(default=None, metadata={"static": True})
  # The same of prompt tokens.
  prompt_list_size: int | None = dataclasses.field(default=None, metadata={"static": True})


def pack(rollouts: HostRollouts, layout: Layout, microbatches: int = 1) -> Packing:
  """Returns the layout of the tokens of `rollouts` in the learner.

  Args:
    rollouts: only lengths and shapes are read.
    layout: each of its shards of prompts and samples has its own rows and lists.
    microbatches: into which the learner cuts the prompts.
  """
  lengths, max_length = rollouts.lengths, rollouts.tokens.shape[2]
  prompt_shards, sample_shards = layout.size("prompt"), layout.shards("sample", lengths.shape[1])
  # splash attention has no mask for two completions in a row, see models/attention.py
  share = layout.platform != "tpu"
  token_index = assign_rows(lengths, max_length, sample_shards, share)
  places = lengths.size * max_length if token_index is None else token_index.size
  places //= microbatches * prompt_shards * sample_shards
  size = round_up_finely(max(1, most_tokens(lengths, prompt_shards, microbatches, sample_shards)))
  list_size = size if size <= MOST_PLACES_OF_LIST * places else None

  for_prompts = prompt_list_size(rollouts.prompts, layout, microbatches)
  prompt_places = rollouts.prompts.tokens.size // (microbatches * prompt_shards)
  all_places = prompt_places + (list_size or places)
  if (
    for_prompts is not None
    and prompt_places - for_prompts < LEAST_SAVED_BY_PROMPT_LIST * all_places
  ):
    for_prompts = None
  return Packing(token_index, list_size, for_prompts)


def most_tokens(
  lengths: np.ndarray, prompt_shards: int, microbatches: int, sample_shards: int = 1
) -> int:
  """Returns the most tokens of `lengths [P, G]` that a shard has in one of `split_microbatches`."""
  shape = (prompt_shards, -1, microbatches, sample_shards, lengths.shape[1] // sample_shards)
  return int(lengths.reshape(shape).sum((1, 4)).max())


def prompt_list_size(prompts: HostPrompts, layout: Layout, microbatches: int = 1) -> int | None:
  """Returns the size of the lists of prompt tokens, or None where lists save too little.

  A list holds the tokens of any shard in any microbatch. The sampler uses it as it is; the learner
  (`pack`) only if it saves enough of all its work.
  """
  n_prompts, width = prompts.tokens.shape
  shards = layout.size("prompt")
  size = round_up_coarsely(most_tokens(prompts.lengths[:, None], shards, microbatches))
  rectangle = n_prompts * width / (microbatches * shards)
  return size if size <= MOST_PLACES_OF_PROMPT_LIST * rectangle else None


def trim(prompts: HostPrompts) -> HostPrompts:
  """Returns prompts whose width is halved as often as it still holds the longest."""
  return to_width(prompts, halve_to_fit(prompts.tokens.shape[1], int(np.max(prompts.lengths))))


def to_width(prompts: HostPrompts, width: int) -> HostPrompts:
  """Returns prompts cut or padded to `width`, which holds the longest."""
  missing = max(0, width - prompts.tokens.shape[1])
  return Prompts(np.pad(prompts.tokens[:, :width], [(0, 0), (0, missing)]), prompts.lengths)


def padding(
  rollouts: HostRollouts, packing: Packing, layout: Layout, microbatches: int = 1
) -> dict[str, float]:
  """Returns the metrics of padding that the learner computes; none without completions.

  Args:
    packing: of these rollouts, by `pack`.
    rollouts, layout, microbatches: as for `pack`.
  """
  if not rollouts.lengths.any():
    return {}
  lists = microbatches * layout.size("prompt")
  places = rollouts.tokens.size if packing.token_index is None else packing.token_index.size
  if packing.list_size is not None:
    places = packing.list_size * lists * layout.size("sample")
  prompt_places = rollouts.prompts.tokens.size
  if packing.prompt_list_size is not None:
    prompt_places = packing.prompt_list_size * lists
  return {
    "padding_fraction": 1.0 - float(rollouts.lengths.sum()) / places,
    "prompt_padding_fraction": 1.0 - float(rollouts.prompts.lengths.sum()) / prompt_places,
  }


def halve_to_fit(width: int, longest: int) -> int:
  """Returns `width` halved (and rounded up) as often as it still holds `longest`."""
  while width > 1 and -(-width // 2) >= longest:
    width = -(-width // 2)
  return width


def round_up_coarsely(n: int) -> int:
  """Returns the next size that is a power of two times one of COARSE_SIZES."""
  return min(m << k for m in COARSE_SIZES for k in range(n.bit_length() + 1) if m << k >= n)


def round_up_finely(n: int) -> int:
  """Returns the next size that is a power of two times one of FINE_SIZES."""
  if n <= FINE_FROM:
    return n
  unit = 1 << ((n - 1).bit_length() - FINE_SIZES[-1].bit_length() + 1)
  return unit * min(size for size in FINE_SIZES if size * unit >= n)


def assign_rows(
  lengths: np.ndarray, max_length: int, shards: int = 1, share: bool = True
) -> np.ndarray | None:
  """Returns `Packing.token_index [P, R, T]` with as few rows as fit, None if that saves too little.

  T holds the longest completion and R the most rows that a group needs, both rounded up.

  Args:
    lengths: `[P, G]`.
    max_length: L.
    shards: of the samples of a group; each has its own rows.
    share: whether a row may hold several completions; otherwise only empty completions save rows.
  """
  per_shard = lengths.shape[1] // shards
  width = halve_to_fit(max_length, int(lengths.max()))
  rows = min(per_shard, round_up_coarsely(rows_needed(lengths, width, shards, share)))
  if rows * width > MOST_PLACES_OF_ROWS * per_shard * max_length:
    return None
  return lay_rows(lengths, max_length, rows, width, shards, share)


def rows_needed(lengths: np.ndarray, width: int, shards: int = 1, share: bool = True) -> int:
  """Returns the most rows of `width` that a group needs in one shard, at least 1."""
  return max(1, *map(len, _plans(lengths, width, shards, share)))


def _plans(lengths: np.ndarray, width: int, shards: int, share: bool) -> list[list[list[int]]]:
  """Returns `first_fit` of each group and shard of it: P * shards."""
  parts = lengths.reshape(lengths.shape[0] * shards, -1)
  return [first_fit(part, width, share) for part in parts]


def lay_rows(
  lengths: np.ndarray, max_length: int, rows: int, width: int, shards: int = 1, share: bool = True
) -> np.ndarray:
  """Returns `Packing.token_index [P, shards * rows, width]`; `rows` is at least `rows_needed`."""
  n_prompts, group = lengths.shape
  per_shard = group // shards
  lengths_by_shard = lengths.reshape(n_prompts * shards, per_shard)
  token_index = np.full((n_prompts * shards, rows, width), -1, np.int32)
  for shard, plan in enumerate(_plans(lengths, width, shards, share)):
    for row, members in enumerate(plan):
      place = 0
      for sample in members:
        n, first = int(lengths_by_shard[shard, sample]), sample * max_length
        token_index[shard, row, place : place + n] = np.arange(first, first + n)
        place += n
  return token_index.reshape(n_prompts, shards * rows, width)


def first_fit(
  lengths: Sequence[int] | np.ndarray, width: int, share: bool = True
) -> list[list[int]]:
  """Returns the members of each row: the longest first, each into the first row with room.

  Args:
    lengths: of the completions; those of length 0 are in no row.
    width: of a row.
    share: False gives each completion its own row.
  """
  rows: list[list[int]] = []
  room: list[int] = []
  for i in np.argsort(-np.asarray(lengths), kind="stable"):
    n = int(lengths[i])
    if not n:
      continue
    row = next((r for r, free in enumerate(room) if free >= n and share), None)
    if row is None:
      row = len(rows)
      rows.append([])
      room.append(width)
    rows[row].append(int(i))
    room[row] -= n
  return rows
