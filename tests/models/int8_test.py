"""Weights that decode in int8: the rounding, where they lie, and the sampler against the weights
they stand for.
"""

import jax
import numpy as np
import pytest
import tiny
from small_models import SMALL

from grpo_jax.models import int8
from grpo_jax.models.layers import linear
from grpo_jax.packing.plan import Packing
from grpo_jax.plan.collectives import collectives
from grpo_jax.sampling import sampler

ROWS = tuple(SMALL)
MESH = (1, 2, 2, 2)


def matrix() -> np.ndarray:
  """Rows of very different sizes, the third of zeros."""
  w = np.random.default_rng(0).normal(size=(6, 40)) * 10.0 ** np.arange(-3, 3)[:, None]
  w[2] = 0
  return w.astype(np.float32)


def meant(q: int8.Int8) -> np.ndarray:
  """What a matrix in int8 stands for."""
  return np.asarray(q.x, np.float32) * np.asarray(q.scale)[:, None]


def restored(variant: str):
  """The learner's numpy parameters with what the sampler's matrices in int8 stand for.

  They are not rounded again: between two steps a compiled division may fall on the other side.
  """
  ready = tiny.make_sampler(variant, weights_dtype="int8").ready(tiny.params(variant))

  def whole(x):
    return np.asarray(meant(x) if int8.is_int8(x) else x)

  layers = [jax.tree.map(whole, layer, is_leaf=int8.is_int8) for layer in ready["layers"]]
  return tiny.weights(variant) | {"layers": jax.tree.map(lambda *x: np.stack(x), *layers)}


# -- the rounding


def test_a_number_is_off_by_half_a_step_of_its_row_at_most():
  w, q = matrix(), int8.rounded(matrix())
  assert q.x.dtype == np.int8 and q.scale.dtype == np.float32 and q.scale.shape == (6,)
  np.testing.assert_allclose(q.scale, np.abs(w).max(1) / 127, rtol=1e-6)
  step = np.asarray(q.scale)[:, None]
  assert (np.abs(meant(q) - w) <= step * (0.5 + 1e-4)).all()
  assert (
    np.abs(np.asarray(q.x)[np.abs(w).max(1) > 0]).max(1) == 127
  ).all()  # all steps are used, and none beyond


def test_a_row_of_zeros_stays_zeros():
  q = int8.rounded(matrix())
  assert q.scale[2] == 0 and not meant(q)[2].any()


def test_each_row_has_a_scale_of_its_own():
  """What multiplies a row multiplies its scale, and no other row's."""
  factors = np.array([1, 2, 4, 0.5, 1024, 2.0**-20], np.float32)
  q, scaled = int8.rounded(matrix()), int8.rounded(matrix() * factors[:, None])
  np.testing.assert_array_equal(scaled.x, q.x)
  np.testing.assert_array_equal(scaled.scale, np.asarray(q.scale) * factors)


@pytest.mark.parametrize("n", [3, 300])  # few rows, many rows: see FEW_ROWS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_product_is_that_with_what_it_stands_for(n, dtype):
  x = np.random.default_rng(1).normal(size=(n, 40)).astype(dtype)
  q = int8.rounded(matrix())
  got, want = linear(q, x), np.asarray(x, np.float32) @ meant(q).T
  assert got.dtype == dtype
  # of a sum, then of its product with the scale
  rounding = {"float32": 1e-5, "bfloat16": 2e-2}[dtype]
  assert (np.abs(np.asarray(got, np.float32) - want) <= rounding * np.abs(want).max(0)).all()


# -- where they lie


def test_matrices_lie_as_before_and_scales_as_their_rows():
  same, got = (sampler.decode_shardings(tiny.decoder(mesh=MESH), to) for to in ("same", "int8"))
  q, o = (got["layers"][1]["attention"][name]["weight"] for name in "qo")
  assert [q.x.shard_shape((64, 32)), q.scale.shard_shape((64,))] == [(32, 32), (32,)]
  assert [o.x.shard_shape((32, 64)), o.scale.shard_shape((32,))] == [(32, 32), (32,)]
  jax.tree.map(
    lambda x, before: x if x == before else pytest.fail(f"{x}, not {before}"),
    without_scales(got),
    same,
  )


def without_scales(tree):
  return jax.tree.map(lambda x: x.x if int8.is_int8(x) else x, tree, is_leaf=int8.is_int8)


@pytest.mark.slow
def test_weights_on_a_mesh_are_those_of_one_device_and_are_gathered_in_int8():
  made, given = tiny.make_sampler(mesh=MESH, weights_dtype="int8"), tiny.params(mesh=MESH)
  ready = made.ready.lower(given).compile()
  got, want = ready(given), tiny.make_sampler(weights_dtype="int8").ready(tiny.params())
  jax.tree.map(np.testing.assert_array_equal, got, want)
  leaves = jax.tree.leaves(got)
  matrices, rest = (
    sum(of_shard(x) for x in leaves if (x.ndim == 2) is which) for which in (True, False)
  )
  moved = sum(
    each.total
    for each in collectives(ready.as_text(), made.layout.mesh.size)
    if each.kind == "all-gather"
  )
  assert matrices <= moved <= matrices + rest
  table = ready.memory_analysis().output_size_in_bytes - matrices - rest
  assert 0 <= table <= 8 * len(leaves)


def of_shard(x: jax.Array) -> int:
  return x.addressable_shards[0].data.nbytes


@pytest.mark.slow
def test_every_matrix_of_every_family_is_rounded_and_nothing_else():
  for row in ROWS:
    shapes = jax.eval_shape(
      tiny.make_sampler(row, weights_dtype="int8").ready, tiny.decoder(row).shapes()
    )
    for layer in shapes["layers"]:
      assert all((x.dtype == "int8") == (x.ndim == 2) for x in jax.tree.leaves(layer)), row
      assert len([x for x in jax.tree.leaves(layer) if x.ndim == 2]) == 7, row
    rest = jax.tree.leaves({name: tree for name, tree in shapes.items() if name != "layers"})
    assert {x.dtype.name for x in rest} == {"float32"}, row


# -- the whole path


def test_a_prompt_is_that_of_a_decoder_with_the_restored_weights():
  def prefill(params):
    return tiny.decoder().prefill(params, tiny.prompts())[0]

  of_int8 = sampler.decode_params(tiny.decoder(), "float32", "int8", tiny.weights())
  got, want, own = (
    jax.jit(prefill)(of_int8),
    *map(jax.jit(prefill), (restored("test_qwen3"), tiny.weights())),
  )
  np.testing.assert_allclose(got, want, atol=2e-5)
  assert np.abs(got - own).mean() > 1e-3


def assert_log_probs(variant: str, **how) -> None:
  """The sampler's log-probs are those of the learner's program given what the weights stand for,
  and not its own.
  """
  r = tiny.sample(variant=variant, weights_dtype="int8", **how)
  real, error = tiny.real(r), {}
  for name, weights in (("own", tiny.weights(variant)), ("restored", restored(variant))):
    got, *_ = tiny.logprobs(variant)(weights, r.prompts, r.tokens, r.lengths, Packing())
    error[name] = np.abs(r.sampler_logprobs - np.asarray(got))[real]
  assert error["restored"].max() < 3e-5, error["restored"].max()
  assert 1e-3 < error["own"].mean() < 0.1, error["own"].mean()


@pytest.mark.slow
@pytest.mark.parametrize(
  "variant, how",
  [*((row, {}) for row in ROWS), ("test_qwen3", {"slots": 5}), ("test_qwen3", {"mesh": MESH})],
)
def test_log_probs_are_those_of_a_decoder_with_the_restored_weights(variant, how):
  """Of prompts as of completions: all that the sampler computes has these weights."""
  assert_log_probs(variant, **how)
