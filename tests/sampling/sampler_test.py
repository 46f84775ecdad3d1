"""The sampler against a whole forward pass a token; and what must not change what is sampled."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from grpo_jax.errors import SettingError
from grpo_jax.models import variants
from grpo_jax.models.decoder import Decoder
from grpo_jax.packing import plan
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import kv_cache, sampler
from grpo_jax.sampling import rollouts as host
from grpo_jax.types import STOPPED, TRUNCATED, Prompts, Rollouts


def assert_same(got: Rollouts, want: Rollouts, atol: float = 2e-5) -> None:
  """The same completions, and log-probs to rounding (bitwise for atol=0)."""
  np.testing.assert_array_equal(got.lengths, want.lengths)
  real, some = tiny.real(want), want.lengths > 0
  np.testing.assert_array_equal(got.ended[some], want.ended[some])
  np.testing.assert_array_equal(got.tokens[real], want.tokens[real])
  for name in ("sampler_logprobs", "truncated_logprobs"):
    np.testing.assert_allclose(
      getattr(got, name)[real], getattr(want, name)[real], atol=atol, rtol=0
    )


# -- the same numbers as the learner and as the slow twin


def test_tokens_are_those_of_naive_generation():
  assert_same(tiny.sample(), tiny.naive_generate(0))


def test_greedy_tokens_are_those_of_naive_generation():
  got = tiny.sample(temperature=0.0)
  assert_same(got, tiny.naive_generate(0, temperature=0.0))
  assert (got.tokens == got.tokens[:, :1]).all()


@pytest.mark.parametrize("slots", [pytest.param(0, marks=pytest.mark.slow), 5])
def test_windows_and_soft_caps_are_those_of_naive_generation(slots):
  assert_same(
    tiny.sample(variant="test_windows", slots=slots), tiny.naive_generate(0, "test_windows")
  )


def test_log_probs_speak_of_capped_logits():
  decoder = tiny.decoder()
  capped = dataclasses.replace(
    decoder, config=dataclasses.replace(decoder.config, logit_soft_cap=0.5)
  )
  cfg = tiny.section("sampler", group=2, max_length=1, temperature=1.0)
  args = tiny.params(), host.to_device(tiny.layout(), tiny.prompts()), jax.random.key(0)
  r, _ = sampler.make_sampler(capped, cfg, ())(*args)
  real = r.prompts.lengths > 0
  nothing = np.zeros((tiny.P, 2, 1), np.int32)
  logits = tiny.completion_logits(
    "test_qwen3", tiny.weights(), tiny.prompts(), nothing, nothing[..., 0]
  )[:, :, 0]
  logp = jax.nn.log_softmax(0.5 * jnp.tanh(logits / 0.5))
  want = np.take_along_axis(np.asarray(logp), np.asarray(r.tokens), axis=2)
  np.testing.assert_allclose(r.sampler_logprobs[real], want[real], atol=2e-5)


HOW = {"top_k": 7, "top_p": 0.8, "min_p": 0.02}


def test_truncated_tokens_are_those_of_naive_generation():
  got = tiny.sample(**HOW)
  assert_same(got, tiny.naive_generate(0, **HOW))
  real = tiny.real(got)
  assert (got.truncated_logprobs >= got.sampler_logprobs - 1e-6)[real].all()
  assert (got.truncated_logprobs > got.sampler_logprobs + 0.05)[real].mean() > 0.9
  # the full softmax's
  full, *_ = tiny.logprobs()(tiny.weights(), got.prompts, got.tokens, got.lengths, Packing())
  np.testing.assert_allclose(got.sampler_logprobs[real], np.asarray(full)[real], atol=2e-5)


@pytest.mark.parametrize(
  "variant, packed",
  [("test_qwen3", False), ("test_qwen3", True), ("test_gemma", False), ("test_llama3", False)],
)
def test_log_probs_are_the_learners(variant, packed):
  """At the same temperature, on padded and unpadded prompts, from cache and from rows."""
  r = tiny.sample(variant=variant)
  packing = plan.pack(r, tiny.layout()) if packed else Packing()
  got, *_ = tiny.logprobs(variant)(tiny.weights(variant), r.prompts, r.tokens, r.lengths, packing)
  real = tiny.real(r)
  assert set(r.prompts.lengths[real.any((1, 2))]) >= {1, tiny.LP}
  np.testing.assert_allclose(r.sampler_logprobs[real], np.asarray(got)[real], atol=3e-5)


BFLOAT16 = {"dtype": "bfloat16", "cache_dtype": "bfloat16"}


def test_bfloat16_log_probs_are_near_the_learners():
  r = tiny.sample(**BFLOAT16)
  got, *_ = tiny.logprobs(dtype="bfloat16")(
    tiny.weights(), r.prompts, r.tokens, r.lengths, Packing()
  )
  error = np.abs(r.sampler_logprobs - np.asarray(got))[tiny.real(r)]
  assert error.mean() < 0.03 and error.max() < 0.2, (error.mean(), error.max())


@pytest.mark.parametrize("slots", [0, 5])
def test_a_cache_of_int8_is_near_the_learners(slots):
  """Rounding to 1/127 of a vector's largest number; four times smaller than float32, but for the
  scales.
  """
  r = tiny.sample(cache_dtype="int8", slots=slots)
  got, *_ = tiny.logprobs()(tiny.weights(), r.prompts, r.tokens, r.lengths, Packing())
  error = np.abs(r.sampler_logprobs - np.asarray(got))[tiny.real(r)]
  assert 1e-4 < error.mean() < 0.03 and error.max() < 0.2, (error.mean(), error.max())


def test_bfloat16_products_make_float32_logits():
  """A logit of 20 rounded to eight bits would be off by up to 0.06."""
  made = tiny.make_sampler(**BFLOAT16)
  weights = jax.eval_shape(made.ready, tiny.decoder().shapes())
  text = str(jax.make_jaxpr(made.run)(weights, tiny.prompts(), jax.random.key(0), None))
  heads = re.findall(rf"(\w+)\[{tiny.V},\d+\] = dot_general", text)
  assert heads == ["f32", "f32"], heads  # of the prompts and of the loop


def test_models_of_one_shape_share_their_programs():
  """Whatever family they are written as; other settings and other shapes have their own."""
  cfg = tiny.section("sampler", group=tiny.G, max_length=tiny.L)
  decoder = tiny.decoder()
  again = dataclasses.replace(decoder, config=dataclasses.replace(decoder.config, family="qwen3"))
  other = dataclasses.replace(decoder, config=dataclasses.replace(decoder.config, norm_eps=1e-5))
  first, second = (sampler.make_sampler(each, cfg, tiny.STOP) for each in (decoder, again))
  assert first.run is second.run and first.ready is second.ready
  assert first.run is not sampler.make_sampler(other, cfg, tiny.STOP).run
  assert first.run is not sampler.make_sampler(decoder, cfg, ()).run


# -- what must not change what is sampled


@pytest.mark.parametrize("slots", [3, 17])
def test_slots_do_not_change_what_is_sampled(slots):
  """Refilled from any prompt, as slots fall free; the ring is written over many times."""
  assert_same(tiny.sample(slots=slots), tiny.sample())


@pytest.mark.parametrize("prompts, group", [(8, 32), (256, 1)])
def test_no_more_logits_are_held_than_there_are_slots(prompts, group):
  """Looks at first tokens, which are drawn before a sample has a slot."""
  config = dataclasses.replace(variants.variant("test_qwen3"), vocab=1 << 14)
  decoder = Decoder(config, tiny.layout())
  cfg = tiny.section("sampler", group=group, max_length=tiny.L, slots=4)
  sample = sampler.make_sampler(decoder, cfg, tiny.STOP)
  params = jax.eval_shape(sample.ready, jax.eval_shape(decoder.init, jax.random.key(0)))
  asked = Prompts(np.ones((prompts, 4), np.int32), np.full(prompts, 4, np.int32))
  program = sample.run.lower(params, asked, jax.random.key(0)).compile()
  logits = prompts * group * config.vocab * 4  # bytes of those of all samples
  assert program.memory_analysis().temp_size_in_bytes < 0.5 * logits


@pytest.mark.parametrize("slots", [pytest.param(0, marks=pytest.mark.slow), 5])
def test_blocks_of_the_ring_do_not_change_what_is_sampled(slots, monkeypatch):
  whole = tiny.sample(slots=slots)
  assert len(kv_cache.ring_blocks(tiny.L, 2)) == 1
  monkeypatch.setattr(kv_cache, "LEAST_COLUMNS", 2)
  assert kv_cache.ring_blocks(tiny.L, 2) == ((0, 2), (2, 4), (4, 6), (6, 8))
  assert len(kv_cache.ring_blocks(7, 2)) == 3 and len(kv_cache.ring_blocks(512, 28)) == 2
  make = sampler.make_sampler(
    tiny.decoder(),
    tiny.section("sampler", group=tiny.G, max_length=tiny.L, temperature=0.7, slots=slots),
    tiny.STOP,
  )
  monkeypatch.setattr(tiny, "make_sampler", lambda *args, **kwargs: make)
  assert_same(tiny.sample(slots=slots), whole)


@pytest.mark.parametrize("mesh, slots", [(tiny.ONE, 0), (tiny.ONE, 5), ((1, 2, 2, 2), 0)])
def test_prompts_computed_as_a_list_do_not_change_what_is_sampled(mesh, slots):
  layout, given = tiny.layout(mesh), tiny.prompts(width=40)
  assert plan.prompt_list_size(plan.trim(given), layout) is not None
  sample = tiny.make_sampler(mesh=mesh, slots=slots)
  got, _ = host.draw(sample, tiny.params(mesh=mesh), given, jax.random.key(0), tiny.sizes(mesh))
  assert_same(got, tiny.sample())


def test_more_samples_of_a_prompt_leave_the_first_as_they_are():
  whole, few = tiny.sample(), tiny.sample(group=3, slots=5)
  first = Rollouts(whole.prompts, *(getattr(whole, k)[:, :3] for k in (
    "tokens", "lengths", "ended", "sampler_logprobs", "truncated_logprobs")))  # fmt: skip
  assert_same(few, first)


@pytest.mark.parametrize(
  "mesh, slots",
  [
    ((2, 2, 2, 1), 0),
    pytest.param((1, 4, 1, 2), 8, marks=pytest.mark.slow),
    pytest.param((1, 1, 4, 2), 0, marks=pytest.mark.slow),
    ((1, 2, 1, 4), 6),  # two key/value heads on four chips
  ],
)
def test_the_mesh_does_not_change_what_is_sampled(mesh, slots):
  assert_same(tiny.sample(mesh=mesh, slots=slots), tiny.sample())


@pytest.mark.parametrize("mesh, tensor", [((1, 4, 1, 1), 2), ((1, 2, 2, 2), 1)])
def test_a_mesh_of_its_own_does_not_change_what_is_sampled(mesh, tensor):
  """Weights that are cut over more devices, and over fewer, than in the learner; the rollouts lie
  as it wants them.
  """
  sample = tiny.make_sampler(mesh=mesh, tensor=tensor)
  assert (
    sample.layout.mesh.shape["tensor"] == tensor
    and sample.layout.mesh.size == tiny.layout(mesh).mesh.size
  )
  got, _ = host.draw(
    sample, tiny.params(mesh=mesh), tiny.prompts(), jax.random.key(0), tiny.sizes(mesh)
  )
  assert_same(got, tiny.sample())
  weights = sample.ready(tiny.params(mesh=mesh))
  q = weights["layers"][0]["attention"]["q"]["weight"]
  assert q.addressable_shards[0].data.shape == (q.shape[0] // tensor, q.shape[1])


@pytest.mark.parametrize(
  "mesh, tensor, shape",
  [
    ((1, 4, 2, 1), 0, (1, 4, 2, 1)),
    ((1, 4, 2, 1), 2, (1, 2, 2, 2)),  # of fsdp
    ((1, 4, 2, 1), 8, (1, 1, 1, 8)),  # of fsdp, then of group
    ((2, 1, 4, 1), 4, (2, 1, 1, 4)),
    ((1, 2, 1, 4), 2, (1, 2, 2, 2)),  # left to group
    ((1, 2, 1, 4), 1, (1, 2, 4, 1)),
  ],
)
def test_devices_of_the_samplers_mesh(mesh, tensor, shape):
  layout = sampler.decode_layout(tiny.layout(mesh), tensor)
  assert layout.mesh.devices.shape == shape and layout.rules == tiny.layout(mesh).rules
  # one program takes both
  assert list(layout.mesh.devices.flat) == list(tiny.layout(mesh).mesh.devices.flat)


@pytest.mark.parametrize("tensor", [3, 16])
def test_a_samplers_mesh_that_the_devices_do_not_make_is_refused(tensor):
  with pytest.raises(
    SettingError, match=f"sampler.tensor={tensor}: use a multiple or a divisor of mesh.tensor=2"
  ):
    sampler.decode_layout(tiny.layout((1, 2, 2, 2)), tensor)


def test_the_pad_id_does_not_change_what_is_sampled():
  """Not even where it is a token that stops: bitwise."""
  assert 3 in tiny.STOP
  assert_same(tiny.sample(given=tiny.prompts(pad=3)), tiny.sample(), atol=0)


# -- noise


def test_two_runs_are_bitwise_equal_and_two_steps_are_not():
  assert_same(tiny.sample(), tiny.sample(), atol=0)
  a, b = tiny.sample(seed=0), tiny.sample(seed=1)
  assert (a.tokens[..., 0] != b.tokens[..., 0])[a.lengths > 0].mean() > 0.8


def test_equal_prompts_of_a_batch_have_their_own_noise():
  p = tiny.prompts()
  p.tokens[4], p.lengths[4] = p.tokens[0], p.lengths[0]
  r = tiny.sample(given=p)
  assert (r.tokens[4, :, 0] != r.tokens[0, :, 0]).mean() > 0.5


def test_samples_follow_the_policys_distribution():
  """Many first tokens of one prompt against its softmax at the sampler's temperature."""
  p = tiny.prompts()
  same = Prompts(np.tile(p.tokens[:1], (tiny.P, 1)), np.tile(p.lengths[:1], tiny.P))
  first = np.concatenate(
    [tiny.sample(seed, given=same).tokens[..., 0].reshape(-1) for seed in range(30)]
  )
  empty = np.zeros((tiny.P, tiny.G, tiny.L), np.int32)
  logits = tiny.completion_logits(
    "test_qwen3", tiny.weights(), p, empty, np.zeros((tiny.P, tiny.G), np.int32)
  )[0, 0, 0]
  want = np.asarray(jax.nn.softmax(logits / 0.7))
  got = np.bincount(first, minlength=tiny.V) / len(first)
  assert (np.abs(got - want) < 5 * np.sqrt(want * (1 - want) / len(first)) + 1e-3).all()


# -- ends


@pytest.mark.parametrize("slots", [0, 5])
def test_a_prompt_that_only_fills_the_batch_leaves_zeros(slots):
  """Sums over whole arrays, as of what top-k cut off, may not count it."""
  r = tiny.sample(slots=slots, top_k=3)
  empty = r.prompts.lengths == 0
  assert empty.any() and r.truncated_logprobs[~empty, :, 0].all()
  for name in ("tokens", "lengths", "ended", "sampler_logprobs", "truncated_logprobs"):
    assert not getattr(r, name)[empty].any(), name


def test_the_stop_token_is_part_of_the_completion():
  r = tiny.rollouts()
  ended, seen = r.ended, set()
  for p, g in np.ndindex(tiny.P, tiny.G):
    n = r.lengths[p, g]
    if not r.prompts.lengths[p]:
      assert n == 0
      continue
    own = r.tokens[p, g, :n]
    assert not np.isin(own[:-1], tiny.STOP).any()
    stops = own[-1] in tiny.STOP
    assert ended[p, g] == (STOPPED if stops else TRUNCATED)
    assert stops or n == tiny.L
    seen.add((bool(stops), n == tiny.L))
    assert (r.sampler_logprobs[p, g, :n] < 0).all()
  assert {(True, False), (False, True)} <= seen


def test_slots_are_used():
  """Refills keep slots busy: with few of them, almost all slot-steps decode a token that is kept."""
  args = tiny.params(), host.to_device(tiny.layout(), tiny.prompts()), jax.random.key(0)
  for slots in (3, 17):
    rollouts, statistics = tiny.make_sampler(slots=slots)(*args)
    decoded = int(np.asarray(rollouts.lengths).sum() - (np.asarray(rollouts.lengths) > 0).sum())
    steps = int(statistics["decode_steps"])
    assert float(statistics["slot_use"]) == pytest.approx(decoded / (steps * slots))
    assert steps >= decoded / slots
  assert float(tiny.make_sampler(slots=3)(*args)[1]["slot_use"]) > 0.9
