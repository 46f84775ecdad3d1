"""The kernels of GPUs and TPUs against scores written out: values and gradients, what sees what, and that they lower.

splash attention runs interpreted here; cuDNN's does not run without a GPU, so that the function around it is given
JAX's own attention in its place, and its program is only made.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax import export
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from grpo_jax import forward, rollouts, sampler
from grpo_jax.models import attention
from grpo_jax.types import Packing

P, R, LP, K, M, D = 2, 3, 7, 2, 2, 16
T = 9  # kernels want multiples of 128
LENGTHS = jnp.array([3, LP])
NAMES = ("q", "k", "v", "prompt_k", "prompt_v")
PACKED = jnp.array([[[0] * 4 + [1] * 5, [2] * 9, [3] * 6 + [-1] * 3]] * P)
ALONE = jnp.zeros((P, R, T), jnp.int32)


@functools.cache
def inputs(dtype="float32"):
  rng = np.random.default_rng(0)
  shapes = ((P, R, T, K, M, D), (P, R, T, K, D), (P, R, T, K, D), (P, LP, K, D), (P, LP, K, D))
  return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def of_group(layout, segments):
  return lambda *x: attention.group_attention(layout, *x, LENGTHS, segments)


def of_prompts(layout):
  return lambda *x: attention.causal_attention(layout, *x)


def with_gradients(f, args):
  """f(*args), and the gradients of a fixed mixture of it."""
  weight = np.random.default_rng(1).normal(size=args[0].shape).astype(np.float32)
  mixture = lambda *x: ((out := f(*x).astype(jnp.float32)) * weight).sum() + 0 * out.sum()
  return jax.jit(lambda *x: (f(*x), jax.grad(mixture, tuple(range(len(x))))(*x)))(*args)


def assert_close(got, want, atol):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), got, want)


@pytest.fixture
def interpreted(monkeypatch):
  monkeypatch.setattr(attention, "splash", functools.partial(attention.splash, interpret=True))


@pytest.fixture
def stand_in(monkeypatch):
  """JAX's attention where cuDNN's is asked for, in any dtype; not a number where a query sees no key."""
  own = jax.nn.dot_product_attention

  def instead(q, k, v, *, mask, is_causal, implementation):
    assert implementation == "cudnn"
    assert q.shape[1] % 128 == k.shape[1] % 128 == 0
    out = own(q, k, v, mask=mask, is_causal=is_causal, implementation="xla")
    if is_causal:
      return out
    return out * jnp.where(mask.any(-1)[:, 0, :, None, None], 1.0, jnp.nan)  # cuDNN's gradient does not bear it either

  monkeypatch.setattr(jax.nn, "dot_product_attention", instead)
  monkeypatch.setattr(attention, "fits_flash", lambda layout, q: layout.platform == "gpu")


@functools.cache
def written_out(which, packed=False):
  layout = tiny.layout()
  f = of_group(layout, PACKED if packed else ALONE) if which == "group" else of_prompts(layout)
  return jax.device_get(with_gradients(f, inputs()[: 5 if which == "group" else 3]))


@pytest.mark.parametrize("mesh", [tiny.ONE, (2, 1, 1, 2), (1, 1, 1, 4)])
def test_splash_attention_is_the_scores_written_out(interpreted, mesh):
  """Also on shards of prompts and heads; four shards of two key/value heads cut their query heads."""
  got = with_gradients(of_group(tiny.on("tpu", mesh), ALONE), inputs())
  assert_close(got, written_out("group"), 1e-5)


def test_splash_attention_of_prompts(interpreted):
  assert_close(with_gradients(of_prompts(tiny.on("tpu")), inputs()[:3]), written_out("prompts"), 1e-5)


@pytest.mark.parametrize("mesh", [tiny.ONE, (2, 1, 1, 2)])
def test_flash_attention_is_the_scores_written_out(stand_in, mesh):
  """Packed rows, too."""
  got = with_gradients(of_group(tiny.on("gpu", mesh), PACKED), inputs())
  assert_close(got, written_out("group", packed=True), 1e-5)


def test_flash_attention_of_prompts(stand_in):
  assert_close(with_gradients(of_prompts(tiny.on("gpu")), inputs()[:3]), written_out("prompts"), 1e-5)


@pytest.mark.parametrize(
  ("platform", "dtype", "width", "fits"),
  [
    ("gpu", "bfloat16", 64, True),
    ("gpu", "bfloat16", 128, True),
    ("gpu", "float32", 64, False),
    ("gpu", "bfloat16", 256, False),
    ("gpu", "bfloat16", 20, False),
    ("cpu", "bfloat16", 64, False),
  ],
)
def test_what_cudnn_has_a_kernel_for(platform, dtype, width, fits):
  assert attention.fits_flash(tiny.on(platform), jnp.zeros((1, 1, 1, width), dtype)) is fits


def program_for(platform, f, args):
  """The gradient's program, as text."""
  gradient = jax.jit(jax.grad(lambda *x: f(*x).astype(jnp.float32).sum(), tuple(range(len(args)))))
  unsafe = [export.DisabledSafetyCheck.custom_call(name) for name in ("__cudnn$fmhaScaleBiasSoftmax",)]
  unsafe += [export.DisabledSafetyCheck.custom_call("__cudnn$fmhaScaleBiasSoftmaxBackward")]
  return export.export(gradient, platforms=[platform], disabled_checks=unsafe)(*args).mlir_module()


def test_splash_attention_lowers_for_a_tpu():
  text = program_for("tpu", of_group(tiny.on("tpu"), ALONE), inputs("bfloat16"))
  assert text.count("@tpu_custom_call") == 3  # forward, queries' gradient, keys' and values'


def test_flash_attention_lowers_for_a_gpu(monkeypatch):
  """As for an H100: what JAX refuses for cuDNN (shapes, dtypes), it refuses while it makes the program."""
  monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91100)
  monkeypatch.setattr(cudnn, "check_compute_capability", lambda wanted: float(wanted) <= 9.0)
  text = program_for("cuda", of_group(tiny.on("gpu"), PACKED), inputs("bfloat16"))
  assert "@__cudnn$fmhaScaleBiasSoftmax(" in text
  assert "@__cudnn$fmhaScaleBiasSoftmaxBackward(" in text


@pytest.mark.parametrize("mesh", [tiny.ONE, (1, 2, 2, 2)])
def test_samples_are_the_same_with_splash_attention(interpreted, mesh):
  """The sampler's prefill is inside a shard_map over prompts and samples; the kernel cuts what is left."""
  decoder = dataclasses.replace(tiny.decoder(mesh=mesh), layout=tiny.on("tpu", mesh))
  cfg = tiny.section("sampler", group=tiny.G, max_length=tiny.L, temperature=0.7)
  run = sampler.make_sampler(decoder, cfg, tiny.STOP)
  on_device = rollouts.to_device(decoder.layout, tiny.prompts())
  got, _ = rollouts.to_host(run(tiny.params(mesh=mesh), on_device, jax.random.key(0)))
  want = tiny.sample()
  real = tiny.real(want)
  np.testing.assert_array_equal(got.lengths, want.lengths)
  np.testing.assert_array_equal(got.tokens[real], want.tokens[real])
  np.testing.assert_allclose(got.sampler_logprobs[real], want.sampler_logprobs[real], atol=2e-5)


def test_log_probs_are_the_same_with_splash_attention(interpreted):
  """The whole decoder, layers scanned and recomputed, to log-probs and gradients."""
  rng = np.random.default_rng(0)
  lengths = rng.integers(1, tiny.L + 1, (tiny.P, tiny.G)).astype(np.int32)
  tokens = rng.integers(0, tiny.V, (tiny.P, tiny.G, tiny.L)).astype(np.int32)
  real = (np.arange(tiny.L) < lengths[..., None]) & (tiny.prompts().lengths > 0)[:, None, None]

  def run(layout):
    d = dataclasses.replace(tiny.decoder(remat="block"), layout=layout)
    of = lambda params: forward.logprobs(
      d, params, tiny.prompts(), jnp.asarray(tokens), jnp.asarray(lengths), Packing(), temperature=1.0, chunk=4
    )[0]
    loss = lambda params: jnp.where(real, of(params), 0.0).mean()
    return jax.jit(jax.value_and_grad(loss))(tiny.weights())

  assert_close(run(tiny.on("tpu")), run(tiny.layout()), 1e-5)
