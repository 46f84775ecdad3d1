"""Orders the groups of a batch so that shards and microbatches get about as many tokens.

All shards and microbatches run one program, whose lists hold the tokens of the largest of them
(plan.py). What the others have less is padding, and an empty group in each place that dynamic
sampling could not fill is nothing but padding.
"""

import heapq

import numpy as np


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
  better = _most(tokens[new], shards, microbatches) < _most(tokens, shards, microbatches)
  return new if better else np.arange(len(tokens))


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


def _most(tokens: np.ndarray, shards: int, microbatches: int) -> int:
  """Returns the most tokens of a shard in a microbatch."""
  return int(tokens.reshape(shards, -1, microbatches).sum(axis=1).max())
