"""Computes log-probs, entropies, values and scores of completions.

On a mesh each shard of prompts and samples goes through the model by itself, in a `jax.shard_map`
over the axes that shard prompts, samples and `embed` (`by_shard`). Only weights, which are gathered
layer by layer, and their gradients, which are summed and scattered, are sent over those axes. The
`tensor` axis is left to the compiler.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from grpo_jax.distributed.sharding import Layout, batch_axes
from grpo_jax.models import heads
from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.models.shards import spec_over
from grpo_jax.ops.distillation import Divergence
from grpo_jax.ops.logprobs import TeacherHead, TokenStats, token_stats
from grpo_jax.packing.lists import GroupLists, group_lists
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.rows import Rows, completions_to_rows, rows_to_completions, values_to_rows
from grpo_jax.types import Array, Prompts

T = TypeVar("T")  # arrays [P, G, L, ...]
TEACHER = "teacher"  # name of a part of a tree: the teacher's unembedding, as the decoder has it


class Batch(NamedTuple):
  """Prompts with their completions; in the body of `by_shard`, those of one shard."""

  prompts: Prompts  # [P, Lp]
  tokens: Array  # [P, G, L]
  lengths: Array  # [P, G]
  packing: Packing
  teacher: Array | None = None  # [P, G, L, D], the teacher's hidden states, see `hidden`


class States(NamedTuple):
  """Hidden states of a batch, and the indices that lead back to its completions."""

  first: Array  # [P, D], the prompts' last ones
  hidden: Array  # [P, R, T, D], those at the completion tokens
  rows: Rows
  lists: GroupLists


def _is_one_shard(layout: Layout) -> bool:
  """Returns whether all prompts, samples and weights are in one shard, but for the tensor axis.

  XLA cannot partition the gradient of a `jax.shard_map` that shards nothing.
  """
  return all(layout.mesh.shape[axis] == 1 for axis in layout.shard_axes)


def by_shard(
  decoder: Decoder,
  compute: Callable[..., T],
  params: Params,
  batch: Batch,
  teacher: Decoder | None = None,
) -> T:
  """Returns `compute(decoder, params, batch)`, computed shard by shard: arrays `[P, G, L, ...]`.

  Args:
    decoder: on the whole mesh.
    compute: called with the decoder of a shard, and its shards of the parameters and the batch.
    params: the decoder's tree, and perhaps heads, which are replicated.
    batch: of the whole mesh; axes that do not divide are replicated.
    teacher: of `params[TEACHER]`, if that is there.
  """
  decoder, layout = decoder.for_params(params), decoder.layout
  if _is_one_shard(layout):
    return compute(decoder, params, batch)
  axes = layout.shard_axes

  def cuts_of(decoder: Decoder) -> Params:
    return jax.tree.map(lambda spec: spec_over(spec, axes), decoder.specs(layout))

  cuts = cuts_of(decoder)
  if TEACHER in params:
    of_teacher = cuts_of(teacher or decoder)
    cuts |= {TEACHER: {name: of_teacher[name] for name in params[TEACHER]}}
  inside = decoder.in_shard()

  def spec(x: Array, names: tuple) -> PartitionSpec:
    return layout.spec(names, x.shape)

  return jax.shard_map(
    functools.partial(compute, inside),
    mesh=layout.mesh,
    in_specs=(
      {name: cuts.get(name, PartitionSpec()) for name in params},
      jax.tree.map(spec, batch, batch_axes(batch)),
    ),
    out_specs=layout.spec(("prompt", "sample"), batch.lengths.shape),
    axis_names=set(axes),
    check_vma=False,
  )(params, batch)


def predictors(first: Array, hidden: Array, offsets: Array) -> Array:
  """Returns the hidden state that predicts each token, `[P, R, T, D]`: the one-token shift.

  Args:
    first: `[P, D]`, the prompts' last hidden states.
    hidden: `[P, R, T, D]`, the states at the completion tokens.
    offsets: `[P, R, T]`, position of each token in its completion.
  """
  before = jnp.concatenate([hidden[:, :, :1], hidden[:, :, :-1]], axis=2)
  return jnp.where((offsets == 0)[..., None], first[:, None, None], before)


def _states(decoder: Decoder, params: Params, batch: Batch) -> States:
  """Returns the hidden states of one shard's batch; `params`: see `Decoder.forward`."""
  rows = completions_to_rows(batch.tokens, batch.lengths, batch.packing)
  lists = group_lists(batch.prompts, rows, batch.packing)
  return States(*decoder.forward(params, batch.prompts, rows, lists), rows, lists)


def logprobs(
  decoder: Decoder,
  params: Params,
  prompts: Prompts,
  tokens: Array,
  lengths: Array,
  packing: Packing,
  *,
  temperature: float,
  chunk: int,
  teacher: Array | None = None,
  teacher_decoder: Decoder | None = None,
  divergence: Divergence | None = None,
) -> TokenStats:
  """Returns log-probs of completions, and entropies and sums of squares of their distributions.

  With a teacher also how far they are from its distributions.

  Args:
    decoder, params: the policy, or any tree of its structure.
    prompts: `[P, Lp]`.
    tokens, lengths: `[P, G, L]`, `[P, G]`.
    packing: by `packing.plan.pack`; `Packing()` computes one row a completion, with its padding.
    temperature: at which the completions were sampled.
    chunk: tokens whose logits exist at a time, on one device.
    teacher: its states for the same tokens, of `hidden`; then `params[TEACHER]` is `head` of its
      tree.
    teacher_decoder: of that tree; None: the policy's.
    divergence: how the distributions are compared.

  Returns:
    TokenStats of `[P, G, L]` float32, without meaning on padding.
  """
  of_teacher = teacher_decoder or decoder
  inside = of_teacher if _is_one_shard(decoder.layout) else of_teacher.in_shard()
  compute = functools.partial(_logprobs, temperature, chunk, divergence, inside)
  batch = Batch(prompts, tokens, lengths, packing, teacher)
  return by_shard(decoder, compute, params, batch, of_teacher)


def _logprobs(
  temperature: float,
  chunk: int,
  divergence: Divergence | None,
  teacher_decoder: Decoder,
  decoder: Decoder,
  params: Params,
  batch: Batch,
) -> TokenStats:
  params = decoder.whole(params)
  first, hidden, rows, lists = _states(decoder, params, batch)
  hidden = lists.rows.to_list(predictors(first, hidden, rows.offsets))  # [N, D]
  targets = lists.rows.to_list(rows.tokens)  # [N]
  unembed = decoder.unembed(params).astype(hidden.dtype)  # as the sampler has it
  teacher = None
  if batch.teacher is not None:
    states = lists.rows.to_list(values_to_rows(batch.teacher, batch.packing))  # [N, D]
    head = teacher_decoder.unembed(teacher_decoder.whole(params[TEACHER]))
    cap = teacher_decoder.config.logit_soft_cap
    teacher = TeacherHead(states, head.astype(states.dtype), cap)
  stats = token_stats(
    hidden,
    unembed,
    targets,
    temperature=temperature,
    chunk=chunk,
    soft_cap=decoder.config.logit_soft_cap,
    teacher=teacher,
    divergence=divergence,
    # Shards of a vocabulary sum in each chunk: `launch.plan` has to know how many there are.
    count=lists.rows.count if decoder.layout.size("vocab") == 1 else None,
  )

  def to_completions(x: Array) -> Array:
    return rows_to_completions(lists.rows.from_list(x), batch.packing, *batch.tokens.shape[1:])

  return jax.tree.map(to_completions, stats)


def hidden(
  decoder: Decoder,
  params: Params,
  prompts: Prompts,
  tokens: Array,
  lengths: Array,
  packing: Packing,
) -> Array:
  """Returns the hidden states that predict each token, `[P, G, L, D]`, in the decoder's dtype.

  Arguments are those of `logprobs`. Padding has no meaning.
  """
  return by_shard(decoder, _hidden, params, Batch(prompts, tokens, lengths, packing))


def head(decoder: Decoder, params: Params) -> Params:
  """Returns the part of a tree that makes logits of hidden states."""
  name = "embed" if decoder.config.tied else "unembed"
  return {name: params[name]}


def _hidden(decoder: Decoder, params: Params, batch: Batch) -> Array:
  first, hidden, rows, _ = _states(decoder, decoder.whole(params), batch)
  states = predictors(first, hidden, rows.offsets)
  return rows_to_completions(states, batch.packing, *batch.tokens.shape[1:])


def values(
  decoder: Decoder,
  critic: Params,
  prompts: Prompts,
  tokens: Array,
  lengths: Array,
  packing: Packing,
) -> Array:
  """Returns the critic's value before each token, `[P, G, L]` float32, shifted like log-probs.

  Args:
    critic: a parameter tree of the decoder and a "value_head" (`heads.init_scalar`).
    others: as for `logprobs`.
  """
  return by_shard(decoder, _values, critic, Batch(prompts, tokens, lengths, packing))


def _values(decoder: Decoder, critic: Params, batch: Batch) -> Array:
  first, hidden, rows, _ = _states(decoder, decoder.whole(critic), batch)
  values = heads.scalar(critic["value_head"], predictors(first, hidden, rows.offsets))
  return rows_to_completions(values, batch.packing, *batch.tokens.shape[1:])


def scores(
  decoder: Decoder,
  params: Params,
  prompts: Prompts,
  tokens: Array,
  lengths: Array,
  packing: Packing,
) -> Array:
  """Returns a reward model's score after each token, `[P, G, L]` float32, without a shift.

  Args:
    decoder: with a head that scores (`DecoderConfig.scores`).
    others: as for `logprobs`.
  """
  return by_shard(decoder, _scores, params, Batch(prompts, tokens, lengths, packing))


def _scores(decoder: Decoder, params: Params, batch: Batch) -> Array:
  _, hidden, _, _ = _states(decoder, decoder.whole(params), batch)
  scores = heads.score(params["score"], hidden)
  return rows_to_completions(scores, batch.packing, *batch.tokens.shape[1:])
