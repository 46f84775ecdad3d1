"""The kernels of GPUs and TPUs against scores written out: values and gradients, what sees what,
and that they lower.

splash attention runs interpreted here; cuDNN's does not run without a GPU, so that the function
around it is given JAX's own attention in its place, and its program is only made.
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

from grpo_jax.learning import forward
from grpo_jax.models import attention
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import rollouts, sampler

P, R, LP, K, M, D = 2, 3, 7, 2, 2, 16
T = 9  # kernels want multiples of 128
LENGTHS = jnp.array([3, LP])
NAMES = ("q", "k", "v", "prompt_k", "prompt_v")
PACKED = jnp.array([[[0] * 4 + [1] * 5, [2] * 9, [3] * 6 + [-1] * 3]] * P)
PACKED_OFFSETS = jnp.array(
  [[[0, 1, 2, 3, 0, 1, 2, 3, 4], list(range(9)), [0, 1, 2, 3, 4, 5, 0, 0, 0]]] * P
)
ALONE = jnp.zeros((P, R, T), jnp.int32)
ALONE_OFFSETS = jnp.broadcast_to(jnp.arange(T), (P, R, T))
FULL = AttentionSpec()
WINDOW = AttentionSpec(window=4)
EVERYTHING = AttentionSpec(window=5, soft_cap=2.0, scale=0.4)


@functools.cache
def inputs(dtype="float32"):
  rng = np.random.default_rng(0)
  shapes = ((P, R, T, K, M, D), (P, R, T, K, D), (P, R, T, K, D), (P, LP, K, D), (P, LP, K, D))
  return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def of_group(layout, packed=False, spec=FULL):
  segments, offsets = (PACKED, PACKED_OFFSETS) if packed else (ALONE, ALONE_OFFSETS)
  return lambda *x: attention.group_attention(layout, spec, *x, LENGTHS, segments, offsets)


def of_prompts(layout, spec=FULL):
  return lambda *x: attention.causal_attention(layout, spec, *x)


def with_gradients(f, args):
  """f(*args), and the gradients of a fixed mixture of it."""
  weight = np.random.default_rng(1).normal(size=args[0].shape).astype(np.float32)

  def mixture(*x):
    return ((out := f(*x).astype(jnp.float32)) * weight).sum() + 0 * out.sum()

  return jax.jit(lambda *x: (f(*x), jax.grad(mixture, tuple(range(len(x))))(*x)))(*args)


def assert_close(got, want, atol):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), got, want)


@pytest.fixture
def interpreted(monkeypatch):
  monkeypatch.setattr(attention, "splash", functools.partial(attention.splash, interpret=True))


@pytest.fixture
def stand_in(monkeypatch):
  """JAX's attention where cuDNN's is asked for, in any dtype; not a number where a query sees no
  key.
  """
  own = jax.nn.dot_product_attention

  def instead(q, k, v, *, mask, scale, is_causal, implementation):
    assert implementation == "cudnn"
    assert q.shape[1] % 128 == k.shape[1] % 128 == 0
    out = own(q, k, v, mask=mask, scale=scale, is_causal=is_causal, implementation="xla")
    if is_causal:
      return out
    # cuDNN's gradient does not bear it either
    return out * jnp.where(mask.any(-1)[:, 0, :, None, None], 1.0, jnp.nan)

  monkeypatch.setattr(jax.nn, "dot_product_attention", instead)
  monkeypatch.setattr(
    attention, "fits_flash", lambda layout, spec, q: layout.platform == "gpu" and not spec.soft_cap
  )


@functools.cache
def written_out(which, packed=False, spec=FULL):
  layout = tiny.layout()
  f = of_group(layout, packed, spec) if which == "group" else of_prompts(layout, spec)
  return jax.device_get(with_gradients(f, inputs()[: 5 if which == "group" else 3]))


def by_loops(spec, packed, q, k, v, prompt_k, prompt_v):
  """`group_attention` a query and a head at a time, what it sees by its position; numpy."""
  out, d = np.zeros(q.shape), q.shape[-1]
  segments, offsets = (PACKED, PACKED_OFFSETS) if packed else (ALONE, ALONE_OFFSETS)
  for p, r, t, head, m in np.ndindex(q.shape[:-1]):
    n, here = int(LENGTHS[p]), int(LENGTHS[p]) + int(offsets[p, r, t])
    seen = [(j, prompt_k[p, j, head], prompt_v[p, j, head]) for j in range(n)]
    same = [j for j in range(t + 1) if segments[p, r, j] == segments[p, r, t]]
    seen += [(here - (t - j), k[p, r, j, head], v[p, r, j, head]) for j in same]
    seen = [
      (key, value)
      for position, key, value in seen
      if not spec.window or here - position < spec.window
    ]
    scores = np.array([q[p, r, t, head, m] @ key for key, _ in seen]) * (spec.scale or d**-0.5)
    scores = spec.soft_cap * np.tanh(scores / spec.soft_cap) if spec.soft_cap else scores
    weights = np.exp(scores - scores.max())
    out[p, r, t, head, m] = weights @ np.array([value for _, value in seen]) / weights.sum()
  return out


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("spec", [FULL, WINDOW, EVERYTHING])
def test_scores_written_out_are_those_of_each_token_by_itself(spec, packed):
  """Prompts of 3 and 7 tokens in a width of 7: a window that goes by places in place of positions
  sees other keys.
  """
  got, _ = written_out("group", packed, spec)
  want = by_loops(spec, packed, *(np.asarray(x, np.float64) for x in inputs()))
  real = PACKED >= 0 if packed else ALONE >= 0
  np.testing.assert_allclose(got[real], want[real], atol=1e-5)


@pytest.mark.parametrize(
  "mesh, spec",
  [
    (tiny.ONE, FULL),
    ((2, 1, 1, 2), FULL),
    ((1, 1, 1, 4), FULL),
    (tiny.ONE, WINDOW),
    ((2, 1, 1, 2), EVERYTHING),
  ],
)
def test_splash_attention_is_the_scores_written_out(interpreted, mesh, spec):
  """Also on shards of prompts and heads; four shards of two key/value heads cut their query heads."""
  got = with_gradients(of_group(tiny.on("tpu", mesh), spec=spec), inputs())
  assert_close(got, written_out("group", spec=spec), 1e-5)


@pytest.mark.parametrize("spec", [FULL, EVERYTHING])
def test_splash_attention_of_prompts(interpreted, spec):
  got = with_gradients(of_prompts(tiny.on("tpu"), spec), inputs()[:3])
  assert_close(got, written_out("prompts", spec=spec), 1e-5)


def test_splash_attention_with_a_window_that_leaves_whole_blocks_of_the_prompt_out(interpreted):
  """Nobody sees the first of three blocks of keys: their gradient is exactly 0, and nothing is not
  a number.
  """
  rng, lp, t, spec = np.random.default_rng(0), 300, 130, AttentionSpec(window=20)
  q, k, v = (
    jnp.asarray(rng.normal(size=(1, 1, t, *heads, 8)), jnp.float32)
    for heads in ((1, 1), (1,), (1,))
  )
  prompt_k, prompt_v = (jnp.asarray(rng.normal(size=(1, lp, 1, 8)), jnp.float32) for _ in range(2))
  rest = jnp.array([290]), jnp.zeros((1, 1, t), jnp.int32), jnp.arange(t)[None, None]

  def run(layout):
    return with_gradients(
      lambda *x: attention.group_attention(layout, spec, *x, *rest), (q, k, v, prompt_k, prompt_v)
    )

  got, want = run(tiny.on("tpu")), run(tiny.layout())
  assert_close(got, want, 1e-5)
  of_prompt_k = np.asarray(got[1][3])
  assert (
    not of_prompt_k[0, :270].any()
    and of_prompt_k[0, 272:290].any()
    and not of_prompt_k[0, 290:].any()
  )


@pytest.mark.parametrize(
  "mesh, spec", [(tiny.ONE, FULL), ((2, 1, 1, 2), FULL), (tiny.ONE, WINDOW), (tiny.ONE, EVERYTHING)]
)
def test_flash_attention_is_the_scores_written_out(stand_in, mesh, spec):
  """Packed rows, too. Where there is a soft cap it is the scores written out, on that platform as
  well.
  """
  got = with_gradients(of_group(tiny.on("gpu", mesh), True, spec), inputs())
  assert_close(got, written_out("group", True, spec), 1e-5)


@pytest.mark.parametrize("spec", [FULL, WINDOW, AttentionSpec(window=3, scale=0.4)])
def test_flash_attention_of_prompts(stand_in, spec):
  got = with_gradients(of_prompts(tiny.on("gpu"), spec), inputs()[:3])
  assert_close(got, written_out("prompts", spec=spec), 1e-5)


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
  q = jnp.zeros((1, 1, 1, width), dtype)
  assert attention.fits_flash(tiny.on(platform), WINDOW, q) is fits
  assert not attention.fits_flash(tiny.on(platform), EVERYTHING, q)


def program_for(platform, f, args):
  """The gradient's program, as text."""
  gradient = jax.jit(jax.grad(lambda *x: f(*x).astype(jnp.float32).sum(), tuple(range(len(args)))))
  unsafe = [
    export.DisabledSafetyCheck.custom_call(name) for name in ("__cudnn$fmhaScaleBiasSoftmax",)
  ]
  unsafe += [export.DisabledSafetyCheck.custom_call("__cudnn$fmhaScaleBiasSoftmaxBackward")]
  return export.export(gradient, platforms=[platform], disabled_checks=unsafe)(*args).mlir_module()


@pytest.mark.parametrize("spec", [FULL, EVERYTHING])
def test_splash_attention_lowers_for_a_tpu(spec):
  text = program_for("tpu", of_group(tiny.on("tpu"), spec=spec), inputs("bfloat16"))
  assert text.count("@tpu_custom_call") == 3  # forward, queries' gradient, keys' and values'


def test_flash_attention_lowers_for_a_gpu(monkeypatch):
  """As for an H100: what JAX refuses for cuDNN (shapes, dtypes), it refuses while it makes the
  program.
  """
  monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91100)
  monkeypatch.setattr(cudnn, "check_compute_capability", lambda wanted: float(wanted) <= 9.0)
  text = program_for("cuda", of_group(tiny.on("gpu"), True, WINDOW), inputs("bfloat16"))
  assert "@__cudnn$fmhaScaleBiasSoftmax(" in text
  assert "@__cudnn$fmhaScaleBiasSoftmaxBackward(" in text


@pytest.mark.parametrize(
  "mesh", [pytest.param(tiny.ONE, marks=[pytest.mark.slow, pytest.mark.long]), (1, 2, 2, 2)]
)
def test_samples_are_the_same_with_splash_attention(interpreted, mesh):
  """The sampler's prefill is inside a shard_map over prompts and samples; the kernel cuts what is
  left.
  """
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


@pytest.mark.slow
@pytest.mark.parametrize(
  "variant", [pytest.param("test_qwen3", marks=pytest.mark.long), "test_windows"]
)
def test_log_probs_are_the_same_with_splash_attention(interpreted, variant):
  """The whole decoder, layers scanned and recomputed, to log-probs and gradients."""
  rng = np.random.default_rng(0)
  lengths = rng.integers(1, tiny.L + 1, (tiny.P, tiny.G)).astype(np.int32)
  tokens = rng.integers(0, tiny.V, (tiny.P, tiny.G, tiny.L)).astype(np.int32)
  real = (np.arange(tiny.L) < lengths[..., None]) & (tiny.prompts().lengths > 0)[:, None, None]

  def run(layout):
    d = dataclasses.replace(tiny.decoder(variant, remat="block"), layout=layout)

    def of(params):
      return forward.logprobs(
        d,
        params,
        tiny.prompts(),
        jnp.asarray(tokens),
        jnp.asarray(lengths),
        Packing(),
        temperature=1.0,
        chunk=4,
      )[0]

    def loss(params):
      return jnp.where(real, of(params), 0.0).mean()

    return jax.jit(jax.value_and_grad(loss))(tiny.weights(variant))

  assert_close(run(tiny.on("tpu")), run(tiny.layout()), 1e-5)
