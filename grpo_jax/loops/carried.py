"""Carries unfinished groups over an update (`sampler.carry`; also called partial rollouts).

P + C groups are sampled at a time. A step ends when P of them are complete, and learns from the P
complete ones that were drawn first. The others go on in the next step, under its weights, beside
fresh ones, so that no slot waits for the longest completions. With P = 2 and C = 1:

    step              1     2       3
    group 1           ==|
    group 2           ====|
    group 3           ===== ==|              sampled by two policies
    group 4                 =======|
    group 5                 ======= ==|

A group that was carried over `sampler.max_age` steps is due: its step waits for it. So nothing
that was sampled is lost, and no token that is learned from is older than that.

`sampler_logprobs` are those of the policy that sampled each token. The ratio is that of the policy
to itself before the step's updates, and with objective.mismatch="token" each token has the weight
pi_old / pi_sampler: AReaL's decoupled objective (arXiv 2505.24298, section 5.2).

The noise of a token is a function of (seed, number of the group, sample, position), so it does not
depend on the step that samples it. Which groups are complete first depends on the slots and on the
shards of the mesh, too.

Shape letters: P prompts of a step, C of `sampler.carry`, N = P + C groups, G samples of each, L
completion tokens.
"""

from collections.abc import Sequence
from typing import Protocol

import jax
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.data import loader
from grpo_jax.distributed import lifeline
from grpo_jax.loops.protocols import Data
from grpo_jax.models.shape import Params
from grpo_jax.objectives.base import ConfiguredObjective
from grpo_jax.packing import plan
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import drawing, episodes, unfinished
from grpo_jax.sampling.begun import Carried
from grpo_jax.sampling.generate import Generated, Generator
from grpo_jax.sampling.unfinished import Groups
from grpo_jax.types import TRUNCATED, Example


class Examples(Data, Protocol):
  """Examples without end, one in a batch."""

  def __next__(self) -> Sequence[Example]:
    """Returns the next one, in a list."""
    ...


class Carrier:
  """Gives batches of complete groups, and keeps what is unfinished between them.

  Args:
    examples: one in a batch.
    key: of the noise of the run.
    prompts: P.
    carry: C.
    max_age: most steps that a group may last.
  """

  def __init__(self, examples: Examples, key: jax.Array, *, prompts: int, carry: int, max_age: int):
    self._examples, self._key = examples, key
    self._prompts, self._carry, self._max_age = prompts, carry, max_age
    self._left: Groups | None = None  # of the step before
    self._step, self._drawn = -1, 0

  def next_batch(
    self, generator: Generator, params: Params, updated: bool = True
  ) -> tuple[list[Example | None], Generated]:
    """Samples until enough groups are complete; returns P of them with their examples.

    Args:
      generator: the sampler, with its environment if there is one.
      params: the policy.
      updated: whether this is the first batch after an update.
    """
    self._step += updated
    shards = generator.sample.layout.size("prompt")
    new, too_long = self._draw(generator)
    groups = new if self._left is None else unfinished.joined(self._left, new)
    groups = unfinished.chosen(groups, unfinished.dealt(len(groups.draws), shards))
    due = self._step - groups.born >= self._max_age
    ready, counts, left = generator.sample.ready(params), [], groups.episodes.unfinished
    while unfinished.needs_more(left, due, shards, self._carry):
      counts.append(sample_once(generator, ready, groups, due, self._key, self._step))

    is_left = left.any(axis=1)
    order = np.lexsort((groups.draws, is_left))  # the complete ones first
    batch = unfinished.chosen(groups, order[: self._prompts])
    self._left = unfinished.chosen(groups, np.sort(order[self._prompts :]))
    numbers = episodes.joined(counts) | age_metrics(batch, self._step, int(is_left.sum()))
    e, sizes = batch.episodes, generator.sizes
    e.prompts = plan.trim(e.prompts)  # the learner pads them to the width of its program
    drawn = episodes.as_rollouts(e, sizes, generator.environment is not None)
    return e.examples, Generated(drawn, numbers | {"prompts_too_long": too_long}, e.faults)

  def _draw(self, generator: Generator) -> tuple[Groups, int]:
    """Returns the fresh groups of a step, and how many prompts were too long."""
    kept = 0 if self._left is None else len(self._left.draws)
    count = self._prompts + self._carry - kept
    examples = [example for _ in range(count) for example in next(self._examples)]
    check_json(examples)
    prompts, too_long = loader.to_prompts(
      examples, generator.render, generator.max_prompt_length, generator.on_long
    )
    lifeline.compare(prompts)
    draws = np.arange(self._drawn, self._drawn + count, dtype=np.int32)
    self._drawn += count
    setup = generator.sample.setup
    fresh = episodes.fresh(
      prompts,
      [example if length else None for example, length in zip(examples, prompts.lengths)],
      episodes.reset_numbers(self._key, draws),
      setup.group,
      setup.length,
    )
    return Groups(fresh, draws, np.full(count, self._step, np.int32)), too_long

  def contents(self) -> dict[str, str]:
    """Returns the contents of the data, see `loader.Batches.contents`."""
    return self._examples.contents()

  def get_state(self) -> Json:
    """Returns the position in the data and the groups that are left, for a checkpoint."""
    left = None if self._left is None else unfinished.to_json(self._left)
    carried = {"step": self._step, "drawn": self._drawn, "left": left}
    return self._examples.get_state() | {"carried": carried}

  def set_state(self, state: Json) -> None:
    """Restores the state of `get_state()`."""
    self._examples.set_state(state)
    carried = state["carried"]
    self._step, self._drawn = int(carried["step"]), int(carried["drawn"])
    self._left = unfinished.from_json(carried["left"]) if carried["left"] else None


def check_json(examples: Sequence[Example]) -> None:
  """Refuses examples that a checkpoint could not keep."""
  why = "unfinished groups are saved as JSON with their examples"
  unfinished.check_json(examples, "sampler.carry", why)


def sample_once(
  generator: Generator,
  ready: Params,
  groups: Groups,
  due: np.ndarray,
  key: jax.Array,
  step: int,
) -> Json:
  """Samples every unfinished sample, into `groups`; returns the sampler's statistics.

  With an environment these are whole turns, and their answers. Without one it ends as soon as
  enough groups are complete.

  Args:
    generator: the sampler and its environment.
    ready: the policy as it decodes.
    groups: `[N, ...]`.
    due: `[N]`, the groups that are waited for.
    key: of the noise.
    step: the number of steps before.
  """
  sample, environment, e = generator.sample, generator.environment, groups.episodes
  turn_length = environment.turn_length if environment else 0
  begun = episodes.so_far(e, turn_length) if turn_length or e.lengths.any() else None
  if begun and environment is None:
    if sample.stop_table is not None:
      begun = unfinished.with_stop_texts(begun, np.asarray(sample.stop_table))
    # the carried groups are the first of each shard: see `unfinished.dealt`
    shards = sample.layout.size("prompt")
    first = drawing.first_places(len(due), sample.setup.carry * shards, shards)
    begun = jax.tree.map(lambda x: x[first], begun)
  waited = due if environment is None else np.ones_like(due)
  asked = episodes.Asked(environment, e, generator.tokenizer) if environment else None
  drawn, is_mine, statistics = drawing.draw(
    sample,
    ready,
    e.prompts,
    key,
    generator.sizes,
    begun,
    Carried(groups.draws, waited),
    asked.see if asked else None,
  )
  if asked is not None:
    episodes.answer_turns(asked, drawn, is_mine, step)
  else:
    episodes.add_turn(e, drawn, step)
    e.unfinished &= (e.ended == TRUNCATED) & (e.lengths < e.tokens.shape[2])
  return statistics


def warn_of_stale(objective: ConfiguredObjective, writer: Writer) -> None:
  """Warns of an objective that could weigh tokens of earlier policies, and does not."""
  cfg = objective.cfg
  if cfg.get("mismatch") == "none" and cfg.get("keep") == "all":
    writer.warn(
      "carried tokens",
      "sampler.carry is above 0 and objective.mismatch='none': tokens that an earlier policy "
      "sampled count as the present one's; objective.mismatch='token' weighs them by "
      "pi_old / pi_sampler, and the metric mismatch_kl says how far the two are apart",
    )


def age_metrics(batch: Groups, step: int, left: int) -> dict[str, float]:
  """Returns what of a batch was sampled by earlier policies.

  `carry/groups`, those that go on in the next step; `carry/share`, the share of sampled tokens that
  an earlier policy sampled; `carry/age_mean` and `carry/age_max`, the steps since a token was
  sampled, over all sampled tokens.

  Args:
    batch: that is learned from.
    step: the number of steps before it.
    left: groups that go on.
  """
  age = (step - batch.episodes.version)[batch.episodes.sampled]
  metrics: dict[str, float] = {"carry/groups": left}
  if age.size:
    metrics |= {
      "carry/share": float((age > 0).mean()),
      "carry/age_mean": float(age.mean()),
      "carry/age_max": int(age.max()),
    }
  return metrics


def joined_metrics(statistics: Sequence[Json]) -> dict[str, float]:
  """Returns the `age_metrics` of the batches of a step together: means, and the largest age."""
  names = [name for name in statistics[-1] if name.startswith("carry/")]
  values = {name: [one[name] for one in statistics if name in one] for name in names}
  return {
    name: max(found) if name.endswith("_max") else float(np.mean(found))
    for name, found in values.items()
  }
