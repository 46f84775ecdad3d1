"""Carried groups are sampled as if nothing had interrupted them, and none is lost or too old."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from tiny_turns import Ids, environment

from grpo_jax.data.loader import Batches
from grpo_jax.errors import DataError
from grpo_jax.loops import carried
from grpo_jax.loops.carried import Carrier
from grpo_jax.sampling import episodes, rollouts, sampler, unfinished
from grpo_jax.sampling.begun import Carried
from grpo_jax.sampling.generate import Generated, Generator
from grpo_jax.tokenizer import stop_texts
from grpo_jax.types import Example, HostRollouts, Prompts

P, C, KEY = 4, 2, jax.random.key(3)
STEPS = 6


def example(n: int) -> Example:
  return Example(str(n), "", "", {"n": n})


def render(question: str) -> list[int]:
  """Up to six tokens; every seventh prompt is too long."""
  n = int(question)
  count = tiny.LP + 1 if n % 7 == 6 else 1 + n % tiny.LP
  return [(5 * n + 11 * i) % tiny.V for i in range(count)]


def generator(mesh: Any = tiny.ONE, most: int = 0, played: Any = None, **changes: Any) -> Generator:
  sample = tiny.make_sampler(mesh=mesh, **changes)
  return Generator(sample, tiny.sizes(mesh, most), Ids(), render, tiny.LP, "skip", played)  # type: ignore[arg-type]


def carrier(carry: int = C, max_age: int = 2) -> Carrier:
  return Carrier(
    Batches([[example(n) for n in range(99)]], prompts=1, seed=0, shuffle=False),
    KEY,
    prompts=P,
    carry=carry,
    max_age=max_age,
  )


def run(
  made: Carrier, using: Generator, mesh: Any = tiny.ONE, steps: int = STEPS
) -> list[tuple[list[Example | None], Generated]]:
  return [made.next_batch(using, tiny.params(mesh=mesh)) for _ in range(steps)]


def whole(questions: list[int], **changes: Any) -> HostRollouts:
  """The same groups, each sampled to its end at once."""
  make = tiny.make_sampler(**changes)
  ids = [render(str(n)) for n in questions]
  lengths = [len(each) * (len(each) <= tiny.LP) for each in ids]
  tokens = [(each + [0] * tiny.LP)[: tiny.LP] for each in ids]
  prompts = Prompts(np.asarray(tokens, np.int32), np.asarray(lengths, np.int32))
  carried = Carried(np.asarray(questions, np.int32), np.ones(len(questions), bool))
  given = rollouts.to_device(make.layout, (prompts, carried))
  out, _ = make(tiny.params(), given[0], KEY, carried=given[1])
  return rollouts.to_host(out)


def assert_same(got: HostRollouts, want: HostRollouts) -> None:
  np.testing.assert_array_equal(got.lengths, want.lengths)
  np.testing.assert_array_equal(got.ended[got.lengths > 0], want.ended[got.lengths > 0])
  inside = np.arange(got.tokens.shape[2]) < want.lengths[..., None]
  np.testing.assert_array_equal(got.tokens[inside], want.tokens[inside])
  np.testing.assert_allclose(
    got.sampler_logprobs[inside], want.sampler_logprobs[inside], atol=3e-5, rtol=0
  )


FRESH = {"carry/share": 0.0, "carry/age_mean": 0.0, "carry/age_max": 0}


@pytest.mark.parametrize(
  "mesh, most, slots",
  [
    (tiny.ONE, 0, 0),
    (tiny.ONE, 2, 5),
    ((2, 1, 1, 1), 2, 6),
    pytest.param((2, 1, 1, 2), 0, 0, marks=[pytest.mark.slow, pytest.mark.long]),
  ],
)
def test_carried_groups_are_those_that_nothing_interrupts(mesh, most, slots):
  """All groups but the last few are learned from once, with the tokens that one policy samples."""
  made = carrier()
  results = run(made, generator(mesh, most, carry=C, slots=slots), mesh)
  questions, carried = [], 0
  for examples, (drawn, numbers, faults) in results:
    drawn = rollouts.to_host(drawn)
    asked = [n for n, length in enumerate(drawn.prompts.lengths) if length]
    here = [int(examples[p].question) for p in asked]  # type: ignore[union-attr]
    questions += here
    assert_same(jax.tree.map(lambda x, asked=asked: x[asked], drawn), whole(here, slots=0))
    assert len(examples) == P and not faults and drawn.sampled is None and drawn.rewards is None
    carried += numbers["carry/share"] > 0
  assert carried and len(questions) == len(set(questions))
  left = made._left
  assert left is not None
  waiting = {int(e.question) for e in left.episodes.examples if e is not None}
  asked = {n for n in range(made._drawn) if n % 7 != 6}  # the others are too long
  assert set(questions) | waiting == asked and not waiting & set(questions)


def test_no_group_is_older_than_the_limit():
  """Its step waits for a group that is due; with a limit of 1, nothing is carried twice."""
  oldest = {}
  for max_age in (1, 2):
    numbers = [
      one.statistics for _, one in run(carrier(max_age=max_age), generator(carry=C), steps=9)
    ]
    oldest[max_age] = max(each["carry/age_max"] for each in numbers)
    assert all(0 < each["carry/age_mean"] <= max_age for each in numbers if each["carry/share"])
    assert all(each["carry/groups"] <= C for each in numbers)
  assert oldest == {1: 1, 2: 2}


def test_ages_of_a_step_are_means_over_its_batches_and_the_largest():
  made, using = carrier(), generator(carry=C)
  made.next_batch(using, tiny.params())
  assert made._left is not None
  left, ages = made._left, [2, 2, 1]  # of the first three sampled tokens
  version = np.full_like(left.episodes.version, 7)
  version[tuple(np.argwhere(left.episodes.sampled)[:3].T)] -= ages
  old = left._replace(episodes=dataclasses.replace(left.episodes, version=version))
  count = int(left.episodes.sampled.sum())
  found = carried.age_metrics(old, 7, 4)
  assert found["carry/groups"] == 4 and found["carry/age_max"] == 2
  assert found["carry/share"] == pytest.approx(3 / count)
  assert found["carry/age_mean"] == pytest.approx(5 / count)
  joined = carried.joined_metrics([found | {"slot_use": 1.0}, {"carry/groups": 1, **FRESH}])
  assert joined == pytest.approx(
    {
      "carry/groups": 2.5,
      "carry/share": 1.5 / count,
      "carry/age_mean": 2.5 / count,
      "carry/age_max": 2,
    }
  )


def test_the_age_of_a_token_is_the_updates_since_it_was_sampled():
  made, using = carrier(), generator(carry=C)
  for step in range(4):
    made.next_batch(using, tiny.params())
    left = made._left
    assert left is not None
    e = left.episodes
    assert (e.version[e.sampled] <= step).all() and not e.version[~e.sampled].any()
    np.testing.assert_array_equal(
      e.version.min(2, where=e.sampled, initial=9).min(1)[e.unfinished.any(1)],
      left.born[e.unfinished.any(1)],
    )


def test_a_restored_carrier_goes_on_with_the_same_groups():
  """Through JSON, after each step."""
  made = carrier()
  want = run(made, generator(carry=C))
  again, using = carrier(), generator(carry=C)  # whose programs are made in the same order
  for step in range(STEPS):
    saved = json.loads(json.dumps(again.get_state()))
    again = carrier()
    again.set_state(saved)
    examples, (drawn, numbers, _) = again.next_batch(using, tiny.params())
    assert examples == want[step][0] and numbers == want[step][1].statistics
    jax.tree.map(np.testing.assert_array_equal, drawn, want[step][1].rollouts)
  assert again.get_state() == made.get_state()


def test_a_batch_to_learn_from_takes_no_program_of_the_sampler():
  rows = [example(n) for n in [5] * (P + C) + [0] * 20]  # long prompts, then short ones
  data = Batches([rows], prompts=1, seed=0, shuffle=False)
  made, using = Carrier(data, KEY, prompts=P, carry=C, max_age=2), generator(carry=C, most=4)
  (_, first), *later = run(made, using, steps=3)
  assert len(using.sizes.sampler) == 1  # that of the first step, in which no sample has begun
  widths = [drawn.prompts.tokens.shape[1] for _, (drawn, *_) in later]
  assert first.rollouts.prompts.tokens.shape[1] == tiny.LP and widths[-1] == 1


def test_an_example_that_could_not_be_saved_is_refused_when_it_is_drawn():
  rows = [example(n) for n in range(99)]
  rows[P + C + 1] = example(1)._replace(meta={"n": np.int64(1)})
  made = Carrier(
    Batches([rows], prompts=1, seed=0, shuffle=False), KEY, prompts=P, carry=C, max_age=2
  )
  made.next_batch(generator(carry=C), tiny.params())
  with pytest.raises(DataError, match="^sampler.carry: unfinished .* of '1' is not JSON; make it"):
    made.next_batch(generator(carry=C), tiny.params())


@pytest.mark.long
@pytest.mark.slow
def test_episodes_are_carried_between_turns():
  """Their turns, rewards and states are those of episodes that nobody interrupts."""
  played = environment()
  using = generator(played=played, carry=C, max_length=24)
  made, at_once, shares = carrier(), {}, []
  for examples, (drawn, numbers, _) in run(made, using, steps=5):
    shares.append(numbers["carry/share"])
    at_once |= {
      e.question: jax.tree.map(lambda x, p=p: np.asarray(x)[p], drawn)
      for p, e in enumerate(examples)
      if e is not None
    }
  assert max(shares) > 0
  everything = carrier(carry=0)  # a batch that waits for all of its groups
  for examples, (drawn, _, _) in run(everything, generator(played=played, max_length=24), steps=5):
    drawn = rollouts.to_host(drawn)
    for p, e in enumerate(examples):
      if e is not None and e.question in at_once:
        got = at_once.pop(e.question)
        for name in ("lengths", "ended", "tokens", "sampled", "rewards", "given"):
          np.testing.assert_array_equal(getattr(got, name), getattr(drawn, name)[p], name)
  assert not {q for q in at_once if int(q) < 5 * P}


def test_a_stop_text_may_begin_before_the_update():
  """The state of the stop texts is that after the tokens so far."""
  texts = [chr(97 + token % 3).encode() for token in range(tiny.V)]
  table = stop_texts.table(texts, ["abc", "bb"], tiny.V)
  cfg = tiny.section("sampler", group=tiny.G, max_length=tiny.L, carry=C, slots=5)
  stopping = sampler.make_sampler(tiny.decoder(), cfg, (), table)
  using = generator(carry=C)._replace(sample=stopping)
  made, within = carrier(), 0
  for _ in range(STEPS):
    drawn = rollouts.to_host(made.next_batch(using, tiny.params())[1].rollouts)
    assert made._left is not None
    begun = episodes.so_far(made._left.episodes, 0)
    matched = unfinished.with_stop_texts(begun, table).matched
    within += int((matched[begun.unfinished] > 0).sum())
    assert not matched[~begun.unfinished].any()
    for p, g in np.argwhere(drawn.lengths > 0).tolist():
      text = b"".join(texts[i] for i in drawn.tokens[p, g, : drawn.lengths[p, g]])
      ends = [text.find(stop) + len(stop) for stop in (b"abc", b"bb") if stop in text]
      assert drawn.lengths[p, g] == min([*ends, tiny.L])
  assert within  # samples that an update interrupts in the middle of a stop text
