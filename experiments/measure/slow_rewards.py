"""Measures what a slow reward costs a step: scored after sampling, and by workers while it samples.

    python -m experiments.measure.slow_rewards [--seconds=0.1] [--workers=16] [--steps=8]
        [--prompts=16] [--group=8] [--slots=0] [--length=256] [--mean=64] [--layers=4] [--width=256]

A model with random weights samples, as in carrying.py. The reward waits for --seconds, as one does
that asks another program. Steps of both kinds alternate, after one of each that compiles and starts
the workers; the numbers are medians.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import app, flags

from experiments import arguments
from experiments.measure import carrying
from grpo_jax.loops.reward_workers import Asked, RewardWorkers
from grpo_jax.rewards import combine
from grpo_jax.sampling.generate import completions, generate
from grpo_jax.sandbox import worker
from grpo_jax.setup import reward_worker
from grpo_jax.types import Completion, Example

SECONDS = flags.DEFINE_float("seconds", 0.1, "see above", lower_bound=0.0)
WORKERS = flags.DEFINE_integer("workers", 16, "see above", lower_bound=1)
NUMBERS = [name for name in carrying.NUMBERS if name not in ("carry", "max_age")]
NAME = "slow"


class Step(NamedTuple):
  """Measures one step, in seconds."""

  sample: float
  score: float  # after the last token was sampled


class Numbers:
  """Stands in for a tokenizer: a token is its number."""

  before_stop = tokens_before_stop = staticmethod(lambda _: None)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the ids as text."""
    return " ".join(map(str, ids))

  def step_ends(self, tokens: Sequence[int]) -> list[int]:
    """Returns the last token: there is one step."""
    return [len(tokens) - 1]


def slow(example: Example, completion: Completion, *, seconds: float) -> float:
  """Waits, and gives the length of the completion."""
  del example
  time.sleep(seconds)
  return float(len(completion.tokens))


def steps_of(sizes: dict[str, int], seconds: float, workers: int) -> Callable[[int], Step]:
  """Returns a function that samples and scores step n; without workers, in this process."""
  generator, params = carrying.make_generator(sizes, 0)
  generator = generator._replace(tokenizer=Numbers())  # type: ignore[arg-type]
  path = f"experiments.measure.slow_rewards:{slow.__name__}"
  described = reward_worker.describe([(NAME, path, 1.0, {"seconds": seconds})], 60.0)
  pool = worker.shared(reward_worker.__name__, described, workers)
  made = RewardWorkers(pool, [NAME], []) if workers else None

  def reward(example: Example, completion: Completion) -> float:
    return slow(example, completion, seconds=seconds)

  def step(n: int) -> Step:
    first = n * sizes["prompts"]
    examples = [Example(str(first + p), "", "", {}) for p in range(sizes["prompts"])]
    key, known = jax.random.fold_in(jax.random.key(1), jnp.int32(n)), None
    asked = made and Asked(made, generator.tokenizer, examples, sizes["group"])
    start = time.perf_counter()
    drawn = generate(generator, params, examples, key, asked.see if asked else None).rollouts
    sampled = time.perf_counter()
    texts = completions(generator, drawn)
    if asked:
      known = asked.outcomes(texts, None)
    scores = combine.score([(NAME, reward, 1.0)], examples, texts, sizes["length"], known=known)
    assert (scores.components[..., 0] == drawn.lengths).all()
    return Step(sampled - start, time.perf_counter() - sampled)

  return step


def main(argv: list[str]) -> None:
  """Prints the medians of both kinds of steps."""
  del argv
  sizes: dict[str, Any] = {name: flags.FLAGS[name].value for name in NUMBERS}
  arms = {
    "after sampling": steps_of(sizes, SECONDS.value, 0),
    f"{WORKERS.value} workers": steps_of(sizes, SECONDS.value, WORKERS.value),
  }
  rows: dict[str, list[Step]] = {name: [] for name in arms}
  for n in range(sizes["steps"] + 1):
    for name, step in arms.items():
      rows[name].append(step(n))
      print(f"{n + 1}/{sizes['steps'] + 1} {name}", flush=True)
  print(f"{'':16}{'s sampling':>12}{'s scoring':>12}{'share of both':>15}")
  for name, steps in rows.items():
    sample, score = (statistics.median(column) for column in zip(*steps[1:]))
    print(f"{name:16}{sample:12.2f}{score:12.2f}{score / (sample + score):15.1%}")


if __name__ == "__main__":
  carrying.define(NUMBERS)
  app.run(main, flags_parser=arguments.parse_flags)
