"""Where the reasoning steps of a completion end, by the rule that `data.steps` names.

A step ends where a pattern ends that the text matches: what is matched belongs to the step before.
A pattern that only looks ahead, as `(?=Step \\d+:)`, cuts before what it sees. Two patterns have
names.
"""

import bisect
import itertools
import re
from collections.abc import Sequence

from grpo_jax.errors import SettingError
from grpo_jax.sandbox.deadline import Guard, Late

NAMED = {"line": r"\n", "blank line": r"\n[^\S\n]*\n"}  # both go through a text once


def seconds(rule: str, deadline: float) -> float:
  """Returns what a completion's steps may take: `deadline`; 0 (any time) by those of `NAMED`, which
  take little.
  """
  return 0.0 if rule in NAMED else deadline


def pattern(rule: str, setting: str = "data.steps") -> re.Pattern:
  """Returns what ends a step: the pattern of that name in `NAMED`, or else the rule itself as a
  regular expression.

  Raises:
    SettingError: it is no regular expression, one that matches the empty text, and so would end a
      step anywhere, or nearly one of the names.
  """
  names = " or ".join(map(repr, NAMED))
  if rule not in NAMED and " ".join(rule.lower().split()) in NAMED:
    raise SettingError(f"{setting}={rule!r:.80}: would be a pattern of these letters; use {names}")
  try:
    found = re.compile(NAMED.get(rule, rule))
  except (re.error, RecursionError, OverflowError) as error:
    raise SettingError(
      f"{setting}={rule!r:.80}: is no regular expression: {error}; use {names}, or mend it"
    ) from None
  if found.search(""):
    raise SettingError(
      f"{setting}={rule!r:.80}: matches the empty text, and would end a step anywhere; use "
      f"{names}, or a pattern of at "
      "least one character"
    )
  return found


def step_texts(text: str, ends: re.Pattern) -> list[str]:
  """Returns the text of each step; joined, they are the text. Of an empty text there is none.

  What holds nothing but white space is no step: it belongs to the next one, or at the end of the
  text to the last.
  """
  found, start = [], 0
  for match in ends.finditer(text):
    if text[start : match.end()].strip():
      found.append(text[start : match.end()])
      start = match.end()
  rest = text[start:]
  if not rest.strip() and found:
    found[-1] += rest
  elif rest:
    found.append(rest)
  return found


def last_tokens(texts: Sequence[str], steps: Sequence[str]) -> list[int]:
  """Returns for each step the index of the token that holds its last character.

  Args:
    texts: of each token.
    steps: of each step; the joined tokens begin with the joined steps.
  """
  token_ends = list(itertools.accumulate(map(len, texts)))
  return [bisect.bisect_left(token_ends, end) for end in itertools.accumulate(map(len, steps))]


def step_ends(texts: Sequence[str], ends: re.Pattern) -> list[int]:
  """Returns the index of the last token of each reasoning step: increasing, and the last one is
  `len(texts) - 1`.

  The token that holds the end of a step ends it, whatever else it holds; where one holds the ends
  of several steps, they count as one. What follows the last step (blank lines, the stop token)
  belongs to it.

  Args:
    texts: the text of each token of a completion, in order.
    ends: of `pattern`.
  """
  if not texts:
    return []
  found = sorted(set(last_tokens(texts, step_texts("".join(texts), ends))))
  return [*found[:-1], len(texts) - 1]


def step_ends_in_time(texts: Sequence[str], ends: re.Pattern, deadline: float) -> list[int]:
  """Returns `step_ends`, where that takes no longer than so many seconds; 0: any time.

  Raises:
    SettingError: it took longer, as a pattern may that tries all ways to match.
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
        "characters; use "
        f"{' or '.join(map(repr, NAMED))}, or a pattern without a repetition inside a repetition"
      ) from None
