"""Makes the next token of a hidden state: a sampler's settings and noise, the head, and the stops.

Shape letters: N samples of a shard, S slots, n tokens, D width, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.models.layers import linear
from grpo_jax.ops import decoding
from grpo_jax.types import Array


@dataclasses.dataclass(frozen=True)
class SamplerSetup:
  """Holds the model and the settings that all rollouts of one sampler share."""

  decoder: Decoder  # in sampler.dtype, its layers unrolled, for one shard of prompts and samples
  prompt_axes: tuple[str, ...]  # mesh axes over which prompts are sharded
  sample_axes: tuple[str, ...]  # mesh axes over which the samples of a prompt are sharded
  group: int  # samples of a prompt, over all shards
  carry: int  # groups of a shard that a rollout may leave incomplete, see begun.Carried
  length: int  # largest number of tokens of a completion
  slots: int  # largest number of slots of a shard; 0: one for each sample
  cache_dtype: str
  blocks: tuple[tuple[int, int], ...]  # (first column, end) of each block of the cache's ring
  temperature: float
  truncation: decoding.Truncation
  stop_tokens: tuple[int, ...]


class Noise(NamedTuple):
  """One uniform number for each token of each sample."""

  keys: Array  # [N] keys

  @classmethod
  def for_samples(cls, key: Array, prompts: Array, group: Array) -> "Noise":
    """Returns the noise of all pairs of global indices of prompts `[P]` and samples `[G]`."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return cls(jax.vmap(fold, (0, None))(fold(key, prompts), group).reshape(-1))

  def at(self, sample: Array, position: Array) -> Array:
    """Returns uniform numbers `[S]` for token `position` (`[S]`) of `sample` (`[S]`)."""
    draw = jax.vmap(lambda key, t: jax.random.uniform(jax.random.fold_in(key, t)))
    return draw(self.keys[sample], position)


def head(decoder: Decoder, params: Params, hidden: Array) -> Array:
  """Returns logits `[n, V]` float32 of hidden states `[n, D]`, gathered over the tensor axis.

  Sampling over a sharded vocabulary would permute between chips. A permutation waits for all chips,
  but each shard of prompts leaves the loop when it is done.
  """
  logits = decoder.layout.constrain(
    linear(decoder.unembed(params), hidden, jnp.float32), None, None
  )
  return decoding.soft_cap(logits, decoder.config.logit_soft_cap)


def sample_tokens(
  setup: SamplerSetup, logits: Array, uniforms: Array
) -> tuple[Array, Array, Array]:
  """Returns tokens, log-probs and truncated log-probs `[n]` of logits `[n, V]`, uniforms `[n]`."""
  return decoding.sample(
    logits,
    uniforms,
    temperature=setup.temperature,
    **setup.truncation._asdict(),
  )


def sample_in_parts(
  setup: SamplerSetup,
  logits_of: Callable[[Array], Array],
  noise: Noise,
  sample: Array,
  position: Array,
) -> tuple[Array, Array, Array]:
  """Returns tokens, log-probs and truncated log-probs `[N]` of samples, as many at once as slots.

  The logits of all samples of a large vocabulary are more than the rest of a rollout holds.

  Args:
    setup: its slots.
    logits_of: makes the logits `[n, V]` of samples `[n]`.
    noise: of all samples.
    sample: `[N]`.
    position: `[N]`, of the token.
  """
  n = sample.shape[0]
  size = min(setup.slots, n) or n

  def draw(part: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    return sample_tokens(setup, logits_of(part[0]), noise.at(*part))

  if size == n:
    return draw((sample, position))
  first, places = (jnp.pad(x, (0, -n % size)).reshape(-1, size) for x in (sample, position))
  token, logprob, truncated = (x.reshape(-1)[:n] for x in jax.lax.map(draw, (first, places)))
  return token, logprob, truncated


def stops(
  setup: SamplerSetup, forced_lengths: Array | None, token: Array, sample: Array, age: Array
) -> Array:
  """Returns whether a token ends its completion, bool.

  Args:
    setup: its stop tokens.
    forced_lengths: `[N]`, or None: stop tokens end completions.
    token: `[n]`.
    sample: `[n]`, the token's sample.
    age: `[n]`, number of tokens of that sample, this one included.
  """
  if forced_lengths is None:
    return jnp.isin(token, jnp.asarray(setup.stop_tokens or (-1,), jnp.int32))
  return age == forced_lengths[sample]


def follow_stop_texts(
  stop_table: Array | None, matched: Array | None, token: Array, stopped: Array
) -> tuple[Array | None, Array]:
  """Returns the states of the stop texts after a token, and whether it ends its completion.

  Args:
    stop_table: `[states, V]`; None: there are no stop texts.
    matched: `[n]`, the states before the token.
    token: `[n]`.
    stopped: `[n]` bool, whether it ends its completion by itself.
  """
  if stop_table is None or matched is None:
    return None, stopped
  matched = stop_table[matched, token]
  return matched, stopped | (matched == stop_table.shape[0])
