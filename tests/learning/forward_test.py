"""Log-probs, entropies, values and scores: the one-token shift, packing, and all logits at once as
the twin.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from grpo_jax.learning import forward
from grpo_jax.models import heads
from grpo_jax.ops.logprobs import token_stats
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import rollouts as host


def test_a_token_is_predicted_by_the_one_before_it_and_the_first_by_the_prompt():
  first = jnp.array([[100.0], [200.0]])
  hidden = jnp.arange(16.0).reshape(2, 2, 4, 1)
  # two completions share a row
  offsets = jnp.array([[[0, 1, 2, 0], [0, 1, 0, 0]], [[0, 1, 2, 3], [0, 0, 0, 0]]])
  got = forward.predictors(first, hidden, offsets)[..., 0]
  np.testing.assert_array_equal(got[0], [[100, 0, 1, 100], [100, 4, 100, 100]])
  np.testing.assert_array_equal(got[1, 0], [200, 8, 9, 10])


FAMILIES = ("test_mistral", "test_gemma2", "test_olmo2", "test_gemma3", "test_smollm3")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


@pytest.mark.parametrize("variant", ["test_qwen3", "test_windows", *SLOW])
@pytest.mark.parametrize("packed", [False, True])
def test_log_probs_and_entropies_are_those_of_all_logits_at_once(packed, variant):
  """Also with windows, soft caps of scores and of logits."""
  r = tiny.rollouts()
  packing = tiny.packing(r) if packed else Packing()
  got = tiny.logprobs(variant)(tiny.weights(variant), r.prompts, r.tokens, r.lengths, packing)
  want = tiny.naive_logprobs(variant, tiny.weights(variant), r)
  for a, b in zip(got, want):
    np.testing.assert_allclose(np.asarray(a)[tiny.real(r)], np.asarray(b)[tiny.real(r)], atol=2e-5)
  if packed:
    assert not np.asarray(got[0])[~tiny.real(r)].any()


def test_the_head_leaves_out_what_only_fills_the_list(monkeypatch):
  r, counts = tiny.rollouts(), []

  def stats(*args, count, **how):
    counts.append(int(count))
    return token_stats(*args, count=count, **how)

  monkeypatch.setattr(forward, "token_stats", stats)
  inputs = tiny.decoder(), tiny.params(), r.prompts, r.tokens, r.lengths, tiny.packing(r)
  forward.logprobs(*inputs, temperature=1.0, chunk=4)
  assert counts == [r.lengths.sum()] and counts[0] < tiny.packing(r).list_size


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("mesh,known", [((1, 2, 1, 1), False), ((1, 1, 1, 2), True)])
def test_a_loop_that_sums_over_shards_of_the_vocabulary_has_a_known_length(mesh, known):
  """Lets the plan of a pod multiply what the loop sends by its length."""
  r, cfg = tiny.rollouts(), {"temperature": 1.0, "chunk": 4}
  inputs = tiny.params(), r.prompts, r.tokens, r.lengths, tiny.packing(r, mesh)
  run = functools.partial(forward.logprobs, tiny.decoder(mesh=mesh), **cfg)
  text = str(jax.make_jaxpr(run)(*inputs))
  assert ("while[" not in text) == known


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("dtype, atol", [("float32", 1e-6), ("bfloat16", 5e-4)])
def test_the_tensor_axis_alone_gives_the_same_gradient(dtype, atol):
  def gradient(mesh):
    r = tiny.rollouts()
    on_mesh = host.to_device(tiny.layout(mesh), (r, tiny.packing(r, mesh)))
    decoder, cfg = tiny.decoder(mesh=mesh, dtype=dtype), {"temperature": 1.0, "chunk": 8}

    def mean(params, r, packing):
      stats = forward.logprobs(decoder, params, r.prompts, r.tokens, r.lengths, packing, **cfg)
      return jnp.where(tiny.real(r), stats.logprobs, 0.0).mean()

    return jax.device_get(jax.jit(jax.grad(mean))(tiny.params(mesh=mesh), *on_mesh))

  one, two = gradient(tiny.ONE), gradient((1, 1, 1, 2))
  assert max(np.abs(x).max() for x in jax.tree.leaves(one)) > 1e-2
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), one, two)


@pytest.mark.slow
def test_gradients_with_windows_and_caps_are_those_of_all_logits_at_once():
  """Scanned in periods and packed, through the cap of the logits in the chunked head."""
  r, variant = tiny.rollouts(), "test_windows"
  weight = np.random.default_rng(0).normal(size=r.tokens.shape) * tiny.real(r)
  packing, run = tiny.packing(r), tiny.logprobs(variant)
  ours = jax.grad(lambda w: (run(w, r.prompts, r.tokens, r.lengths, packing)[0] * weight).mean())
  theirs = jax.grad(lambda w: (tiny.naive_logprobs(variant, w, r)[0] * weight).mean())
  got, want = ours(tiny.weights(variant)), theirs(tiny.weights(variant))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)
  assert np.abs(want["layers"]["attention"]["q"]["weight"]).max() > 1e-3


def test_the_temperature_divides_the_logits():
  r = tiny.rollouts()
  got, *_ = tiny.logprobs(temperature=2.0)(
    tiny.weights(), r.prompts, r.tokens, r.lengths, Packing()
  )
  want, _ = tiny.naive_logprobs("test_qwen3", tiny.weights(), r, 2.0)
  np.testing.assert_allclose(
    np.asarray(got)[tiny.real(r)], np.asarray(want)[tiny.real(r)], atol=2e-5
  )


def test_values_are_shifted_as_log_probs_are_and_packing_changes_none():
  """A critic's value of token t comes from the state before it, of the first from the prompt."""
  r, d = tiny.rollouts(), tiny.decoder()
  head = {
    "weight": np.random.default_rng(0).normal(size=(1, d.config.width)).astype(np.float32),
    "bias": np.ones(1),
  }
  critic = tiny.weights() | {"value_head": head}
  values = jax.jit(lambda *args: forward.values(d, *args))
  got = np.asarray(values(critic, r.prompts, r.tokens, r.lengths, Packing()))
  packed = np.asarray(values(critic, r.prompts, r.tokens, r.lengths, tiny.packing(r)))
  np.testing.assert_allclose(got[tiny.real(r)], packed[tiny.real(r)], atol=1e-5)
  first, _ = jax.jit(d.prefill)(tiny.weights(), r.prompts)
  want = np.broadcast_to(heads.scalar(head, first)[:, None], (tiny.P, tiny.G))
  np.testing.assert_allclose(got[:, :, 0][r.lengths > 0], want[r.lengths > 0], atol=1e-5)


def scorer(mesh=tiny.ONE):
  """The tiny model as a reward model, and its parameters, whole and as numpy."""
  d = tiny.decoder(mesh=mesh)
  d = dataclasses.replace(d, config=dataclasses.replace(d.config, scores=True))
  head = np.random.default_rng(0).normal(size=(1, d.config.width)).astype(np.float32)
  return d, {name: tiny.weights()[name] for name in d.shapes() if name != "score"} | {
    "score": {"weight": head}
  }


def scores(mesh, r, packed):
  d, params = scorer(mesh)
  given = (r.prompts, r.tokens, r.lengths, tiny.packing(r, mesh) if packed else Packing())
  run = jax.jit(lambda *args: forward.scores(d, *args))
  return np.asarray(run(jax.device_put(params, d.shardings()), *host.to_device(d.layout, given)))


@pytest.mark.parametrize(
  ("mesh", "packed"), [(tiny.ONE, False), (tiny.ONE, True), ((1, 2, 2, 2), True)]
)
def test_scores_are_read_after_each_token_not_before_it(mesh, packed):
  """As a plain forward pass of prompt and completion has them: its head in place of the
  unembedding.
  """
  d, params = scorer()
  r = tiny.rollouts()
  plain = dataclasses.replace(d.config, tied=False)
  each = tiny.naive_logits(
    plain, params | {"unembed": params["score"]}, tiny.sequences(r.prompts, r.tokens, r.lengths)
  )
  # of completion token t, not t - 1
  at = np.repeat(r.prompts.lengths, tiny.G)[:, None] + np.arange(tiny.L)
  want = np.take_along_axis(np.asarray(each)[..., 0], at, axis=1).reshape(r.tokens.shape)
  np.testing.assert_allclose(scores(mesh, r, packed)[tiny.real(r)], want[tiny.real(r)], atol=1e-4)


def test_another_last_token_is_another_score():
  r = tiny.rollouts()
  last = (np.arange(tiny.L) == r.lengths[..., None] - 1) & tiny.real(r)
  other = dataclasses.replace(r, tokens=np.where(last, (r.tokens + 1) % tiny.V, r.tokens))
  was, now = scores(tiny.ONE, r, True), scores(tiny.ONE, other, True)
  assert (np.abs(was - now)[last] > 1e-3).all()
  np.testing.assert_array_equal(was[tiny.real(r) & ~last], now[tiny.real(r) & ~last])
