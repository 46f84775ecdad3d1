"""The shape of what every public function of arrays returns; shipped experiments trace; nothing
compiles twice.

Nothing is computed here but in the last test: `jax.eval_shape` traces.
"""

import dataclasses
import functools
import inspect
import json
import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import objective_cases
import pytest
import tiny

from experiments import (
  arithmetic,
  arithmetic_iterative,
  arithmetic_prm,
  arithmetic_process,
  arithmetic_rm,
  arithmetic_sft,
  gsm8k,
  gsm8k_iterative,
  gsm8k_process,
  gsm8k_rm,
  presets,
)
from grpo_jax.errors import SettingError
from grpo_jax.learning import forward, learn, movement, optimizer, passes, totals
from grpo_jax.learning.state import abstract, create
from grpo_jax.loops import groups
from grpo_jax.models import attention, heads, int8, layers, list_attention, variants
from grpo_jax.models import decoder as decoders
from grpo_jax.models.decoder import Decoder
from grpo_jax.objectives import reward_model
from grpo_jax.objectives.base import Needs, reads_reference
from grpo_jax.ops import (
  advantages,
  decoding,
  distillation,
  divergences,
  logprobs,
  masked,
  mismatch,
  pass_at_k,
  preferences,
  surrogate,
)
from grpo_jax.packing import lists, microbatches, plan
from grpo_jax.packing import rows as packed_rows
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import begun, decode_loop, kv_cache, next_token, sampler
from grpo_jax.sampling import rollouts as host
from grpo_jax.sampling.begun import Begun
from grpo_jax.setup import build, checks, parameters, registry
from grpo_jax.setup.experiment import make
from grpo_jax.types import Outputs, Prompts, Rollouts, Scores

P, G, L, LP, V, D = 4, 5, 7, 6, tiny.V, 32  # no two alike, but for the model's own
R, T, S = 3, 9, 11  # rows, their width, slots
N, U = 13, 20  # tokens of a list, places that it holds
MODULES = (
  advantages,
  decoding,
  distillation,
  divergences,
  logprobs,
  masked,
  preferences,
  surrogate,
)
MODULES += (
  mismatch,
  pass_at_k,
  lists,
  microbatches,
  packed_rows,
  forward,
  learn,
  passes,
  totals,
  movement,
  sampler,
  decode_loop,
  next_token,
  kv_cache,
  begun,
)
MODULES += (attention, list_attention, heads, int8, layers, decoders)


def f(*shape: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def i(*shape: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.int32)


def b(*shape: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.bool_)


def with_statics(fn: Any, *statics: Any, **options: Any) -> Any:
  """`fn` of arrays, with the arguments that are no arrays behind them."""
  return lambda *arrays: fn(*arrays, *statics, **options)


PGL, PG = f(P, G, L), f(P, G)
KEY = jax.eval_shape(lambda: jax.random.key(0))
PROMPTS = Prompts(i(P, LP), i(P))
ROWS = packed_rows.Rows(i(P, R, T), i(P, R, T), i(P, R, T))
PACKING = Packing(i(P, R, T), N, N)
SPEC = attention.AttentionSpec(window=4, soft_cap=5.0, scale=0.2)
HOW = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CHUNK = {"temperature": 1.0, "chunk": 4}
K, M, DH = 2, 2, 16  # kv heads, query heads for each, head_dim


@functools.cache
def model() -> tuple[Decoder, Any]:
  return tiny.decoder(), tiny.decoder().shapes()


def sampled() -> Rollouts:
  return Rollouts(PROMPTS, i(P, G, L), i(P, G), i(P, G), PGL, PGL)


def critic() -> Any:
  return model()[1] | {"value_head": jax.eval_shape(lambda: heads.init_scalar(D))}


def learner() -> passes.Setup:
  return passes.Setup(model()[0], tiny.objective(), None, tiny.section("learner"), 1.0)


def judge() -> passes.Setup:
  objective = tiny.objective(reward_model)
  return passes.Setup(scorer(), objective, None, tiny.section("learner"), 1.0)


def scorer() -> Decoder:
  return dataclasses.replace(model()[0], config=dataclasses.replace(model()[0].config, scores=True))


def stored(n: int, length: int) -> kv_cache.StoredKV:
  return jax.eval_shape(lambda: kv_cache.empty(n, K, DH, length, "float32"))


def cache() -> kv_cache.LayerCache:
  return kv_cache.LayerCache(stored(S, LP), [stored(S, 3), stored(S, L - 3)])


def setup() -> next_token.SamplerSetup:
  cfg = tiny.section("sampler", group=G, max_length=L, slots=S)
  return sampler.make_setup(tiny.decoder(), cfg, (0,))


def decoding_params(params: Any, prompts: Prompts, key: Any) -> tuple[Any, sampler.Request]:
  request = sampler.Request(prompts, jnp.arange(P), jnp.arange(G), key, None, None)
  return sampler.decode_params(tiny.decoder(), "float32", "same", params), request


def decoding_queries(weights_dtype: str, params: Any) -> Any:
  decoded = sampler.decode_params(tiny.decoder(), "bfloat16", weights_dtype, params)
  return decoded["layers"][1]["attention"]["q"]["weight"]


def in_the_loop(fn: Any) -> Any:
  """Returns `fn(setup, params, queue, slots)`, of slots before the loop, as a function of LOOP;
  without caches.
  """

  def run(*arrays: Any) -> Any:
    params, request = decoding_params(*arrays)
    queue = sampler.prefill(setup(), params, request, None)
    out = fn(setup(), params, queue, decode_loop.start(setup(), queue))
    return out._replace(cache=[]) if isinstance(out, decode_loop.Slots) else out

  return run


def in_groups(name: str, prompts: Prompts, rows: packed_rows.Rows, *qkv: Any) -> Any:
  """Returns that attention of prompts and rows without lists."""
  attend = getattr(list_attention, name)
  whole = lists.group_lists(prompts, rows, Packing())
  return attend(tiny.layout(), K, whole, prompts, rows, SPEC, *qkv)


# What `in_the_loop` takes, and the slots but for their caches.
LOOP = (lambda: model()[1], PROMPTS, KEY)
SLOTS = [(), ()] + [(S,)] * 4 + [()] + [(P * G, L)] * 3 + [(P * G,)] * 2
WINDOW = attention.AttentionSpec(window=3, soft_cap=2.0, scale=0.1)

# name: (function of arrays, its arrays, the shapes that it returns); None: made below, in `trace`.
CASES = {
  "advantages.totals": (advantages.totals, (PGL, b(P, G, L)), (P, G)),
  "advantages.flat": (advantages.flat, (PGL, b(P, G, L)), (P,)),
  "advantages.group_relative": (advantages.group_relative, (PGL, b(P, G, L)), (P, G, L)),
  "advantages.returns_to_go": (advantages.returns_to_go, (PGL,), (P, G, L)),
  "advantages.step_returns": (advantages.step_returns, (PGL, b(P, G, L), b(P, G)), (P, G, L)),
  "advantages.sign": (with_statics(advantages.sign, 0.1), (PGL, b(P, G, L)), (P, G, L)),
  "advantages.gdpo": (advantages.gdpo, (f(P, G, 3), f(3), b(P, G)), (P, G)),
  "advantages.gae": (with_statics(advantages.gae, 1.0, 0.9), (PGL, PGL, PGL, PG), (P, G, L)),
  "advantages.shared_prefix": (advantages.shared_prefix, (i(P, G, L), i(P, G)), (P, G, G)),
  "advantages.prefix_values": (advantages.prefix_values, (i(P, G, L), i(P, G), PG), (P, G, L + 1)),
  "advantages.prefix_credit": (advantages.prefix_credit, (i(P, G, L), i(P, G), PG), (P, G, L)),
  "decoding.check": None,
  "decoding.soft_cap": (with_statics(decoding.soft_cap, 3.0), (f(S, V),), (S, V)),
  "decoding.sample": (with_statics(decoding.sample, **HOW), (f(S, V), f(S)), [(S,)] * 3),
  "distillation.value": (
    lambda s, t: distillation.value(distillation.Divergence("reverse", top_k=2), s, t),
    (f(S, V), f(S, V)),
    (S,),
  ),
  "distillation.gradient": (
    lambda s, t: distillation.gradient(distillation.Divergence("forward"), s, t),
    (f(S, V), f(S, V)),
    (S, V),
  ),
  "divergences.k1": (divergences.k1, (PGL, PGL), (P, G, L)),
  "divergences.k2": (divergences.k2, (PGL, PGL), (P, G, L)),
  "divergences.k3": (divergences.k3, (PGL, PGL), (P, G, L)),
  "divergences.weighted_k3": (divergences.weighted_k3, (PGL, PGL, PGL), (P, G, L)),
  "divergences.kl_estimate": (with_statics(divergences.kl_estimate, "k3"), (PGL, PGL), (P, G, L)),
  "logprobs.token_stats": (
    with_statics(logprobs.token_stats, **CHUNK),
    (f(P, R, T, D), f(V, D), i(P, R, T)),
    [(P, R, T)] * 3,
  ),
  "masked.masked_sum": (with_statics(masked.masked_sum, 2), (PGL, PGL), (P, G)),
  "masked.masked_mean": (with_statics(masked.masked_mean, 2), (PGL, PGL), (P, G)),
  "masked.masked_std": (with_statics(masked.masked_std, (1, 2)), (PGL, PGL), (P,)),
  "masked.whiten": (masked.whiten, (PGL, PGL), (P, G, L)),
  "masked.length_mask": (with_statics(masked.length_mask, L), (i(P, G),), (P, G, L)),
  "masked.largest": (with_statics(masked.largest, 0.2), (PGL, PGL), (P, G, L)),
  "masked.token_weights": (
    with_statics(masked.token_weights, "token_mean", L),
    (PGL, i(P, G)),
    (P, G, L),
  ),
  "preferences.bradley_terry": (preferences.bradley_terry, (f(P), f(P)), (P,)),
  "preferences.dpo": (with_statics(preferences.dpo, 0.1), (f(P), f(P)), (P,)),
  "preferences.won": (preferences.won, (f(P),), (P,)),
  "preferences.step_loss": (preferences.step_loss, (PGL, PGL), (P, G, L)),
  "preferences.soft_labels": (preferences.soft_labels, (PGL, PGL), (P, G, L)),
  "preferences.hard_labels": (preferences.hard_labels, (PGL,), (P, G, L)),
  "surrogate.exp_clamped": (surrogate.exp_clamped, (PGL,), (P, G, L)),
  "surrogate.token_ratio": (surrogate.token_ratio, (PGL, PGL), (P, G, L)),
  "surrogate.sequence_ratio": (surrogate.sequence_ratio, (PGL, PGL, PGL), (P, G, 1)),
  "surrogate.sequence_token_ratio": (surrogate.sequence_token_ratio, (PGL, PGL, PGL), (P, G, L)),
  "surrogate.clipped": (with_statics(surrogate.clipped, 0.8, 1.2), (PGL, PGL), (P, G, L)),
  "surrogate.cispo": (with_statics(surrogate.cispo, 1.2), (PGL, PGL, PGL), (P, G, L)),
  "surrogate.soft_gated": (surrogate.soft_gated, (PGL, PGL, PGL), (P, G, L)),
  "surrogate.geometric_ratio": (
    with_statics(surrogate.geometric_ratio, 0.4, 0.4),
    (PGL, PGL, PGL, PGL),
    (P, G, 1),
  ),
  "surrogate.smooth_weight": (surrogate.smooth_weight, (PGL, PGL, PGL, PGL), (P, G, L)),
  "surrogate.within_move": (
    with_statics(surrogate.within_move, "kl", 0.1),
    (PGL, PGL, PGL),
    (P, G, L),
  ),
  "surrogate.beyond": (with_statics(surrogate.beyond, 0.8, 1.2), (PGL, PGL), [(P, G, L)] * 3),
  "surrogate.progress": (
    with_statics(surrogate.progress, 0.8, 1.2),
    (PGL, PGL, PGL),
    [(P, G, L)] * 3,
  ),
  "pass_at_k.maxrl": (pass_at_k.maxrl, (PG, b(P, G)), (P, G)),
  "pass_at_k.pass_at_k": (with_statics(pass_at_k.pass_at_k, 2), (b(P, G), b(P, G)), (P, G)),
  "pass_at_k.pkpo": (with_statics(pass_at_k.pkpo, 2), (b(P, G), b(P, G)), (P, G)),
  "advantages.optimal_token": (advantages.optimal_token, (PGL, PGL, PGL), (P, G, L)),
  "advantages.length_weighted": (advantages.length_weighted, (PG, i(P, G)), (P, G)),
  "mismatch.weight": (with_statics(mismatch.weight, "sequence", 0.0, 2.0), (PGL, PGL), (P, G, 1)),
  "mismatch.kept": (with_statics(mismatch.kept, "max", "k3", 0.0, 0.1), (PGL, PGL), (P, G, 1)),
  "mismatch.may_go": (with_statics(mismatch.may_go, "onwards"), (PGL, PGL), (P, G, L)),
  "rows.completions_to_rows": (
    packed_rows.completions_to_rows,
    (i(P, G, L), i(P, G), PACKING),
    [(P, R, T)] * 3,
  ),
  "rows.values_to_rows": (packed_rows.values_to_rows, (f(P, G, L, D), PACKING), (P, R, T, D)),
  "rows.rows_to_completions": (
    with_statics(packed_rows.rows_to_completions, G, L),
    (f(P, R, T), PACKING),
    (P, G, L),
  ),
  "lists.list_index": (with_statics(lists.list_index, N), (b(U),), [(N,), (U,)]),
  "lists.prompt_list": (with_statics(lists.prompt_list, N), (PROMPTS,), [(N,), (P * LP,)]),
  "lists.group_lists": (
    lists.group_lists,
    (PROMPTS, ROWS, PACKING),
    [(N,), (P * LP,), (N,), (P * R * T,)],
  ),
  "microbatches.split_microbatches": (
    lambda x: microbatches.split_microbatches(tiny.layout(), x, 2),
    (PGL,),
    (2, P // 2, G, L),
  ),
  "microbatches.join_microbatches": (
    microbatches.join_microbatches,
    (f(2, P, G, L),),
    (2 * P, G, L),
  ),
  "forward.by_shard": None,  # forward_test.py, update_test.py
  "forward.predictors": (forward.predictors, (f(P, D), f(P, R, T, D), i(P, R, T)), (P, R, T, D)),
  "forward.logprobs": (
    lambda params, *x: forward.logprobs(model()[0], params, *x, **CHUNK),
    (lambda: model()[1], PROMPTS, i(P, G, L), i(P, G), PACKING),
    [(P, G, L)] * 3,
  ),
  "forward.hidden": (
    lambda params, *x: forward.hidden(model()[0], params, *x),
    (lambda: model()[1], PROMPTS, i(P, G, L), i(P, G), PACKING),
    (P, G, L, D),
  ),
  "forward.head": (
    lambda params: next(iter(forward.head(model()[0], params).values()))["weight"],
    (lambda: model()[1],),
    (V, D),
  ),
  "forward.scores": (
    lambda params, *x: forward.scores(scorer(), params, *x),
    (lambda: scorer().shapes(), PROMPTS, i(P, G, L), i(P, G), PACKING),
    (P, G, L),
  ),
  "forward.values": (
    lambda params, *x: forward.values(model()[0], params, *x),
    (critic, PROMPTS, i(P, G, L), i(P, G), PACKING),
    (P, G, L),
  ),
  "passes.microbatches_of_minibatch": (
    lambda: jnp.zeros(passes.microbatches_of_minibatch(tiny.section("learner", microbatch=1), P)),
    (),
    (P,),
  ),
  "passes.microbatches_of_rollout": (
    lambda: jnp.zeros(
      passes.microbatches_of_rollout(tiny.section("learner", minibatches=2, microbatch=1), P)
    ),
    (),
    (P,),
  ),
  "passes.outputs": (
    lambda params, *x: passes.outputs(learner(), {"policy": params}, *x),
    (lambda: model()[1], sampled, PACKING),
    [(P, G, L)] * 3,
  ),
  "passes.scores": (
    lambda params, *x: passes.scores(judge(), {"policy": params}, *x),
    (lambda: scorer().shapes(), sampled, PACKING),
    (P, G, L),
  ),
  "passes.teacher_hidden": (
    lambda params, *x: passes.teacher_hidden(learner(), params, *x),
    (lambda: model()[1], sampled, PACKING),
    (P, G, L, D),
  ),
  "passes.frozen_outputs": (
    lambda params, *x: passes.frozen_outputs(learner(), params, *x),
    (lambda: {"policy": model()[1], "critic": critic()}, sampled, PACKING),
    [(P, G, L)] * 4,
  ),
  "totals.combine": (lambda x: totals.combine("loss", x), (f(3),), ()),
  "totals.combine_metrics": (
    lambda x: totals.combine_metrics({"loss": (x, x)})["loss"],
    (f(3),),
    [()] * 2,
  ),
  "totals.empty_metric": (lambda: totals.empty_metric("loss"), (), [()] * 2),
  "totals.means": (lambda x: totals.means({"loss": (x, x)})["loss"], (f(),), ()),
  "learn.compiler_options": (
    lambda: jnp.zeros(len(learn.compiler_options(tiny.decoder()))),
    (),
    (3,),
  ),
  "learn.loss": None,
  "learn.gradient": None,
  "learn.optimizer_step": None,
  "learn.reweighted": None,
  "learn.one_pass": None,
  "learn.next_pass": None,
  "learn.inner_loop": None,
  "passes.with_frozen_logprobs": None,
  "passes.asked_of_teacher": None,  # passes_test.py
  "learn.learn": None,
  "movement.movement": None,
  "learn.make_learn": None,
  "movement.make_movement": None,
  "sampler.make_sampler": None,
  "sampler.decode_params": (
    lambda params: [decoding_queries(weights_dtype, params) for weights_dtype in ("same", "int8")],
    (lambda: model()[1],),
    [(K * M * DH, D), (K * M * DH, D), (K * M * DH,)],
  ),
  "kv_cache.store": (
    with_statics(kv_cache.store, "int8", 3),
    (f(S, K, L, DH),),
    [(S, K, L, DH), (S, K, L, 1)],
  ),
  "kv_cache.write": (
    lambda buffer, new, at: kv_cache.write(
      *(kv_cache.Stored(x, None) for x in (buffer, new)), (0, 0, at, 0)
    ),
    (f(S, K, L, DH), f(S, K, 1, DH), i()),
    (S, K, L, DH),
  ),
  "kv_cache.store_prompts": (
    with_statics(kv_cache.store_prompts, "float32"),
    (decoders.KV(f(2, P, LP, K, DH), f(2, P, LP, K, DH)),),
    [(P, K, DH, LP), (P, K, LP, DH)] * 2,
  ),
  "kv_cache.empty": (
    lambda: kv_cache.empty(S, K, DH, L, "bfloat16"),
    (),
    [(S, K, DH, L), (S, K, L, DH)],
  ),
  "kv_cache.ring_blocks": (lambda: jnp.zeros(kv_cache.ring_blocks(128, 8)[3]), (), (96, 128)),
  "kv_cache.copy_prompt": (
    lambda *x: kv_cache.copy_prompt(*x).prompt,
    (cache, lambda: stored(P, LP), i(), i()),
    [(S, K, DH, LP), (S, K, LP, DH)],
  ),
  "kv_cache.copy_ring": (
    lambda c, ring, slot: kv_cache.copy_ring(c, ring, slot).ring[1],
    (cache, lambda: [stored(1, 3), stored(1, L - 3)], i()),
    [(S, K, DH, L - 3), (S, K, L - 3, DH)],
  ),
  "begun.prefill": (
    lambda params, prompts, tokens, per_sample, some: begun.prefill(
      tiny.decoder(),
      sampler.decode_params(tiny.decoder(), "float32", "same", params),
      prompts,
      Begun(tokens, per_sample, some, per_sample, per_sample),
      "float32",
    )[0],
    (lambda: model()[1], PROMPTS, i(P, G, L), i(P, G), b(P, G)),
    (P * G, D),
  ),
  "begun.ring": (
    lambda kv, n, tokens, at: begun.ring(
      begun.BegunRows([kv], n, n, tokens, n, n, n, n), ((0, 3), (3, L)), at, at
    )[0][1],
    (lambda: stored(P * R, T), i(P * G), i(P * G, L), i()),
    [(1, K, DH, L - 3), (1, K, L - 3, DH)],
  ),
  "list_attention.attend_prompts": (
    lambda q, k, v: list_attention.attend_prompts(
      tiny.layout(), K, lists.prompt_list(PROMPTS, None), SPEC, q, k, v
    )[0],
    (f(P * LP, K * M, DH), f(P * LP, K, DH), f(P * LP, K, DH)),
    (P * LP, K, M, DH),
  ),
  "list_attention.attend_groups": (
    functools.partial(in_groups, "attend_groups"),
    (PROMPTS, ROWS, f(P * LP + P * R * T, K * M, DH), *(f(P * LP + P * R * T, K, DH),) * 2),
    (P * LP + P * R * T, K, M, DH),
  ),
  "list_attention.attend_groups_keeping": (
    functools.partial(in_groups, "attend_groups_keeping"),
    (PROMPTS, ROWS, f(P * LP + P * R * T, K * M, DH), *(f(P * LP + P * R * T, K, DH),) * 2),
    [(P * LP + P * R * T, K, M, DH), *[(P, LP, K, DH), (P, R, T, K, DH)] * 2],
  ),
  "kv_cache.write_token": (
    lambda c, *x: kv_cache.write_token(c, 1, *x).ring[1],
    (cache, i(), f(S, K, DH), f(S, K, DH)),
    [(S, K, DH, L - 3), (S, K, L - 3, DH)],
  ),
  "kv_cache.visible": (
    lambda *x: kv_cache.visible(WINDOW, *x[:2], LP, x[2], ((0, 3), (3, L))),
    (i(S), i(S), i(L)),
    [(S, LP), (S, 3), (S, L - 3)],
  ),
  "kv_cache.attend_slots": (
    lambda c, at, masks, *qkv: kv_cache.attend_slots(WINDOW, c, 1, at, masks, *qkv)[0],
    (cache, i(), [b(S, LP), b(S, 3), b(S, L - 3)], f(S, K * M, DH), f(S, K, DH), f(S, K, DH)),
    (S, K * M, DH),
  ),
  "kv_cache.by_prompt": (
    with_statics(kv_cache.by_prompt, 4),
    (f(12, K, M, LP),),
    (4, K, 3 * M, LP),
  ),
  "kv_cache.by_slot": (with_statics(kv_cache.by_slot, 12), (f(4, K, 3 * M, LP),), (12, K, M, LP)),
  "kv_cache.score": (
    lambda q, kv: kv_cache.score(WINDOW, q, kv.keys),
    (f(S, K, M, DH), lambda: stored(S, L)),
    (S, K, M, L),
  ),
  "kv_cache.mix": (
    lambda weights, kv: kv_cache.mix(weights, kv.values, weights.dtype),
    (f(S, K, M, L), lambda: stored(S, L)),
    (S, K, M, DH),
  ),
  "sampler.decode_layout": None,  # no arrays
  "sampler.decode_shardings": None,
  "sampler.make_setup": None,
  "sampler.sample": None,  # test_arithmetic_traces
  "sampler.joined": None,
  "sampler.make_request": None,  # passes its arguments on
  "sampler.completions": (
    in_the_loop(lambda setup, params, *x: sampler.completions(*x)),
    LOOP,
    [(P, G)] * 2 + [(P, G, L)] * 3 + [(1,)] * 3,
  ),
  "sampler.prefill": (
    in_the_loop(lambda setup, params, queue, slots: queue.first),
    LOOP,
    [(P * G,)] * 5,
  ),
  "sampler.roll_out": (
    lambda *x: sampler.roll_out(setup(), None, *decoding_params(*x)),
    LOOP,
    [(P, G)] * 2 + [(P, G, L)] * 3 + [(1,)] * 3,
  ),
  "decode_loop.start": (in_the_loop(lambda setup, params, queue, slots: slots), LOOP, SLOTS),
  "decode_loop.refill": (
    in_the_loop(lambda setup, params, *x: decode_loop.refill(setup, *x)),
    LOOP,
    SLOTS,
  ),
  "decode_loop.next_in_queue": (
    in_the_loop(
      lambda setup, params, queue, slots: decode_loop.next_in_queue(queue, slots.waiting)
    ),
    LOOP,
    (),
  ),
  "decode_loop.decode_step": (
    in_the_loop(
      lambda setup, params, queue, slots: decode_loop.decode_step(setup, params, queue, 0, slots)
    ),
    LOOP,
    SLOTS,
  ),
  "decode_loop.decode_layers": (
    in_the_loop(
      lambda setup, params, queue, slots: decode_loop.decode_layers(setup, params, queue, 0, slots)[
        0
      ]
    ),
    LOOP,
    (S, D),
  ),
  "decode_loop.refill_and_decode": (
    in_the_loop(lambda *x: decode_loop.refill_and_decode(*x[:3], None, x[3])),
    LOOP,
    SLOTS,
  ),
  "decode_loop.decode_until_done": (in_the_loop(decode_loop.decode_until_done), LOOP, SLOTS),
  "decode_loop.unfinished": (
    in_the_loop(lambda setup, params, *x: decode_loop.unfinished(setup, *x)),
    LOOP,
    (),
  ),
  "decode_loop.needs_more": (
    in_the_loop(
      lambda setup, params, queue, slots: decode_loop.needs_more(
        setup, queue._replace(due=queue.prompt_lengths > 0), slots
      )
    ),
    LOOP,
    (),
  ),
  "decode_loop.proceeds": (
    in_the_loop(lambda setup, params, *x: decode_loop.proceeds(setup, x[0], 0, 4, None, x[1])),
    LOOP,
    (),
  ),
  "decode_loop.has_ended": (
    in_the_loop(lambda setup, params, *x: decode_loop.has_ended(setup, *x)),
    LOOP,
    (P * G,),
  ),
  "decode_loop.can_refill": (in_the_loop(lambda *x: decode_loop.can_refill(x[-1])), LOOP, ()),
  "decode_loop.can_decode": (in_the_loop(lambda *x: decode_loop.can_decode(0, 4, x[-1])), LOOP, ()),
  "next_token.head": (
    lambda params, *x: next_token.head(tiny.decoder(), params, *x),
    (lambda: model()[1], f(S, D)),
    (S, V),
  ),
  "next_token.sample_tokens": (
    lambda *x: next_token.sample_tokens(setup(), *x),
    (f(S, V), f(S)),
    [(S,)] * 3,
  ),
  "next_token.sample_in_parts": (
    lambda keys, *x: next_token.sample_in_parts(
      setup(), lambda s: jnp.zeros((len(s), V)), next_token.Noise(keys), *x
    ),
    (lambda: jax.random.split(jax.random.key(0), 7), i(7), i(7)),
    [(7,)] * 3,
  ),
  "next_token.stops": (lambda *x: next_token.stops(setup(), None, *x), (i(S), i(S), i(S)), (S,)),
  "next_token.follow_stop_texts": (
    next_token.follow_stop_texts,
    (i(3, V), i(S), i(S), b(S)),
    [(S,), (S,)],
  ),
  "heads.init_scalar": (lambda: heads.init_scalar(D)["weight"], (), (1, D)),
  "heads.init_score": (lambda: heads.init_score(D)["weight"], (), (1, D)),
  "heads.score": (heads.score, ({"weight": f(1, D)}, f(P, R, T, D)), (P, R, T)),
  "heads.scalar": (heads.scalar, ({"weight": f(1, D), "bias": f(1)}, f(P, R, T, D)), (P, R, T)),
  "layers.linear": (layers.linear, (f(7, D), f(P, T, D)), (P, T, 7)),
  "int8.rounded": (lambda w: tuple(int8.rounded(w)), (f(7, D),), [(7, D), (7,)]),
  "int8.round_layer": (
    lambda w: int8.round_layer({"q": {"weight": w}})["q"]["weight"].x,
    (f(7, D),),
    (7, D),
  ),
  "int8.cast": (lambda w: int8.cast({"q": w}, "bfloat16")["q"], (f(7, D),), (7, D)),
  "int8.layer_shardings": None,  # no arrays
  "int8.is_int8": None,
  "layers.long_context": (with_statics(layers.long_context, 8.0, 1.0, 4.0, 64.0), (f(8),), (8,)),
  "layers.rope": (with_statics(layers.rope, 1e4), (f(P, T, K, DH), i(P, T)), (P, T, K, DH)),
  "layers.rotated": (
    lambda *x: layers.rotated(tiny.decoder().config, SPEC, *x),
    (f(P, T, K, DH), i(P, T)),
    (P, T, K, DH),
  ),
  "attention.attend": (
    functools.partial(attention.attend, SPEC),
    (f(P, T, K, M, DH), f(P, K, DH, T), f(P, K, T, DH), b(P, T, T)),
    (P, T, K, M, DH),
  ),
  "attention.by_kv_head": (
    with_statics(attention.by_kv_head, K),
    (f(P, T, K * M, DH),),
    (P, T, K, M, DH),
  ),
  "attention.keys_values": (
    attention.keys_values,
    (f(P, T, K, DH), f(P, T, K, DH)),
    [(P, K, DH, T), (P, K, T, DH)],
  ),
  "attention.causal_attention": (
    functools.partial(attention.causal_attention, tiny.layout(), SPEC),
    (f(P, T, K, M, DH), f(P, T, K, DH), f(P, T, K, DH)),
    (P, T, K, M, DH),
  ),
  "attention.group_attention": (
    functools.partial(attention.group_attention, tiny.layout(), SPEC),
    (
      f(P, R, T, K, M, DH),
      *[f(P, R, T, K, DH)] * 2,
      *[f(P, LP, K, DH)] * 2,
      i(P),
      i(P, R, T),
      i(P, R, T),
    ),
    (P, R, T, K, M, DH),
  ),
  "attention.within_window": (
    lambda *x: attention.within_window(SPEC, *x),
    (i(P, R, T), i(LP)),
    (P, R, T, LP),
  ),
  "attention.align_right": (attention.align_right, (f(P, LP, K, DH), i(P)), (P, LP, K, DH)),
  "attention.prepend": (
    with_statics(attention.prepend, -3),
    (f(P, LP, K, DH), f(P, R, T, K, DH)),
    (P, R, LP + T, K, DH),
  ),
  "attention.pad_to": (with_statics(attention.pad_to, 1, 4), (f(P, 5),), (P, 8)),
  "attention.splash": (
    functools.partial(attention.splash, SPEC),
    (f(P, T, K, M, DH), f(P, 2 * T, K, DH), f(P, 2 * T, K, DH), b(P, 2 * T)),
    (P, T, K, M, DH),
  ),
  "attention.flash": None,  # cuDNN alone; attention_test.py
  "attention.fits_flash": None,
  "attention.sharded": None,
  "totals.check_names": None,
  "decoder.last_token": (decoders.last_token, (f(P, T, D), i(P)), (P, D)),
}


def public_functions() -> set[str]:
  return {
    f"{module.__name__.rpartition('.')[2]}.{name}"
    for module in MODULES
    for name, value in vars(module).items()
    if inspect.isfunction(value)
    and value.__module__ == module.__name__
    and not name.startswith("_")
  }


def test_every_public_function_has_its_shapes_here():
  assert public_functions() == set(CASES)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case])
def test_shapes(name):
  fn, arrays, want = CASES[name]
  out = jax.eval_shape(fn, *(a() if inspect.isfunction(a) else a for a in arrays))
  chex.assert_shape(jax.tree.leaves(out), want)


def test_shapes_of_the_decoder():
  d, params = model()
  listed = jax.eval_shape(lists.group_lists, PROMPTS, ROWS, PACKING)
  first, hidden = jax.eval_shape(d.forward, params, PROMPTS, ROWS, listed)
  chex.assert_shape([first, hidden], [(P, D), (P, R, T, D)])
  last, kv = jax.eval_shape(d.prefill, params, PROMPTS)
  chex.assert_shape([last, *kv], [(P, D)] + [(2, P, LP, K, DH)] * 2)
  listed = jax.eval_shape(functools.partial(d.prefill, prompt_size=N), params, PROMPTS)
  chex.assert_trees_all_equal_shapes_and_dtypes(listed, (last, kv))
  chex.assert_shape(jax.eval_shape(d.unembed, params), (V, D))
  chex.assert_shape(jax.eval_shape(d.embed, params, i(P, T)), (P, T, D))
  chex.assert_shape(jax.eval_shape(d.norm, params, f(P, T, D)), (P, T, D))


def check_rollouts(r: Rollouts, prompts: int, group: int, length: int) -> None:
  chex.assert_shape([r.tokens, r.sampler_logprobs, r.truncated_logprobs], (prompts, group, length))
  chex.assert_shape([r.lengths, r.ended], (prompts, group))
  chex.assert_type([r.tokens, r.lengths, r.ended], jnp.int32)
  chex.assert_type([r.sampler_logprobs, r.truncated_logprobs], jnp.float32)


@pytest.mark.parametrize("case", objective_cases.CASES)
def test_shapes_of_the_objectives(case):
  objective, changes = objective_cases.CASES[case]
  cfg = objective_cases.settings(objective, **changes)
  r = objective_cases.rollouts()
  if case in objective_cases.PAIRS:
    r = jax.tree.map(lambda x: x[:, :2] if x.ndim > 1 and x.shape[1] == 4 else x, r)
  shape = r.tokens.shape
  batch = jax.eval_shape(lambda r: objective_cases.prepare(r, cfg), r)
  chex.assert_shape([batch.mask, batch.weights, batch.advantages, batch.tokens], shape)
  for extra in jax.tree.leaves(batch.extra):
    assert extra.shape[0] == shape[0]  # cut along P with the rest
  loss = objective.OBJECTIVE.loss
  outputs = Outputs(*(f(*shape),) * 5)
  if objective.OBJECTIVE.trains_reward_model:
    outputs = Scores(f(*shape))
  loss, metrics = jax.eval_shape(lambda o, x: loss(o, x, cfg), outputs, batch)
  chex.assert_shape([loss, *jax.tree.leaves(metrics)], ())


# -- shipped experiments


def trace(
  config: Any, d: Decoder, stop: tuple[int, ...], group: int = 0, sampled: bool = True
) -> None:
  """A whole step of `config` with the model `d`: sample, learn, measure what is a policy. Nothing
  is allocated.
  """
  objective = registry.configured(config.objective)
  critic = Needs.CRITIC in objective.needs
  if objective.trains_reward_model:
    d = dataclasses.replace(d, config=dataclasses.replace(d.config, scores=True))
  params = parameters.abstract_params(d, critic)
  tx = optimizer.make_optimizer(config.learner, config.steps, critic)
  state = abstract(params, tx)
  p, length, group = config.data.prompts, config.sampler.max_length, group or config.sampler.group
  prompts = Prompts(i(p, config.data.max_prompt_length), i(p))
  shape = (p, group, length)
  rollouts = Rollouts(prompts, i(*shape), i(p, group), i(p, group), f(*shape), f(*shape))
  if sampled:
    sample = sampler.make_sampler(d, config.sampler, stop)
    weights = jax.eval_shape(sample.ready, params["policy"])
    rollouts, statistics = jax.eval_shape(sample.run, weights, prompts, KEY, None)
    chex.assert_shape([statistics["slot_use"], statistics["decode_steps"]], ())
  check_rollouts(rollouts, *shape)
  n = len(config.rewards.functions)
  rollouts = dataclasses.replace(
    rollouts, rewards=f(*shape), given=b(*shape), components=f(p, group, n)
  )
  temperature = config.sampler.temperature
  setup = passes.Setup(d, objective, tx, config.learner, temperature)
  update = learn.make_learn(setup)
  packing = Packing(
    i(p, max(1, group // 2), length),
    p * group * length // 2,
    p * config.data.max_prompt_length // 2,
  )
  ref = params["policy"] if reads_reference(objective.needs) else None
  after, metrics, record = jax.eval_shape(update, state, ref, None, rollouts, packing)
  chex.assert_trees_all_equal_shapes_and_dtypes(after, state)
  chex.assert_shape(list(metrics.values()), ())
  assert {"loss", "grad_norm", "skipped"} <= set(metrics)
  chex.assert_shape(record.advantages, shape)
  if objective.trains_reward_model:
    return
  chex.assert_shape([record.logprobs, record.entropy], shape)
  moved = jax.eval_shape(movement.make_movement(setup), after.params, rollouts, record, packing)
  chex.assert_shape(list(moved.metrics.values()), ())
  chex.assert_shape([moved.before, moved.after], (p, group))
  of_tokens = [moved.logprobs] + ([moved.ratios, moved.stands] if objective.has_ratio else [])
  chex.assert_shape(of_tokens, shape)


def shipped(config: Any, d: Decoder, **changes: str) -> Decoder:
  """`d` as the experiment runs it, but for what only makes tracing slow."""
  run = {"layers": "scan", "remat": config.model.remat, "dtype": config.model.dtype} | changes
  return dataclasses.replace(d, **run)


def with_teacher(module: str) -> str:
  """The argument of a config file that names a teacher, where the objective learns from one."""
  return f",teacher={arithmetic.WARM_START}" if registry.objective(module).teacher else ""


@functools.cache
def warm_start() -> build.Model:
  return build.model(make(arithmetic.get_config()), jax.devices()[:1])


@pytest.mark.parametrize("objective", ["distill", "distill_offline", "gkd"])
def test_distillation_asks_for_its_teacher(objective):
  for experiment in (arithmetic, gsm8k):
    with pytest.raises(SettingError, match="teacher=''.*use teacher=FOLDER"):
      experiment.get_config(f"objective={objective}")


def test_a_teacher_that_nobody_learns_from_is_refused():
  with pytest.raises(SettingError, match="teacher=x: grpo learns from no other model"):
    arithmetic.get_config("teacher=x")


def test_a_row_that_is_not_there():
  with pytest.raises(
    SettingError,
    match="objective=grop: did you mean grpo\\? Or choose from grpo, dr_grpo, .* or give a file",
  ):
    gsm8k.get_config("objective=grop")


@pytest.mark.parametrize(
  "objective",
  # those that are called as their module is, and others with the slow tests
  [
    row if row == module else pytest.param(row, marks=pytest.mark.slow)
    for row, (module, _) in arithmetic.OBJECTIVES.items()
  ],
)
def test_arithmetic_traces(objective):
  config = arithmetic.get_config(
    f"objective={objective}{with_teacher(arithmetic.OBJECTIVES[objective][0])}"
  )
  of_kind = (
    {"pairs": 2, "solutions": 1}.get(config.offline.data) if config.loop == "offline" else None
  )
  m = warm_start()
  trace(config, shipped(config, m.decoder), m.stop, of_kind or 0, sampled=objective == "grpo")


def test_arithmetic_hard_traces():
  config = arithmetic.get_config("hard,objective=process")
  # its warm start is of the same shapes
  trace(config, shipped(config, warm_start().decoder), warm_start().stop)


@pytest.mark.parametrize("arg", ["", "hard"])
def test_arithmetic_sft_traces(arg):
  config = arithmetic_sft.get_config(arg)
  m = build.model(make(config), jax.devices()[:1])
  trace(config, shipped(config, m.decoder), m.stop, 1, sampled=False)


def test_arithmetic_rm_traces():
  config = arithmetic_rm.get_config()
  m = build.model(make(config), jax.devices()[:1], scores=True)
  trace(config, shipped(config, m.decoder), m.stop, 2, sampled=False)
  checks.check(make(config), m.decoder)


@pytest.mark.parametrize("labels", ["continuations", "rule"])
def test_arithmetic_prm_traces(labels):
  config = arithmetic_prm.get_config(f"labels={labels}")
  m = build.model(make(config), jax.devices()[:1], scores=True)
  trace(config, shipped(config, m.decoder), m.stop, 0, sampled=False)
  checks.check(make(config), m.decoder)


@pytest.mark.parametrize(
  ("experiment", "arg"),
  [
    (arithmetic_process, "reward_model=x,outcome=true"),
    (gsm8k_process, "reward_model=x"),
    pytest.param(arithmetic_iterative, "reward_model=x,hard", marks=pytest.mark.slow),
    pytest.param(gsm8k_iterative, "", marks=pytest.mark.slow),
    pytest.param(gsm8k_iterative, "model=tiny,reward_model=x", marks=pytest.mark.slow),
  ],
)
def test_what_reward_models_reward_traces(experiment, arg):
  """In the shapes of a tiny model: those of the real ones are traced with the experiments that
  these change.
  """
  config, d = experiment.get_config(arg), tiny.decoder()
  trace(config, shipped(config, d), (1, 2), sampled=False)
  checks.check(make(config), d)


def test_process_supervision_changes_the_rewards_of_arithmetic_alone():
  assert arithmetic_process.get_config() == arithmetic.get_config("objective=process")
  found, hard = (
    arithmetic_process.get_config("hard,reward_model=x"),
    arithmetic.get_config("hard,objective=process"),
  )
  assert found.rewards.functions == (("steps", "steps.steps_correct", 0.0),)
  assert found.rewards.process_models == (("judge", "x", 1.0),)
  found.rewards = hard.rewards
  assert found == hard
  both = arithmetic_process.get_config("outcome=true").rewards.functions
  assert both == (("steps", "steps.steps_correct", 1.0), ("correct", "math.answer_correct", 1.0))


def test_iterative_experiments_have_the_rate_and_the_iterations_of_their_problems():
  easy, hard = (
    arithmetic_iterative.get_config(f"reward_model=x,hard={hard}") for hard in (False, True)
  )
  assert (easy.learner.lr, hard.learner.lr) == (2e-4, 1e-4) and hard.data.arithmetic.min_steps == 5
  real, small = (gsm8k_iterative.get_config(f"model={name}") for name in ("qwen3_0.6b", "tiny"))
  assert (real.iterative.steps, small.iterative.steps) == (100, 2)
  for config in (easy, hard, real, small):
    checks.check(make(config), tiny.decoder())


@pytest.mark.parametrize("experiment", [arithmetic_iterative, gsm8k_process])
def test_the_run_of_a_reward_model_is_accepted(experiment):
  checks.check(make(experiment.get_config().first), tiny.decoder())


def test_gsm8k_rm_traces():
  """In the shapes of the real weights (four layers of them), over eight chips."""
  config = gsm8k_rm.get_config("policy=other")
  layout = build.sharding.make_layout(config.mesh, jax.devices()[:8])
  d = Decoder(variants.variant("qwen3_0.6b", layers=4), layout)
  trace(config, shipped(config, d), (1, 2), 2, sampled=False)
  checks.check(make(config), d)


@pytest.fixture
def gsm8k_folder(tmp_path):
  """A folder with GSM8K's two files, a few problems each."""
  rows = [
    {"question": f"Ann eats one of {n} apples.", "answer": f"{n} - 1\n#### {n - 1}"}
    for n in range(2, 40)
  ]
  for split in ("train", "test"):
    (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(tmp_path)


def test_gsm8k_tiny_traces(gsm8k_folder):
  config = gsm8k.get_config("model=tiny")
  config.data.path = gsm8k_folder
  m = build.model(make(config), jax.devices()[:1])
  trace(config, shipped(config, m.decoder), m.stop)


@pytest.mark.parametrize("row", presets.PRESETS)
def test_every_preset_makes_a_section_that_its_objective_takes(row):
  """In both experiments, and the bounds of GSPO are the paper's."""
  module = presets.PRESETS[row][0]
  for config in (
    experiment.get_config(f"objective={row}{with_teacher(module)}")
    for experiment in (arithmetic, gsm8k)
  ):
    registry.configured(config.objective)
    checks.check(make(config), tiny.decoder())
    assert config.objective.name == module
    if row.startswith("gspo"):
      assert (config.objective.clip_low, config.objective.clip_high) == (3e-4, 4e-4)
    config.sampler.max_length = 77
    assert config.objective.to_dict().get("max_length", 77) == 77


MINE = """
import dataclasses
from grpo_jax.objectives import rft

def settings():
  c = rft.settings()
  c.bonus = 2.0  # what a correct completion counts for
  return c

def prepare(rollouts, cfg, advantages):
  batch = rft.prepare(rollouts, cfg, advantages)
  return dataclasses.replace(batch, advantages=cfg.bonus * batch.advantages)

OBJECTIVE = dataclasses.replace(rft.OBJECTIVE, settings=settings, prepare=prepare)
"""


def test_an_objective_of_ones_own_is_a_file(tmp_path):
  (tmp_path / "mine.py").write_text(MINE)
  config = gsm8k.get_config(f"objective={tmp_path}/mine.py")
  config.objective.bonus = 3.0
  cfg = registry.configured(config.objective).cfg
  assert cfg.name == f"{tmp_path}/mine.py" and cfg.max_length == config.sampler.max_length
  assert set(
    jnp.unique(objective_cases.prepare(objective_cases.rollouts(), cfg).advantages).tolist()
  ) == {0.0, 3.0}


@pytest.mark.parametrize(
  "arg", ["", "deepseekmath=True", "model=qwen2.5_0.5b,objective=gspo", "model=llama3.2_1b"]
)
def test_gsm8k_traces_on_a_mesh(arg):
  """In the shapes of the real weights (four layers of them), over eight chips."""
  config = gsm8k.get_config(arg)
  name = dict(part.split("=") for part in arg.split(",") if part).get("model", "qwen3_0.6b")
  config.mesh.group = 2
  layout = build.sharding.make_layout(config.mesh, jax.devices()[:8])
  d = Decoder(variants.variant(name, layers=4), layout)
  trace(config, shipped(config, d), (1, 2), sampled=arg == "")


# -- nothing compiles twice


@pytest.fixture
def compiled():
  """Names of the programs that are compiled, as they are."""
  names = []

  def listen(event: str, _: float, **more: Any) -> None:
    if "backend_compile" in event:
      names.append(more.get("fun_name"))

  jax.monitoring.register_event_duration_secs_listener(listen)
  yield names
  jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
def test_steps_compile_once(compiled):
  """Sample and learn three times over, on a mesh and with the shipped optimizer, prompts and
  completions of other
  lengths each time but of one bucket: each is traced and compiled once."""
  mesh = (1, 4, 2, 1)
  layout, d = tiny.layout(mesh), tiny.decoder(mesh=mesh)
  learner = tiny.section(
    "learner", chunk=64, lr=1e-3, warmup=2, schedule="cosine", weight_decay=0.1
  )
  tx = optimizer.make_optimizer(learner, 3)
  chex.clear_trace_counter()

  def once(jitted: Any, **options: Any) -> Any:
    wrapped = jitted.__wrapped__

    # noqa: E731  chex wants a function, not a partial
    def plain(*args, **named):
      return wrapped(*args, **named)

    plain.__name__ = plain.__qualname__ = inspect.unwrap(getattr(wrapped, "func", wrapped)).__name__
    return jax.jit(chex.assert_max_traces(plain, n=1), **options)

  made = tiny.make_sampler(mesh=mesh)
  sample = dataclasses.replace(
    made, ready=once(made.ready), run=once(made.run, static_argnames="prompt_size")
  )
  update = once(
    learn.make_learn(passes.Setup(d, tiny.objective(), tx, learner, 0.7)), donate_argnums=0
  )
  state = create({"policy": tiny.params(mesh=mesh)}, tx)
  placed = jax.tree.map(lambda x: x.sharding, state)
  table = groups.widen(tiny.rollouts(), 48)
  compiled.clear()
  for step in range(3):
    given = jax.tree.map(lambda x, step=step: np.roll(x, 2 * step, axis=0), table)
    rollouts, _ = host.draw(
      sample,
      state.params["policy"],
      given.prompts,
      jax.random.key(step),
      tiny.sizes(mesh),
      given.lengths,
    )
    np.testing.assert_array_equal(rollouts.lengths, given.lengths)
    rollouts = dataclasses.replace(
      rollouts, rewards=given.rewards, given=given.given, components=given.components
    )
    rollouts = groups.widen(rollouts, 48)
    packing = plan.pack(rollouts, layout)
    assert packing.token_index is not None and packing.list_size and packing.prompt_list_size
    state, metrics, _ = update(state, None, None, *host.to_device(layout, (rollouts, packing)))
    assert math.isfinite(metrics["loss"]) and int(state.step) == step + 1
  assert sorted(name for name in compiled if name in ("jit(sample)", "jit(learn)")) == [
    "jit(learn)",
    "jit(sample)",
  ]
  jax.tree.map(
    lambda x, s: chex.assert_equal(x.sharding.is_equivalent_to(s, x.ndim), True), state, placed
  )
