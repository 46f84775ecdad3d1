"""A tiny model, its prompts and what is compiled from it, each made once and shared by all tests of
one process.

P = 8 prompts of 0 to 6 tokens (one row only fills the batch, two are not padded), G = 8 samples, L
= 8 tokens. The pad id, 0, is also a token that stops. One token in three or so stops: completions
are of all lengths, some truncated.
"""

import dataclasses
import functools
import inspect
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases
import optax
import small_models  # noqa: F401  adds the variants named test_*
from ml_collections import ConfigDict

from grpo_jax.distributed import sharding
from grpo_jax.learning import forward, learn, passes
from grpo_jax.learning.state import TrainState, create
from grpo_jax.models import variants
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.decoder import Decoder, DecoderConfig
from grpo_jax.objectives import grpo
from grpo_jax.objectives.base import ConfiguredObjective
from grpo_jax.ops import decoding
from grpo_jax.packing import plan
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling import rollouts as host
from grpo_jax.sampling import sampler
from grpo_jax.setup import defaults
from grpo_jax.types import Prompts, Rollouts

P, G, LP, L, V = 8, 8, 6, 8, 96
STOP = tuple(range(0, V, 3))
ONE = (1, 1, 1, 1)  # (replica, fsdp, group, tensor)
# changes nothing and keeps the gradient, see `gradient`
GRADIENT = optax.chain(optax.trace(0.0), optax.scale(0.0))


def shared(fn: Any) -> Any:
  """`functools.cache` by the values of the arguments, however they are passed."""
  signature, cached = inspect.signature(fn), functools.cache(fn)

  @functools.wraps(fn)
  def call(*args: Any, **named: Any) -> Any:
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    return cached(*bound.args, **bound.kwargs)

  return call


def section(name: str, **changes: Any) -> ConfigDict:
  """A section of the default settings with changes."""
  section = ConfigDict(getattr(defaults.get_config(), name).to_dict())
  section.update(changes)
  return section


@shared
def layout(mesh: tuple[int, ...] = ONE) -> sharding.Layout:
  sizes = dict(zip(sharding.AXES, mesh))
  return sharding.make_layout(section("mesh", **sizes), jax.devices()[: int(np.prod(mesh))])


@dataclasses.dataclass(frozen=True)
class On(sharding.Layout):
  """A layout of these CPUs that says it is of another platform."""

  platform: str = "cpu"


def on(platform: str, mesh: tuple[int, ...] = ONE) -> On:
  return On(layout(mesh).mesh, layout(mesh).rules, platform)


@shared
def decoder(variant: str = "test_qwen3", mesh: tuple[int, ...] = ONE, **run: str) -> Decoder:
  return Decoder(variants.variant(variant), layout(mesh), **run)


@shared
def weights(variant: str = "test_qwen3") -> Any:
  """Numpy parameters, with logits that prefer some tokens."""
  tree = jax.device_get(jax.jit(decoder(variant).init)(jax.random.key(0)))
  for name in tree.keys() & {"embed", "unembed"}:
    tree[name]["weight"] = 10 * tree[name]["weight"]
  rng = np.random.default_rng(1)

  def noisy(path, x):
    return x + 0.1 * rng.normal(size=x.shape).astype(x.dtype) if path[-1].key != "weight" else x

  return jax.tree_util.tree_map_with_path(noisy, tree)


def params(variant: str = "test_qwen3", mesh: tuple[int, ...] = ONE) -> Any:
  """A fresh copy of the parameters in their shards."""
  return jax.device_put(jax.tree.map(np.copy, weights(variant)), decoder(variant, mesh).shardings())


def sizes(
  mesh: tuple[int, ...] = ONE, most: int = 0, width: int = LP, microbatches: int = 1
) -> Sizes:
  return Sizes(most, layout(mesh), width, microbatches)


def prompts(pad: int = 0, width: int = LP) -> Prompts:
  """Numpy."""
  lengths = np.array([6, 1, 3, 5, 6, 0, 2, 4], np.int32)
  tokens = np.random.default_rng(2).integers(0, V, (P, LP)).astype(np.int32)
  tokens = np.pad(tokens, [(0, 0), (0, width - LP)])
  return Prompts(
    np.where(np.arange(width) < lengths[:, None], tokens, pad).astype(np.int32), lengths
  )


@shared
def make_sampler(
  variant: str = "test_qwen3", mesh: tuple[int, ...] = ONE, stop: tuple = STOP, **changes: Any
) -> Any:
  cfg = section("sampler", **({"group": G, "max_length": L, "temperature": 0.7} | changes))
  return sampler.make_sampler(decoder(variant, mesh), cfg, stop)


def sample(
  seed: int = 0,
  variant: str = "test_qwen3",
  mesh: tuple[int, ...] = ONE,
  given: Prompts | None = None,
  **changes: Any,
) -> Rollouts:
  """Numpy rollouts of the tiny prompts."""
  on_device = host.to_device(layout(mesh), given or prompts())
  out, _ = make_sampler(variant, mesh, **changes)(
    params(variant, mesh), on_device, jax.random.key(seed)
  )
  return host.to_host(out)


@shared
def rollouts(seed: int = 0, variant: str = "test_qwen3") -> Rollouts:
  """`sample`, with rewards: what its last token says, and in the third group the same for all."""
  out = sample(seed, variant)
  last = np.maximum(out.lengths - 1, 0)[..., None]
  given = (np.arange(L) == last) & (out.lengths > 0)[..., None]
  reward = np.take_along_axis(out.tokens, last, axis=2) % 3 / 2
  reward[2] = 1.0
  rewards = np.where(given, reward, 0.0).astype(np.float32)
  return dataclasses.replace(
    out, rewards=rewards, given=given, components=reward.astype(np.float32)
  )


def packing(r: Rollouts, mesh: tuple[int, ...] = ONE, microbatches: int = 1) -> Packing:
  packing = plan.pack(r, layout(mesh), microbatches)
  assert packing.token_index is not None and packing.list_size is not None
  return packing


def uniforms(key: jax.Array, samples: int = G, tokens: int = L) -> np.ndarray:
  """The noise `[P, G, L]`, written as it is defined: of (key, prompt, sample, token)."""

  def one(p: jax.Array, g: jax.Array, t: jax.Array) -> jax.Array:
    return jax.random.uniform(
      jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, p), g), t)
    )

  grid = jnp.meshgrid(jnp.arange(P), jnp.arange(samples), jnp.arange(tokens), indexing="ij")
  return np.asarray(jnp.vectorize(one)(*grid))


@shared
def objective(module: Any = grpo, **changes: Any) -> ConfiguredObjective:
  """An objective with changed settings; the same ones are the same object."""
  length = {"max_length": L} if "max_length" in module.OBJECTIVE.settings() else {}
  return objective_cases.configured(module, **length | changes)


@shared
def make_learn(
  mesh: tuple[int, ...] = ONE,
  variant: str = "test_qwen3",
  tx: optax.GradientTransformation = GRADIENT,
  objective_: ConfiguredObjective = objective(),  # noqa: B008 (frozen)
  **changes: Any,
) -> Any:
  cfg = section("learner", **({"chunk": 64} | changes))
  return learn.make_learn(passes.Setup(decoder(variant, mesh), objective_, tx, cfg, 0.7))


@shared
def logprobs(
  variant: str = "test_qwen3", mesh: tuple[int, ...] = ONE, temperature: float = 0.7, **run: str
) -> Any:
  """Jitted: (params, prompts, tokens, lengths, packing) -> log-probs and entropies `[P, G, L]`, as
  the learner has.
  """
  run_ = functools.partial(
    forward.logprobs, decoder(variant, mesh, **run), temperature=temperature, chunk=64
  )
  return jax.jit(lambda *args: run_(*args))


class Learned(NamedTuple):
  """Numpy."""

  state: TrainState
  metrics: dict[str, np.ndarray]
  trace: learn.Trace
  gradient: Any  # of the last update, under GRADIENT


def update(
  given: Rollouts | None = None,
  packing: Packing = Packing(),  # noqa: B008 (frozen)
  mesh: tuple[int, ...] = ONE,
  tx: optax.GradientTransformation = GRADIENT,
  ref: Any = None,
  old: Any = None,
  **changes: Any,
) -> Learned:
  """One call of `learn`; `ref` and `old` are numpy trees."""

  def on_device(x):
    return host.to_device(layout(mesh), x)

  def placed(x):
    return None if x is None else jax.device_put(x, decoder("test_qwen3", mesh).shardings())

  state = create({"policy": params(mesh=mesh)}, tx)
  run = make_learn(mesh, tx=tx, **changes)
  state, metrics, trace = jax.device_get(
    run(state, placed(ref), placed(old), *on_device((given or rollouts(), packing)))
  )
  return Learned(
    state, metrics, trace, state.opt_state[0].trace["policy"] if tx is GRADIENT else None
  )


def real(r: Rollouts) -> np.ndarray:
  """`[P, G, L]` bool: where there are tokens."""
  return np.arange(r.tokens.shape[2]) < r.lengths[..., None]


# -- slow twins: one prompt for each sample, prompt and completion side by side, all logits at once


@functools.partial(jax.jit, static_argnums=0)
@jax.default_matmul_precision("highest")  # a GPU would round the factors to TF32
def naive_logits(c: DecoderConfig, params: Any, tokens: jax.Array) -> jax.Array:
  """The decoder written out: tokens `[B, T]` -> logits `[B, T, V]`, causal, nothing shared and
  nothing cached.
  """
  t, half = tokens.shape[1], c.head_dim // 2

  def norm(scale: jax.Array, x: jax.Array) -> jax.Array:
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + c.norm_eps) * (scale + c.norm_plus_one)

  def project(p: Any, x: jax.Array) -> jax.Array:
    return jnp.einsum("bti,oi->bto", x, p["weight"]) + p.get("bias", 0.0)

  def angle_of(spec: AttentionSpec) -> np.ndarray:
    frequency = (spec.rope_theta or c.rope_theta) ** (-np.arange(half) / half)
    if c.rope_scaling and not spec.rope_theta:
      factor, low, high, original = c.rope_scaling
      keep = np.clip((original * frequency / (2 * np.pi) - low) / (high - low), 0, 1)
      frequency = keep * frequency + (1 - keep) * frequency / factor
    stretched = 1.0 if spec.rope_theta else c.rope_linear
    return (spec.rope * np.arange(t)[:, None] / stretched * frequency)[:, None]

  def cap(x: jax.Array, bound: float) -> jax.Array:
    return bound * jnp.tanh(x / bound) if bound else x

  def rotate(x: jax.Array, angle: np.ndarray) -> jax.Array:
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate(
      [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1
    )

  def layer(i: int, x: jax.Array) -> jax.Array:
    p = jax.tree.map(lambda w: w[i], params["layers"])
    spec, a = c.layer_attention(i), p["attention"]
    y = norm(p["attention_norm"]["scale"], x) if c.pre_norms else x
    q, k, v = (project(a[n], y) for n in "qkv")
    if c.qk_norm_whole:
      q, k = norm(a["q_norm"]["scale"], q), norm(a["k_norm"]["scale"], k)
    q, k, v = (z.reshape(*y.shape[:2], -1, c.head_dim) for z in (q, k, v))
    if c.qk_norm:
      q, k = norm(a["q_norm"]["scale"], q), norm(a["k_norm"]["scale"], k)
    q, k = (rotate(z, angle_of(spec)) for z in (q, k))
    k, v = (jnp.repeat(z, c.heads // c.kv_heads, axis=2) for z in (k, v))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * (spec.scale or 1 / math.sqrt(c.head_dim))
    scores = cap(scores, spec.soft_cap)
    ago = np.arange(t)[:, None] - np.arange(t)
    scores = jnp.where((ago >= 0) & (ago < (spec.window or t)), scores, -jnp.inf)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), v)
    y = project(a["o"], mixed.reshape(*x.shape[:2], -1))
    x = x + (norm(p["attention_post_norm"]["scale"], y) if c.post_norms else y)
    m, y = p["mlp"], norm(p["mlp_norm"]["scale"], x) if c.pre_norms else x
    act = (
      jax.nn.silu if c.activation == "silu" else functools.partial(jax.nn.gelu, approximate=True)
    )
    y = project(m["down"], act(project(m["gate"], y)) * project(m["up"], y))
    return x + (norm(p["mlp_post_norm"]["scale"], y) if c.post_norms else y)

  x = params["embed"]["weight"][tokens] * (math.sqrt(c.width) if c.embed_scale else 1.0)
  for i in range(c.layers):
    x = layer(i, x)
  x = norm(params["final_norm"]["scale"], x)
  return cap(
    jnp.einsum("btd,vd->btv", x, params["embed" if c.tied else "unembed"]["weight"]),
    c.logit_soft_cap,
  )


def sequences(p: Prompts, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """Prompt and completion of every sample without a gap: `[P * G, Lp + L]`."""
  n_prompts, group, length = tokens.shape
  out = np.zeros((n_prompts * group, p.tokens.shape[1] + length), np.int32)
  for row, (i, j) in enumerate(np.ndindex(n_prompts, group)):
    whole = [*p.tokens[i, : p.lengths[i]], *tokens[i, j, : lengths[i, j]]]
    out[row, : len(whole)] = whole
  return out


def completion_logits(
  variant: str, params: Any, p: Prompts, tokens: np.ndarray, lengths: np.ndarray
) -> jax.Array:
  """`[P, G, L, V]`: what predicts each completion token; differentiable in params."""
  logits = naive_logits(decoder(variant).config, params, sequences(p, tokens, lengths))
  n_prompts, group, length = tokens.shape
  places = np.maximum(np.repeat(p.lengths, group)[:, None] - 1, 0) + np.arange(length)
  return jnp.take_along_axis(logits, places[..., None], axis=1).reshape(
    n_prompts, group, length, -1
  )


def naive_logprobs(
  variant: str, params: Any, r: Rollouts, temperature: float = 0.7
) -> tuple[jax.Array, jax.Array]:
  """Log-probs and entropies `[P, G, L]`; numbers without meaning on padding."""
  logp = jax.nn.log_softmax(
    completion_logits(variant, params, r.prompts, r.tokens, r.lengths) / temperature
  )
  return jnp.take_along_axis(logp, r.tokens[..., None], axis=-1)[..., 0], -(
    jnp.exp(logp) * logp
  ).sum(-1)


def naive_generate(
  seed: int, variant: str = "test_qwen3", given: Prompts | None = None, **how: Any
) -> Rollouts:
  """A whole forward pass for each token of each sample."""
  how = {"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | how
  p, u = given or prompts(), uniforms(jax.random.key(seed))
  tokens, lengths = np.zeros((P, G, L), np.int32), np.zeros((P, G), np.int32)
  logprobs, truncated = np.zeros((P, G, L), np.float32), np.zeros((P, G, L), np.float32)
  stopped = np.zeros((P, G), bool)
  for t in range(L):
    logits = completion_logits(variant, weights(variant), p, tokens, lengths)[:, :, t].reshape(
      P * G, -1
    )
    found = decoding.sample(logits, jnp.asarray(u[..., t].reshape(-1)), **how)
    going = ~stopped & (p.lengths > 0)[:, None]
    for out, new in zip((tokens, logprobs, truncated), found):
      out[going, t] = np.asarray(new).reshape(P, G)[going]
    lengths += going
    stopped |= going & np.isin(tokens[..., t], STOP)
  return Rollouts(p, tokens, lengths, stopped.astype(np.int32), logprobs, truncated)
