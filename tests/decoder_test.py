"""The three ways through the same layers, against themselves written out: prompts alone, groups, packed groups."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from grpo_jax import forward
from grpo_jax.errors import SettingError
from grpo_jax.models import attention, layers
from grpo_jax.models.variants import VARIANTS
from grpo_jax.ops import packing
from grpo_jax.types import Packing, Rollouts

FAMILIES = [name for name in VARIANTS if name.startswith("test_")]


def completions(seed=3, pad=0):
  """Tokens `[P, G, L]` and lengths `[P, G]`, 1 to L."""
  rng = np.random.default_rng(seed)
  lengths = np.minimum(rng.geometric(0.4, (tiny.P, tiny.G)), tiny.L).astype(np.int32)
  lengths[0, :2] = 1, tiny.L
  tokens = rng.integers(0, tiny.V, (tiny.P, tiny.G, tiny.L)).astype(np.int32)
  return np.where(np.arange(tiny.L) < lengths[..., None], tokens, pad).astype(np.int32), lengths


@pytest.mark.parametrize("wrong", [{"layers": "loop"}, {"remat": "full"}, {"dtype": "float33"}])
def test_a_way_to_run_that_is_none(wrong):
  with pytest.raises(SettingError, match="use one of"):
    tiny.decoder("test_qwen3", **wrong)


@functools.cache
def compiled(variant="test_qwen3", **run):
  return jax.jit(tiny.decoder(variant, **run).forward)


def hidden(variant="test_qwen3", pad=0, width=tiny.LP):
  """The states that predict each completion token, of rectangles: `[P, G, L, D]`."""
  tokens, lengths = completions(pad=pad)
  rows = packing.lay(jnp.asarray(tokens), jnp.asarray(lengths), Packing())
  first, states = compiled(variant)(tiny.weights(variant), tiny.prompts(pad, width), rows)
  return np.asarray(forward.predictors(first, states, rows.offsets)), lengths


@pytest.mark.parametrize("variant", ["test_qwen3", "test_qwen2", "test_llama3", "test_gemma"])
def test_groups_are_the_decoder_written_out(variant):
  """Shared prompt, joined softmax, right padding: the same logits as prompt and completion side by side."""
  tokens, lengths = completions()
  d, params = tiny.decoder(variant), tiny.weights(variant)
  states, _ = hidden(variant)
  want = tiny.completion_logits(variant, params, tiny.prompts(), tokens, lengths)
  real = (np.arange(tiny.L) < lengths[..., None]) & (tiny.prompts().lengths > 0)[:, None, None]
  np.testing.assert_allclose((states @ d.unembed(params).T)[real], np.asarray(want)[real], atol=2e-4)


def test_the_prompt_alone_is_the_prompt_of_its_group():
  d, params = tiny.decoder(), tiny.weights()
  tokens, lengths = completions()
  last, kv = jax.jit(d.prefill)(params, tiny.prompts())
  first, _ = compiled()(params, tiny.prompts(), packing.lay(jnp.asarray(tokens), jnp.asarray(lengths), Packing()))
  np.testing.assert_allclose(last, first, atol=1e-5)
  shape = (d.config.layers, tiny.P, tiny.LP, d.config.kv_heads, d.config.head_dim)
  assert kv.keys.shape == kv.values.shape == shape


def test_a_list_of_the_real_tokens_of_prompts_changes_none_of_their_states():
  d, given = tiny.decoder(), tiny.prompts()
  of_list = jax.jit(d.prefill, static_argnums=2)(tiny.weights(), given, int(given.lengths.sum()))
  of_rectangle = jax.jit(d.prefill)(tiny.weights(), given)
  real = np.arange(tiny.LP) < given.lengths[:, None]
  np.testing.assert_allclose(of_list[0][given.lengths > 0], of_rectangle[0][given.lengths > 0], atol=1e-5)
  for got, want in zip(of_list[1], of_rectangle[1]):
    np.testing.assert_allclose(got[:, real], want[:, real], atol=1e-5)
    assert not got[:, ~real].any()


@pytest.mark.parametrize("pad", [3, 95])
def test_pads_are_never_attended_to(pad):
  """Bitwise the same, whatever token pads prompts and completions; 3 is a token that stops."""
  (want, lengths), (got, _) = hidden(pad=0), hidden(pad=pad)
  mask = np.arange(tiny.L) < lengths[..., None]
  real = (tiny.prompts().lengths > 0)[:, None, None] & mask
  np.testing.assert_array_equal(got[real], want[real])


def test_wider_padding_changes_nothing():
  (want, lengths), (got, _) = hidden(), hidden(width=tiny.LP + 3)
  real = (tiny.prompts().lengths > 0)[:, None, None] & (np.arange(tiny.L) < lengths[..., None])
  np.testing.assert_allclose(got[real], want[real], atol=1e-5)


def test_a_token_sees_its_prompt_and_its_own_completion_alone():
  """By the gradient of one token's mixture: nothing of pads, of later tokens, of the row's other completions."""
  lp, n = 6, 4
  segments = jnp.array([5, 5, 5, 2, 2, 2, 2, -1])
  rng = np.random.default_rng(0)
  of_prompt, of_row = (jnp.asarray(rng.normal(size=(t, 4)), jnp.float32) for t in (lp, len(segments)))

  def mixture(of_prompt, of_row):
    k, shared = of_row[None, None, :, None], of_prompt[None, :, None]
    q = k[..., None, :]
    out = attention.group_attention(tiny.layout(), q, k, k, shared, shared, jnp.array([n]), segments[None, None])
    return out[0, 0, 5].sum()

  to_prompt, to_row = jax.grad(mixture, (0, 1))(of_prompt, of_row)
  np.testing.assert_array_equal(np.abs(to_prompt).sum(1) > 0, np.arange(lp) < n)
  np.testing.assert_array_equal(np.abs(to_row).sum(1) > 0, [0, 0, 0, 1, 1, 1, 0, 0])


@pytest.mark.parametrize("mesh", [tiny.ONE, (1, 2, 2, 1)])
def test_packed_groups_are_the_rectangles(mesh):
  tokens, lengths = completions()
  wide = tiny.prompts(width=48)
  packed = tiny.packing(Rollouts(wide, tokens, lengths, lengths, tokens, tokens), mesh)
  assert packed.prompt_size is not None

  @jax.jit
  def states(params, prompts):
    rows = forward.lay(tiny.decoder(mesh=mesh), prompts, jnp.asarray(tokens), jnp.asarray(lengths), packed)
    first, hidden = tiny.decoder(mesh=mesh).forward(params, prompts, rows)
    return forward.predictors(first, hidden, rows.offsets)

  got = states(tiny.weights(), wide)
  got = np.stack([packing.unlay(got[..., i], packed, tiny.G, tiny.L) for i in range(got.shape[-1])], -1)
  want, _ = hidden()
  real = (tiny.prompts().lengths > 0)[:, None, None] & (np.arange(tiny.L) < lengths[..., None])
  np.testing.assert_allclose(got[real], want[real], atol=1e-5)


def test_what_sees_nothing_stays_finite():
  q, k = jnp.ones((2, 1, 1, 4)), jnp.ones((1, 4, 3))
  out = attention.attend(q, k, jnp.arange(12.0).reshape(1, 3, 4), jnp.zeros((2, 3), bool))
  np.testing.assert_allclose(out[0, 0, 0], [4, 5, 6, 7], rtol=1e-6)


@functools.cache
def gradient(**run):
  d = tiny.decoder(**run)
  tokens, lengths = completions()
  rows = packing.lay(jnp.asarray(tokens), jnp.asarray(lengths), Packing())
  weight = np.random.default_rng(0).normal(size=(*tokens.shape, d.config.width)).astype(np.float32)
  loss = lambda params: (d.forward(params, tiny.prompts(), rows)[1] * weight).mean()
  return jax.device_get(jax.jit(jax.grad(loss))(tiny.weights()))


@pytest.mark.parametrize("run", [{"remat": "block"}, {"remat": "dots", "layers": "unroll"}])
def test_unrolling_and_remat_change_no_gradient(run):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradient(), gradient(**run))


def test_bfloat16_activations_stay_near_float32():
  tokens, lengths = completions()
  rows = packing.lay(jnp.asarray(tokens), jnp.asarray(lengths), Packing())
  first, states = compiled(dtype="bfloat16")(tiny.weights(), tiny.prompts(), rows)
  assert first.dtype == states.dtype == jnp.bfloat16
  want = compiled()(tiny.weights(), tiny.prompts(), rows)[1]
  real = tiny.prompts().lengths > 0
  error = np.abs(np.asarray(states, np.float32) - want)[real]
  assert error.mean() < 0.02


def test_products_of_few_and_of_many_rows_agree():
  rng = np.random.default_rng(0)
  w, x = rng.normal(size=(5, 7)).astype(np.float32), rng.normal(size=(3, layers.FEW_ROWS, 7)).astype(np.float32)
  np.testing.assert_allclose(layers.linear(w, x), x @ w.T, atol=1e-5)
  np.testing.assert_allclose(layers.linear(w, x[0]), x[0] @ w.T, atol=1e-5)
  assert layers.linear(w, jnp.asarray(x[0], jnp.bfloat16)).dtype == jnp.bfloat16
  assert layers.linear(w, jnp.asarray(x[0], jnp.bfloat16), jnp.float32).dtype == jnp.float32


def test_every_parameter_has_its_axes():
  for variant in FAMILIES:
    d = tiny.decoder(variant)
    shapes, axes = d.shapes(), d.axes()

    def check(path, shape, d=d, axes=axes):
      names = axes
      for key in path:
        names = names[key.key]
      assert len(names) == shape.ndim, path
      matrix = path[-1].key == "weight"
      assert not matrix or "embed" in names, path  # every matrix is sharded over fsdp
      assert shape.dtype == jnp.float32

    jax.tree_util.tree_map_with_path(check, shapes)
