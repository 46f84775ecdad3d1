"""Bounds the number of programs of a run, by padding batches to sizes that were compiled before.

Sizes of arrays are part of a compiled program. Without a bound every batch has the sizes that it
needs, rounded up to a few (`plan.py`). With a bound of N, the first batch makes a program with some
room for longer batches. A later one takes the cheapest program that holds it; a new program is made
where none does, or where that one would be more than MOST_PADDING padding. A program made for a
larger batch holds everything that the earlier ones hold, and the last of the N is the whole
rectangle.

The host decides from lengths alone, so all hosts decide alike. The sizes are saved with a run,
which resumes with them.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.distributed.sharding import Layout
from grpo_jax.packing import plan
from grpo_jax.packing.plan import Packing
from grpo_jax.types import HostPrompts, HostRollouts

# A new program has room for this many times its batch's completion tokens: the factor by which the
# remaining programs would reach the whole rectangle in equal ratios, within these bounds.
LEAST_ROOM, MOST_ROOM = 1.2, 1.5
PROMPT_ROOM = 1.25  # the same for tokens of prompts, which do not grow in a run
MOST_PADDING = 0.5  # share of padding beyond which a batch gets a smaller program
# bounds on the sampler's programs for samples that have begun, each of which decodes, too: for the
# turns of episodes, which get longer, and for groups that are carried, which are much alike
BEGUN, CARRIED = 2, 3
TILE = 16  # sizes of lists are multiples of this


class Program(NamedTuple):
  """Room of a program, in one shard and microbatch."""

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
  """Properties that all batches of a run share, for one shard and microbatch."""

  prompts: int
  width: int  # of the longest allowed prompt
  group: int
  length: int  # of the longest allowed completion; 0: there is none
  shards: int  # of the samples of a group
  share: bool  # whether a row may hold several completions

  @property
  def whole(self) -> Program:
    """Program that holds every batch: rectangles."""
    places = self.prompts * self.group * self.length
    return Program(self.width, self.prompts * self.width, self.group, self.length, places)

  def settled(self, program: Program) -> Program:
    """Returns the program with rectangles in place of rows and lists that save too little."""
    width, prompt_tokens, rows, row_width, tokens = program
    if rows * row_width > plan.MOST_PLACES_OF_ROWS * self.group * self.length:
      rows, row_width = self.group, self.length
    places, prompt_places = self.prompts * rows * row_width, self.prompts * width
    tokens, prompt_tokens = -(-tokens // TILE) * TILE, -(-prompt_tokens // TILE) * TILE
    if prompt_tokens > plan.MOST_PLACES_OF_PROMPT_LIST * prompt_places:
      prompt_tokens = prompt_places
    if tokens > plan.MOST_PLACES_OF_LIST * places:
      tokens = places
    return Program(width, prompt_tokens, rows, row_width, tokens)


class Need(NamedTuple):
  """Room that a batch needs."""

  prompt: int  # tokens of the longest
  prompt_tokens: int  # of a shard and microbatch, at most
  tokens: int  # the same of completions
  lengths: np.ndarray  # of completions, [prompts of the batch, G]; of the sampler: [P, 0]

  @property
  def longest(self) -> int:
    """Tokens of the longest completion."""
    return int(self.lengths.max(initial=0))


def holds(program: Program, need: Need, shape: Shape) -> bool:
  """Returns whether a batch fits into a program."""
  if need.prompt > program.width or need.prompt_tokens > program.prompt_tokens:
    return False
  if need.longest > program.row_width or need.tokens > program.tokens:
    return False
  if (program.rows, program.row_width) == (shape.group, shape.length):
    return True
  needed = plan.rows_needed(need.lengths, program.row_width, shape.shards, shape.share)
  return needed <= program.rows


def with_room(need: Need, shape: Shape, room: float) -> Program:
  """Returns a program for a batch, with `room` times its completion tokens."""
  row_width = rows = 0
  if shape.length:
    row_width = plan.halve_to_fit(shape.length, min(shape.length, math.ceil(need.longest * room)))
    needed = plan.rows_needed(need.lengths, row_width, shape.shards, shape.share)
    rows = min(shape.group, plan.round_up_coarsely(math.ceil(needed * room)))
  width = plan.halve_to_fit(shape.width, min(shape.width, math.ceil(need.prompt * PROMPT_ROOM)))
  prompt_tokens = math.ceil(max(1, need.prompt_tokens) * PROMPT_ROOM)
  tokens = math.ceil(max(1, need.tokens) * room)
  return shape.settled(Program(width, prompt_tokens, rows, row_width, tokens))


def choose(programs: list[Program], need: Need, shape: Shape, most: int) -> Program:
  """Returns the program for a batch, and appends it to `programs` if it is new.

  Args:
    programs: those made so far.
    need: of the batch.
    shape: of all batches.
    most: bound on the number of programs, at least 1.
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
      # First-fit is not optimal: wider rows could be more.
      new = new if holds(new, need, shape) else shape.whole
    elif new.cost >= best.cost:
      return best
  programs.append(new)
  return new


class Sizes:
  """Holds the sizes of the programs of a run's sampler and learner.

  Args:
    most: bound on the programs of each of the two; 0: every batch has its own sizes.
    layout: the learner's.
    width: of the longest allowed prompt.
    microbatches: into which the learner cuts a batch.
  """

  def __init__(self, most: int, layout: Layout, width: int, microbatches: int):
    self.most, self.layout, self.width, self.microbatches = most, layout, width, microbatches
    self.sampler: list[Program] = []
    self.begun: list[Program] = []  # of the sampler, for samples that have begun
    self.learner: list[Program] = []

  def fresh(self) -> "Sizes":
    """Returns sizes with the same bound, and no program yet."""
    return Sizes(self.most, self.layout, self.width, self.microbatches)

  def for_sampler(self, prompts: HostPrompts, layout: Layout) -> tuple[HostPrompts, int | None]:
    """Returns the prompts in the sampler's width, and the size of its lists of their tokens.

    `layout` is the sampler's.
    """
    if not self.most:
      prompts = plan.trim(prompts)
      return prompts, plan.prompt_list_size(prompts, layout)
    shards = layout.size("prompt")
    shape = Shape(len(prompts.lengths) // shards, self.width, 0, 0, 1, False)
    tokens = plan.most_tokens(prompts.lengths[:, None], shards, 1)
    no_completions = np.zeros((len(prompts.lengths), 0), np.int32)
    need = Need(int(prompts.lengths.max()), tokens, 0, no_completions)
    chosen = choose(self.sampler, need, shape, self.most)
    size = list_size(chosen.prompt_tokens, shape.prompts * chosen.width)
    return plan.to_width(prompts, chosen.width), size

  def for_learner(self, rollouts: HostRollouts) -> tuple[HostRollouts, Packing]:
    """Returns the rollouts with prompts in the learner's width, and their packing."""
    if not self.most:
      return rollouts, plan.pack(rollouts, self.layout, self.microbatches)
    return self._for_groups(self.learner, rollouts, self.layout, self.microbatches, self.most)

  def for_begun(
    self, rollouts: HostRollouts, layout: Layout, most: int = BEGUN, longest: int = 0
  ) -> tuple[HostRollouts, Packing]:
    """Returns samples that have begun with prompts in the sampler's width, and their packing.

    Args:
      rollouts: the tokens so far, and their lengths.
      layout: the sampler's.
      most: bounds the programs, BEGUN or CARRIED.
      longest: tokens of a prompt that the width has to hold besides.
    """
    bound = 1 if self.most == 1 else most
    return self._for_groups(self.begun, rollouts, layout, 1, bound, longest)

  def _for_groups(
    self,
    programs: list[Program],
    rollouts: HostRollouts,
    layout: Layout,
    microbatches: int,
    most: int,
    longest: int = 0,
  ) -> tuple[HostRollouts, Packing]:
    """Returns rollouts and packing for one of at most `most` programs; it may be new."""
    (n_prompts, group, length), lengths = rollouts.tokens.shape, rollouts.lengths
    shards, samples = layout.size("prompt"), layout.shards("sample", group)
    share = layout.platform != "tpu"  # as in `plan.pack`
    shape = Shape(
      n_prompts // (shards * microbatches),
      self.width,
      group // samples,
      length,
      samples,
      share,
    )
    need = Need(
      max(longest, int(rollouts.prompts.lengths.max())),
      plan.most_tokens(rollouts.prompts.lengths[:, None], shards, microbatches),
      plan.most_tokens(lengths, shards, microbatches, samples),
      lengths,
    )
    chosen = choose(programs, need, shape, most)
    token_index = None
    if (chosen.rows, chosen.row_width) != (shape.group, shape.length):
      token_index = plan.lay_rows(lengths, length, chosen.rows, chosen.row_width, samples, share)
    rollouts = dataclasses.replace(rollouts, prompts=plan.to_width(rollouts.prompts, chosen.width))
    return rollouts, Packing(
      token_index,
      list_size(chosen.tokens, shape.prompts * chosen.rows * chosen.row_width),
      list_size(chosen.prompt_tokens, shape.prompts * chosen.width),
    )

  def _topology(self) -> list[str | int]:
    """Returns the topology for which the saved sizes are valid."""
    return [
      self.layout.platform,
      self.layout.size("prompt"),
      self.layout.size("sample"),
      self.microbatches,
    ]

  def get_state(self) -> Json:
    """Returns the programs made so far, as JSON."""
    return {
      "of": self._topology(),
      "sampler": list(map(list, self.sampler)),
      "begun": list(map(list, self.begun)),
      "learner": list(map(list, self.learner)),
    }

  def set_state(self, state: Json) -> None:
    """Restores the programs of `get_state`, unless the mesh or the microbatches have changed."""
    if state.get("of") == self._topology():
      self.sampler = [Program(*sizes) for sizes in state["sampler"]]
      self.begun = [Program(*sizes) for sizes in state.get("begun", [])]
      self.learner = [Program(*sizes) for sizes in state["learner"]]


def list_size(tokens: int, places: int) -> int | None:
  """Returns the size of a list, None where the program has a rectangle of `places` instead."""
  return tokens if tokens < places else None
