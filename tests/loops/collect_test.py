"""A batch to learn from: which groups are kept, what is missing, and that empty rows change no
update.

The sampler is fake: what it says of a prompt follows from the prompt's first token alone.
"""

import contextlib
import functools
import itertools
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import learn_test
import numpy as np
import pytest
import tiny
from tiny_turns import Ids, environment

from grpo_jax.loops import collect, groups, online
from grpo_jax.loops.collector import Collector
from grpo_jax.objectives import common
from grpo_jax.run.writer import Timer
from grpo_jax.sampling.generate import Generator
from grpo_jax.setup import defaults, registry
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example, Prompts, Rollouts

P, G, L = 4, 3, 6
VARIED, FLAT = (0.0, 1.0, 1.0), (0.7, 0.7, 0.7)  # float32 does not hold 0.7 exactly
FAULTY = (0.0, 1.0, None)
LONGEST = 8  # tokens of a prompt


def problem(n: int, rewards: Sequence = VARIED, words: int = 1) -> Example:
  """Its prompt is the token n, `words` times, and its sample g is given rewards[g]; None raises."""
  return Example(" ".join([str(n)] * words), "", "", {"n": n, "rewards": rewards})


def group(n: int) -> dict[str, np.ndarray]:
  """What the fake sampler says of the prompt n: `[G, ...]`."""
  g, t = np.arange(G)[:, None], np.arange(L)[None]
  lengths = 2 + (n + g[:, 0]) % (L - 1)
  real = t < lengths[:, None]
  tokens = np.where(t == 0, n, np.where(t == 1, g, n + g + t))
  logprob = -(n + g / 10 + t / 100)
  return {
    "tokens": np.where(real, tokens, 0).astype(np.int32),
    "lengths": lengths.astype(np.int32),
    "ended": np.where(lengths % 2, STOPPED, TRUNCATED).astype(np.int32),
    "sampler_logprobs": np.where(real, logprob, 0).astype(np.float32),
    "truncated_logprobs": np.where(real, logprob / 2, 0).astype(np.float32),
  }


class Sampler:
  """Remembers what it was called with."""

  def __init__(self, mesh: tuple[int, ...] = tiny.ONE) -> None:
    self.layout = tiny.layout(mesh)
    self.keys: list[jax.Array] = []
    self.params: list[Any] = []

  def __call__(
    self, params: Any, prompts: Prompts, key: jax.Array, ends: Any, prompt_size: Any
  ) -> tuple[Rollouts, dict[str, Any]]:
    self.keys.append(key)
    self.params.append(params)
    of = [
      (group(first), n > 0)
      for first, n in zip(np.asarray(prompts.tokens)[:, 0].tolist(), prompts.lengths)
    ]

    def stack(name):
      return np.stack([x[name] if real else np.zeros_like(x[name]) for x, real in of])

    return Rollouts(prompts, **{name: stack(name) for name in group(0)}), {
      "slot_use": 1 / len(self.keys)
    }


def given(example: Example, completion: Completion) -> Any:
  assert completion.tokens[0] == example.meta["n"]
  reward = example.meta["rewards"][completion.tokens[1]]
  if reward is None:
    raise ValueError(f"of {completion.tokens[:2]}")
  return reward


def tokens(example: Example, completion: Completion) -> float:
  return float(len(completion.tokens))


class Run(NamedTuple):
  batch: groups.Scored
  numbers: dict[str, float]
  sampler: Sampler
  left: list  # batches that were not taken
  warnings: list[str]


def forgets(example: Example, completion: Completion) -> None:
  float(len(completion.tokens))  # a `return` is missing


def rarely(example: Example, completion: Completion) -> float | None:
  return 1.0 if (example.meta["n"], completion.tokens[1]) == (11, 2) else None


def words(question: str) -> list[int]:
  return list(map(int, question.split()))


def run(
  *plan: list[Example | None],
  tries: int,
  functions: Sequence = (("given", given, 1.0),),
  objective: Any = None,
  mesh: tuple[int, ...] = tiny.ONE,
) -> Run:
  """`collect` on those batches."""
  warnings: list[str] = []
  writer = types.SimpleNamespace(
    phase=lambda name: contextlib.nullcontext(Timer()), warn=lambda _, text: warnings.append(text)
  )
  sampler, batches = Sampler(mesh), iter(plan)
  generator = Generator(sampler, tiny.sizes(mesh), Ids(), words, LONGEST)
  target_prob = types.SimpleNamespace(name="target_prob")
  by_totals = functools.partial(common.flat, cfg=target_prob, advantages=None)
  flat = by_totals if objective is None else objective
  made = Collector(batches, generator, functions, [], [], flat, 0.0, 0.0, L, P, tries)
  batch, numbers, _, sampled = collect.collect(made, "policy", jax.random.key(5), writer)
  assert sampler.params == ["policy"] * len(sampler.keys)
  begun = [example for examples in plan[: len(sampled)] for example in examples]
  assert groups.joined(sampled).examples == begun  # those that were dropped, too
  return Run(batch, numbers, sampler, list(batches), warnings)


def kept(batch: groups.Scored) -> list[int | None]:
  """The prompts of a batch, all of whose fields are checked to be those of its examples; None: an
  empty group.
  """
  r = batch.rollouts
  assert len(batch.examples) == len(r.lengths)
  assert {len(x) for x in jax.tree.leaves(r)} == {len(batch.examples)}
  for p, example in enumerate(batch.examples):
    if example is None:
      assert not any(x[p].any() for x in jax.tree.leaves(r))
      continue
    n, words = example.meta["n"], len(example.question.split())
    prompt = np.where(np.arange(r.prompts.tokens.shape[1]) < words, n, 0)
    np.testing.assert_array_equal(r.prompts.tokens[p], prompt)
    assert r.prompts.lengths[p] == words
    for name, x in group(n).items():
      np.testing.assert_array_equal(vars(r)[name][p], x, err_msg=name)
    last = np.arange(L) == r.lengths[p][:, None] - 1
    np.testing.assert_array_equal(r.given[p], last)
    np.testing.assert_array_equal(
      r.rewards[p][last], np.float32([x or 0 for x in example.meta["rewards"]])
    )
    np.testing.assert_array_equal(
      r.components[p, :, 0], np.float32([x or 0 for x in example.meta["rewards"]])
    )
  return [example and example.meta["n"] for example in batch.examples]


def batch_of(first: int, *rewards: Sequence, words: int = 1) -> list[Example]:
  """Problems first, first + 1, ..., one for each of `rewards`."""
  return [problem(first + i, each, words) for i, each in enumerate(rewards)]


MIXED = (
  batch_of(10, FLAT, VARIED, FLAT, VARIED),
  batch_of(20, VARIED, FLAT, FLAT, FLAT),
  batch_of(30, FLAT, VARIED, VARIED, VARIED),
  batch_of(40, VARIED, VARIED, VARIED, VARIED),
)


@pytest.mark.parametrize(
  "tries, calls, want",
  [
    (2, 2, [11, 13, 20, None]),
    (3, 3, [11, 13, 20, 31]),  # the first four, in order
    (4, 3, [11, 13, 20, 31]),  # and no more is sampled
  ],
)
def test_groups_of_equal_rewards_are_dropped_and_more_are_sampled(tries, calls, want):
  got = run(*MIXED, tries=tries)
  assert kept(got.batch) == want
  assert len(got.sampler.keys) == got.numbers["sampling_tries"] == calls
  assert got.left == list(MIXED[calls:])


@pytest.mark.parametrize(
  "plan, tries, want",
  [
    # of 13, 14 and 10 tokens: 27 lay on the first shard, and 10 on the other
    (MIXED[:2], 2, [13, None, 11, 20]),
    # of 10, 13, 16 and 14 tokens: 23 and 30 become 26 and 27
    (MIXED[3:], 1, [40, 42, 41, 43]),
  ],
)
def test_shards_get_about_as_many_tokens(plan, tries, want):
  assert kept(run(*plan, tries=tries, mesh=(1, 2, 1, 1)).batch) == want


def test_a_reward_that_gives_none_to_a_whole_step_is_told_by_name():
  rows = (
    ("given", given, 1.0),
    ("bonus", forgets, 0.5),
    ("rare", rarely, 0.5),
    ("seen", forgets, 0.0),
  )
  got = run(batch_of(10, VARIED, VARIED, FLAT, VARIED), tries=1, functions=rows)
  said = (
    "gave none of the 12 completions of a step a reward: it returned None, or an empty list, for "
    "each"
  )
  assert got.warnings == [
    f"the reward {name!r} {said}; is a `return` missing?" for name in ("bonus", "seen")
  ]
  alone = run(batch_of(10, VARIED, VARIED, FLAT, VARIED), tries=1)
  assert not alone.warnings and got.numbers["reward/given"] == alone.numbers["reward/given"]
  assert not run([None] * P, tries=1, functions=rows).warnings


def test_a_step_that_teaches_nothing_is_told(monkeypatch):
  right = (1.0, 1.0, 1.0)
  (said,) = run(batch_of(10, FLAT, right, right, right), tries=1).warnings
  assert said == (
    "none of the 4 groups of a step teaches anything: the mean reward is 0.925; most objectives need "
    "groups in which some samples do better than others"
  )
  assert not run(batch_of(10, FLAT, VARIED, FLAT, FLAT), tries=1).warnings
  twice = [batch_of(10, FLAT, FLAT, FLAT, FLAT), batch_of(20, FLAT, FLAT, FLAT, VARIED)]
  assert not run(*twice, tries=2).warnings
  drawn, cut = group, {"ended": np.full(G, TRUNCATED, np.int32)}
  monkeypatch.setitem(globals(), "group", lambda n: drawn(n) | cut)
  (said,) = run([problem(4, FLAT), None, None, None], tries=1).warnings
  assert said.startswith("none of the 1 groups of a step") and (
    "the mean reward is 0.7, and all completions were cut off at sampler.max_length=6;" in said
  )


@pytest.mark.parametrize(
  "turn_length, limits",
  [
    (0, "sampler.max_length=6 or environment.turns=4"),
    (2, "sampler.max_length=6, environment.turn_length=2 or environment.turns=4"),
  ],
)
def test_a_step_whose_episodes_all_reached_a_limit_names_each_that_may_have_ended_them(
  turn_length, limits
):
  said: list[str] = []
  writer: Any = types.SimpleNamespace(warn=lambda _, text: said.append(text))
  played = environment(turns=4, turn_length=turn_length)
  made: Any = types.SimpleNamespace(
    generator=types.SimpleNamespace(environment=played), max_length=L
  )
  drawn = types.SimpleNamespace(
    ended=np.full((P, G), TRUNCATED), lengths=np.ones((P, G)), prompts=tiny.prompts()
  )
  batch: Any = types.SimpleNamespace(rollouts=drawn)
  collect._warn_of_flat([batch], 0.0, made, writer)
  (text,) = said
  assert f"the mean reward is 0, and all episodes reached {limits}, or failed;" in text


def test_a_first_batch_that_varies_is_enough():
  got = run(MIXED[3], *MIXED, tries=5)
  assert kept(got.batch) == [40, 41, 42, 43] and len(got.sampler.keys) == 1


def test_exactly_as_many_as_wanted_end_the_sampling():
  half = batch_of(50, VARIED, FLAT, FLAT, VARIED)
  got = run(MIXED[0], half, MIXED[3], tries=5)
  assert kept(got.batch) == [11, 13, 50, 53] and len(got.sampler.keys) == 2


@pytest.mark.parametrize("tries", [2, 3])
def test_what_no_try_gave_is_filled_with_empty_rows(tries):
  got = run(*(batch_of(n, FLAT, FLAT, FLAT, FLAT) for n in range(4)), tries=tries)
  assert kept(got.batch) == [None] * P and len(got.sampler.keys) == tries
  assert got.batch.rollouts.tokens.shape == (P, G, L) and got.batch.faults == []


def test_one_try_keeps_every_group():
  """Also rows that fill the batch, and a prompt that is too long, which is not sampled."""
  rows = [problem(1, FLAT), problem(2, words=LONGEST + 1), None, problem(4)]
  got = run(rows, MIXED[3], tries=1)
  assert got.batch.examples == rows and len(got.sampler.keys) == 1 and got.left == [MIXED[3]]
  assert got.batch.rollouts.prompts.lengths.tolist() == [1, 0, 0, 1]
  assert (got.batch.rollouts.lengths > 0).all(1).tolist() == [True, False, False, True]
  # of the two sampled
  assert got.numbers["prompts_too_long"] == 1 and got.numbers["zero_variance"] == 0.5
  assert kept(groups.select(got.batch, [0, 2, 3])) == [1, None, 4]


def test_with_several_tries_neither_empty_rows_nor_long_prompts_are_kept():
  rows = [None, problem(2, words=LONGEST + 1), problem(3), None]
  got = run(rows, rows, batch_of(7, VARIED, FLAT, VARIED, FLAT), tries=3)
  assert kept(got.batch) == [3, 3, 7, 9] and got.numbers["prompts_too_long"] == 2


@pytest.mark.parametrize("words", list(itertools.permutations((1, 3, LONGEST))))
def test_prompts_of_all_widths_are_joined(words):
  """Each try cuts its prompts to a width of its own: 1, 4 and 8."""
  got = run(*(batch_of(10 * w, FLAT, VARIED, FLAT, FLAT, words=w) for w in words), tries=3)
  assert kept(got.batch) == [*(10 * w + 1 for w in words), None]
  assert got.batch.rollouts.prompts.tokens.shape == (P, LONGEST)


@pytest.mark.parametrize(
  "rewards, taught",
  [
    ((0.1, 0.1, 0.1), False),
    ((0.0, 0.0, 1e-6), True),
    ((-1.0, -2.0, -2.0), True),
    (
      ([(0, 1.0), (1, 0.0)], [(0, 0.0), (1, 1.0)], [(0, 1.0), (1, 0.0)]),
      True,
    ),  # equal totals: the steps differ
    (([(0, 0.5)], [(0, 0.5), (1, 0.5)], 0.5), False),  # no step is better than another
    ((0.0, 0.0, None), False),  # a reward that failed is given `on_error`
    ((1.0, 1.0, None), True),
  ],
)
def test_a_group_varies_if_two_of_its_rewards_do(rewards, taught):
  batch = [problem(1, rewards)] * P
  got = run(batch, batch, tries=2)
  assert got.batch.examples == (batch if taught else [None] * P) and len(got.sampler.keys) == (
    1 if taught else 2
  )


def against(example: Example, completion: Completion) -> float:
  """With `given` it adds up to the same for all."""
  return 1.0 - given(example, completion)


def test_under_gdpo_a_group_varies_if_one_of_its_rewards_does():
  """Equal totals of rewards that differ are normalised one by one there: the advantage says what
  teaches.
  """
  both = (("given", given, 1.0), ("against", against, 1.0))
  batch = batch_of(10, VARIED, FLAT, VARIED, VARIED)
  for advantage, want in (("group_relative", [None] * P), ("gdpo", [10, 12, 13, 10])):
    section = defaults.get_config().objective
    section.advantage = advantage
    flat = registry.configured(section).flat
    got = run(batch, batch, tries=2, functions=both, objective=flat)
    assert [example and example.meta["n"] for example in got.batch.examples] == want
    assert got.numbers["zero_variance"] == (1.0 if advantage == "group_relative" else 0.25)


def test_faults_stay_with_their_completions():
  """Through dropped groups, several tries, and groups that are one too many, whose faults go with
  them.
  """
  flat = (0.0, 0.0, None)
  plan = (
    batch_of(10, flat, FAULTY, FLAT, VARIED),
    batch_of(20, FLAT, (None, 1.0, None), flat, FLAT),
    batch_of(30, FLAT, FAULTY, FAULTY, flat),
  )
  got = run(*plan, tries=3)
  assert kept(got.batch) == [11, 13, 21, 31]
  faults = [(f.prompt, f.sample, f.message) for f in got.batch.faults]
  where = [(0, 11, 2), (2, 21, 0), (2, 21, 2), (3, 31, 2)]
  assert faults == [(p, g, f"ValueError: of ({n}, {g})") for p, n, g in where]
  assert got.numbers["reward_faults"] == 8  # of all that was sampled
  got = run(*plan, tries=2)
  assert kept(got.batch) == [11, 13, 21, None]
  assert [(f.prompt, f.sample) for f in got.batch.faults] == [(0, 2), (2, 0), (2, 2)]


@pytest.mark.parametrize("tries", [1, 3])
def test_numbers_are_of_everything_that_was_sampled(tries):
  """Of the groups that were dropped and of those that were one too many, too."""
  plan = (
    batch_of(10, FLAT, VARIED, FLAT, VARIED),
    batch_of(20, FLAT, FAULTY, FLAT, FLAT),
    MIXED[3],
  )[:tries]
  got = run(*plan, tries=tries, functions=(("given", given, 2.0), ("tokens", tokens, 0.0))).numbers
  examples = [example for batch in plan for example in batch]
  lengths = np.concatenate([group(e.meta["n"])["lengths"] for e in examples])
  rewards = np.array([r or 0.0 for e in examples for r in e.meta["rewards"]])
  cut_off = np.concatenate(
    [
      x["truncated_logprobs"] - x["sampler_logprobs"]
      for x in (group(e.meta["n"]) for e in examples)
    ]
  )
  assert abs(cut_off.sum()) > 1
  apart = [
    (x.reshape(-1, G) - x.reshape(-1, G).mean(1, keepdims=True)).ravel() for x in (lengths, rewards)
  ]
  close = functools.partial(pytest.approx, abs=1e-6)
  assert got == {
    "tokens": lengths.sum(),
    "reward/mean": close(2 * rewards.mean()),
    "reward/std": close(2 * rewards.std()),
    "rewards_given": 1,
    "reward/given": close(rewards.mean()),
    "reward/tokens": close(lengths.mean()),
    "reward_faults": {1: 0, 3: 1}[tries],
    "zero_variance": close({1: 2 / 4, 3: 5 / 12}[tries]),
    "sampling_tries": tries,
    "slot_use": close({1: 1, 3: (1 + 1 / 2 + 1 / 3) / 3}[tries]),
    "prompts_too_long": 0,
    "cut_off_nats": close(cut_off.sum() / lengths.sum()),
    "length/reward_correlation": close(np.corrcoef(*apart)[0, 1]),
  }


def test_every_try_has_a_key_of_its_own():
  keys = run(*MIXED, tries=3).sampler.keys
  data = [jax.random.key_data(key).tolist() for key in keys]
  want = [jax.random.fold_in(jax.random.key(5), attempt) for attempt in range(3)]
  assert (
    data == [jax.random.key_data(key).tolist() for key in want] and len(set(map(tuple, data))) == 3
  )
  assert [jax.random.key_data(key).tolist() for key in run(*MIXED, tries=1).sampler.keys] == data[
    :1
  ]


# -- the update of a batch that was filled up


@functools.cache
def four() -> Rollouts:
  """Four groups of random tokens, one of them with equal rewards."""
  rng, shape = np.random.default_rng(3), (4, tiny.G, tiny.L)
  lengths = rng.integers(1, 5, shape[:2]).astype(np.int32)
  lengths[:, 0] = tiny.L

  def at(t):
    return np.arange(tiny.L) < t[..., None]

  last = at(lengths) & ~at(lengths - 1)
  values = np.where(np.arange(4)[:, None, None] == 2, 0.7, rng.integers(0, 3, (*shape[:2], 1)))
  rewards = np.where(last, values, 0).astype(np.float32)
  logprobs = np.where(at(lengths), -rng.random(shape), 0).astype(np.float32)
  tokens = np.where(at(lengths), rng.integers(0, tiny.V, shape), 0).astype(np.int32)
  prompts = jax.tree.map(lambda x: x[:4], tiny.prompts())
  return Rollouts(
    prompts,
    tokens,
    lengths,
    lengths % 2,
    logprobs,
    logprobs,
    rewards,
    last,
    rewards.sum(2, keepdims=True),
  )


def filled(real: Rollouts) -> Rollouts:
  """The same and empty rows up to eight, as `collect` adds them."""
  rows = [problem(n) for n in range(len(real.lengths))]
  places = groups.padded(range(len(rows)), tiny.P)
  return groups.choose([groups.Scored(rows, real, [], 0.0)], places).rollouts


def assert_same(got: Any, want: Any, got_metrics: dict, want_metrics: dict) -> None:
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6, rtol=0), got, want)
  for name in want_metrics:
    np.testing.assert_allclose(got_metrics[name], want_metrics[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
  "mesh, changes",
  [
    (tiny.ONE, {"microbatch": 1}),  # half of the microbatches have no token
    ((1, 4, 1, 1), {"microbatch": 4}),  # half of the shards have none
    ((1, 2, 2, 1), {"mu": 2, "minibatches": 2}),  # each minibatch divides by what it has itself
  ],
)
def test_empty_rows_change_neither_loss_nor_parameters(mesh, changes):
  """The model is a table of bigrams."""
  r = filled(four())
  assert (r.lengths > 0).all(1).tolist() == [True] * 4 + [False] * 4
  inner = {name: changes.get(name, 1) for name in ("mu", "minibatches")}
  packing = tiny.packing(
    r, mesh, tiny.P // changes.get("microbatch", tiny.P // inner["minibatches"])
  )
  want, a, _ = learn_test.run(0.5, given=four(), **inner)
  got, b, _ = learn_test.run(0.5, mesh, given=r, packing=packing, **changes)
  assert a["grad_norm"] > 0.01
  assert_same(got.params, want.params, b, a)
  assert got.step == want.step == inner["mu"] * inner["minibatches"]


@pytest.mark.slow
def test_empty_rows_change_no_gradient_of_a_whole_model():
  """In microbatches, over two chips of which one has no prompt."""
  r, mesh = filled(four()), (1, 2, 1, 1)
  want, got = tiny.update(four()), tiny.update(r, tiny.packing(r, mesh, 2), mesh, microbatch=4)
  assert want.metrics["grad_norm"] > 0.1
  assert_same(got.gradient, want.gradient, got.metrics, want.metrics)


def test_an_update_on_nothing_but_empty_rows_changes_nothing():
  r = filled(jax.tree.map(lambda x: x[:0], four()))
  got, metrics, _ = learn_test.run(0.5, given=r, packing=tiny.packing(r))
  jax.tree.map(np.testing.assert_array_equal, got.params["policy"], learn_test.table())
  assert metrics["loss"] == metrics["grad_norm"] == metrics["skipped"] == 0.0
  assert all(np.isfinite(x) for x in metrics.values())


def test_the_share_of_scoring_is_of_the_whole_step():
  """All tries of sampling and scoring are in it; what else the run does meanwhile (saving,
  evaluation) is not.
  """
  found = online.speeds(100, 50, {"sample": 4.0, "score": 2.0, "learn": 4.0, "eval": 90.0})
  assert found["time/score_share"] == 0.2 and found["tokens_per_s/step"] == 5.0
