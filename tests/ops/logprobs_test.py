import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.errors import SettingError
from grpo_jax.ops import distillation
from grpo_jax.ops.distillation import Divergence
from grpo_jax.ops.logprobs import TeacherHead, token_stats


def _inputs(shape=(7,), width=6, vocab=11, dtype=jnp.float32, seed=0):
  keys = jax.random.split(jax.random.key(seed), 4)
  hidden = jax.random.normal(keys[0], (*shape, width), dtype)
  unembed = jax.random.normal(keys[1], (vocab, width), dtype)
  targets = jax.random.randint(keys[2], shape, 0, vocab)
  weights = jax.random.normal(keys[3], (3, *shape))  # of the log-prob, entropy, sum of squares
  return hidden, unembed, targets, weights


def _dense(hidden, unembed, targets, temperature=1.0, soft_cap=0.0):
  dtype = jnp.promote_types(hidden.dtype, jnp.float32)
  z = jnp.einsum("...d,vd->...v", hidden, unembed, preferred_element_type=dtype)
  z = soft_cap * jnp.tanh(z / soft_cap) if soft_cap else z
  logp = jax.nn.log_softmax(z / temperature)
  logprob = jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0]
  return logprob, -jnp.sum(jnp.exp(logp) * logp, axis=-1), jnp.sum(jnp.exp(2 * logp), axis=-1)


def _grads(function, hidden, unembed, targets, weights):
  def loss(hidden, unembed):
    stats = [x for x in function(hidden, unembed, targets) if x is not None]
    read = zip(weights, stats, strict=True)
    return sum(jnp.sum(w * x) for w, x in read if w is not None), stats

  grads, out = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(hidden, unembed)
  return *out, *grads


# what a loss reads of the log-prob, the entropy and the sum of squares
READ = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)]


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize(
  "shape,chunk,temperature,soft_cap",
  [
    ((7,), 3, 1.0, 0.0),  # does not divide
    ((8,), 4, 0.7, 0.0),  # divides
    ((7,), 1, 1.0, 1.5),
    ((2, 3, 5), 13, 0.7, 1.5),  # two tokens of each row at a time
    ((2, 3, 5), 4, 1.0, 0.0),  # fewer than there are rows
    ((2, 3, 5), 100, 1.0, 0.0),
    ((5, 1), 2, 1.0, 0.0),
    ((), 2, 2.0, 0.0),
  ],
)
def test_equals_dense_logits_and_their_gradient(shape, chunk, temperature, soft_cap, read):
  *inputs, weights = _inputs(shape)
  inputs.append([w if there else None for w, there in zip(weights, read)])
  ours = functools.partial(token_stats, temperature=temperature, soft_cap=soft_cap, chunk=chunk)
  dense = functools.partial(_dense, temperature=temperature, soft_cap=soft_cap)
  for got, want in zip(_grads(ours, *inputs), _grads(dense, *inputs), strict=True):
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_gradient_equals_finite_differences_in_float64():
  with jax.enable_x64(True):
    hidden, unembed, targets, weights = _inputs((5,), dtype=jnp.float64)

    def loss(hidden, unembed):
      stats = token_stats(hidden, unembed, targets, chunk=2, temperature=0.8, soft_cap=3.0)[:3]
      return sum(jnp.sum(w * x) for w, x in zip(weights, stats, strict=True))

    def dense(hidden, unembed):
      stats = _dense(hidden, unembed, targets, 0.8, 3.0)
      return sum(jnp.sum(w * x) for w, x in zip(weights, stats, strict=True))

    grads = jax.grad(loss, argnums=(0, 1))(hidden, unembed)
    for i, grad in enumerate(grads):
      for index in [(0, 0), (3, 5), (4, 2)]:
        step = jnp.zeros_like(grad).at[index].set(1e-5)
        there, back = [
          dense(*((hidden + s, unembed) if i == 0 else (hidden, unembed + s)))
          for s in (step, -step)
        ]
        np.testing.assert_allclose(grad[index], (there - back) / 2e-5, atol=1e-6)


def test_the_entropys_gradient_is_the_mean_of_that_of_its_sampled_form():
  """Weighs each token by its probability. Of -(log p + H) log p, the factor held, the mean gradient
  is the entropy's; of -log p alone it is 0.
  """
  hidden, unembed, _, _ = _inputs((1,))
  every = jnp.arange(len(unembed))

  def stats(hidden):
    return token_stats(jnp.repeat(hidden, len(every), axis=0), unembed, every, chunk=4)

  def mean_gradient(factor):
    return jax.grad(lambda h: jnp.sum(p * factor * stats(h).logprobs))(hidden)

  logprobs, entropy, *_ = jax.lax.stop_gradient(stats(hidden))
  p = jnp.exp(logprobs)
  own = jax.grad(lambda h: stats(h).entropy[0])(hidden)
  assert jnp.abs(own).max() > 0.1
  np.testing.assert_allclose(mean_gradient(-(logprobs + entropy)), own, atol=1e-6)
  np.testing.assert_allclose(mean_gradient(-1.0), 0, atol=1e-6)


TEACHERS = [
  Divergence("forward"),
  Divergence("reverse", top_k=4, top_k_of="teacher"),
  Divergence("jensen_shannon", beta=0.3, top_k=4),
]


def _teacher(shape, width=3, vocab=11):
  keys = jax.random.split(jax.random.key(9))
  hidden = jax.random.normal(keys[0], (*shape, width))
  return TeacherHead(hidden, jax.random.normal(keys[1], (vocab, width)))


def _dense_divergence(divergence, teacher, hidden, unembed, targets, temperature, soft_cap):
  """Returns the three statistics and the divergence of whole rows of logits."""

  def log_probs(hidden, unembed, cap):
    z = cap * jnp.tanh(jnp.einsum("...d,vd->...v", hidden, unembed) / cap)
    return jax.nn.log_softmax(z / temperature)

  stats = _dense(hidden, unembed, targets, temperature, soft_cap)
  return *stats, distillation.value(
    divergence, log_probs(hidden, unembed, soft_cap), log_probs(*teacher)
  )


@pytest.mark.parametrize("divergence", TEACHERS, ids=str)
@pytest.mark.parametrize("read", [(0, 0, 0, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("shape,chunk", [((7,), 3), ((2, 3, 5), 13), ((), 2)])
def test_divergence_equals_dense_logits_and_its_gradient(shape, chunk, read, divergence):
  *inputs, weights = _inputs(shape)
  weights = [*weights, jnp.cos(jnp.arange(weights[0].size)).reshape(shape)]
  inputs.append([w if there else None for w, there in zip(weights, read)])
  how = {"temperature": 0.7, "soft_cap": 1.5}
  teacher = _teacher(shape)._replace(soft_cap=2.5)
  ours = functools.partial(token_stats, chunk=chunk, teacher=teacher, divergence=divergence, **how)
  dense = functools.partial(_dense_divergence, divergence, teacher, **how)
  for got, want in zip(_grads(ours, *inputs), _grads(dense, *inputs), strict=True):
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_nothing_flows_to_the_teacher():
  hidden, unembed, targets, _ = _inputs()

  def divergence(*teacher):
    how = {"chunk": 3, "teacher": TeacherHead(*teacher), "divergence": Divergence("reverse")}
    return jnp.sum(token_stats(hidden, unembed, targets, **how).divergence)

  for gradient in jax.grad(divergence, argnums=(0, 1))(*_teacher((7,))[:2]):
    assert np.all(gradient == 0)


def test_a_teacher_of_another_vocabulary_is_refused():
  hidden, unembed, targets, _ = _inputs()
  with pytest.raises(ValueError, match="of the teacher"):
    token_stats(
      hidden, unembed, targets, chunk=3, teacher=_teacher((7,), vocab=12), divergence=TEACHERS[0]
    )


def test_huge_logits_stay_finite():
  hidden, unembed, targets, weights = _inputs((4,))
  out = _grads(
    functools.partial(token_stats, chunk=3), hidden * 1e4, unembed * 1e2, targets, weights
  )
  assert all(np.all(np.isfinite(x)) for x in out)
  assert np.all(out[0] <= 0) and np.all(out[1] >= 0)


def test_bfloat16_accumulates_in_float32():
  hidden, unembed, targets, weights = _inputs((64,), width=256, vocab=40, dtype=jnp.bfloat16)
  got = _grads(functools.partial(token_stats, chunk=2), hidden / 16, unembed, targets, weights)
  want = _grads(
    _dense, (hidden / 16).astype(jnp.float32), unembed.astype(jnp.float32), targets, weights
  )
  assert [x.dtype for x in got] == [jnp.float32] * 3 + [jnp.bfloat16] * 2
  for a, b in zip(got[:3], want[:3], strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)
  for a, b in zip(got[3:], want[3:], strict=True):
    assert np.max(np.abs(np.asarray(a, np.float32) - b)) < 0.01 * np.max(np.abs(b))


def test_a_token_without_cotangent_leaves_no_trace():
  hidden, unembed, targets, weights = _inputs((6,))
  ours = functools.partial(token_stats, chunk=4)
  weights = weights.at[:, 3:].set(0.0)
  *_, d_hidden, d_unembed = _grads(ours, hidden, unembed, targets, weights)
  *_, d_other = _grads(ours, hidden.at[3:].set(7.0), unembed, targets.at[3:].set(0), weights)
  assert np.all(d_hidden[3:] == 0)
  np.testing.assert_array_equal(d_unembed, d_other)


def test_temporary_memory_is_a_chunk_of_logits():
  chunk, vocab, width = 16, 4096, 8

  def temp(function, tokens):
    inputs = _inputs((tokens,), width, vocab)
    return (
      jax.jit(functools.partial(_grads, function))
      .lower(*inputs)
      .compile()
      .memory_analysis()
      .temp_size_in_bytes
    )

  ours = functools.partial(token_stats, chunk=chunk)
  small, large = temp(ours, 64), temp(ours, 512)
  # strided copies of hidden and its gradient, a few numbers a token
  per_token = 4 * (4 * width + 16)
  assert large - small <= (512 - 64) * per_token
  assert large <= 4 * (4 * chunk * vocab + 2 * vocab * width) + 512 * per_token
  assert temp(_dense, 512) > 512 * vocab * 4


@pytest.mark.parametrize("count,used", [(0, 0), (1, 3), (3, 3), (4, 6), (10, 10)])
@pytest.mark.parametrize("divergence", [None, TEACHERS[0]], ids=str)
def test_chunks_after_the_last_token_are_not_computed(divergence, count, used):
  """Puts NaN into chunks, of three tokens, that begin after the last token: none shows."""
  hidden, unembed, targets, weights = _inputs((10,))
  ours = functools.partial(token_stats, chunk=3)
  if divergence is not None:
    ours = functools.partial(ours, teacher=_teacher((10,)), divergence=divergence)
    weights = jnp.concatenate([weights, weights[:1]])
  weights = jnp.where(jnp.arange(10) < used, weights, 0.0)
  *want, d_hidden, d_unembed = _grads(ours, hidden, unembed, targets, weights)
  hidden = hidden.at[used:].set(jnp.nan)
  ours = functools.partial(ours, count=jnp.int32(count))
  *got, its_d_hidden, its_d_unembed = _grads(ours, hidden, unembed, targets, weights)
  for x, y in zip(got, want, strict=True):
    np.testing.assert_allclose(x[:used], y[:used], atol=1e-6)
    assert not x[used:].any()
  np.testing.assert_allclose(its_d_hidden, d_hidden, atol=1e-6)
  np.testing.assert_allclose(its_d_unembed, d_unembed, atol=1e-6)


def test_no_tokens():
  *stats, d_hidden, d_unembed = _grads(functools.partial(token_stats, chunk=4), *_inputs((2, 0)))
  assert [x.shape for x in stats] == [(2, 0)] * 3 and d_hidden.shape == (2, 0, 6)
  assert np.all(d_unembed == 0)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
@pytest.mark.parametrize("divergence", [None, *TEACHERS], ids=str)
def test_any_sharding_gives_the_same(divergence):
  mesh = jax.make_mesh((2, 2, 2), ("fsdp", "group", "tensor"), axis_types=(AxisType.Auto,) * 3)
  rows, head = P("fsdp", "group"), P("tensor", ("fsdp", "group"))
  inputs, teacher = _inputs((4, 2, 5), width=8, vocab=48), _teacher((4, 2, 5), 8, vocab=48)

  def local(hidden, unembed, targets, *teacher):  # 10 tokens a device
    if divergence is None:
      return token_stats(hidden, unembed, targets, chunk=4)
    return token_stats(
      hidden, unembed, targets, chunk=4, teacher=TeacherHead(*teacher), divergence=divergence
    )

  def place(x, spec):
    return jax.device_put(x, NamedSharding(mesh, spec))

  of_teacher = () if divergence is None else (place(teacher[0], rows), place(teacher[1], head))
  local_in_shards = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(rows, P(), rows, rows, P())[: 3 + len(of_teacher)],
    out_specs=rows,
    axis_names={"fsdp", "group"},
    check_vma=False,
  )

  def sharded(*inputs):
    return local_in_shards(*inputs, *of_teacher)

  def whole(*inputs):
    return local(*inputs, *teacher)

  weights = inputs[3] if divergence is None else jnp.concatenate([inputs[3], inputs[3][:1]])
  inputs = (*inputs[:3], weights)
  specs = (rows, head, rows, P(None, *rows))
  placed = [place(x, spec) for x, spec in zip(inputs, specs, strict=True)]
  for got, want in zip(_grads(sharded, *placed), _grads(whole, *inputs), strict=True):
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
def test_shards_of_the_vocabulary_send_only_their_largest():
  mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
  vocab, k, chunk = 4096, 10, 16

  def loss(hidden, unembed, targets, *teacher):
    divergence = Divergence("reverse", top_k=k)
    how = {"chunk": chunk, "teacher": TeacherHead(*teacher), "divergence": divergence}
    return token_stats(hidden, unembed, targets, **how).divergence

  rows = P("fsdp")
  sharded = jax.shard_map(
    loss,
    mesh=mesh,
    in_specs=(rows, P(), rows, rows, P()),
    out_specs=rows,
    axis_names={"fsdp"},
    check_vma=False,
  )

  def shape(dims, dtype, *spec):
    return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, P(*spec)))

  states, head = shape((64, 8), "float32", "fsdp"), shape((vocab, 8), "float32", "tensor")
  arguments = states, head, shape((64,), "int32", "fsdp"), states, head
  text = (
    jax.jit(jax.grad(lambda *x: jnp.sum(sharded(*x)), (0, 1))).lower(*arguments).compile().as_text()
  )
  gathered = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather\(", text)
  assert gathered
  assert all(dims == f"{chunk},{4 * (k + 1)}" for dims in gathered), gathered


@pytest.mark.parametrize(
  "settings,named",
  [
    (dict(temperature=0.0, chunk=4), "temperature=0.0"),
    (dict(chunk=0), "chunk=0"),
    (dict(chunk=4, soft_cap=-1.0), "soft_cap=-1.0"),
  ],
)
def test_bad_settings_are_named(settings, named):
  with pytest.raises(SettingError, match=named):
    token_stats(*_inputs()[:3], **settings)


def test_shapes_that_do_not_fit_are_refused():
  hidden, unembed, targets, _ = _inputs()
  with pytest.raises(ValueError, match=r"unembed \(6, 11\)"):
    token_stats(hidden, unembed.T, targets, chunk=4)
