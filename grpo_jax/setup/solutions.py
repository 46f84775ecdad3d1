"""Scores the worked solutions of a data set before a run starts, to see that a reward can."""

from collections.abc import Callable, Sequence

from grpo_jax.errors import SettingError
from grpo_jax.rewards import attempts
from grpo_jax.sandbox import deadline
from grpo_jax.setup import build
from grpo_jax.setup.experiment import Experiment
from grpo_jax.types import STOPPED, Completion, Example

FIRST_SOLUTIONS = 8  # so many are scored


def check_eval_reward(
  reward: Callable, problems: Sequence[Example], model: build.Model, experiment: Experiment
) -> None:
  """Refuses an `eval.reward` that fails on all worked solutions of the first problems."""
  messages = try_reward(reward, problems, model, experiment)
  if all(messages):
    raise SettingError(
      f"eval.reward={experiment.eval.reward!r}: cannot score the test data: {messages[0]}; use a "
      "reward for such answers, as math.answer_correct for numbers or choice.choice_correct for "
      "letters"
    )


def try_reward(
  reward: Callable, examples: Sequence[Example], model: build.Model, experiment: Experiment
) -> list[str]:
  """Scores the worked solutions of the first examples and returns the error of each, or "".

  A reward that looks at a group gets one of equal solutions.
  """
  messages = []
  for example in examples[:FIRST_SOLUTIONS]:
    written = worked_solution(example, model)
    with deadline.Guard(experiment.rewards.deadline) as call:
      if attempts.looks_at_group(reward):
        tried = attempts.attempt_group(call, reward, example, [written] * experiment.sampler.group)[
          0
        ]
      else:
        tried = attempts.attempt(call, reward, example, written)
    messages.append(tried[1])
  return messages


def worked_solution(example: Example, model: build.Model) -> Completion:
  """Returns the solution of an example as rewards see a completion."""
  ids = [*model.tokenizer.encode(example.solution), model.end()]
  return Completion(example.solution, ids, STOPPED, model.tokenizer.step_ends(ids))
