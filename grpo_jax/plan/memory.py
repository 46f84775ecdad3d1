"""Splits the memory of one device into parts, from shapes and from what the compiler reports."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.aliases import Tree
from grpo_jax.plan import programs
from grpo_jax.plan.facts import Facts
from grpo_jax.plan.programs import Workload
from grpo_jax.sampling import sampler
from grpo_jax.sampling.decode_loop import SamplerSetup


class Parts(NamedTuple):
  """Bytes of one device while a program runs: (part, bytes) rows, and their sum."""

  rows: tuple[tuple[str, int], ...]
  total: int


def shard_bytes(tree: Tree) -> int:
  """Returns the bytes on one device of a tree of shapes with shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * jnp.dtype(x.dtype).itemsize
    for x in jax.tree.leaves(tree)
  )


def state_bytes(workload: Workload) -> dict[str, int]:
  """Returns the bytes that stay on a device: parameters, optimizer, reference."""
  state = workload.learner.abstract()
  parameters, total = shard_bytes(state.params), shard_bytes(state)
  rows = {"parameters (float32)": parameters, "optimizer": total - parameters}
  base = programs.base_params(workload.learner)
  if base is not None:
    rows[f"base of adapters ({jax.tree.leaves(base)[0].dtype})"] = shard_bytes(base)
  if (reference := programs.own_reference(workload)) is not None:
    rows[f"reference ({jax.tree.leaves(reference)[0].dtype})"] = shard_bytes(reference)
  return rows


def judge_bytes(workload: Workload) -> dict[str, int]:
  """Returns the bytes of the parameters of reward models, which no compiled program includes.

  The program that scores is not compiled for a plan, so that its other memory is unknown.
  """
  if not workload.judges:
    return {}
  return {"reward models (float32 parameters alone)": shard_bytes(workload.judges)}


def learning_parts(workload: Workload, learn: Facts, code: int) -> Parts:
  """Returns the parts during the update; `code` is that of all programs, which stay loaded."""
  state, judges = state_bytes(workload), judge_bytes(workload)
  if learn.needs:
    return _too_large(state | judges, learn, code, sum(judges.values()))
  rows = {
    **state,
    **judges,
    "batch": learn.arguments - sum(state.values()),
    "gradients, activations, other temporaries": learn.temporaries,
    "results that are not in place": learn.outputs - learn.aliased,
    "programs": code,
  }
  return Parts(tuple(rows.items()), sum(rows.values()))


def weights_parts(workload: Workload, weights: Facts, code: int) -> Parts:
  """Returns the parts while the weights are prepared for decoding, with those that always stay."""
  state = state_bytes(workload) | judge_bytes(workload)
  if weights.needs:
    return _too_large(state, weights, code, sum(state.values()))
  rows = {
    **state,
    f"weights for decoding ({_weights_dtype(workload)})": weights.outputs,
    "temporaries": weights.temporaries,
    "programs": code,
  }
  return Parts(tuple(rows.items()), sum(rows.values()))


def sampling_parts(workload: Workload, sample: Facts, code: int) -> Parts:
  """Returns the parts while the sampler runs, with those that always stay."""
  state = state_bytes(workload) | judge_bytes(workload)
  if sample.needs:
    return _too_large(state, sample, code, sum(state.values()))
  ready, cache = decode_weight_bytes(workload), cache_bytes(workload)
  rows = {
    **state,
    f"weights for decoding ({_weights_dtype(workload)})": ready,
    "prompts": sample.arguments - ready,
    f"keys and values ({workload.experiment.sampler.cache_dtype})": cache,
    "other temporaries": sample.temporaries - cache,
    "results": sample.outputs - sample.aliased,
    "programs": code,
  }
  return Parts(tuple(rows.items()), sum(rows.values()))


def _weights_dtype(workload: Workload) -> str:
  s = workload.experiment.sampler
  return (
    s.dtype if s.weights_dtype == "same" else f"{s.dtype}, matrices of layers in {s.weights_dtype}"
  )


def _too_large(state: dict[str, int], facts: Facts, code: int, unseen: int) -> Parts:
  """Returns the parts for a program that does not fit; `unseen` bytes are not part of it."""
  rows = {
    **state,
    f"what the compiler asks for, the {facts.name} program alone": facts.needs,
    "programs": code,
  }
  return Parts(tuple(rows.items()), max(facts.needs + unseen, sum(state.values())) + code)


def decode_setup(workload: Workload) -> SamplerSetup:
  """Returns the sampler's settings on one shard of prompts and samples."""
  return sampler.make_setup(workload.decoder, workload.experiment.sampler, (0,))


def decode_weight_bytes(workload: Workload) -> int:
  """Returns the bytes of the decoding weights on one device."""
  return shard_bytes(workload.weights)


class Slots(NamedTuple):
  """Work of one shard of prompts and samples while decoding, on one device."""

  samples: int
  slots: int  # samples that are decoded at a time
  prompts: int
  kv: int  # bytes of the keys and values of one token, in all layers


def shard_slots(workload: Workload) -> Slots:
  """Returns the work of one shard while decoding."""
  experiment, layout, setup = workload.experiment, workload.sample.layout, decode_setup(workload)
  # beside those of a step, those that are carried
  prompts = (experiment.data.prompts + experiment.sampler.carry) // layout.size("prompt")
  samples = prompts * experiment.sampler.group // layout.size("sample")
  c, inside = setup.decoder.config, setup.decoder.layout
  heads = c.kv_heads // inside.shards("kv_heads", c.kv_heads)
  dtype = setup.cache_dtype
  # and its float32 scale
  vector = c.head_dim * jnp.dtype(dtype).itemsize + (4 if dtype == "int8" else 0)
  return Slots(
    samples, min(samples, setup.slots or samples), prompts, 2 * c.layers * heads * vector
  )


def cache_bytes(workload: Workload) -> int:
  """Returns the bytes of keys and values of prompts, their copies in slots, and completions."""
  experiment, s = workload.experiment, shard_slots(workload)
  copies = s.slots if s.slots < s.samples else 0
  tokens = (
    s.prompts + copies
  ) * experiment.data.max_prompt_length + s.slots * experiment.sampler.max_length
  return tokens * s.kv
