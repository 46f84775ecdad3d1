"""Bounds the programs of a run: a batch is padded to sizes that others have, too, where that costs
little.

Sizes of arrays are part of a compiled program. Without a bound every batch has those that it needs,
rounded up to a few (`plan.py`). With a bound of N, the first batch makes a program with some room
for longer ones; a batch takes the cheapest program that holds it, and makes one where none does, or
where it would be more than MOST_PADDING padding. What is made because a batch needed more holds all
that the others hold. The last of the N is the whole rectangle.

All is decided on the host, from lengths alone: the same on every host. What was made is saved with
a run, which then goes on with the same sizes.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.distributed.sharding import Layout
from grpo_jax.packing import plan
from grpo_jax.packing.plan import Packing
from grpo_jax.types import Prompts, Rollouts

# A new program has room for so many times the tokens of completions that its batch has: as much as
# would let the programs that may still be made reach the whole rectangle in equal steps, within
# these bounds.
LEAST_ROOM, MOST_ROOM = 1.2, 1.5
PROMPT_ROOM = 1.25  # the same for tokens of prompts, which do not grow in a run
# Where the cheapest program that holds a batch is padding to a larger share, a smaller one is made
# for it.
MOST_PADDING = 0.5
TILE = 16  # sizes of lists are multiples of this


class Program(NamedTuple):
  """What a program has room for, in one shard and microbatch; one whose numbers are all as large
  holds as much.
  """

  width: int  # of prompts
  prompt_tokens: int  # entries of the list of prompt tokens, or places of the rectangle
  rows: int  # of a group's completions; the sampler's programs have none of these three
  row_width: int
  tokens: int  # entries of the list of completion tokens, or places of the rows

  @property
  def cost(self) -> int:
    """Tokens that are computed, padding included."""
    return self.prompt_tokens + self.tokens


@dataclasses.dataclass(frozen=True)
class Shape:
  """What the batches of a run have in common, for one shard and microbatch."""

  prompts: int
  width: int  # the longest prompt that there may be
  group: int
  length: int  # the longest completion that there may be; 0: there is none
  shards: int  # of the samples of a group
  share: bool  # whether a row may hold several completions

  @property
  def whole(self) -> Program:
    """The program that holds every batch: rectangles."""
    places = self.prompts * self.group * self.length
    return Program(self.width, self.prompts * self.width, self.group, self.length, places)

  def settled(self, program: Program) -> Program:
    """The program with rectangles in place of rows and lists that save too little."""
    width, prompt_tokens, rows, row_width, tokens = program
    if rows * row_width > plan.MOST_PLACES_OF_ROWS * self.group * self.length:
      rows, row_width = self.group, self.length
    places, prompt_places = self.prompts * rows * row_width, self.prompts * width
    tokens, prompt_tokens = -(-tokens // TILE) * TILE, -(-prompt_tokens // TILE) * TILE
    return Program(
      width,
      prompt_tokens
      if prompt_tokens <= plan.MOST_PLACES_OF_PROMPT_LIST * prompt_places
      else prompt_places,
      rows,
      row_width,
      tokens if tokens <= plan.MOST_PLACES_OF_LIST * places else places,
    )


class Need(NamedTuple):
  """What a batch needs of a program."""

  prompt: int  # tokens of the longest
  prompt_tokens: int  # of a shard and microbatch, at most
  tokens: int  # the same of completions
  lengths: np.ndarray  # of completions, [prompts of the batch, G]; of the sampler: [P, 0]

  @property
  def longest(self) -> int:
    """Tokens of the longest completion."""
    return int(self.lengths.max(initial=0))


def holds(program: Program, need: Need, shape: Shape) -> bool:
  """Returns whether the batch fits."""
  if need.prompt > program.width or need.prompt_tokens > program.prompt_tokens:
    return False
  if need.longest > program.row_width or need.tokens > program.tokens:
    return False
  if (program.rows, program.row_width) == (shape.group, shape.length):
    return True
  return (
    plan.rows_needed(need.lengths, program.row_width, shape.shards, shape.share) <= program.rows
  )


def with_room(need: Need, shape: Shape, room: float) -> Program:
  """Returns the program of one batch, with `room` times its completion tokens."""
  row_width = rows = 0
  if shape.length:
    row_width = plan.halve_to_fit(shape.length, min(shape.length, math.ceil(need.longest * room)))
    needed = plan.rows_needed(need.lengths, row_width, shape.shards, shape.share)
    rows = min(shape.group, plan.round_up_coarsely(math.ceil(needed * room)))
  width = plan.halve_to_fit(shape.width, min(shape.width, math.ceil(need.prompt * PROMPT_ROOM)))
  prompt_tokens, tokens = (
    math.ceil(need.prompt_tokens * PROMPT_ROOM),
    math.ceil(max(1, need.tokens) * room),
  )
  return shape.settled(Program(width, prompt_tokens, rows, row_width, tokens))


def choose(programs: list[Program], need: Need, shape: Shape, most: int) -> Program:
  """Returns the program of a batch; it is appended where it is new. The same batch would then get
  the same one.

  Args:
    programs: those made so far, which `most` bounds.
    need: of the batch.
    shape: of all batches.
    most: at least 1.
  """
  tokens = need.prompt_tokens + need.tokens
  best = min((p for p in programs if holds(p, need, shape)), key=lambda p: p.cost, default=None)
  left = most - len(programs)  # the last is kept for the whole rectangle
  if best and (left <= 1 or not tokens or tokens >= (1 - MOST_PADDING) * best.cost):
    return best
  new = shape.whole
  if left > 1:
    step = (shape.whole.cost / max(1, tokens)) ** (1 / left)
    new = with_room(need, shape, max(LEAST_ROOM, step if left == 2 else min(MOST_ROOM, step)))
    if best is None:
      new = shape.settled(Program(*map(max, *programs, new))) if programs else new
      # first-fit is no optimum: wider rows could be more
      new = new if holds(new, need, shape) else shape.whole
    elif new.cost >= best.cost:
      return best
  programs.append(new)
  return new


class Sizes:
  """The sizes of a run's programs: those made so far, of the sampler and of the learner."""

  def __init__(self, most: int, layout: Layout, width: int, microbatches: int):
    """Begins without any.

    Args:
      most: programs of the sampler, and of the learner; 0: no bound, every batch has sizes of its
        own.
      layout: the learner's.
      width: the longest prompt that there may be.
      microbatches: into how many the learner cuts the prompts.
    """
    self.most, self.layout, self.width, self.microbatches = most, layout, width, microbatches
    self.sampler: list[Program] = []
    self.learner: list[Program] = []

  def fresh(self) -> "Sizes":
    """Returns sizes with the same bound, and no program yet."""
    return Sizes(self.most, self.layout, self.width, self.microbatches)

  def for_sampler(self, prompts: Prompts, layout: Layout) -> tuple[Prompts, int | None]:
    """Returns numpy prompts of the width that the sampler is to have, and the size of its lists of
    their tokens.

    `layout` is the sampler's.
    """
    if not self.most:
      prompts = plan.trim(prompts)
      return prompts, plan.prompt_list_size(prompts, layout)
    shards = layout.size("prompt")
    shape = Shape(len(prompts.lengths) // shards, self.width, 0, 0, 1, False)
    tokens = plan.most_tokens(prompts.lengths[:, None], shards, 1)
    need = Need(
      int(prompts.lengths.max()), tokens, 0, np.zeros((len(prompts.lengths), 0), np.int32)
    )
    chosen = choose(self.sampler, need, shape, self.most)
    return plan.of_width(prompts, chosen.width), list_of(
      chosen.prompt_tokens, shape.prompts * chosen.width
    )

  def for_learner(self, rollouts: Rollouts) -> tuple[Rollouts, Packing]:
    """Returns numpy rollouts with prompts of the width that the learner is to have, and how it lays
    tokens out.
    """
    if not self.most:
      return rollouts, plan.pack(rollouts, self.layout, self.microbatches)
    shards, samples = self.layout.size("prompt"), self.layout.size("sample")
    (n_prompts, group, length), lengths = rollouts.tokens.shape, rollouts.lengths
    share = self.layout.platform != "tpu"  # as in `plan.pack`
    shape = Shape(
      n_prompts // (shards * self.microbatches),
      self.width,
      group // samples,
      length,
      samples,
      share,
    )
    need = Need(
      int(rollouts.prompts.lengths.max()),
      plan.most_tokens(rollouts.prompts.lengths[:, None], shards, self.microbatches),
      plan.most_tokens(lengths, shards, self.microbatches, samples),
      lengths,
    )
    chosen, token_index = choose(self.learner, need, shape, self.most), None
    if (chosen.rows, chosen.row_width) != (shape.group, shape.length):
      token_index = plan.lay_rows(lengths, length, chosen.rows, chosen.row_width, samples, share)
    rollouts = dataclasses.replace(rollouts, prompts=plan.of_width(rollouts.prompts, chosen.width))
    return rollouts, Packing(
      token_index,
      list_of(chosen.tokens, shape.prompts * chosen.rows * chosen.row_width),
      list_of(chosen.prompt_tokens, shape.prompts * chosen.width),
    )

  def _of(self) -> list[Any]:
    """What a program's numbers are counted in."""
    return [
      self.layout.platform,
      self.layout.size("prompt"),
      self.layout.size("sample"),
      self.microbatches,
    ]

  def get_state(self) -> dict[str, Any]:
    """Returns the programs made so far, as JSON."""
    return {
      "of": self._of(),
      "sampler": list(map(list, self.sampler)),
      "learner": list(map(list, self.learner)),
    }

  def set_state(self, state: dict[str, Any]) -> None:
    """Goes on with the programs of `get_state`; without any where the mesh or the microbatches were
    others.
    """
    if state.get("of") == self._of():
      self.sampler = [Program(*sizes) for sizes in state["sampler"]]
      self.learner = [Program(*sizes) for sizes in state["learner"]]


def list_of(tokens: int, places: int) -> int | None:
  """Returns the size of a list, None where a program has a rectangle of so many places instead."""
  return tokens if tokens < places else None
