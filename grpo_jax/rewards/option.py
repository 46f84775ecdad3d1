r"""Checks a multiple-choice answer that a completion states anywhere; the last statement counts.

`choice.py` has the strict check, where the answer is the letter and nothing else.
"""

import re

from grpo_jax.rewards.boxed import last_box
from grpo_jax.rewards.choice import letter, right_letter
from grpo_jax.rewards.math import MARK
from grpo_jax.types import STOPPED, Completion, Example

_QUOTES = '"`\u201c\u201d'
_TAIL = rf"(?=[.,;:!]?(?:\s|$|</)|[)}}*\\${_QUOTES}])"  # what may follow a letter
# A letter in brackets or bold, or a capital alone; A and I are also words if a word follows.
_LETTER = (
  rf"(?>(?:[{_QUOTES}*$]|\\\(|\\(?:text|mathrm|textbf|mathbf|boxed)\{{)*)\s*+(?:\(([A-Za-z])\)|\[([A-Za-z])\]|"
  rf"([B-HJ-Z]){_TAIL}|([AI])(?=[.,;:!)*}}\\${_QUOTES}]|\s*$|\s*\n|\s+(?:[(=\u2013-]|(?:because|since|as|and|or)\b)))"
)
_STATED = re.compile(
  rf"(?:\b(?i:(?:answer|choice|option)(?:\s+is)?\s*+:?)(?:\*{{1,2}})?\s*+:?\s*+(?i:option\s+)?{_LETTER})"
  # The text after a short line is read, too.
  r"|<answer>\s*+(?i:option\s+)?(?=(?P<tag>[^<]*)</answer>)"
  rf"|{MARK}[ \t]*(?P<mark>[^\n]*)|^(?=[ \t]*(?P<line>[^\n]{{1,12}})$)",
  re.MULTILINE,
)
# "Option B" without "is" or a colon, which may be an option that is rejected.
_MENTIONED = re.compile(r"(?i:choice|option)(?![^A-Za-z:]*(?i:is\b|:))")
# An option that is picked or called correct; not after "if", nor in "those who choose option A".
_OPTION = r"(?:choice|option)\s+\**[(\[]?(?-i:[A-Z])(?![A-Za-z0-9'])"
_CONCLUDED = re.compile(
  r"(?:^|[.!?:;]\s+|\b(?:so|thus|hence|therefore),?\s+)[*>-]{0,2}\s?"
  rf"(?:(?:(?:I|we)(?:'ll|\s+will)?\s+)?(?:pick|choose|select)\s+(?P<picked>{_OPTION})"
  rf"|(?:the\s+)?(?P<correct>{_OPTION})[)\]*]{{0,3}}\s+is\s+(?:the\s+)?(?:correct|right|best|answer)"
  r"(?:\s+(?:answer|choice|option|one))?\*{0,2}"
  r"(?=[.!]|,(?!\s+(?:but|if|only|though)\b)|\s+(?:as|because|since)\b|\s*$))",
  re.IGNORECASE | re.MULTILINE,
)
# Another letter; that of a formula (V = IR) or of a word (X-rays) is none.
_MORE = re.compile(
  rf"[\s)\]*.,$}}{_QUOTES}]*(?:,|/|&|\bor\b|\band\b)\s*(?:\*{{1,2}})?[{_QUOTES}]?[(\[]?([B-HJ-Z]|[AI](?!\s+[a-z]))[)\]]?(?![A-Za-z'])(?!\s*=|-[A-Za-z])"
)
# What begins with a letter: (B) 12, B) Paris, B: 12, B. Paris; not E. coli.
_OPENS = re.compile(r"\s*(?:\(([A-Z])\)|([A-Z])(?:[):]|\.(?=\s+[A-Z0-9\\(]|$)))(?=\s|\\|$)")
_LISTED = re.compile(r"(?:^|[\s,;])\(?([A-Z])\)")  # each letter of a list of options
_BRACKETS = re.compile(r"\(([A-Z])\)")
_PLAIN = re.compile(rf"\\(?:text|mathrm|textbf|mathbf)\{{([^{{}}]*)\}}|\*\*|[{_QUOTES}$]")


def option_correct(example: Example, completion: Completion) -> float:
  r"""Returns 1 if the last option that the completion states is the example's answer, else 0.

  Statements are `\boxed{B}`, `#### B`, `<answer>B</answer>`, "the answer is (B)", "Answer: B",
  "the correct option is B", "I pick option B", "option B is correct" unless another option is, too,
  and a line with nothing but the letter. In a box, between the tags and after `####` the option's
  text may follow: `B) Paris`. Without any, the last "option B" counts, and without that the only
  letter in brackets on the last line. A statement that names two letters is ambiguous, and wrong.
  The last line of a truncated completion does not count.

  Raises:
    ValueError: the example's own answer is no letter.
  """
  expected = right_letter(example)
  return float(answer_of(completion) == expected)


def answer_of(completion: Completion) -> str | None:
  """Returns the letter that a completion states last; None if there is none, or more than one."""
  text = completion.text
  if completion.ended != STOPPED:
    text = text.rpartition("\n")[0]
  stated, at, mentioned = None, -1, []
  for match in _STATED.finditer(text):
    alone = next((t for t in match.group("mark", "tag", "line") if t is not None), None)
    if alone is None:
      first = next(group for group in match.groups()[:4] if group).upper()
      more = _MORE.match(text, match.end())
      only = None if more and more[1] != first else first
      if _MENTIONED.match(match[0]):
        mentioned.append(only)
      else:
        stated, at = only, match.start()
    elif match["line"] is None:
      stated, at = _first_letter(alone), match.start()
    elif (only := letter(_PLAIN.sub(r"\1", alone))) is not None:
      stated, at = only, match.start()
  concluded = {_concluded_letter(match): match.start() for match in _CONCLUDED.finditer(text)}
  if len(concluded) == 1 and max(concluded.values()) > at:
    ((stated, at),) = concluded.items()
  if text.rfind("\\boxed") > at:
    return _first_letter(last_box(text) or "")
  if at >= 0 or mentioned:
    return stated if at >= 0 else mentioned[-1]
  letters = set(_BRACKETS.findall(text.strip().rpartition("\n")[2]))
  return letters.pop() if len(letters) == 1 else None


def _concluded_letter(match: re.Match) -> str | None:
  """Returns the letter that is picked or called correct; None if another one is, too."""
  option = match["picked"] or match["correct"]
  more = _MORE.match(match.string, match.end("picked")) if match["picked"] else None
  return option[-1] if not more or more[1] == option[-1] else None


def _first_letter(text: str) -> str | None:
  """Returns the letter that a text is, or begins with; None without one, or with another."""
  text = _PLAIN.sub(r"\1", text)
  if (only := letter(text)) is not None or not (match := _OPENS.match(text)):
    return only
  first, more = match[1] or match[2], _MORE.match(text, match.end())
  others = {*_LISTED.findall(text), more[1] if more else first} - {first}
  return None if others else first
