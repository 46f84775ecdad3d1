"""Compares cuDNN's attention with scores written out, and the sampler with the learner, on a GPU.

Run with JAX_PLATFORMS=cuda; elsewhere it is skipped.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from grpo_jax.learning import forward
from grpo_jax.models import attention
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.decoder import Decoder, DecoderConfig
from grpo_jax.packing import plan
from grpo_jax.sampling import rollouts, sampler

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs JAX_PLATFORMS=cuda")
P, R, LP, T = 2, 3, 200, 300  # prompts, rows of each, and their tokens: no multiples of a block
K, M, D = 2, 4, 64  # key/value heads, query heads for each of them, head_dim
LENGTHS = np.array([77, LP], np.int32)
# Two completions in a row, and in the last row one with padding: a token sees its own alone.
SEGMENTS = np.broadcast_to(np.where(np.arange(T) < 140, 0, 1), (P, R, T)).copy()
SEGMENTS[:, 2] = np.where(np.arange(T) < 250, 2, -1)
OFFSETS = np.broadcast_to(np.where(np.arange(T) < 140, np.arange(T), np.arange(T) - 140), (P, R, T))
SPECS = [AttentionSpec(), AttentionSpec(window=50), AttentionSpec(scale=0.3)]


def layout_of_gpu():
  layout = tiny.layout()
  assert layout.platform == "gpu"
  return layout


def inputs(dtype):
  rng = np.random.default_rng(0)
  shapes = ((P, R, T, K, M, D), (P, R, T, K, D), (P, R, T, K, D), (P, LP, K, D), (P, LP, K, D))
  return [jnp.asarray(rng.normal(size=shape), jnp.bfloat16).astype(dtype) for shape in shapes]


def with_gradients(f, args):
  """Returns f(*args) and the gradients of a fixed mixture of it on real tokens, in float32."""
  out = jax.eval_shape(f, *args)
  weight = np.random.default_rng(1).normal(size=out.shape).astype(np.float32)
  if weight.ndim == 6:
    weight *= (SEGMENTS >= 0)[..., None, None, None]

  @jax.jit
  def both(*args):
    value, pull = jax.vjp(lambda *x: f(*x).astype(jnp.float32), *args)
    return value * (weight != 0), pull(jnp.asarray(weight))

  return jax.tree.map(lambda x: np.asarray(x, np.float32), jax.tree.leaves(both(*args)))


def assert_like_written_out(f, exact, rounded):
  """Asserts that cuDNN's values and gradients of bfloat16 arrays are those of the same in float32."""
  assert attention.fits_flash(layout_of_gpu(), AttentionSpec(), rounded[0])
  assert not attention.fits_flash(layout_of_gpu(), AttentionSpec(), exact[0])
  got, want = with_gradients(f, rounded), with_gradients(f, exact)
  assert len(got) == 1 + len(exact)
  for x, y in zip(got, want):
    assert np.isfinite(x).all()
    assert np.linalg.norm(x - y) < 1e-2 * np.linalg.norm(y)


@pytest.mark.parametrize("spec", SPECS)
def test_flash_attention_of_packed_rows_is_the_scores_written_out(spec):
  def of_group(*x):
    return attention.group_attention(layout_of_gpu(), spec, *x, LENGTHS, SEGMENTS, OFFSETS)

  assert_like_written_out(of_group, inputs("float32"), inputs("bfloat16"))


@pytest.mark.parametrize("spec", SPECS)
def test_flash_attention_of_prompts_is_the_scores_written_out(spec):
  def of_prompts(*x):
    return attention.causal_attention(layout_of_gpu(), spec, *x)

  exact, rounded = ([x[:, 0] for x in inputs(dtype)[:3]] for dtype in ("float32", "bfloat16"))
  assert_like_written_out(of_prompts, exact, rounded)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-4), ("bfloat16", 0.2)])
def test_the_learner_gives_sampled_tokens_the_sampler_s_log_probs(dtype, most):
  shape = DecoderConfig(
    vocab=512, width=256, layers=4, heads=4, kv_heads=2, head_dim=64, mlp=512, qk_norm=True
  )
  decoder = Decoder(shape, layout_of_gpu(), dtype=dtype)
  params = jax.jit(decoder.init)(jax.random.key(0))
  params["embed"]["weight"] *= 4  # logits with a deviation of about 1
  cfg = tiny.section("sampler", group=8, max_length=64, dtype=dtype, cache_dtype=dtype)
  prompts = tiny.prompts()
  run = sampler.make_sampler(decoder, cfg, tiny.STOP)
  sampled, _ = run(params, rollouts.to_device(decoder.layout, prompts), jax.random.key(1))
  sampled = rollouts.to_host(sampled)
  packing = plan.pack(sampled, decoder.layout, 1)
  on_device = rollouts.to_device(decoder.layout, (sampled, packing))
  stats = jax.jit(
    lambda params, r, packing: forward.logprobs(
      decoder, params, r.prompts, r.tokens, r.lengths, packing, temperature=1.0, chunk=256
    )
  )(params, *on_device)
  real = np.arange(64) < sampled.lengths[..., None]
  difference = np.abs(np.asarray(stats.logprobs) - sampled.sampler_logprobs)[real]
  print(dtype, "largest", difference.max(), "mean", difference.mean())
  assert real.sum() > 200
  assert difference.mean() < most / 8 and difference.max() < most
