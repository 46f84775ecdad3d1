"""Asks a teacher something that the policy is not told: `reference.prompt`.

In self-distillation the teacher is the policy itself (or what it was), given more than the
question. It reads the policy's completion after a prompt of its own, and the policy, which has the
question alone, learns from its distributions. What a prompt may have:

    {question}   of the example
    {solution}   its worked solution: SDFT (arXiv 2601.19897), OPSD (arXiv 2601.18734)
    {success}    another completion of the group whose rewards add up to more than
                 `reference.success`, the first one: SDPO (arXiv 2601.20802)
    {feedback}   what `feedback` of the rewards' files says of the completion: SDPO

A paragraph, up to a blank line, is left out where a value in it is missing. A completion for which
nothing but the question is left has no teacher: its tokens are not trained.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from grpo_jax.data import loader
from grpo_jax.distributed import hosts
from grpo_jax.errors import SettingError
from grpo_jax.loops.collect import whole_groups
from grpo_jax.loops.collector import Collector
from grpo_jax.loops.groups import Scored
from grpo_jax.ops.advantages import totals
from grpo_jax.packing import plan
from grpo_jax.rewards.attempts import guarded
from grpo_jax.sampling.generate import completions
from grpo_jax.sandbox.deadline import Guard
from grpo_jax.setup.experiment import Experiment
from grpo_jax.types import Completion, Example, Prompts

FIELDS = ("question", "solution", "success", "feedback")
FIELD = re.compile(r"\{(" + "|".join(FIELDS) + r")\}")
PLACE = re.compile(r"(?<![\w\\^}\]{$])\{([a-z_]+)\}")  # not that of \boxed{answer} or x^{n}
OTHERS = ("answer", "completion", "prompt", "response")  # that one might expect to be filled in
BACKSLASH_N = re.compile(r"\\n(\\n|\{)")  # not that of \neq

Warn = Callable[[str, str], None]  # `Writer.warn`: takes what it is about, and a text


def check(experiment: Experiment) -> None:
  """Refuses a prompt that tells the teacher nothing, or that nothing can fill in."""
  prompt = experiment.reference.prompt
  if not prompt:
    return
  shown, fields = f"reference.prompt={prompt!r:.80}", FIELD.findall(prompt)
  places = [name for name in PLACE.findall(prompt) if name not in FIELDS]
  if unknown := [name for name in places if difflib.get_close_matches(name, (*FIELDS, *OTHERS))]:
    known = ", ".join(f"{{{name}}}" for name in FIELDS)
    raise SettingError(f"{shown}: {{{unknown[0]}}} is filled in by nothing; use some of {known}")
  if BACKSLASH_N.search(prompt):
    raise SettingError(
      f"{shown}: has a backslash and an n in place of a line break; in a shell write "
      "--config.reference.prompt=$'...'"
    )
  if "question" not in fields or len(set(fields)) < 2:
    raise SettingError(
      f"{shown}: use a text with {{question}} and what the policy is not told: {{solution}}, "
      "{success} or {feedback}"
    )
  beside = [names for part in prompt.split("\n\n") if "question" in (names := FIELD.findall(part))]
  if all({"question"} < set(names) < set(fields) for names in beside):
    raise SettingError(
      f"{shown}: a paragraph is left out if a value in it is missing, and so would be the "
      "{question}; put it into a paragraph of its own, with an empty line after it"
    )
  if "success" in fields and experiment.sampler.group == 1:
    raise SettingError(
      f"{shown} with sampler.group=1: a {{success}} is another completion of the group; use a "
      "larger group, or leave {success} out"
    )
  if "feedback" in fields and not feedback_functions(experiment):
    raise SettingError(
      f"{shown}: no file of rewards.functions has a feedback(example, completion); write one, or "
      "leave {feedback} out"
    )


def told(prompt: str) -> set[str]:
  """Returns the fields of a prompt besides the question."""
  return set(FIELD.findall(prompt)) - {"question"}


def feedback_functions(experiment: Experiment) -> list[Callable]:
  """Returns the `feedback` of each reward whose file has one."""
  rewards = [each.reward.feedback for each in experiment.reward_functions]
  return [function for function in rewards if function]


def ask(
  experiment: Experiment, collector: Collector, batch: Scored, warn: Warn
) -> tuple[Scored, dict[str, float]]:
  """Returns the batch with the teacher's prompts, and metrics of them.

  Without `reference.prompt` there are none. `teacher/taught` is the share of completions that have
  a teacher; `teacher/too_long` counts prompts that would be longer than
  `reference.max_prompt_length`.

  Args:
    experiment: of the run.
    collector: that sampled the batch.
    batch: sampled and scored.
    warn: takes warnings.
  """
  r, setting = batch.rollouts, experiment.reference
  if not setting.prompt:
    return batch, {}
  if told(setting.prompt) == {"solution"}:
    asked = of_groups(setting.prompt, batch)
    shape: tuple[int, ...] = r.lengths.shape[:1]
  else:
    asked, shape = of_completions(experiment, collector, batch, warn), r.lengths.shape
  prompts, too_long = loader.to_prompts(
    asked, collector.generator.render, setting.max_prompt_length
  )
  prompts = plan.trim(prompts)
  lengths = prompts.lengths.reshape(shape)
  metrics = {"teacher/too_long": float(too_long)}
  if (real := r.lengths > 0).any():
    taught = (lengths > 0).reshape(len(real), -1) & real
    metrics["teacher/taught"] = float(taught[real].mean())
    if not metrics["teacher/taught"]:
      warn(
        "untaught",
        f"the teacher knew nothing of the {int(real.sum())} completions of a step, which trains "
        f"nothing: reference.prompt asks for {', '.join(sorted(told(setting.prompt)))}"
        + (
          f", and {too_long} prompts were longer than reference.max_prompt_length" * (too_long > 0)
        ),
      )
  prompts = Prompts(prompts.tokens.reshape(*shape, -1), lengths)
  return batch._replace(rollouts=dataclasses.replace(r, ref_prompts=prompts)), metrics


def of_groups(prompt: str, batch: Scored) -> list[Example | None]:
  """Returns what the teacher is asked for each group, `[P]`, by a prompt with the solution alone.

  None: it has no teacher.
  """
  asked: list[Example | None] = []
  for example, real in zip(batch.examples, map(np.any, batch.rollouts.lengths), strict=True):
    if example is None or not real:  # the question may have been too long to be sampled
      asked.append(None)
    else:
      asked.append(with_question(example, filled(prompt, known(example))))
  return asked


def of_completions(
  experiment: Experiment, collector: Collector, batch: Scored, warn: Warn
) -> list[Example | None]:
  """Returns what the teacher is asked for each completion, `[P G]`; None: it has no teacher."""
  r, setting = batch.rollouts, experiment.reference
  share = hosts.together(functools.partial(completions, collector.generator, r))
  said = all_feedback(experiment, batch.examples, share, warn)
  succeeded = r.given.any(axis=2) & (totals(r.rewards, r.given) > setting.success)
  asked: list[Example | None] = []
  groups = zip(batch.examples, whole_groups(share), succeeded, said, strict=True)
  for example, group, right, texts in groups:
    for g, completion in enumerate(group):
      if example is None or completion is None or not completion.tokens:
        asked.append(None)
        continue
      values = known(example, group, right, g) | {"feedback": texts[g]}
      asked.append(with_question(example, filled(setting.prompt, values)))
  return asked


def with_question(example: Example, text: str | None) -> Example | None:
  """Returns the example with another question; None without a text."""
  return None if text is None else example._replace(question=text)


def known(
  example: Example,
  group: Sequence[Completion | None] = (),
  right: Sequence[bool] | np.ndarray = (),
  own: int = 0,
) -> dict[str, str | None]:
  """Returns the values of a prompt, but for the feedback; None: there is none.

  Args:
    example: of the group.
    group: its completions; without them there is no success.
    right: which of them are successes, [G] bool.
    own: place of the completion that is taught, which is no success of another.
  """
  others = (c.text for g, c in enumerate(group) if c is not None and right[g] and g != own)
  return {
    "question": example.question,
    "solution": example.solution or None,
    "success": next(others, None),
  }


def all_feedback(
  experiment: Experiment,
  examples: Sequence[Example | None],
  share: list[list[Completion | None]],
  warn: Warn,
) -> list[list[str | None]]:
  """Returns the feedback of the completions of all processes, `[P][G]`; None: there is none.

  Each process asks for its own `share` and gets the others' texts: a user's function may say
  something else there. Without {feedback} in the prompt nothing is asked.
  """
  if "feedback" not in FIELD.findall(experiment.reference.prompt):
    return [[None] * len(group) for group in share]

  def own() -> list[list[str | None]]:
    return [
      [feedback(experiment, example, c, warn) if example and c and c.tokens else None for c in g]
      for example, g in zip(examples, share, strict=True)
    ]

  shares = hosts.gather(hosts.together(own))
  return [[next(filter(None, texts), None) for texts in zip(*groups)] for groups in zip(*shares)]


def feedback(
  experiment: Experiment, example: Example, completion: Completion, warn: Warn
) -> str | None:
  """Returns what the rewards' files say of a completion; None if they say nothing."""
  said = []
  with Guard(experiment.rewards.deadline) as call:
    for function in feedback_functions(experiment):
      text, message = guarded(call, function, example, completion)
      if message:
        warn("feedback", f"a reward's feedback failed: {message}; it counts as none")
      elif text and not isinstance(text, str):
        warn(
          "feedback",
          f"a reward's feedback returned a {type(text).__name__}, and counts as none; it should "
          "return a text or None",
        )
      elif text and text not in said:  # rewards of one file have one feedback
        said.append(text)
  return "\n".join(said) or None


def filled(prompt: str, values: Mapping[str, str | None]) -> str | None:
  """Returns the prompt with its values; None if nothing but the question is left."""
  parts = prompt.split("\n\n")
  kept = [
    part for part in parts if all(values.get(name) is not None for name in FIELD.findall(part))
  ]
  text = "\n\n".join(kept)
  if not told(text):
    return None
  return FIELD.sub(lambda match: values[match[1]] or "", text)
