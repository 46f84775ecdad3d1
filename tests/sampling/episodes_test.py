"""Episodes against a slow twin, with the tiny model and an environment that answers by arithmetic."""

import functools
import re
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny_turns import Here, Ids, environment, reset, step

from grpo_jax.environments import base
from grpo_jax.errors import DataError, SettingError
from grpo_jax.loops import collect
from grpo_jax.loops.collector import Collector
from grpo_jax.ops import decoding
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import episodes, generate, rollouts, stream
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example, Rollouts, Turn

LONG = 24  # L of the episodes; one token in three stops, so that a turn has three or so
EXAMPLES = [Example(str(n), "", "", {"n": n}) if n != 5 else None for n in range(tiny.P)]


def play(
  seed: int = 0, mesh: Any = tiny.ONE, most: int = 0, slots: int = 0, **changes: Any
) -> tuple[Rollouts, Any, Any]:
  sample = tiny.make_sampler(mesh=mesh, max_length=LONG, slots=slots)
  played, statistics, faults = episodes.play(
    sample,
    environment(**changes),
    tiny.params(mesh=mesh),
    tiny.prompts(),
    EXAMPLES,
    jax.random.key(seed),
    tiny.sizes(mesh, most),
    Ids(),  # type: ignore[arg-type]  # all that is asked of a tokenizer here
  )
  return rollouts.to_host(played), statistics, faults


@functools.cache
def naive_play(seed: int = 0, turns: int = 8, turn_length: int = 0) -> dict[str, np.ndarray]:
  """A whole forward pass for each token; an environment that is asked as soon as a turn ends."""
  key, p = jax.random.key(seed), tiny.prompts()
  u = tiny.uniforms(key, tokens=LONG)
  numbers = episodes.reset_numbers(key, np.arange(tiny.P))
  shape = (tiny.P, tiny.G, LONG)
  tokens, sampled = np.zeros(shape, np.int32), np.zeros(shape, bool)
  logprobs, rewards = np.zeros(shape, np.float32), np.full(shape, np.nan)
  lengths, first = np.zeros(shape[:2], np.int32), np.zeros(shape[:2], np.int32)
  made, ended = np.zeros(shape[:2], int), np.zeros(shape[:2], int)
  going = np.repeat(p.lengths[:, None] > 0, tiny.G, 1)
  states = {(i, g): reset(EXAMPLES[i], numbers[i]) for i, g in np.argwhere(going).tolist()}
  for t in range(LONG):
    here = going & (lengths == t)  # the others are past it: given tokens stand there
    logits = tiny.completion_logits("test_qwen3", tiny.weights(), p, tokens, lengths)[:, :, t]
    found = decoding.sample(
      logits.reshape(-1, tiny.V),
      jnp.asarray(u[..., t].reshape(-1)),
      temperature=0.7,
      top_k=0,
      top_p=1.0,
      min_p=0.0,
    )
    token, logprob = (np.asarray(x).reshape(shape[:2]) for x in found[:2])
    tokens[here, t], logprobs[here, t], sampled[here, t] = token[here], logprob[here], True
    lengths += here
    for i, g in np.argwhere(here).tolist():
      n = lengths[i, g]
      stopped = tokens[i, g, t] in tiny.STOP
      if not stopped and n < LONG and not (turn_length and n - first[i, g] == turn_length):
        continue
      ended[i, g] = STOPPED if stopped else TRUNCATED
      made[i, g] += 1
      own = tokens[i, g, first[i, g] : n].tolist()
      turn = step(states[i, g], Completion("", own, ended[i, g], []))
      states[i, g] = turn.state
      if turn.reward is not None:
        rewards[i, g, t] = turn.reward
      ids = list(map(int, turn.observation.split())) if turn.observation else []
      if ids and made[i, g] < turns and n + len(ids) < LONG:
        tokens[i, g, n : n + len(ids)] = ids
        lengths[i, g] = first[i, g] = n + len(ids)
      else:
        going[i, g] = False
        ended[i, g] = TRUNCATED if ids else ended[i, g]
  return {
    "tokens": tokens, "sampled": sampled, "sampler_logprobs": logprobs, "lengths": lengths,
    "ended": ended, "rewards": rewards, "turns": made,
  }  # fmt: skip


def assert_played(got: Rollouts, want: dict[str, np.ndarray]) -> None:
  np.testing.assert_array_equal(got.lengths, want["lengths"])
  np.testing.assert_array_equal(got.sampled, want["sampled"])
  real = np.arange(LONG) < got.lengths[..., None]
  np.testing.assert_array_equal(np.where(real, got.tokens, 0), np.where(real, want["tokens"], 0))
  np.testing.assert_array_equal(got.ended[want["turns"] > 0], want["ended"][want["turns"] > 0])
  np.testing.assert_allclose(got.sampler_logprobs, want["sampler_logprobs"], atol=5e-5)
  np.testing.assert_array_equal(got.given, ~np.isnan(want["rewards"]))
  np.testing.assert_allclose(got.rewards, np.nan_to_num(want["rewards"]), rtol=1e-6)


@pytest.mark.parametrize("slots", [0, 5])
def test_episodes_are_those_of_the_slow_twin(slots):
  """Tokens, who wrote them, log-probs, ends and rewards; one to six turns."""
  got, statistics, faults = play(slots=slots)
  want = naive_play()
  assert_played(got, want)
  assert set(want["turns"][want["turns"] > 0]) >= {1, 2, 3, 4} and not faults
  assert 0 < statistics["slot_use"] <= 1 and statistics["decode_steps"] > 0


def test_a_problem_is_the_game_that_its_number_says_whatever_the_noise():
  """Gives `reset` that number, and not one of the key, as in each evaluation."""
  begun: list[tuple[str, int]] = []

  def begin(example: Example, key: int) -> Any:
    begun.append((example.question, int(key)))
    return reset(example, key)

  numbers = np.arange(100, 100 + tiny.P, dtype=np.uint32)
  for seed in (0, 1):
    own = environment()
    own.workers.functions = base.Functions(begin, step)  # type: ignore[attr-defined]
    made = generate.Generator(
      tiny.make_sampler(max_length=LONG),
      tiny.sizes(),
      Ids(),  # type: ignore[arg-type]
      lambda question: [int(question) + 1],
      2,
      environment=own,
    )
    generate.generate(made, tiny.params(), EXAMPLES, jax.random.key(seed), games=numbers)
  assert set(begun) == {(str(n), 100 + n) for n in range(tiny.P) if n != 5}
  assert len(begun) == 2 * (tiny.P - 1) * tiny.G


def test_limits_of_turns_and_of_their_tokens():
  got, *_ = play(turns=2, turn_length=2)
  want = naive_play(turns=2, turn_length=2)
  assert_played(got, want)
  assert want["turns"].max() == 2 and (want["ended"] == TRUNCATED).any()


@pytest.mark.parametrize("judges", [False, True])
def test_an_episode_that_reaches_a_limit_has_the_reward_0(judges):
  """Has none if something else judges it; one that its environment ends has what that gives."""
  r, *_ = play(answer=lambda state, _: Turn(state, "3 4"), judges=judges)
  last = np.arange(LONG) == r.lengths[..., None] - 1
  assert (r.ended == TRUNCATED)[r.lengths > 0].all() and not r.rewards.any()
  np.testing.assert_array_equal(r.given, judges & last)
  # an environment that ends an episode without a reward: a turn that was cut off reached a limit
  r, *_ = play(answer=lambda state, _: Turn(state, None), judges=judges, turn_length=2)
  last, cut = np.arange(LONG) == r.lengths[..., None] - 1, r.ended == TRUNCATED
  assert 0 < cut.sum() < (r.lengths > 0).sum()
  np.testing.assert_array_equal(r.given, judges & last & cut[..., None])


def test_a_bound_on_programs_changes_no_episode():
  got, *_ = play(most=2)
  assert_played(got, naive_play())


@pytest.mark.parametrize("mesh", [(1, 2, 2, 1), pytest.param((2, 2, 1, 2), marks=pytest.mark.slow)])
def test_the_mesh_changes_no_episode(mesh):
  got, *_ = play(mesh=mesh, slots=8)
  assert_played(got, naive_play())


def test_log_probs_are_the_learners_in_every_turn():
  got, *_ = play(slots=5)
  learned, *_ = tiny.logprobs()(tiny.weights(), got.prompts, got.tokens, got.lengths, Packing())
  assert naive_play()["turns"].max() >= 5
  np.testing.assert_allclose(
    got.sampler_logprobs[got.sampled], np.asarray(learned)[got.sampled], atol=5e-5
  )


def test_an_environment_that_fails_ends_its_episode_alone():
  """Raised in a turn, or a wrong answer: the others are as before."""

  def sometimes(state: Any, completion: Completion) -> Any:
    if sum(completion.tokens) % 9 == 1:
      raise KeyError("no such tool")
    return step(state, completion) if sum(completion.tokens) % 9 != 2 else "nothing"

  got, _, faults = play(answer=sometimes)
  want = naive_play()
  messages = set(faults.values())
  assert any("KeyError: 'no such tool'" in text and "turn " in text for text in messages)
  assert any("returned 'nothing' (str); use grpo_jax.types.Turn" in text for text in messages)
  failed = np.zeros(got.lengths.shape, bool)
  for place in faults:
    failed[place] = True
    assert got.ended[place] == TRUNCATED
  assert 0 < failed.sum() < 40
  np.testing.assert_array_equal(got.lengths[~failed], want["lengths"][~failed])
  np.testing.assert_array_equal(got.sampled[~failed], want["sampled"][~failed])


def test_an_observation_that_the_tokenizer_refuses_ends_its_episode_alone():
  def reply(text: str, last: int) -> list[int]:
    if int(text.split()[0]) % 3 == 1:
      raise DataError("the tokenizer has no token for it")
    return list(map(int, text.split()))

  got, _, faults = play(reply=reply)
  assert 0 < len(faults) < 40
  for place, message in faults.items():
    assert re.fullmatch(
      "turn [1-8]: the observation '.*': the tokenizer has no token for it", message
    )
    assert got.ended[place] == TRUNCATED


class Lost(Here):
  """Gives no reply to some first requests, and refuses the later ones of a turn."""

  def __init__(self, lost: int, later: Any = None) -> None:
    super().__init__(base.Functions(reset, step))
    self.lost, self.later, self.dropped = lost, later, 0

  def submit(self, request: Any) -> Any:
    reply = super().submit(request)
    if len(self.asked) > self.lost and not (self.later and "state" in request):
      return reply
    reply = Future()
    reply.set_result(
      self.later if len(self.asked) > self.lost else {"error": "takes more than 2 s"}
    )
    return reply

  def drop(self, replies: Any) -> None:
    self.dropped += len(replies)


def test_an_environment_that_answers_none_of_the_first_episodes_ends_the_run():
  workers = Lost(5)
  message = (
    "^environment.name: the environment takes more than 2 s in the first turn of each of the"
  )
  with pytest.raises(SettingError, match=f"{message} first 5 episodes"):
    play(workers=workers)
  assert workers.dropped == len(workers.asked)
  _, _, faults = play(workers=Lost(4))
  assert [*faults.values()] == ["turn 1: takes more than 2 s"] * 4


def test_a_run_goes_on_if_its_environment_is_late_after_it_has_answered_once():
  """Covers an evaluation, which has limits of its own and the same workers."""
  workers = Lost(0)
  assert not play(workers=workers)[2]
  workers.lost = len(workers.asked) + 6
  _, _, faults = play(workers=workers)
  assert [*faults.values()] == ["turn 1: takes more than 2 s"] * 6


def test_an_environment_that_a_worker_cannot_load_ends_the_run_with_the_reason():
  with pytest.raises(SettingError, match="^mine.py fails to import: no tool$"):
    play(workers=Lost(0, {"refused": "mine.py fails to import: no tool"}))


def test_a_turn_is_answered_while_others_are_sampled(monkeypatch):
  """Each is asked about once, with its own tokens; most of them before the last part ends."""
  monkeypatch.setattr(stream, "LEAST", 2)
  asked, counts, see = environment(), [], episodes.Asked.see

  def counting(self, seen):
    see(self, seen)
    counts.append((len(asked.workers.asked), self.episodes.turns.sum(), seen.finished.all()))

  monkeypatch.setattr(episodes.Asked, "see", counting)
  played, _, _ = play(workers=asked.workers)
  assert_played(played, naive_play())
  turns = int((played.sampled & ~np.pad(played.sampled[..., 1:], [(0, 0)] * 2 + [(0, 1)])).sum())
  assert len(asked.workers.asked) == turns
  early = [n for n, before, is_last in counts if not before and not is_last]
  assert len(early) > 2 and 0 < early[1] < early[-1]


def test_samples_of_a_prompt_begin_alike_and_keys_differ():
  numbers = episodes.reset_numbers(jax.random.key(0), np.arange(4))
  assert len(set(numbers.tolist())) == 4
  np.testing.assert_array_equal(
    numbers[:2], episodes.reset_numbers(jax.random.key(0), np.arange(2))
  )
  assert (numbers != episodes.reset_numbers(jax.random.key(1), np.arange(4))).all()


def test_a_completion_has_what_its_environment_gave_last():
  played, _, _ = play()
  found = rollouts.completions(played, Ids())  # type: ignore[arg-type]
  several = 0
  for place in np.ndindex(*played.lengths.shape):
    values = played.rewards[place][played.given[place]].tolist()
    assert found[place[0]][place[1]].reward == (values[-1] if values else None)
    several += len(set(values)) > 1
  assert several  # first and last differ in some


def test_the_reward_of_turn_k_counts_discount_to_the_k_minus_1_times():
  """Shows rewards what the environment gave without the discount, as an evaluation does."""
  played, _, faults = play()
  seen: list[float | None] = []

  def reads(example: Example, completion: Completion) -> float:
    seen.append(completion.reward)
    return 0.0

  made = generate.Generator(
    tiny.make_sampler(max_length=LONG),
    tiny.sizes(),
    Ids(),  # type: ignore[arg-type]
    lambda question: [int(question) + 1],
    2,
    environment=environment(),
  )
  collector = Collector(
    batches=None,  # type: ignore[arg-type]
    generator=made,
    rewards=[("reads", reads, 1.0)],
    models=[],
    ahead=[],
    flat=lambda r: r,
    on_error=0.0,
    deadline=0.0,
    max_length=LONG,
    prompts=tiny.P,
    tries=1,
    played=2.0,
    discount=0.5,
  )
  scored = collect.score(collector, EXAMPLES, played, faults).rollouts
  ends = played.sampled & ~np.pad(played.sampled[..., 1:], [(0, 0)] * 2 + [(0, 1)])
  turn = np.cumsum(ends, axis=2)  # at its last token
  want = np.where(played.given, 2 * played.rewards * 0.5 ** (turn - 1.0), 0)
  where = played.given
  np.testing.assert_allclose(scored.rewards[where], want[where], rtol=1e-6)
  assert len(set(turn[where].tolist())) > 2
  raw = rollouts.completions(played, Ids())  # type: ignore[arg-type]
  assert seen == [c.reward for group in raw for c in group if c and c.tokens]


def test_text_and_turns_of_an_episode():
  """The stop token is cut at the end alone; a turn's end is a step."""
  sampled = np.array([1, 1, 0, 0, 1, 0, 1, 1], bool)
  tokens = np.arange(1, 9)
  whole = rollouts.completion(tokens, 8, STOPPED, Ids(), sampled)
  assert whole.text == "1 2 3 4 5 6 7" and whole.step_ends == (1, 4, 7)
  cut = rollouts.completion(tokens, 8, TRUNCATED, Ids(), sampled)
  assert cut.text == "1 2 3 4 5 6 7 8"
