"""The three ways through the same layers, against themselves written out: prompts alone, groups,
packed groups.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from small_models import SMALL

from grpo_jax.errors import SettingError
from grpo_jax.learning import forward
from grpo_jax.models import attention
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.packing.lists import group_lists
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.rows import completions_to_rows, rows_to_completions
from grpo_jax.types import Rollouts

FAMILIES = list(SMALL)


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


def forward_groups(d, params, prompts, tokens, lengths, packing=Packing()):  # noqa: B008 (frozen)
  """`Decoder.forward` from rectangles, and the rows' offsets."""
  rows = completions_to_rows(tokens, lengths, packing)
  lists = group_lists(prompts, rows, packing)
  return *d.forward(params, prompts, rows, lists), rows.offsets


@functools.cache
def compiled(variant="test_qwen3", **run):
  """Jitted `forward_groups` of rectangles: (params, prompts, tokens, lengths)."""
  return jax.jit(functools.partial(forward_groups, tiny.decoder(variant, **run)))


def hidden(variant="test_qwen3", pad=0, width=tiny.LP, **run):
  """The states that predict each completion token, of rectangles: `[P, G, L, D]`."""
  tokens, lengths = completions(pad=pad)
  first, states, offsets = compiled(variant, **run)(
    tiny.weights(variant), tiny.prompts(pad, width), tokens, lengths
  )
  return np.asarray(forward.predictors(first, states, offsets)), lengths


@pytest.mark.parametrize(
  "variant, layers",
  [
    ("test_qwen3", "scan"),
    ("test_qwen2", "scan"),
    ("test_llama3", "scan"),
    ("test_gemma", "scan"),
    ("test_windows", "scan"),
    ("test_windows", "unroll"),
  ],
)
def test_groups_are_the_decoder_written_out(variant, layers):
  """Shared prompt, joined softmax, right padding: the same logits as prompt and completion side by
  side.
  """
  tokens, lengths = completions()
  d, params = tiny.decoder(variant), tiny.weights(variant)
  states, _ = hidden(variant, layers=layers)
  want = tiny.completion_logits(variant, params, tiny.prompts(), tokens, lengths)
  real = (np.arange(tiny.L) < lengths[..., None]) & (tiny.prompts().lengths > 0)[:, None, None]
  logits, cap = states @ d.unembed(params).T, d.config.logit_soft_cap
  logits = cap * np.tanh(logits / cap) if cap else logits
  np.testing.assert_allclose(logits[real], np.asarray(want)[real], atol=2e-4)


def test_each_layer_has_the_attention_of_its_index():
  """Not of its place in a period, nor of the first layer: a pattern of three on five layers,
  scanned and unrolled.
  """
  specs = (AttentionSpec(window=2), AttentionSpec(soft_cap=1.0), AttentionSpec(scale=1.0))
  config = dataclasses.replace(tiny.decoder().config, layers=5, attention=specs)
  params = jax.jit(dataclasses.replace(tiny.decoder(), config=config).init)(jax.random.key(0))
  given, (tokens, lengths) = tiny.prompts(), completions()
  logits = tiny.naive_logits(config, params, tiny.sequences(given, tokens[:, :1], lengths[:, :1]))
  for how in ("scan", "unroll"):
    d = dataclasses.replace(tiny.decoder(layers=how), config=config)
    first, kv = jax.jit(d.prefill)(params, given)
    assert kv.keys.shape == (5, tiny.P, tiny.LP, config.kv_heads, config.head_dim)
    for p, n in enumerate(given.lengths):
      if n:
        np.testing.assert_allclose(first[p] @ d.unembed(params).T, logits[p, n - 1], atol=1e-4)


def test_a_pattern_that_no_period_of_fits():
  """More specs than layers: nothing is scanned."""
  specs = (AttentionSpec(window=2), AttentionSpec(), AttentionSpec(window=3))
  config = dataclasses.replace(tiny.decoder().config, layers=2, attention=specs)

  def run(c):
    return jax.jit(dataclasses.replace(tiny.decoder(), config=c).prefill)(
      tiny.weights(), tiny.prompts()
    )

  want = run(dataclasses.replace(config, attention=specs[:2]))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), run(config), want)


@pytest.mark.parametrize("variant", ["test_qwen3", "test_windows"])
def test_the_prompt_alone_is_the_prompt_of_its_group(variant):
  d, params = tiny.decoder(variant), tiny.weights(variant)
  last, kv = jax.jit(d.prefill)(params, tiny.prompts())
  first, _, _ = compiled(variant)(params, tiny.prompts(), *completions())
  np.testing.assert_allclose(last, first, atol=1e-5)
  shape = (d.config.layers, tiny.P, tiny.LP, d.config.kv_heads, d.config.head_dim)
  assert kv.keys.shape == kv.values.shape == shape


def test_a_list_of_the_real_tokens_of_prompts_changes_none_of_their_states():
  d, given = tiny.decoder(), tiny.prompts()
  of_list = jax.jit(d.prefill, static_argnums=2)(tiny.weights(), given, int(given.lengths.sum()))
  of_rectangle = jax.jit(d.prefill)(tiny.weights(), given)
  real = np.arange(tiny.LP) < given.lengths[:, None]
  np.testing.assert_allclose(
    of_list[0][given.lengths > 0], of_rectangle[0][given.lengths > 0], atol=1e-5
  )
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


@pytest.mark.parametrize(
  "window, of_prompt, of_row",
  [
    (0, [1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0]),
    (
      5,
      [0, 0, 1, 1, 0, 0],
      [0, 0, 0, 1, 1, 1, 0, 0],
    ),  # itself, two of its completion, the prompt's last two
    (2, [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 0, 0]),
  ],
)
def test_a_token_sees_its_prompt_and_its_own_completion_alone(window, of_prompt, of_row):
  """By the gradient of one token's mixture: nothing of pads, of later tokens, of the row's other
  completions.
  """
  lp, n, spec, seen_of_prompt, seen_of_row = 6, 4, AttentionSpec(window), of_prompt, of_row
  segments, offsets = jnp.array([5, 5, 5, 2, 2, 2, 2, -1]), jnp.array([0, 1, 2, 0, 1, 2, 3, 0])
  rng = np.random.default_rng(0)
  of_prompt, of_row = (
    jnp.asarray(rng.normal(size=(t, 4)), jnp.float32) for t in (lp, len(segments))
  )

  def mixture(of_prompt, of_row):
    k, shared = of_row[None, None, :, None], of_prompt[None, :, None]
    q = k[..., None, :]
    out = attention.group_attention(
      tiny.layout(),
      spec,
      q,
      k,
      k,
      shared,
      shared,
      jnp.array([n]),
      segments[None, None],
      offsets[None, None],
    )
    return out[0, 0, 5].sum()

  to_prompt, to_row = jax.grad(mixture, (0, 1))(of_prompt, of_row)
  np.testing.assert_array_equal(np.abs(to_prompt).sum(1) > 0, seen_of_prompt)
  np.testing.assert_array_equal(np.abs(to_row).sum(1) > 0, seen_of_row)


@pytest.mark.parametrize("variant", ["test_qwen3", "test_windows"])
def test_packed_groups_are_the_rectangles(variant):
  tokens, lengths = completions()
  wide, d = tiny.prompts(width=48), tiny.decoder(variant)
  packed = tiny.packing(Rollouts(wide, tokens, lengths, lengths, tokens, tokens))
  assert packed.prompt_list_size is not None

  @jax.jit
  def states(params, prompts):
    return forward.predictors(
      *forward_groups(d, params, prompts, jnp.asarray(tokens), jnp.asarray(lengths), packed)
    )

  got = states(tiny.weights(variant), wide)
  got = np.stack(
    [rows_to_completions(got[..., i], packed, tiny.G, tiny.L) for i in range(got.shape[-1])], -1
  )
  want, _ = hidden(variant)
  real = (tiny.prompts().lengths > 0)[:, None, None] & (np.arange(tiny.L) < lengths[..., None])
  np.testing.assert_allclose(got[real], want[real], atol=1e-5)


def test_what_sees_nothing_stays_finite():
  q, k = jnp.ones((2, 1, 1, 4)), jnp.ones((1, 4, 3))
  out = attention.attend(
    AttentionSpec(), q, k, jnp.arange(12.0).reshape(1, 3, 4), jnp.zeros((2, 3), bool)
  )
  np.testing.assert_allclose(out[0, 0, 0], [4, 5, 6, 7], rtol=1e-6)


@functools.cache
def gradient(variant, **run):
  d = tiny.decoder(variant, **run)
  tokens, lengths = completions()
  weight = np.random.default_rng(0).normal(size=(*tokens.shape, d.config.width)).astype(np.float32)

  def loss(params):
    return (forward_groups(d, params, tiny.prompts(), tokens, lengths)[1] * weight).mean()

  return jax.device_get(jax.jit(jax.grad(loss))(tiny.weights(variant)))


@pytest.mark.parametrize(
  "variant, run",
  [
    pytest.param("test_qwen3", {"remat": "block"}, marks=pytest.mark.slow),
    ("test_qwen3", {"remat": "dots", "layers": "unroll"}),
    ("test_windows", {"remat": "block"}),
    pytest.param("test_windows", {"remat": "dots", "layers": "unroll"}, marks=pytest.mark.slow),
  ],
)
def test_unrolling_and_remat_change_no_gradient(variant, run):
  want, got = gradient(variant), gradient(variant, **run)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), want, got)


def test_bfloat16_activations_stay_near_float32():
  tokens, lengths = completions()
  first, states, _ = compiled(dtype="bfloat16")(tiny.weights(), tiny.prompts(), tokens, lengths)
  assert first.dtype == states.dtype == jnp.bfloat16
  want = compiled()(tiny.weights(), tiny.prompts(), tokens, lengths)[1]
  real = tiny.prompts().lengths > 0
  error = np.abs(np.asarray(states, np.float32) - want)[real]
  assert error.mean() < 0.02


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
