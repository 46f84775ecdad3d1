"""The one way to log-probs, entropies and values of completions."""

import jax.numpy as jnp

from grpo_jax.models import heads
from grpo_jax.models.decoder import Decoder, Params, from_shards, prompt_places, row_shards, to_shards
from grpo_jax.ops import packing as rooms
from grpo_jax.ops.logprobs import logprobs_and_entropy
from grpo_jax.ops.packing import Rows
from grpo_jax.types import Array, Packing, Prompts


def lay(decoder: Decoder, prompts: Prompts, tokens: Array, lengths: Array, packing: Packing) -> Rows:
  """Completions as rows, and where `packing` has sizes the real tokens of both as lists for each shard."""
  rows = rooms.lay(tokens, lengths, packing)
  a, b = row_shards(decoder.layout, rows)
  p, lp = prompts.tokens.shape
  of_prompts = jnp.broadcast_to(prompts.lengths.reshape(a, 1, -1), (a, b, p // a))
  rows = rows._replace(prompts_at=prompt_places(of_prompts, lp, packing.prompt_size))
  if packing.size is None:
    return rows
  real = rows.segments.reshape(p, b, -1) >= 0
  return rows._replace(at=rooms.places(to_shards(real, a), packing.size))


def predictors(first: Array, hidden: Array, offsets: Array) -> Array:
  """The one-token shift: the state that predicts each token.

  Args:
    first: `[P, D]`, the prompts' last hidden states.
    hidden: `[P, R, T, D]`, the states at the completion tokens.
    offsets: `[P, R, T]`, position of each token in its completion.
  """
  before = jnp.concatenate([hidden[:, :, :1], hidden[:, :, :-1]], axis=2)
  return jnp.where((offsets == 0)[..., None], first[:, None, None], before)


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
) -> tuple[Array, Array]:
  """Log-probs of completions and entropies of what they were drawn from.

  Args:
    decoder, params: the policy, or any tree of its structure.
    prompts: `[P, Lp]`.
    tokens, lengths: `[P, G, L]`, `[P, G]`.
    packing: of `rollouts.pack`; `Packing()` computes one row a completion, padding included.
    temperature: the one that the completions were sampled at.
    chunk: tokens whose logits exist at a time.

  Returns:
    log-probs and entropies, both `[P, G, L]` float32; padding holds numbers without meaning.
  """
  p, g, length = tokens.shape
  rows = lay(decoder, prompts, tokens, lengths, packing)
  a, b = row_shards(decoder.layout, rows)
  flat = lambda x: rooms.flatten(to_shards(x.reshape(p, b, -1, *x.shape[3:]), a), rows.at)
  first, hidden = decoder.forward(params, prompts, rows)
  hidden = decoder.layout.constrain(flat(predictors(first, hidden, rows.offsets)), "prompt", "sample", None, None)
  unembed = decoder.unembed(params).astype(hidden.dtype)  # as the sampler has it
  out = logprobs_and_entropy(hidden, unembed, flat(rows.tokens), temperature=temperature, chunk=chunk)
  unflat = lambda x: from_shards(rooms.unflatten(x, rows.at), p).reshape(rows.tokens.shape)
  return tuple(rooms.unlay(unflat(x), packing, g, length) for x in out)


def values(
  decoder: Decoder, critic: Params, prompts: Prompts, tokens: Array, lengths: Array, packing: Packing
) -> Array:
  """The critic's value before each token, `[P, G, L]` float32 (shifted as the log-probs are).

  Args:
    critic: a parameter tree of the decoder and a "value_head" (`heads.init_scalar`).
  """
  _, g, length = tokens.shape
  rows = lay(decoder, prompts, tokens, lengths, packing)
  first, hidden = decoder.forward(critic, prompts, rows)
  out = heads.scalar(critic["value_head"], predictors(first, hidden, rows.offsets))
  return rooms.unlay(out, packing, g, length)
