"""The one way to log-probs, entropies and values of completions."""

import jax.numpy as jnp

from grpo_jax.models import heads
from grpo_jax.models.decoder import Decoder, Params, Rows
from grpo_jax.ops.logprobs import logprobs_and_entropy
from grpo_jax.types import Array, Prompts


def rectangle(tokens: Array, lengths: Array) -> Rows:
  """One completion a row: tokens `[P, G, L]`, lengths `[P, G]`. Right padding needs no mask under causal attention."""
  return Rows(tokens, jnp.zeros_like(tokens), jnp.broadcast_to(jnp.arange(tokens.shape[-1]), tokens.shape))


def pack(tokens: Array, take: Array) -> Rows:
  """Completions of a group laid into fewer rows.

  Args:
    tokens: `[P, G, L]`.
    take: `[P, R, T]` int32, index in G * L of the token at each place; -1 on padding (`rollouts.packing`).
  """
  p, g, length = tokens.shape
  flat = jnp.maximum(take, 0).reshape(p, -1)
  laid = jnp.take_along_axis(tokens.reshape(p, g * length), flat, axis=1).reshape(take.shape)
  return Rows(laid, jnp.where(take < 0, -1, take // length), jnp.where(take < 0, 0, take % length))


def unpack(x: Array, take: Array, group: int, length: int) -> Array:
  """x `[P, R, T]` in the places of `take` -> `[P, G, L]`, 0 where there is no token."""
  p = take.shape[0]
  places = jnp.where(take < 0, group * length, take).reshape(p, -1)
  out = jnp.zeros((p, group * length + 1), x.dtype)
  return out.at[jnp.arange(p)[:, None], places].set(x.reshape(p, -1))[:, :-1].reshape(p, group, length)


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
  take: Array | None,
  *,
  temperature: float,
  chunk: int,
) -> tuple[Array, Array]:
  """Log-probs of completions and entropies of what they were drawn from.

  Args:
    decoder, params: the policy, or any tree of its structure.
    prompts: `[P, Lp]`.
    tokens, lengths: `[P, G, L]`, `[P, G]`.
    take: packing of the completions into rows, or None: one a row.
    temperature: the one that the completions were sampled at.
    chunk: tokens whose logits exist at a time.

  Returns:
    log-probs and entropies, both `[P, G, L]` float32; padding holds numbers without meaning.
  """
  _, g, length = tokens.shape
  rows = rectangle(tokens, lengths) if take is None else pack(tokens, take)
  first, hidden = decoder.forward(params, prompts, rows)
  hidden = decoder.layout.constrain(predictors(first, hidden, rows.offsets), "prompt", "sample", None, None)
  out = logprobs_and_entropy(hidden, decoder.unembed(params), rows.tokens, temperature=temperature, chunk=chunk)
  return out if take is None else tuple(unpack(x, take, g, length) for x in out)


def values(
  decoder: Decoder, critic: Params, prompts: Prompts, tokens: Array, lengths: Array, take: Array | None
) -> Array:
  """The critic's value before each token, `[P, G, L]` float32 (shifted as the log-probs are).

  Args:
    critic: a parameter tree of the decoder and a "value_head" (`heads.init_value_head`).
  """
  _, g, length = tokens.shape
  rows = rectangle(tokens, lengths) if take is None else pack(tokens, take)
  first, hidden = decoder.forward(critic, prompts, rows)
  out = heads.scalar(critic["value_head"], predictors(first, hidden, rows.offsets))
  return out if take is None else unpack(out, take, g, length)
