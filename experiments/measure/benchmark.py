"""Measures one GRPO step; the last line of its output is a JSON object.

    python -m experiments.measure.benchmark [--vs=trl --peer=PYTHON] \\
      --config=experiments/measure/benchmarks.py:prompts=4,group=8

Seconds are medians over `steps` steps without compilation; steps that compiled are left out. FLOPs
are counted from the shapes and divided by the rate of a 2048 x 2048 x 2048 product (8192 off the
CPU) in the model's dtype in the same process; the bytes that decoding has to read are divided by
the rate of reading and writing an array. With --vs=trl or --vs=tunix this program takes turns with
the peer (experiments/measure/peers, run by the Python of its own environment, --peer) and prints
ratios of medians.
"""

import dataclasses
import itertools
import json
import operator
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict, config_flags

from experiments import arguments
from experiments.measure import peer_commands, rates
from grpo_jax.config import kinds, sections
from grpo_jax.distributed import sharding
from grpo_jax.errors import SettingError
from grpo_jax.learning import learn, optimizer, passes
from grpo_jax.learning.state import MODEL, TrainState, create
from grpo_jax.models import lora, variants
from grpo_jax.models.costs import decode_bytes, flops
from grpo_jax.models.decoder import Decoder, DecoderConfig
from grpo_jax.packing import plan
from grpo_jax.packing.sizes import Sizes
from grpo_jax.run import writer
from grpo_jax.sampling import sampler
from grpo_jax.sampling.rollouts import draw, to_device
from grpo_jax.setup import adapters
from grpo_jax.setup.experiment import make
from grpo_jax.types import STOPPED, Prompts, Rollouts

# Arguments of experiments/measure/benchmarks.py that are not settings of a run.
WORKLOAD: dict[str, kinds.Kind] = {
  "variant": kinds.Choice(("", *variants.VARIANTS)),
  "layers": kinds.Whole(1),
  "width": kinds.Whole(1),
  "mlp": kinds.Whole(1),
  "vocab": kinds.Whole(4),  # prompts are drawn from tokens 3 and up
  "head_dim": kinds.Whole(2),
  "prompt_len": kinds.Whole(2),  # as `forced_lengths` cuts it
  "tail": kinds.SWITCH,
  "mixed": kinds.SWITCH,
  "refill": kinds.SWITCH,
  "sample": kinds.SWITCH,
}


def forced_lengths(completions: int, completion: int, step: int) -> np.ndarray:
  """Returns long-tailed lengths with the end token, exponential with mean completion / 4."""
  u = np.random.default_rng(step).random(completions)
  return np.clip(np.ceil(-completion / 4 * np.log1p(-u)), 2, completion).astype(np.int32)


class Workload(NamedTuple):
  """Holds the parts of a step; only `state` changes from step to step."""

  config: ConfigDict
  decoder: Decoder
  sample: sampler.Sampler
  update: Callable
  base: Any  # the frozen weights under adapters; None: all weights are trained
  ref_params: Any  # None without a KL
  microbatches: int  # of a rollout


class Step(NamedTuple):
  """Holds the measurements of a step."""

  generate_s: float  # 0 without sampling
  learn_s: float
  tokens: int  # of completions
  learned: int  # tokens that the learner reads: completions, and a prompt once for its group
  flops: float  # of generation
  bytes: float  # that decoding had to read
  slot_use: float
  padding: dict[str, float]


def make_shape(b: ConfigDict) -> DecoderConfig:
  """Returns the shape of the model: that of a published one, or of the sizes given."""
  if b.variant:
    return variants.variant(b.variant)
  if b.width < b.head_dim:
    raise SettingError(f"benchmark.width={b.width}: use at least head_dim={b.head_dim}")
  heads = b.width // b.head_dim
  return DecoderConfig(
    vocab=b.vocab,
    width=b.width,
    layers=b.layers,
    heads=heads,
    kv_heads=max(1, heads // 2),
    head_dim=b.head_dim,
    mlp=b.mlp,
    attention_bias=True,
  )


def make_weights(decoder: Decoder, dtype: str, key: jax.Array) -> tuple[Any, Any]:
  """Returns random weights: those under adapters, in `dtype` (None without), and the trained."""
  plain = decoder.base
  if decoder.lora is None:
    return None, jax.jit(plain.init, out_shardings=plain.shardings())(key)

  def base(key: jax.Array) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype), plain.init(key))

  made = jax.jit(base, out_shardings=plain.shardings())(key)
  return made, adapters.fresh_adapters(decoder, {}, key)


def make_workload(config: ConfigDict) -> tuple[Workload, TrainState]:
  """Returns the jitted functions of a workload, not compiled yet, and random weights."""
  experiment = make(config)
  m, cfg, layout = experiment.model, experiment.learner, sharding.make_layout(experiment.mesh)
  how: dict[str, Any] = {"layers": m.layers, "remat": m.remat, "dtype": m.dtype}
  lora_shape = adapters.make_lora(experiment.lora)
  decoder = Decoder(make_shape(config.benchmark), layout, **how, lora=lora_shape)
  tx = optimizer.make_optimizer(cfg, experiment.steps)
  temperature = experiment.sampler.temperature
  setup = passes.Setup(decoder, experiment.objective, tx, cfg, temperature)
  base, trained = make_weights(decoder, config.lora.base_dtype, jax.random.key(0))
  reference = None
  if config.objective.beta:
    # adapters that change nothing yet have their base as the reference
    reference = {} if base else jax.tree.map(jnp.copy, trained)
  workload = Workload(
    config,
    decoder,
    sampler.make_sampler(decoder, experiment.sampler, ()),
    learn.make_learn(setup),
    base,
    reference,
    passes.microbatches_of_rollout(cfg, experiment.data.prompts),
  )
  return workload, create({MODEL: trained}, tx)


def make_prompts(config: ConfigDict, step: int) -> tuple[Prompts, np.ndarray]:
  """Returns random prompts, and the lengths `[P, G]` that their completions are forced to."""
  b, prompts, length = config.benchmark, config.data.prompts, config.sampler.max_length
  vocab = make_shape(b).vocab
  completions = prompts * config.sampler.group
  random = np.random.default_rng(step)
  tokens = random.integers(3, vocab, (prompts, b.prompt_len)).astype(np.int32)
  full = np.full(prompts, b.prompt_len, np.int32)
  lengths = forced_lengths(prompts, b.prompt_len, 1_000_000 + step) if b.mixed else full
  ends = np.full(completions, length, np.int32)
  if b.tail:
    ends = forced_lengths(completions, length, step)
  return Prompts(tokens, lengths), ends.reshape(prompts, -1)


def generate_all(
  workload: Workload, params: Any, prompts: Prompts, key: Any, ends: np.ndarray
) -> tuple[Rollouts, dict[str, Any]]:
  """Returns rollouts of all prompts, and statistics.

  Without refill it takes as many prompts at a time as there are slots for.
  """
  config = workload.config
  sizes = Sizes(0, workload.decoder.layout, config.benchmark.prompt_len, workload.microbatches)
  at_once = len(ends) if config.benchmark.refill else config.sampler.slots // config.sampler.group
  drawn = []
  for first in range(0, len(ends), at_once):
    some, forced = jax.tree.map(operator.itemgetter(slice(first, first + at_once)), (prompts, ends))
    drawn.append(draw(workload.sample, params, some, jax.random.fold_in(key, first), sizes, forced))
  if len(drawn) == 1:
    return drawn[0]
  rollouts, statistics = zip(*drawn)
  steps = sum(each["decode_steps"] for each in statistics)
  busy = sum(each["slot_use"] * each["decode_steps"] for each in statistics) / steps
  rollouts = jax.tree.map(
    lambda *x: np.concatenate(x), *(dataclasses.replace(r, prompts=None) for r in rollouts)
  )
  rollouts = dataclasses.replace(rollouts, prompts=plan.trim(prompts))
  return rollouts, {"slot_use": busy, "decode_steps": steps}


def make_up(config: ConfigDict, prompts: Prompts, ends: np.ndarray, step: int) -> Rollouts:
  """Returns rollouts of random tokens with the log-probs of a uniform policy."""
  vocab, length = make_shape(config.benchmark).vocab, config.sampler.max_length
  tokens = np.random.default_rng(step).integers(3, vocab, (*ends.shape, length)).astype(np.int32)
  uniform = np.full(tokens.shape, -np.log(vocab), np.float32)
  return Rollouts(prompts, tokens, ends, np.full(ends.shape, STOPPED, np.int32), uniform, uniform)


def one_step(workload: Workload, state: TrainState, step: int) -> tuple[TrainState, Step]:
  """Samples, makes up rewards and learns; returns the new state and the measurements."""
  config, layout = workload.config, workload.decoder.layout
  prompts, ends = make_prompts(config, step)
  start = time.perf_counter()
  if config.benchmark.sample:
    params = lora.join(workload.base, state.model)
    rollouts, sampled = generate_all(workload, params, prompts, jax.random.key(step), ends)
  else:
    rollouts = make_up(config, prompts, ends, step)
    sampled = {"decode_steps": 0, "slot_use": 0}
  generate_s = (time.perf_counter() - start) * config.benchmark.sample
  given = np.arange(config.sampler.max_length) == ends[..., None] - 1  # the last tokens
  scores = np.random.default_rng(step).integers(0, 7, (*ends.shape, 1))
  rewards = np.where(given, scores, 0).astype(np.float32)
  start = time.perf_counter()
  rollouts = dataclasses.replace(rollouts, rewards=rewards, given=given)
  packing = plan.pack(rollouts, layout, workload.microbatches)
  on_device = to_device(layout, (rollouts, packing))
  trees = workload.ref_params, None, *on_device, workload.base
  state, _, _ = jax.block_until_ready(workload.update(state, *trees))
  learn_s = time.perf_counter() - start
  shape, size = workload.decoder.config, jnp.dtype(config.sampler.dtype).itemsize
  matrix_size = 1 if config.sampler.weights_dtype == "int8" else size
  int8 = config.sampler.cache_dtype == "int8"  # each head's keys and values have a scale
  cache_size = 1 + 4 / shape.head_dim if int8 else jnp.dtype(config.sampler.cache_dtype).itemsize
  sizes = size, matrix_size, cache_size, config.sampler.slots
  return state, Step(
    generate_s,
    learn_s,
    int(ends.sum()),
    int(ends.sum() + prompts.lengths.sum()),
    flops(shape, prompts.lengths, ends),
    decode_bytes(shape, prompts.lengths, ends, int(sampled["decode_steps"]), *sizes),
    float(sampled["slot_use"]),
    plan.padding(rollouts, packing, layout, workload.microbatches),
  )


def measure(config: ConfigDict) -> dict[str, Any]:
  """Runs `config.steps` steps besides those that compile; see the module's docstring."""
  workload, state = make_workload(config)
  dtype, copied = config.model.dtype, rates.copy_rate()
  products, steps, compiled, of_steps = [rates.matmul_rate(dtype)], [], [], []

  def listen(event: str, duration_secs: float, **_: Any) -> None:
    if event == writer.COMPILED:
      compiled.append(duration_secs)

  jax.monitoring.register_event_duration_secs_listener(listen)
  for i in itertools.count():
    compiled.clear()  # of the products, which are programs, too
    state, step = one_step(workload, state, i)
    if compiled:
      of_steps += compiled
      continue
    steps.append(step)
    products.append(rates.matmul_rate(dtype))
    if len(steps) == config.steps:
      break
  jax.monitoring.unregister_event_duration_listener(listen)
  return summary(config, steps, statistics.median(products), copied) | {
    "compile_s": sum(of_steps),
    "programs": len(of_steps),
    "peak_rss_gb": rates.process_peak(),
    "peak_device_gb": rates.device_peak(),
    "params_m": sum(x.size for x in jax.tree.leaves((workload.base, state.params))) / 1e6,
  }


def summary(config: ConfigDict, steps: list[Step], rate: float, copied: float) -> dict[str, Any]:
  """Returns medians over steps and shares of the limits, `rate` (FLOP/s) and `copied` (bytes/s)."""
  middle = statistics.median
  # gradients, of which adapters need none of the weights; the reference, the old policy
  passes = (2 if config.lora.rank else 3) * config.learner.mu
  passes += (config.objective.beta > 0) + (config.learner.mu * config.learner.minibatches > 1)
  generate_s, learn_s = middle(s.generate_s for s in steps), middle(s.learn_s for s in steps)
  step_s, tokens = middle(s.generate_s + s.learn_s for s in steps), middle(s.tokens for s in steps)
  found = {
    "system": "grpo_jax",
    "learn_s": learn_s,
    "completion_tokens": tokens,
    "tok_per_s_learn": middle(s.learned for s in steps) / learn_s,
    "matmul_gflops": rate / 1e9,
    "copy_gb_per_s": copied / 1e9,
    "learn_of_limit": passes * middle(s.flops / s.learn_s for s in steps) / rate,
    "padding_fraction": middle(s.padding["padding_fraction"] for s in steps),
    "prompt_padding_fraction": middle(s.padding["prompt_padding_fraction"] for s in steps),
  }
  if not config.benchmark.sample:
    return found
  return found | {
    "generate_s": generate_s,
    "step_s": step_s,
    "tok_per_s_generate": tokens / generate_s,
    "tok_per_s_step": tokens / step_s,
    "generate_of_limit": middle(s.flops / s.generate_s for s in steps) / rate,
    "generate_of_bandwidth": middle(s.bytes / s.generate_s for s in steps) / copied,
    "slot_use": middle(s.slot_use for s in steps),
  }


def main(argv: list[str]) -> None:
  """Measures, and prints JSON objects, one a line."""
  del argv
  values, config = flags.FLAGS, flags.FLAGS.config
  if "benchmark" not in config:
    arguments.fail(
      "--config: needs a workload, as in "
      "--config=experiments/measure/benchmarks.py:prompts=4,group=8"
    )
  with arguments.one_line_errors():
    sections.check(config)
    kinds.check(config.benchmark, WORKLOAD, "benchmark.")
    if not values.vs:
      print(json.dumps(measure(config)))
      return
  config_flag = values["config"]
  if more := [*config_flags.get_override_values(config_flag)]:
    arguments.fail(
      f"--config.{more[0]} with --vs={values.vs}: a peer takes the arguments of "
      "--config=FILE:arg=value only"
    )
  own = peer_commands.own([f"--config={config_flags.get_config_filename(config_flag)}"])
  peer, rounds = peer_commands.of_peer(values.vs, values.peer, config), []
  peer_commands.check_peer(values.vs, values.peer)
  for i in range(values.rounds):
    ours, theirs = peer_commands.last_json(own), peer_commands.last_json(peer)
    rounds.append((ours, theirs))
    print(json.dumps({"round": i, "ours": ours, "theirs": theirs}), flush=True)
  ratios = {
    "generate_times_faster": [o["tok_per_s_generate"] / t["tok_per_s_generate"] for o, t in rounds],
    "step_times_faster": [o["tok_per_s_step"] / t["tok_per_s_step"] for o, t in rounds],
    "peak_memory_times_less": [t["peak_rss_gb"] / o["peak_rss_gb"] for o, t in rounds],
  }
  medians = {name: statistics.median(values) for name, values in ratios.items()}
  print(json.dumps({"vs": values.vs, "rounds": len(rounds)} | medians))


if __name__ == "__main__":
  arguments.define_config("The workload: experiments/measure/benchmarks.py:arg=value,...")
  flags.DEFINE_enum(
    "vs", None, ["trl", "tunix"], "Run this peer in turn with grpo_jax and print ratios."
  )
  flags.DEFINE_string("peer", sys.executable, "The Python of the peer's environment.")
  flags.DEFINE_integer("rounds", 3, "How often each runs, with --vs.", lower_bound=1)
  app.run(main, flags_parser=arguments.parse_flags)
