"""The one way to log-probs, entropies and values of completions."""

import jax.numpy as jnp

from grpo_jax.models import heads
from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.ops.logprobs import logprobs_and_entropy
from grpo_jax.packing.lists import group_lists
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.rows import completions_to_rows, rows_to_completions
from grpo_jax.types import Array, Prompts


def predictors(first: Array, hidden: Array, offsets: Array) -> Array:
  """Returns the hidden state that predicts each token, `[P, R, T, D]`: the one-token shift.

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
  """Returns log-probs of completions and entropies of what they were drawn from.

  Args:
    decoder, params: the policy, or any tree of its structure.
    prompts: `[P, Lp]`.
    tokens, lengths: `[P, G, L]`, `[P, G]`.
    packing: made by `packing.plan.pack`; `Packing()` computes one row a completion, padding included.
    temperature: the one that the completions were sampled at.
    chunk: tokens whose logits exist at a time.

  Returns:
    log-probs and entropies, both `[P, G, L]` float32; padding holds numbers without meaning.
  """
  _, group, length = tokens.shape
  rows = completions_to_rows(tokens, lengths, packing)
  lists = group_lists(decoder.layout, prompts, rows, packing)
  first, hidden = decoder.forward(params, prompts, rows, lists)
  hidden = lists.rows_to_list(predictors(first, hidden, rows.offsets))  # [A, B, N, D], as the layers computed them
  hidden = decoder.layout.constrain(hidden, "prompt", "sample", None, None)
  unembed = decoder.unembed(params).astype(hidden.dtype)  # as the sampler has it
  targets, cap = lists.rows_to_list(rows.tokens), decoder.config.logit_soft_cap
  out = logprobs_and_entropy(hidden, unembed, targets, temperature=temperature, chunk=chunk, soft_cap=cap)
  return tuple(rows_to_completions(lists.list_to_rows(x), packing, group, length) for x in out)


def values(
  decoder: Decoder, critic: Params, prompts: Prompts, tokens: Array, lengths: Array, packing: Packing
) -> Array:
  """Returns the critic's value before each token, `[P, G, L]` float32 (shifted as the log-probs are).

  Args:
    critic: a parameter tree of the decoder and a "value_head" (`heads.init_scalar`).
    others: as for `logprobs`.
  """
  _, group, length = tokens.shape
  rows = completions_to_rows(tokens, lengths, packing)
  lists = group_lists(decoder.layout, prompts, rows, packing)
  first, hidden = decoder.forward(critic, prompts, rows, lists)
  out = heads.scalar(critic["value_head"], predictors(first, hidden, rows.offsets))
  return rows_to_completions(out, packing, group, length)
