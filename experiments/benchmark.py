"""Measures one GRPO step; the last line is one JSON object.

    python -m experiments.benchmark --config=experiments/benchmarks.py:prompts=4,group=8 [--vs=trl --peer=PYTHON]

Seconds are medians over `steps` steps that compiled nothing: those that did are run and left out. FLOPs are counted
from the shapes, over the rate of a 2048 x 2048 x 2048 product (8192 off the CPU) in the model's dtype in the same
process; bytes that decoding must read, over the rate at which an array is read and written. With --vs=trl or --vs=tunix
the peer (experiments/peers, run by the Python of its own environment, --peer) and this program run in turn, and ratios
of medians are printed.
"""

import dataclasses
import functools
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict, config_flags

from experiments import arguments
from grpo_jax import learn, metrics, optim, sampler, sharding
from grpo_jax import rollouts as host
from grpo_jax import state as states
from grpo_jax.loops import imports
from grpo_jax.models.decoder import Decoder, DecoderConfig
from grpo_jax.packing import plan
from grpo_jax.sharding import Layout
from grpo_jax.types import Prompts


def forced_lengths(rows: int, completion: int, step: int) -> np.ndarray:
  """Long-tailed lengths `[rows]`, end token included: exponential of mean completion / 4, cut to [2, completion]."""
  u = np.random.default_rng(step).random(rows)
  return np.clip(np.ceil(-completion / 4 * np.log1p(-u)), 2, completion).astype(np.int32)


def layer_weights(c: DecoderConfig) -> int:
  """Numbers in the matrices of a layer."""
  return c.width * c.head_dim * (2 * c.heads + 2 * c.kv_heads) + 3 * c.width * c.mlp


def flops(shape: DecoderConfig, prompts: np.ndarray, lengths: np.ndarray) -> float:
  """Floating-point operations of generation, and as many of one forward pass of the learner.

  Two for each weight of a matrix and each token, and attention's two products with what a token may see. A prompt
  counts once for its group; the head counts on completion tokens alone. Lengths of prompts `[P]`, of completions
  `[P, G]`.
  """
  c, layer = shape, layer_weights(shape)
  head = c.width * c.vocab
  attend = 2 * c.heads * c.head_dim * c.layers  # multiply-adds for one query and one key
  tokens = float(lengths.sum())
  seen = float((lengths * prompts[:, None] + lengths * (lengths + 1) / 2).sum())
  prefill = float(prompts.sum()) * c.layers * layer + attend * float((prompts * (prompts + 1) / 2).sum())
  everything = prefill + tokens * (c.layers * layer + head) + attend * seen
  return 2 * everything


def decode_bytes(shape: DecoderConfig, prompts: np.ndarray, lengths: np.ndarray, steps: int, size: int) -> float:
  """Bytes that `steps` decoding steps must read, at `size` bytes a number.

  All weights at each step (of the embedding, the head's use of it), a prompt's keys and values once for its group,
  and for each token those of its own completion. Lengths as for `flops`.
  """
  c, layer = shape, layer_weights(shape)
  kv = 2 * c.kv_heads * c.head_dim * c.layers
  weights = steps * (c.layers * layer + c.width * c.vocab)
  return size * float(weights + steps * float(prompts.sum()) * kv + (lengths * (lengths + 1) / 2).sum() * kv)


def median_seconds(f: Any, *args: Any, times: int = 5) -> float:
  """Of a call, after a first one."""
  jax.block_until_ready(f(*args))
  seconds = []
  for _ in range(times):
    start = time.perf_counter()
    jax.block_until_ready(f(*args))
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds)


def matmul_rate(dtype: str = "float32") -> float:
  """FLOP/s of a square product."""
  n = 2048 if jax.default_backend() == "cpu" else 8192
  x = jnp.ones((n, n), dtype)
  return 2 * n**3 / median_seconds(jax.jit(jnp.matmul), x, x)


def copy_rate(megabytes: int = 128, times: int = 8) -> float:
  """Bytes/s of reading an array and writing it again, in place: new memory would cost a CPU its page faults."""
  x = jnp.ones(megabytes * 2**18, jnp.float32)
  again = jax.jit(lambda x: jax.lax.fori_loop(0, times, lambda _, x: x + 1, x))
  return times * 2 * x.nbytes / median_seconds(again, x)


def device_peak() -> float | None:
  """GB, where the device counts them; a CPU does not."""
  return ((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use") or 0) / 1e9 or None


def generate_all(
  sample: Any, params: Any, prompts: Prompts, key: Any, ends: np.ndarray, at_once: int, layout: Layout
) -> tuple[Any, Any]:
  """Samples on the host, `at_once` prompts at a time."""
  parts = []
  for p in range(0, len(ends), at_once):
    some, forced = jax.tree.map(lambda x, p=p: x[p : p + at_once], (prompts, ends))
    forced = functools.partial(sample, ends=host.to_device(layout, forced))
    parts.append(host.draw(forced, params, some, jax.random.fold_in(key, p), layout))
  rollouts, found = zip(*parts)
  if len(parts) == 1:
    return rollouts[0], found[0]
  steps = sum(f["decode_steps"] for f in found)
  busy = sum(f["slot_use"] * f["decode_steps"] for f in found) / steps
  rollouts = jax.tree.map(lambda *x: np.concatenate(x), *(dataclasses.replace(r, prompts=None) for r in rollouts))
  return dataclasses.replace(rollouts, prompts=plan.trim(prompts)), {"slot_use": busy, "decode_steps": steps}


def measure(config: ConfigDict) -> dict[str, Any]:
  """Runs config.steps steps, and those that compile; see the module's docstring."""
  b, prompts, group = config.benchmark, config.data.prompts, config.sampler.group
  length = config.sampler.max_length
  layout, parts = sharding.make_layout(config.mesh), learn.parts(config.learner, prompts)
  shape = DecoderConfig(
    vocab=b.vocab,
    width=b.width,
    layers=b.layers,
    heads=b.width // b.head_dim,
    kv_heads=max(1, b.width // b.head_dim // 2),
    head_dim=b.head_dim,
    mlp=b.mlp,
    attention_bias=True,
  )
  decoder = Decoder(shape, layout, layers=config.model.layers, remat=config.model.remat, dtype=config.model.dtype)
  init = jax.jit(decoder.init, out_shardings=decoder.shardings())
  objective = imports.module("grpo_jax.objectives", config.objective.name, "objective.name")
  tx = optim.make_optimizer(config.learner, config.steps)
  state = states.create({"policy": init(jax.random.key(0))}, tx)
  ref = init(jax.random.key(0))
  at_once = prompts if b.refill else config.sampler.slots // group
  sample = sampler.make_sampler(decoder, config.sampler, ())
  update = learn.make_learn(decoder, objective, tx, config.learner, config.objective, config.sampler.temperature)

  dtype, size = config.model.dtype, jnp.dtype(config.sampler.dtype).itemsize
  copied = copy_rate()
  rates, generate, learned, tokens, forward, read, use, padding = [matmul_rate(dtype)], [], [], [], [], [], [], []
  compiled: list[float] = []
  listen = lambda event, seconds, **_: compiled.append(seconds) if event == metrics.COMPILED else None
  jax.monitoring.register_event_duration_secs_listener(listen)
  for step in itertools.count():
    programs = len(compiled)
    rng = np.random.default_rng(step)
    ids = rng.integers(3, b.vocab, (prompts, b.prompt_len)).astype(np.int32)
    full = np.full(prompts, b.prompt_len, np.int32)
    batch = Prompts(ids, forced_lengths(prompts, b.prompt_len, 1_000_000 + step) if b.mixed else full)
    ends = forced_lengths(prompts * group, length, step) if b.tail else np.full(prompts * group, length, np.int32)
    ends = ends.reshape(prompts, group)
    start = time.perf_counter()
    rollouts, found = generate_all(sample, state.params["policy"], batch, jax.random.key(step), ends, at_once, layout)
    sampled_s = time.perf_counter() - start
    given = np.arange(length) == ends[..., None] - 1
    rewards = np.where(given, rng.integers(0, 7, (prompts, group, 1)), 0).astype(np.float32)
    start = time.perf_counter()
    rollouts = dataclasses.replace(rollouts, rewards=rewards, given=given)
    packing = plan.pack(rollouts, layout, parts)
    state, _, _ = jax.block_until_ready(update(state, ref, None, *host.to_device(layout, (rollouts, packing))))
    learned_s = time.perf_counter() - start
    if len(compiled) > programs:
      continue
    generate.append(sampled_s)
    learned.append(learned_s)
    rates.append(matmul_rate(dtype))
    tokens.append(int(ends.sum()))
    forward.append(flops(shape, batch.lengths, ends))
    read.append(decode_bytes(shape, batch.lengths, ends, int(found["decode_steps"]), size))
    use.append(float(found["slot_use"]))
    padding.append(plan.padding(rollouts, packing, layout, parts))
    if len(learned) == config.steps:
      break
  jax.monitoring.unregister_event_duration_listener(listen)

  middle = statistics.median
  rate, n = statistics.median(rates), middle(tokens)
  passes = 3 * config.learner.mu + 1 + (config.learner.mu > 1)  # gradients, the reference, the old policy
  whole = [g + l for g, l in zip(generate, learned)]
  return {
    "system": "grpo_jax",
    "generate_s": middle(generate),
    "learn_s": middle(learned),
    "step_s": middle(whole),
    "compile_s": sum(compiled),
    "completion_tokens": n,
    "tok_per_s_generate": n / middle(generate),
    "tok_per_s_step": n / middle(whole),
    "peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    "peak_device_gb": device_peak(),
    "matmul_gflops": rate / 1e9,
    "copy_gb_per_s": copied / 1e9,
    "generate_of_limit": middle([f / s for f, s in zip(forward, generate)]) / rate,
    "generate_of_bandwidth": middle([r / s for r, s in zip(read, generate)]) / copied,
    "learn_of_limit": passes * middle([f / s for f, s in zip(forward, learned)]) / rate,
    "slot_use": middle(use),
    **{k: middle([p[k] for p in padding]) for k in ("padding_fraction", "prompt_padding_fraction")},
    "params_m": sum(x.size for x in jax.tree.leaves(state.params)) / 1e6,
  }


def peer_command(name: str, python: str, config: ConfigDict) -> list[str]:
  """The same workload for a peer; ends the program where the peer cannot be told to do it."""
  b = config.benchmark
  if b.mixed:
    arguments.fail(f"mixed=true with --vs={name}: peers are given prompts of one length only")
  if b.tail and name == "tunix":
    arguments.fail("tail=true with --vs=tunix: its sampler cannot be told where to end a row; use --vs=trl")
  as_theirs = (("top_p", config.sampler.top_p, 1.0), ("dtype", config.sampler.dtype, "float32"))
  for setting, value, same in (*as_theirs, ("head_dim", b.head_dim, 64)):
    if value != same:
      arguments.fail(f"{setting}={value} with --vs={name}: peers run with {setting}={same} only")
  sizes = {
    "layers": b.layers,
    "width": b.width,
    "mlp": b.mlp,
    "vocab": b.vocab,
    "prompts": config.data.prompts,
    "group": config.sampler.group,
    "prompt_len": b.prompt_len,
    "completion": config.sampler.max_length,
    "steps": config.steps,
    "mu": config.learner.mu,
  }
  command = [python, f"experiments/peers/{name}_step.py", *(f"--{k}={v}" for k, v in sizes.items())]
  return command + (["--tail"] if b.tail else [])


def own_command(flags_: list[str]) -> list[str]:
  """This program with those flags, in a process of its own."""
  return [sys.executable, "-m", "experiments.benchmark", *flags_]


def last_json(command: list[str]) -> dict[str, Any]:
  """Runs a command and reads its last line."""
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    arguments.fail(f"{' '.join(command)} ended with {done.returncode}: {(done.stderr.strip() or '?').splitlines()[-1]}")
  return json.loads(done.stdout.strip().splitlines()[-1])


def main(argv: list[str]) -> None:
  del argv
  values, config = flags.FLAGS, flags.FLAGS.config
  if "benchmark" not in config:
    arguments.fail("--config: needs a workload, as in --config=experiments/benchmarks.py:prompts=4,group=8")
  if not values.vs:
    with arguments.one_line_errors():
      print(json.dumps(measure(config)))
    return
  if more := [a for a in sys.argv[1:] if a.startswith("--config.")]:
    arguments.fail(f"{more[0]} with --vs={values.vs}: a peer takes the arguments of --config=FILE:arg=value only")
  own = own_command([a for a in sys.argv[1:] if not a.startswith(("--vs", "--peer", "--rounds"))])
  peer, rounds = peer_command(values.vs, values.peer, config), []
  for i in range(values.rounds):
    ours, theirs = last_json(own), last_json(peer)
    rounds.append((ours, theirs))
    print(json.dumps({"round": i, "ours": ours, "theirs": theirs}), flush=True)
  ratio = lambda name, up: statistics.median((o[name] / t[name]) if up else (t[name] / o[name]) for o, t in rounds)
  print(
    json.dumps(
      {
        "vs": values.vs,
        "rounds": len(rounds),
        "generate_times_faster": ratio("tok_per_s_generate", True),
        "step_times_faster": ratio("tok_per_s_step", True),
        "peak_memory_times_less": ratio("peak_rss_gb", False),
      }
    )
  )


if __name__ == "__main__":
  config_flags.DEFINE_config_file("config", None, "The workload: experiments/benchmarks.py:arg=value,...")
  flags.DEFINE_enum("vs", None, ["trl", "tunix"], "Run this peer in turn with grpo_jax and print ratios.")
  flags.DEFINE_string("peer", sys.executable, "The Python of the peer's environment.")
  flags.DEFINE_integer("rounds", 3, "How often each runs, with --vs.")
  app.run(main, flags_parser=arguments.parse_flags)
