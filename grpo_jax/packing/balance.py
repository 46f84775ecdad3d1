"""Orders the groups of a batch so that shards and microbatches get about as many tokens.

All shards and microbatches run one program, whose lists hold the tokens of the largest of them
(plan.py). A shard or microbatch with fewer tokens computes padding in their place. Where dynamic
sampling could not fill the batch there are empty groups, which have no tokens at all.
"""

import heapq

import numpy as np

from grpo_jax.packing import plan


def order(tokens: np.ndarray, shards: int, minibatches: int, microbatches: int) -> np.ndarray:
  """Returns the group for each place of a batch, `[P]`; a group stays in its minibatch.

  Args:
    tokens: of each group, with its prompt, `[P]`.
    shards: of prompts; each has P / shards places that follow one another.
    minibatches: minibatch j has places j, j + minibatches, j + 2 minibatches ...
    microbatches: of all minibatches together, which are cut in the same way.
  """
  new = np.arange(len(tokens))
  for j in range(minibatches):
    members = np.arange(j, len(tokens), minibatches)
    new[members] = members[_order(tokens[members], shards, microbatches // minibatches)]
  before, after = (
    plan.most_tokens(x[:, None], shards, microbatches) for x in (tokens, tokens[new])
  )
  return new if after < before else np.arange(len(tokens))


def _order(tokens: np.ndarray, shards: int, microbatches: int) -> np.ndarray:
  """Returns the group for each place of a minibatch.

  The longest group comes first, and each goes to the shard and microbatch with the fewest tokens
  so far that has a place left (longest processing time first, Graham 1969).
  """
  cells = [(0, shard, microbatch) for shard in range(shards) for microbatch in range(microbatches)]
  held: dict[tuple[int, int], list[int]] = {cell[1:]: [] for cell in cells}
  room = len(tokens) // len(cells)
  for group in np.argsort(-tokens, kind="stable").tolist():
    total, shard, microbatch = heapq.heappop(cells)
    held[shard, microbatch].append(group)
    if len(held[shard, microbatch]) < room:
      heapq.heappush(cells, (total + int(tokens[group]), shard, microbatch))
  new = np.empty((shards, room, microbatches), np.int64)
  for (shard, microbatch), groups in held.items():
    new[shard, :, microbatch] = sorted(groups)
  return new.reshape(-1)
