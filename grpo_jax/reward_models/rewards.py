"""Makes rewards of the scores that reward models give to a batch of completions (scores.py).

An outcome reward model is asked after the last token, a process reward model after each step.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from grpo_jax.distributed import hosts
from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.packing.sizes import Sizes
from grpo_jax.reward_models.scores import after_last_token, jitted_scores
from grpo_jax.sampling.rollouts import to_device, to_host
from grpo_jax.types import STOPPED, TRUNCATED, Array, Completion, KnownRollouts

# (prompt, sample, completion) -> [(token index, reward), ...]
Given = Callable[[int, int, Completion], list[tuple[int, float]]]
NamedScores = tuple[str, Given, float]  # name, function, weight


class RewardModel(NamedTuple):
  """A reward model that scores samples."""

  name: str
  weight: float  # of its rewards in the sum
  steps: bool  # asked after each step, or else after the last token
  decoder: Decoder  # on the policy's layout; `config.scores` is true
  params: Params


def judge(models: Sequence[RewardModel], sizes: Sizes, drawn: KnownRollouts) -> list[Array]:
  """Returns the scores `[P, G, L]` of each reward model, on the mesh.

  Args:
    models: the reward models.
    sizes: of the learner's programs; samples are packed as the learner packs them.
    drawn: sampled.
  """
  if not models:
    return []
  on_mesh = to_device(sizes.layout, sizes.for_learner(drawn))
  return [
    jitted_scores(model.decoder, sizes.microbatches)(model.params, *on_mesh) for model in models
  ]


def given_by(
  models: Sequence[RewardModel], sizes: Sizes, drawn: KnownRollouts
) -> list[NamedScores]:
  """Returns the rewards that each reward model gives to the completions of this process.

  Every process calls this. See `judge` for the arguments.
  """
  return [
    (model.name, given_to(model, scores, drawn), model.weight)
    for model, scores in zip(models, judge(models, sizes, drawn))
  ]


def outcome_rewards(
  scores: np.ndarray, lengths: np.ndarray, ended: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rewards of an outcome reward model, and to which completions it gives one.

  A truncated completion has no outcome to judge, and must not gain by that: it gets the least score
  of its group. A group in which all are truncated gets no reward. Only differences of the scores of
  a prompt mean anything (Bradley-Terry), so no other number would do for all prompts.

  Args:
    scores: `[P, G]`, after the last token.
    lengths: `[P, G]`; 0 where there is no completion.
    ended: `[P, G]`, STOPPED or TRUNCATED.

  Returns:
    rewards `[P, G]` float32, and where they are given `[P, G]` bool.
  """
  judged = (ended == STOPPED) & (lengths > 0)
  least = np.where(judged, scores, np.inf).min(axis=1, keepdims=True)
  given = (lengths > 0) & judged.any(axis=1, keepdims=True)
  return np.where(given, np.where(judged, scores, least), 0.0).astype(np.float32), given


def given_to(model: RewardModel, scores: Array, drawn: KnownRollouts) -> Given:
  """Returns the function that says which tokens of this process's completions get what reward.

  Every process calls this.

  Args:
    model: of the scores.
    scores: `[P, G, L]`, on the mesh.
    drawn: sampled.
  """
  if model.steps:
    return functools.partial(_step_rewards, hosts.share(scores)[0])
  last = to_host(after_last_token(scores, to_device(model.decoder.layout, drawn.lengths)))
  return functools.partial(_outcome_reward, *outcome_rewards(last, drawn.lengths, drawn.ended))


def _step_rewards(
  scores: np.ndarray, p: int, g: int, completion: Completion
) -> list[tuple[int, float]]:
  return process_rewards(scores[p, g], completion)


def _outcome_reward(
  rewards: np.ndarray, given: np.ndarray, p: int, g: int, completion: Completion
) -> list[tuple[int, float]]:
  return [(len(completion.tokens) - 1, float(rewards[p, g]))] if given[p, g] else []


def process_rewards(scores: np.ndarray, completion: Completion) -> list[tuple[int, float]]:
  """Returns (index of its last token, reward) of each step of a completion.

  The reward is the probability that the model gives the step, sigma(score) (Math-Shepherd, arXiv
  2312.08935, eq. 2). A step that was cut off cannot be right: its reward is 0.

  Args:
    scores: `[L]`, of this completion.
    completion: as rewards see it.
  """
  ends = list(completion.step_ends)
  values = [float(value) for value in 1 / (1 + np.exp(-scores[ends].astype(np.float64)))]
  if completion.ended == TRUNCATED and values:
    values[-1] = 0.0
  return list(zip(ends, values, strict=True))
