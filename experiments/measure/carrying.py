"""Measures what carried rollouts (`sampler.carry`) save where completions have a long tail.

    python -m experiments.measure.carrying [--prompts=16] [--group=8] [--slots=0] [--carry=4]
        [--max_age=2] [--length=256] [--mean=64] [--steps=8] [--layers=4] [--width=256]

A model with random weights samples: each token ends its completion with probability 1 / mean, so
that lengths are geometric. Nothing is learned and nothing is scored. Steps with and without carry
alternate. The first two of each compile and are dropped; the numbers are medians of --steps of
each.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from experiments import arguments
from grpo_jax.data.loader import Batches
from grpo_jax.distributed import sharding
from grpo_jax.loops.carried import Carrier
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.shape import DecoderConfig
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling import sampler
from grpo_jax.sampling.generate import Generated, Generator, generate
from grpo_jax.setup import defaults
from grpo_jax.setup.experiment import make
from grpo_jax.types import Example

NUMBERS = {
  "prompts": 16, "group": 8, "slots": 0, "carry": 4, "max_age": 2, "length": 256, "mean": 64,
  "steps": 8, "layers": 4, "width": 256, "vocab": 2048, "prompt_len": 32,
}  # fmt: skip


def define(names: Iterable[str]) -> None:
  """Defines flags of NUMBERS; `--slots=0` stands for as many as there are completions."""
  for name in names:
    least = 0 if name == "slots" else 1
    flags.DEFINE_integer(name, NUMBERS[name], "see above", lower_bound=least)


class Step(NamedTuple):
  """Measures one step of sampling."""

  seconds: float
  decode_steps: int
  slot_use: float
  tokens: int  # of the completions that a step would learn from
  age: float  # updates since a token was sampled, in the mean

  @property
  def speed(self) -> float:
    """Returns tokens a second."""
    return self.tokens / self.seconds


def make_generator(sizes: dict[str, int], carry: int) -> tuple[Generator, Any]:
  """Returns the generator of a random model, and its weights."""
  c = defaults.get_config()
  c.data.prompts, c.sampler.group, c.sampler.slots = (
    sizes[name] for name in ("prompts", "group", "slots")
  )
  c.sampler.max_length, c.sampler.carry = sizes["length"], carry
  heads = max(1, sizes["width"] // 64)
  shape = DecoderConfig(
    vocab=sizes["vocab"],
    width=sizes["width"],
    layers=sizes["layers"],
    heads=heads,
    kv_heads=max(1, heads // 2),
    head_dim=64,
    mlp=3 * sizes["width"],
    attention_bias=False,
  )
  layout = sharding.make_layout(make(c).mesh)
  decoder = Decoder(shape, layout, dtype="float32")
  stops = tuple(range(max(1, sizes["vocab"] // sizes["mean"])))
  params = jax.jit(decoder.init, out_shardings=decoder.shardings())(jax.random.key(0))
  sample = sampler.make_sampler(decoder, make(c).sampler, stops)

  def render(question: str) -> list[int]:
    random = np.random.default_rng(int(question))
    return random.integers(0, sizes["vocab"], sizes["prompt_len"]).tolist()

  bounded = Sizes(2, layout, sizes["prompt_len"], 1)
  return Generator(sample, bounded, cast(Any, None), render, sizes["prompt_len"]), params


def measured(draw: Callable[[], Generated]) -> Step:
  """Returns the measurements of one call of `draw`."""
  start = time.perf_counter()
  drawn, numbers, _ = draw()
  seconds = time.perf_counter() - start
  return Step(
    seconds,
    int(numbers["decode_steps"]),
    float(numbers["slot_use"]),
    int(drawn.lengths.sum()),
    numbers.get("carry/age_mean", 0.0),
  )


def steps_of(sizes: dict[str, int], carry: int) -> Callable[[int], Step]:
  """Returns a function that samples step n, with or without carry."""
  generator, params = make_generator(sizes, carry)
  numbered = [Example(str(n), "", "", {}) for n in range(10_000)]
  examples, key = Batches([numbered], prompts=1, seed=0, shuffle=False), jax.random.key(1)
  if carry:
    carrier = Carrier(
      examples, key, prompts=sizes["prompts"], carry=carry, max_age=sizes["max_age"]
    )
    return lambda n: measured(lambda: carrier.next_batch(generator, params)[1])

  def fresh(n: int) -> Generated:
    batch = [next(examples)[0] for _ in range(sizes["prompts"])]
    return generate(generator, params, batch, jax.random.fold_in(key, jnp.int32(n)))

  return lambda n: measured(lambda: fresh(n))


def table(rows: dict[str, list[Step]]) -> str:
  """Returns the medians of each row."""
  lines = [
    f"{'':14}{'s a step':>10}{'tokens/s':>10}{'decode steps':>14}{'slots idle':>12}{'age':>7}"
  ]
  for name, steps in rows.items():

    def median(field: str, of: list[Step] = steps) -> float:
      return statistics.median(getattr(step, field) for step in of)

    lines.append(
      f"{name:14}{median('seconds'):10.2f}{median('speed'):10,.0f}{median('decode_steps'):14.0f}"
      f"{1 - median('slot_use'):12.1%}{median('age'):7.2f}"
    )
  return "\n".join(lines)


def main(argv: list[str]) -> None:
  """Prints the table."""
  del argv
  sizes: dict[str, int] = {name: getattr(flags.FLAGS, name) for name in NUMBERS}
  arms = {"carry=0": steps_of(sizes, 0), f"carry={sizes['carry']}": steps_of(sizes, sizes["carry"])}
  rows: dict[str, list[Step]] = {name: [] for name in arms}
  for n in range(sizes["steps"] + 2):  # the first two compile, and fill what is carried
    for name, step in arms.items():
      rows[name].append(step(n))
      print(f"{n + 1}/{sizes['steps'] + 2} {name}", flush=True)
  print(table({name: steps[2:] for name, steps in rows.items()}))


if __name__ == "__main__":
  define(NUMBERS)
  app.run(main, flags_parser=arguments.parse_flags)
