"""The attention of slots against a softmax that is written out, over a history that each slot keeps
in a list.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.decoder import KV
from grpo_jax.sampling import kv_cache
from grpo_jax.sampling.kv_cache import LayerCache

S, K, M, D, LP, L = 6, 2, 3, 4, 5, 6
PROMPTS = np.array([5, 1, 3, 4, 0, 2], np.int32)  # lengths; the fifth only fills the batch
FILLED = {
  0: (0, 1, 2),
  1: (3,),
  3: (4, 5),
  4: (1,),
  6: (0,),
  9: (2, 3),
}  # step: slots that start a sample before it
STEPS = 15

SPECS = {
  "plain": AttentionSpec(),
  "window 1": AttentionSpec(window=1),
  "window 3": AttentionSpec(window=3),
  "window of all": AttentionSpec(window=LP + L),
  "soft cap": AttentionSpec(soft_cap=0.7),
  "scale": AttentionSpec(scale=1.3),
  "all": AttentionSpec(window=4, soft_cap=0.7, scale=1.3),
}


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
  """What a cache of that dtype holds of vectors `[..., D]`."""
  if dtype == "float32":
    return x
  scale = np.abs(x).max(-1, keepdims=True) / 127
  return np.round(x / scale) * scale


def written_out(spec: AttentionSpec, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
  """The last token of one sequence: q `[K * M, D]`, k and v `[T, K, D]`."""
  t, out = len(k), []
  for head, query in enumerate(q):
    scores = k[:, head // M] @ query * (1 / math.sqrt(D) if spec.scale is None else spec.scale)
    if spec.soft_cap:
      scores = spec.soft_cap * np.tanh(scores / spec.soft_cap)
    seen = np.arange(t) > t - 1 - (spec.window or t)
    weights = np.where(seen, np.exp(scores - scores.max()), 0.0)
    out.append(weights @ v[:, head // M] / weights.sum())
  return np.stack(out)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def step(spec, blocks, block, cache, at, lengths, age, q, k, v):
  behind = (at - jnp.arange(L)) % L
  masks = kv_cache.visible(spec, lengths, age, LP, behind, blocks)
  return kv_cache.attend_slots(spec, cache, block, at % L - blocks[block][0], masks, q, k, v)


@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", SPECS)
def test_slots_attend_as_written_out(name, dtype, shared):
  """Ages are uneven, slots are filled again, with `shared` slots of a prompt or a copy of any
  prompt in each.
  """
  spec, rng, blocks = SPECS[name], np.random.default_rng(0), ((0, 2), (2, L))

  def draw(*shape):
    return rng.normal(size=shape).astype(np.float32)

  prompt_k, prompt_v = draw(len(PROMPTS), LP, K, D), draw(len(PROMPTS), LP, K, D)
  (stored,) = kv_cache.store_prompts(
    KV(jnp.asarray(prompt_k)[None], jnp.asarray(prompt_v)[None]), dtype
  )
  own = (
    jax.tree.map(lambda x: x[: S // shared], stored)
    if shared > 1
    else kv_cache.empty(S, K, D, LP, dtype)
  )
  cache = LayerCache(own, [kv_cache.empty(S, K, D, end - begin, dtype) for begin, end in blocks])
  prompt, history, seen = np.repeat(np.arange(S), shared)[:S], [[] for _ in range(S)], 0
  for at in range(STEPS):
    for slot in FILLED.get(at, ()):
      history[slot] = []
      if shared == 1:
        prompt[slot] = (at + 2 * slot) % len(PROMPTS)
        cache = kv_cache.copy_prompt(cache, stored, jnp.int32(prompt[slot]), jnp.int32(slot))
    q, k, v = draw(S, K * M, D), draw(S, K, D), draw(S, K, D)
    working = [slot for slot in range(S) if any(slot in FILLED.get(t, ()) for t in range(at + 1))]
    working = [slot for slot in working if len(history[slot]) < L]  # the others are free
    for slot in working:
      history[slot].append((k[slot], v[slot]))
    age = np.array([max(1, len(x)) for x in history], np.int32)
    got, cache = step(spec, blocks, int(at % L >= 2), cache, at, PROMPTS[prompt], age, q, k, v)
    for slot in working:
      n = PROMPTS[prompt[slot]]
      keys, values = (
        rounded(
          np.concatenate([of_prompts[prompt[slot], :n], [pair[i] for pair in history[slot]]]), dtype
        )
        for i, of_prompts in enumerate((prompt_k, prompt_v))
      )
      np.testing.assert_allclose(got[slot], written_out(spec, q[slot], keys, values), atol=2e-5)
      seen += 1
  assert seen > 40 and max(map(len, history)) == L


def test_a_cache_of_int8_holds_127_steps_of_the_largest_number():
  stored = kv_cache.store(jnp.array([[1.0, -2.0], [0.0, 0.0]]), "int8", 1)
  np.testing.assert_array_equal(stored.x, [[64, -127], [0, 0]])
  np.testing.assert_allclose(stored.scale, [[2 / 127], [0]], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_an_empty_cache_is_a_stored_cache_of_zeros_that_nothing_is_computed_for(dtype):
  """XLA evaluates what is computed of constants when it compiles: 20 s for the int8 cache of one
  layer of Qwen3 0.6B with 128 slots of 256 columns.
  """
  want = kv_cache.store(jnp.zeros((S, K, D, L)), dtype, 2)
  got = kv_cache.empty(S, K, D, L, dtype)
  assert jax.tree.structure(got.keys) == jax.tree.structure(want)
  for x, y in zip(jax.tree.leaves(got.keys), jax.tree.leaves(want)):
    assert (x.dtype, x.shape) == (y.dtype, y.shape) and not x.any() and not y.any()
  program = jax.make_jaxpr(lambda: kv_cache.empty(S, K, D, L, dtype))()
  assert {e.primitive.name for e in program.eqns} == {"broadcast_in_dim"}


def test_blocks_of_a_ring():
  assert kv_cache.ring_blocks(8, 2) == ((0, 8),)
  assert kv_cache.ring_blocks(128, 8) == ((0, 32), (32, 64), (64, 96), (96, 128))
  assert len(kv_cache.ring_blocks(512, 28)) == 2  # many layers: few copies of them are compiled
