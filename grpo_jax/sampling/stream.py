"""Samples a rollout in parts, each read on the host while the next one decodes.

    sampler.py    | prefill | decode ...................................... |
    here          | prefill | part | part | part | part | part | part | part |
    the host                       read   read   read   read   read   read   read

One program prefills, and one decodes a part, some number of steps or what is left of them. The
next part is asked for before the host reads the last one, so that no device waits for the host. The
noise of a token is a function of (key, prompt, sample, position), and slots are refilled in the
same order, so that the completions are those of `Sampler`, on any mesh.

Shape letters: P prompts, G samples of each, L completion tokens.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from grpo_jax.distributed import hosts
from grpo_jax.models.decoder import Params
from grpo_jax.sampling import decode_loop, meshes, sampler
from grpo_jax.sampling.begun import Begun, Carried
from grpo_jax.sampling.decode_loop import Queue, Slots
from grpo_jax.sampling.meshes import Request
from grpo_jax.sampling.next_token import SamplerSetup
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.types import Array, Prompts, Rollouts

Tree = TypeVar("Tree")  # a pytree of arrays

LEAST = 16  # steps in the first part of a rollout that is read for its finished completions
PARTS = 32  # that such a rollout has, if every sample has a slot, besides some short ones at first


class Seen(NamedTuple):
  """Holds what has been sampled so far, numpy; samples of other processes are zeros."""

  tokens: np.ndarray  # [P, G, L] int32
  lengths: np.ndarray  # [P, G] int32, number of tokens sampled
  ended: np.ndarray  # [P, G] int32, STOPPED or TRUNCATED; meaningless before a sample is finished
  finished: np.ndarray  # [P, G] bool, whether it gets no more tokens


class Part(NamedTuple):
  """Holds the state of a rollout after one of its parts."""

  seen: Seen
  # of the whole rollout, as `Sampler` returns them, after its last part
  result: tuple[Rollouts, dict[str, Array]] | None


def begin(
  setup: SamplerSetup, prompt_size: int | None, params: Params, request: Request
) -> tuple[Queue, Slots]:
  """Returns one shard's queue, and its slots before the first step; all arrays are [1, ...]."""
  queue = sampler.prefill(setup, params, request, prompt_size)
  return _one_of(queue), _one_of(decode_loop.start(setup, queue))


def advance(
  setup: SamplerSetup, until: Array, params: Params, queue: Queue, slots: Slots
) -> tuple[Slots, dict[str, Array], dict[str, Array], Array]:
  """Returns one shard's slots after `until` (`[]`) steps in all, or when nothing is left to do.

  Args:
    setup: of the sampler.
    until: `[]` int32.
    params: of `sampler.decode_params`.
    queue, slots: of `begin`, or of the part before; arrays `[1, ...]`.

  Returns:
    The slots; the completions and counts of `sampler.completions`, with "finished" `[P, G]`; and
    `[1]` bool, whether more parts follow.
  """
  (queue, slots) = jax.tree.map(lambda x: x[0], (queue, slots))
  slots = decode_loop.decode_until_done(setup, params, queue, slots, until)
  found, counts = sampler.completions(queue, slots)
  finished = decode_loop.has_ended(setup, queue, slots).reshape(found["lengths"].shape)
  left = decode_loop.unfinished(setup, queue, slots)[None]
  return _one_of(slots), found | {"finished": finished}, counts, left


def _one_of(tree: Tree) -> Tree:
  """Returns arrays `[1, ...]`, which are one shard's of `[shards, ...]`."""
  return jax.tree.map(lambda x: x[None], tree)


def begin_all(
  setup: SamplerSetup,
  params: Params,
  prompts: Prompts,
  key: Array,
  stop_table: Array | None,
  begun: Begun | None,
  carried: Carried | None,
  prompt_size: int | None,
) -> tuple[Queue, Slots]:
  """Returns the queues and slots `[shards, ...]` of a rollout, see `Sampler.__call__`."""
  specs = meshes.specs(setup)
  run = meshes.on_mesh(
    setup,
    functools.partial(begin, setup, prompt_size),
    (specs.whole, specs.request),
    specs.shard,
  )
  return run(params, sampler.make_request(setup, prompts, key, None, stop_table, begun, carried))


def advance_all(
  setup: SamplerSetup, params: Params, queue: Queue, slots: Slots, until: Array
) -> tuple[Slots, dict[str, Array], dict[str, Array], Array]:
  """Returns what `advance` does, of all shards, and whether any has something left, `[]` bool."""
  specs = meshes.specs(setup)
  run = meshes.on_mesh(
    setup,
    functools.partial(advance, setup),
    (specs.whole, specs.whole, specs.shard, specs.shard),
    (specs.shard, specs.samples, specs.shard, specs.shard),
  )
  slots, found, counts, left = run(until, params, queue, slots)
  return slots, found, counts, left.any()


class _Programs(NamedTuple):
  """Jitted functions of a setup, see `begin_all` and `advance_all`."""

  begin: jax.stages.Wrapped
  advance: jax.stages.Wrapped


@functools.lru_cache(maxsize=8)
def _jitted(setup: SamplerSetup) -> _Programs:
  """Returns the programs of a setup, whose caches stay in place from one part to the next."""
  return _Programs(
    jax.jit(functools.partial(begin_all, setup), static_argnames="prompt_size"),
    jax.jit(functools.partial(advance_all, setup), donate_argnames="slots"),
  )


def parts(
  sample: Sampler,
  ready: Params,
  prompts: Prompts,
  key: Array,
  every: int,
  begun: Begun | None = None,
  carried: Carried | None = None,
  prompt_size: int | None = None,
  most: int = 0,
) -> Iterator[Part]:
  """Yields the state of a rollout after its first tokens, after each part, and at the end.

  Args:
    sample: made by `sampler.make_sampler`.
    ready: `sample.ready(params)`.
    prompts: `[P, Lp]`, placed by `sample.layout`; so are the other arrays.
    key: of this rollout.
    every: steps of the first part, at least 1.
    begun, carried, prompt_size: see `Sampler.__call__`.
    most: steps up to which each part has twice those of the one before; 0: all parts are alike.
  """
  programs, until = _jitted(sample.setup), 0
  queue, slots = programs.begin(
    ready, prompts, key, sample.stop_table, begun, carried, prompt_size=prompt_size
  )
  slots, found, counts, left = programs.advance(ready, queue, slots=slots, until=until)
  is_last = False
  while not is_last:
    until, every = until + every, max(every, min(2 * every, most))
    shown, counted, goes_on = found, counts, left
    slots, found, counts, left = programs.advance(ready, queue, slots=slots, until=until)
    is_last = not bool(goes_on)  # waits for the part that is shown
    seen = Seen(*(hosts.share(shown[name])[0] for name in Seen._fields))
    del shown["finished"]
    yield Part(seen, sampler.joined(prompts, shown, counted) if is_last else None)


def watched(
  sample: Sampler,
  ready: Params,
  prompts: Prompts,
  key: Array,
  see: Callable[[Seen], None],
  begun: Begun | None = None,
  carried: Carried | None = None,
  prompt_size: int | None = None,
) -> tuple[Rollouts, dict[str, Array]]:
  """Returns what `Sampler.__call__` does, and shows the samples to `see` after each part.

  The parts grow, so that turns that are short beside the longest completion are seen early, too.
  The other arguments are those of `parts`.
  """
  most = -(-sample.setup.length // PARTS)
  for part in parts(sample, ready, prompts, key, LEAST, begun, carried, prompt_size, most):
    see(part.seen)
  assert part.result is not None  # the last one
  return part.result
