"""Runs a rollout in each shard of a mesh: its prompts and samples, which wait for no other shard.

Inside a shard only the tensor axis is left. Whole weights are read there.

Shape letters: P prompts and G samples of each, of one shard or of all; L completion tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
from jax.sharding import PartitionSpec

from grpo_jax.sampling.begun import Begun
from grpo_jax.sampling.next_token import SamplerSetup
from grpo_jax.types import Array, Prompts

Args = ParamSpec("Args")
Result = TypeVar("Result")


class Request(NamedTuple):
  """Inputs of one rollout, or of one shard of it."""

  prompts: Prompts  # [P, Lp]
  prompt_ids: Array  # [P] int32, a number of each prompt, which its noise depends on
  sample_ids: Array  # [G] int32, index of each sample in the whole group
  key: Array  # of this rollout
  forced_lengths: Array | None  # [P, G] int32, lengths in place of stop tokens; None: stop tokens
  stop_table: Array | None  # [states, V] uint16, see tokenizer/stop_texts.py; None: no stop texts
  begun: Begun[Array] | None = None  # the samples' tokens so far; None: no sample has begun
  due: Array | None = None  # [P] bool, see begun.Carried; None: all prompts are


class Specs(NamedTuple):
  """Says how arrays are sharded over the axes of prompts and samples."""

  request: Request
  samples: PartitionSpec  # [P, G, ...]
  shard: PartitionSpec  # [shards, ...]
  whole: PartitionSpec


def specs(setup: SamplerSetup) -> Specs:
  """Returns how the arrays of a rollout are sharded."""
  prompt, sample = PartitionSpec(setup.prompt_axes), PartitionSpec(setup.sample_axes)
  both = PartitionSpec(setup.prompt_axes, setup.sample_axes)
  whole = PartitionSpec()
  request: Any = [prompt, prompt, sample, whole, both, whole, both, prompt]
  shard = PartitionSpec(setup.prompt_axes + setup.sample_axes)
  return Specs(Request._make(request), both, shard, whole)


def on_mesh(
  setup: SamplerSetup, run: Callable[Args, Result], in_specs: tuple, out_specs: Any
) -> Callable[Args, Result]:
  """Returns a function of one shard as a function of the whole batch, which runs in every shard."""
  mesh = setup.decoder.layout.mesh
  if mesh.size == 1:
    return run
  return jax.shard_map(
    run,
    mesh=mesh,
    in_specs=in_specs,
    out_specs=out_specs,
    axis_names=set(setup.prompt_axes + setup.sample_axes),
    check_vma=False,
  )
