"""Defines the arrays that pass between the layers: frozen pytrees, a shape beside each field.

Shape letters: P prompts, G samples of a prompt (a group), L completion tokens, Lp prompt tokens,
D width, V vocabulary, H heads, K key/value heads.

The one-token shift, stated once: the log-prob (and PPO's value) of a completion's first token comes
from the prompt's last hidden state, which the group shares; that of its token t from the hidden
state at t - 1. Every `[P, G, L]` array here is already shifted: entry t speaks of completion token
t. A reward model's scores alone come from the hidden state at token t itself: they speak of what
was read up to it.

Prompts and completions are padded on the right. What is padding follows from lengths, never from
token ids.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, Self, TypeVar

import jax
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.frozen import freeze

Array = jax.Array
# Where the arrays of rollouts lie: numpy on the host, or sharded over the mesh. `Small` arrays say
# which completions there are and what they are worth, `Large` ones have an entry for every token.
Small = TypeVar("Small")
Large = TypeVar("Large")

# Why a completion ended (`Rollouts.ended`).
TRUNCATED = 0  # it reached the longest allowed length
STOPPED = 1  # it sampled a stop token, which is its last token, counts in its length and is trained


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prompts(Generic[Small]):
  """A batch of prompts."""

  tokens: Small  # [P, Lp] int32, padded on the right
  lengths: Small  # [P] int32; 0 marks a prompt that only fills the batch


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rollouts(Generic[Small, Large]):
  """Groups of completions, and what is known of them before an update.

  Between the sampler and the learner they are `SampledRollouts`: tokens and log-probs stay on the
  mesh, the rest is on every host.
  """

  prompts: Prompts[Small]
  tokens: Large  # [P, G, L] int32
  lengths: Small  # [P, G] int32, the stop token included; 0 where the prompt only fills the batch
  ended: Small  # [P, G] int32, TRUNCATED or STOPPED
  sampler_logprobs: Large  # [P, G, L] float32, full softmax at the sampling temperature
  # [P, G, L] float32, of the distribution cut by top-k, top-p and min-p; equal to the above
  # without them
  truncated_logprobs: Large
  rewards: Small | None = None  # [P, G, L] float32, without meaning where not `given`
  # [P, G, L] bool, where a reward was given (outcome: last token only); nowhere in a completion
  # that got none
  given: Small | None = None
  # [P, G, N] float32, the N reward components before their weighted sum
  components: Small | None = None
  # [P, G, L] float32, of the policy that sampled, computed again by the learner in its own dtype;
  # None: one update, ratio 1
  old_logprobs: Large | None = None
  old_entropy: Large | None = None  # [P, G, L] float32, of the same policy's full softmax p
  old_sum_of_squares: Large | None = None  # [P, G, L] float32, of the same, sum of p^2
  ref_logprobs: Large | None = None  # [P, G, L] float32, of the reference (or of the teacher)
  # [P, G, L, D], the teacher's hidden states that predict each token
  ref_hidden: Large | None = None
  old_values: Large | None = None  # [P, G, L] float32, of the critic before the update
  # [P, G, L] bool, false on tokens that an environment wrote: they are read, never trained, and
  # have no log-prob. None: the policy sampled every token
  sampled: Small | None = None
  # what the teacher is asked, [P, G, Lt] and [P, G] for each completion, or [P, Lt] and [P] for
  # each group; 0 tokens: it has none. None: the teacher is asked what the policy was
  ref_prompts: Prompts[Small] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ScoredRollouts(Rollouts[Small, Large]):
  """Rollouts with their rewards."""

  rewards: Small
  given: Small
  components: Small


HostPrompts = Prompts[np.ndarray]
HostRollouts = Rollouts[np.ndarray, np.ndarray]
HostScored = ScoredRollouts[np.ndarray, np.ndarray]
SampledRollouts = Rollouts[np.ndarray, Array]
# sampled or on the host: lengths and rewards can be read, tokens perhaps not
KnownRollouts = Rollouts[np.ndarray, Any]
KnownScored = ScoredRollouts[np.ndarray, Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainBatch:
  """Holds what an objective's `prepare` returns; its `loss` is given slices of it along P.

  Its arrays are constants of the loss: none has a gradient.
  """

  prompts: Prompts
  tokens: Array  # [P, G, L] int32
  lengths: Array  # [P, G] int32
  mask: Array  # [P, G, L] float32, 1 on the tokens that are trained; the policy sampled them
  advantages: Array  # [P, G, L] float32
  # [P, G, L] float32: loss = sum(weights * token_loss); 1 / global denominators, 0 off the mask
  weights: Array
  old_logprobs: Array | None = None  # [P, G, L] float32; None: stop_gradient of the new ones
  ref_logprobs: Array | None = None  # [P, G, L] float32
  ref_hidden: Array | None = None  # [P, G, L, D], see Rollouts
  sampler_logprobs: Array | None = None  # [P, G, L] float32
  # an objective's own arrays, [P] or [P, G, ...]
  extra: dict[str, Array] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outputs:
  """Holds a policy's predictions for the tokens of a batch: all that its loss differentiates.

  Each has a gradient, and costs it only where the loss reads it.
  """

  logprobs: Array  # [P, G, L] float32
  entropy: Array  # [P, G, L] float32, of the full softmax p, in nats
  sum_of_squares: Array  # [P, G, L] float32, sum of p^2 over the vocabulary
  values: Array | None = None  # [P, G, L] float32, of the critic, before each token
  divergence: Array | None = None  # [P, G, L] float32, in nats, of p and a teacher's distribution


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
  """A reward model's scores of a batch: all that its loss differentiates."""

  scores: Array  # [P, G, L] float32, after each token


# Metrics of a loss: name -> (total, count), both summed over microbatches and divided at the end.
# A name that ends in `_max` holds (value, 1) and is combined by max.
Metrics = dict[str, tuple[Array, Array]]


class _Example(NamedTuple):
  question: str
  solution: str  # the worked answer, as SFT would train it
  answer: str  # the final answer alone
  meta: Json  # for the data set's own rewards: step results, its own index ...


class Example(_Example):
  """One problem of a data set, on the host.

  Nothing in `meta` can be changed, at any depth (frozen.py), so that each reward sees what the data
  set gave. Only objects of a data set's own classes are handed on as they are.
  """

  __slots__ = ()

  def __new__(cls, question: str, solution: str, answer: str, meta: Json) -> Self:
    return super().__new__(cls, question, solution, answer, freeze(meta))

  @classmethod
  def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]  # mypy has its own
    return cls(*iterable)  # `_replace` calls it


class Turn(NamedTuple):
  """Answers one turn of the policy, on the host: what an environment's `step` returns."""

  state: Any  # JSON, given to the next `step`
  observation: str | None = None  # what the policy reads next; None: the episode is over
  reward: float | None = None  # of this turn; None: it gets none


class _Completion(NamedTuple):
  text: str  # decoded, without the stop token
  tokens: tuple[int, ...]  # with the stop token if it was sampled
  ended: int  # TRUNCATED or STOPPED
  # index in `tokens` of the last token of each reasoning step (data.steps)
  step_ends: tuple[int, ...]
  reward: float | None  # that an environment gave last, of an episode; None: it gave none


class Completion(_Completion):
  """One sampled completion, on the host; it cannot be changed."""

  __slots__ = ()

  def __new__(
    cls,
    text: str,
    tokens: Iterable[int],
    ended: int,
    step_ends: Iterable[int],
    reward: float | None = None,
  ) -> Self:
    return super().__new__(cls, text, tuple(tokens), ended, tuple(step_ends), reward)

  @classmethod
  def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]  # mypy has its own
    return cls(*iterable)  # `_replace` calls it
