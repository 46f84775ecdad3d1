"""Plays episodes: the policy samples a turn, an environment answers it, until all are over.

The samples of all prompts take their turns together: all that are unfinished are sampled until they
stop, the environment answers each on the host, and they go on as samples that have begun
(begun.py). What was sampled is never encoded again: an observation is encoded alone, and its tokens
follow those of the turn.

    completion   t t t t | o o o | t t | o o | t t t       t sampled, o given by the environment

The noise of a token is a function of (key, prompt, sample, position), as of a single turn, and the
first states of a prompt's samples are made from one number. So an episode does not depend on what
else is played, as long as the environment is a function of its arguments.

Shape letters: P prompts, G samples of each, L completion tokens.
"""

import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.distributed import hosts, lifeline
from grpo_jax.environments import base
from grpo_jax.environments.base import Environment
from grpo_jax.models.shape import Params
from grpo_jax.packing.sizes import Sizes
from grpo_jax.sampling import drawing, rollouts
from grpo_jax.sampling.begun import Begun
from grpo_jax.sampling.sampler import Sampler
from grpo_jax.sampling.stream import Seen
from grpo_jax.sandbox import serving
from grpo_jax.sandbox.deadline import Guard
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import (
  TRUNCATED,
  Example,
  HostPrompts,
  HostRollouts,
  KnownRollouts,
  Rollouts,
)

Place = tuple[int, int]  # prompt, sample
RESET = 1 << 20  # folded into a rollout's key, for the numbers that `reset` is given


class Answer(NamedTuple):
  """Answers one turn of a sample."""

  reward: float | None
  ids: list[int]  # what the policy reads next; []: the episode is over
  fault: str  # why the environment failed, or ""
  state: Any = None  # of the environment, JSON


@dataclasses.dataclass
class Episodes:
  """Holds the episodes of a batch on the host, whole on every process."""

  prompts: HostPrompts  # [P, Lp]
  examples: list[Example | None]  # [P]; None where the prompt has length 0
  numbers: np.ndarray  # [P] uint32, what `reset` is given
  tokens: np.ndarray  # [P, G, L] int32
  sampled: np.ndarray  # [P, G, L] bool
  version: np.ndarray  # [P, G, L] int32, the update whose policy sampled each token
  sampler_logprobs: np.ndarray  # [P, G, L] float32, 0 on given tokens
  truncated_logprobs: np.ndarray  # [P, G, L] float32
  rewards: np.ndarray  # [P, G, L] float32, at the last tokens of turns
  given: np.ndarray  # [P, G, L] bool
  lengths: np.ndarray  # [P, G] int32
  begins: np.ndarray  # [P, G] int32, the first token of the present turn
  turns: np.ndarray  # [P, G] int32, turns that were sampled
  ended: np.ndarray  # [P, G] int32, how the last turn ended
  unfinished: np.ndarray  # [P, G] bool
  states: dict[Place, Json]  # of the environment
  faults: dict[Place, str]  # messages of the environment where it failed


class Asked:
  """Asks the environment about the turns of one round, each as soon as it has ended."""

  def __init__(self, environment: Environment, episodes: Episodes, tokenizer: Tokenizer):
    """Asks nothing yet.

    Args:
      environment: that answers.
      episodes: before the turns.
      tokenizer: of the policy.
    """
    self.environment, self.episodes, self._tokenizer = environment, episodes, tokenizer
    self._before = episodes.lengths.copy()
    self._replies: dict[Place, Future[Json]] = {}

  def see(self, seen: Seen) -> None:
    """Asks about the turns that have ended since the last call."""
    ended = self.episodes.unfinished & seen.finished & (seen.lengths > self._before)
    for p, g in np.argwhere(ended).tolist():
      turn = seen.tokens[p, g][self._before[p, g] : seen.lengths[p, g]]
      self.about((p, g), turn, seen.ended[p, g])

  def about(self, place: Place, ids: np.ndarray, ended: int) -> None:
    """Asks about a turn, unless it was asked about before."""
    if place in self._replies:
      return
    e, turn = self.episodes, rollouts.completion(ids, len(ids), ended, self._tokenizer)
    if place in e.states:
      request = base.next_request(e.states[place], turn)
    else:
      example = e.examples[place[0]]
      assert example is not None  # its prompt has tokens
      request = base.first_request(example, int(e.numbers[place[0]]), turn)
    self._replies[place] = self.environment.workers.submit(request)

  def wait(self, places: Sequence[Place]) -> list[Json]:
    """Returns the replies for some places."""
    try:
      with Guard(0.0) as call:  # a signal stops it
        return call(self._wait, places)
    except BaseException:
      self.environment.workers.drop(self._replies.values())
      raise

  def _wait(self, places: Sequence[Place]) -> list[Json]:
    states, asked = self.episodes.states, self._replies
    first = (asked[place].result() for place in asked if place not in states)
    base.check_first(self.environment.workers, first)
    return [serving.accepted(asked[place].result()) for place in places]


def fresh(
  prompts: HostPrompts,
  examples: Sequence[Example | None],
  numbers: np.ndarray,
  group: int,
  length: int,
) -> Episodes:
  """Returns episodes before their first turn; those of a prompt of length 0 are over."""
  shape = (len(prompts.lengths), group, length)
  lengths, begins, turns, ended = (np.zeros(shape[:2], np.int32) for _ in range(4))
  return Episodes(
    prompts=prompts,
    examples=list(examples),
    numbers=numbers,
    tokens=np.zeros(shape, np.int32),
    sampled=np.zeros(shape, bool),
    version=np.zeros(shape, np.int32),
    sampler_logprobs=np.zeros(shape, np.float32),
    truncated_logprobs=np.zeros(shape, np.float32),
    rewards=np.zeros(shape, np.float32),
    given=np.zeros(shape, bool),
    lengths=lengths,
    begins=begins,
    turns=turns,
    ended=ended,
    unfinished=np.repeat(prompts.lengths[:, None] > 0, group, axis=1),
    states={},
    faults={},
  )


def play(
  sample: Sampler,
  environment: Environment,
  params: Params,
  prompts: HostPrompts,
  examples: Sequence[Example | None],
  key: jax.Array,
  sizes: Sizes,
  tokenizer: Tokenizer,
  games: np.ndarray | None = None,
) -> tuple[KnownRollouts, Json, dict[Place, str]]:
  """Returns the rollouts of whole episodes, the sampler's statistics, and faults.

  The rollouts have the rewards that the environment gave, at the last token of each turn. An
  episode in which it failed ends there as truncated; the messages are in the faults.

  Args:
    sample: made by `sampler.make_sampler`.
    environment: its functions and limits.
    params: the policy.
    prompts: `[P, Lp]`.
    examples: [P]; None where the prompt has length 0.
    key: of this rollout.
    sizes: of the programs made so far.
    tokenizer: of the policy.
    games: [P], the numbers that `reset` is given; None: they follow from `key`.
  """
  lifeline.compare(prompts)
  prompts, _ = sizes.for_sampler(prompts, sample.layout)
  numbers = reset_numbers(key, np.arange(len(examples))) if games is None else games
  episodes = fresh(prompts, examples, numbers, sample.setup.group, sample.setup.length)
  ready, counts = sample.ready(params), []
  while episodes.unfinished.any():
    begun = None
    if environment.turn_length or episodes.turns.any():
      begun = so_far(episodes, environment.turn_length)
    asked = Asked(environment, episodes, tokenizer)
    drawn, is_mine, statistics = drawing.draw(
      sample, ready, episodes.prompts, key, sizes, begun, see=asked.see
    )
    counts.append(statistics)
    answer_turns(asked, drawn, is_mine)
  return as_rollouts(episodes, sizes), joined(counts), episodes.faults


def joined(statistics: Sequence[Json]) -> Json:
  """Returns the statistics of several rollouts of one batch together."""
  steps = [int(one["decode_steps"]) for one in statistics]
  busy = sum(float(one["slot_use"]) * n for one, n in zip(statistics, steps))
  return {"slot_use": busy / max(sum(steps), 1), "decode_steps": sum(steps)}


def answer_turns(asked: Asked, drawn: HostRollouts, is_mine: np.ndarray, version: int = 0) -> None:
  """Adds a turn of every unfinished episode, and what the environment answers to it.

  Args:
    asked: the episodes, and what was asked about their turns while these were sampled.
    drawn: the turns, from `draw`.
    is_mine: `[P, G]`, which of them this process asks the environment about.
    version: of the policy that sampled the turns.
  """
  environment, episodes = asked.environment, asked.episodes
  mine = [(p, g) for p, g in np.argwhere(episodes.unfinished & is_mine).tolist()]
  add_turn(episodes, drawn, version)
  find = functools.partial(_answers, asked, mine)
  for answers in hosts.gather(hosts.together(find)):
    for place, given in answers.items():
      add_answer(episodes, environment, place, given)


def reset_numbers(key: jax.Array, prompts: np.ndarray) -> np.ndarray:
  """Returns a number for each prompt of a rollout, [P] uint32, which its samples share.

  Args:
    key: of the rollout.
    prompts: `[P]`, the place of each in the batch, or another number of it.
  """
  keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, RESET), prompts)
  return np.asarray(jax.vmap(jax.random.bits)(keys))


def so_far(episodes: Episodes, turn_length: int) -> Begun[np.ndarray]:
  """Returns the tokens of the unfinished samples, as samples that have begun."""
  e = episodes
  lengths = np.where(e.unfinished, e.lengths, 0)
  limits = np.full_like(lengths, e.tokens.shape[2])
  if turn_length:
    limits = np.minimum(limits, lengths + turn_length)
  return Begun(e.tokens, lengths, e.unfinished, limits, np.zeros_like(lengths))


def add_turn(episodes: Episodes, drawn: HostRollouts, version: int) -> None:
  """Adds a turn of every unfinished sample; the tokens before it are those of the episodes."""
  e, place = episodes, np.arange(episodes.tokens.shape[2])
  new = (place >= e.lengths[..., None]) & (place < drawn.lengths[..., None])
  new &= e.unfinished[..., None]
  for name in ("tokens", "sampler_logprobs", "truncated_logprobs"):
    np.copyto(getattr(e, name), getattr(drawn, name), where=new)
  e.sampled |= new
  e.version[new] = version
  np.copyto(e.begins, e.lengths, where=e.unfinished)
  np.copyto(e.lengths, drawn.lengths, where=e.unfinished)
  np.copyto(e.ended, drawn.ended, where=e.unfinished)
  e.turns += e.unfinished


def _answers(asked: Asked, places: Sequence[Place]) -> dict[Place, Answer]:
  """Returns the environment's answers to the last turns of samples, with their next states."""
  environment, episodes = asked.environment, asked.episodes
  for place in places:
    asked.about(place, _turn(episodes, place), episodes.ended[place])
  replies = asked.wait(places)
  found = {}
  for place, reply in zip(places, replies):
    ids: list[int] = []
    fault = reply.get("error", "")
    state, observation, reward = reply.get("turn", (None, None, None))
    if observation is not None:
      ids, fault = base.encoded(environment, observation, int(_turn(episodes, place)[-1]))
    fault = fault and f"turn {episodes.turns[place]}: {fault}"
    found[place] = Answer(reward, ids, fault, state)
  return found


def _turn(episodes: Episodes, place: Place) -> np.ndarray:
  """Returns the tokens of the last turn of a sample."""
  return episodes.tokens[place][episodes.begins[place] : episodes.lengths[place]]


def add_answer(episodes: Episodes, environment: Environment, place: Place, answer: Answer) -> None:
  """Adds what the environment answered to a sample's last turn; it may end the episode.

  An episode that reaches a limit before the environment gave a reward has the reward 0 where
  nothing else judges it: without a reward it would be left out, and cost nothing.
  """
  e, n, length = episodes, int(episodes.lengths[place]), episodes.tokens.shape[2]
  e.states[place] = answer.state
  if answer.fault:
    e.faults[place] = answer.fault
  if answer.reward is not None:
    e.rewards[(*place, n - 1)] = answer.reward
    e.given[(*place, n - 1)] = True
  after = n + len(answer.ids)
  room = after < length and e.turns[place] < environment.turns
  if answer.ids and room and not answer.fault:
    e.tokens[place][n:after] = answer.ids
    e.lengths[place] = after
    return
  e.unfinished[place] = False
  if answer.ids or answer.fault:  # it was not over
    e.ended[place] = TRUNCATED
  limited = e.ended[place] == TRUNCATED and not answer.fault
  if environment.judges and limited and not e.given[place].any():
    e.given[(*place, n - 1)] = True


def as_rollouts(episodes: Episodes, sizes: Sizes, played: bool = True) -> KnownRollouts:
  """Returns the episodes as sampled rollouts: tokens and log-probs on the learner's mesh.

  Unless they were `played` they have one turn, and no rewards yet.
  """
  e = episodes
  by_token = (e.tokens, e.sampler_logprobs, e.truncated_logprobs)
  tokens, sampler_logprobs, truncated_logprobs = rollouts.to_device(sizes.layout, by_token)
  return Rollouts(
    prompts=e.prompts,
    tokens=tokens,
    lengths=e.lengths,
    ended=e.ended,
    sampler_logprobs=sampler_logprobs,
    truncated_logprobs=truncated_logprobs,
    rewards=e.rewards if played else None,
    given=e.given if played else None,
    sampled=e.sampled if played else None,
  )
