"""Finds where the reasoning steps of a completion end, by the rule that `data.steps` names.

A step ends at the end of a match of a pattern; the match belongs to the step before it. A pattern
that only looks ahead, as `(?=Step \\d+:)`, splits before the text that it sees. Two patterns have
names.
"""

import bisect
import itertools
import re
from collections.abc import Sequence

from grpo_jax.errors import SettingError
from grpo_jax.sandbox.deadline import Guard, Late

NAMED = {"line": r"\n", "blank line": r"\n[^\S\n]*\n"}  # both take linear time


def seconds(rule: str, deadline: float) -> float:
  """Returns the seconds that a completion's steps may take: `deadline`, or 0 (any) for `NAMED`."""
  return 0.0 if rule in NAMED else deadline


def pattern(rule: str, setting: str = "data.steps") -> re.Pattern:
  """Returns the pattern of that name in `NAMED`, or the rule itself as a regular expression."""
  names = " or ".join(map(repr, NAMED))
  if rule not in NAMED and " ".join(rule.lower().split()) in NAMED:
    raise SettingError(f"{setting}={rule!r:.80}: would be a pattern of these letters; use {names}")
  try:
    compiled = re.compile(NAMED.get(rule, rule))
  except (re.error, RecursionError, OverflowError) as error:
    raise SettingError(
      f"{setting}={rule!r:.80}: is no regular expression: {error}; use {names}, or mend it"
    ) from None
  if compiled.search(""):
    raise SettingError(
      f"{setting}={rule!r:.80}: matches the empty text, and would end a step anywhere; use "
      f"{names}, or a pattern of at least one character"
    )
  return compiled


def step_texts(text: str, ends: re.Pattern) -> list[str]:
  """Returns the text of each step; joined, they are the text. An empty text has none.

  White space alone is no step: it belongs to the next one, or at the end to the last.
  """
  steps: list[str] = []
  start = 0
  for match in ends.finditer(text):
    if text[start : match.end()].strip():
      steps.append(text[start : match.end()])
      start = match.end()
  rest = text[start:]
  if not rest.strip() and steps:
    steps[-1] += rest
  elif rest:
    steps.append(rest)
  return steps


def last_tokens(texts: Sequence[str], steps: Sequence[str]) -> list[int]:
  """Returns the index of the token that holds the last character of each step.

  Args:
    texts: of the tokens.
    steps: the steps; the joined tokens begin with them, joined.
  """
  token_ends = list(itertools.accumulate(map(len, texts)))
  return [bisect.bisect_left(token_ends, end) for end in itertools.accumulate(map(len, steps))]


def step_ends(texts: Sequence[str], ends: re.Pattern) -> list[int]:
  """Returns the index of the last token of each reasoning step, in order, without repetitions.

  A token that holds the end of a step ends it, whatever else it holds; if it holds the ends of
  several steps, they count as one. The text after the last step (blank lines, the stop token)
  belongs to it.

  Args:
    texts: the text of each token of a completion, in order.
    ends: of `pattern`.
  """
  if not texts:
    return []
  last = sorted(set(last_tokens(texts, step_texts("".join(texts), ends))))
  return [*last[:-1], len(texts) - 1]


def step_ends_in_time(texts: Sequence[str], ends: re.Pattern, deadline: float) -> list[int]:
  """Returns `step_ends`, which may take `deadline` seconds; 0: any time.

  Raises:
    guard.Stopped: there is a deadline, and a signal came meanwhile or before.
  """
  if not deadline:
    return step_ends(texts, ends)
  with Guard(deadline) as call:
    try:
      return call(step_ends, texts, ends)
    except Late as error:
      raise SettingError(
        f"data.steps={ends.pattern!r:.80}: {error} on a completion of {sum(map(len, texts))} "
        f"characters; use {' or '.join(map(repr, NAMED))}, or a pattern without a repetition "
        "inside a repetition"
      ) from None
