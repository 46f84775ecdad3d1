"""Mathematical answers as texts: normalized, parsed, and compared without algebra.

Numbers are exact fractions; tuples, intervals, sets and matrices are compared entry by entry. Pairs
of expressions such as `2\\sqrt{3}` and `\\sqrt{12}` remain, about which `equal` asks its caller.
Everything is done by regular expressions, over texts of at most LONGEST characters.

Answers that count as the same:

- A unit, a percent or currency sign, and a name before the answer, as `x =` or `(x,y) =`, may be
  missing on one side; if both have one, they must be equal. 50% is 50, and also 0.5.
- A tuple is ordered, a list or set is not; their brackets matter, so (1,2) is neither [1,2] nor
  {1,2} nor 1,2. A list without brackets is a set. `x=1, y=2` is 1,2 but not 2,1.
- A comma between groups of three digits is part of a number, but within brackets and before a space
  it separates.
- Decimals are exact: 1/3 is not 0.333, but it is `0.\\overline{3}`.
- The case of a letter matters, that of a word does not. A word is in a command for text, has four
  letters or more, has the form of `Cat`, or is yes or no: ABC and abc are products.
"""

import itertools
import re
from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import NamedTuple

from grpo_jax.rewards import units
from grpo_jax.rewards.math import number

LONGEST = 300  # characters of an answer; longer ones are not read
DEEPEST = 12  # nested brackets of an answer; deeper ones are not read
ENTRIES = 20  # of a tuple, set or matrix; larger ones are not read

SET = "{}"  # the kind of a set, and of a list without brackets
UNION = "union"
_UNORDERED = (SET, UNION)


class Leaf(NamedTuple):
  """An answer without entries, or an entry."""

  text: str  # in its normal form, without the fields below
  value: Fraction | None  # if it is a number
  unit: str  # "": none
  name: str  # the text before its equals sign; "": none
  words: bool  # whether it is language, not mathematics


class Group(NamedTuple):
  """A tuple, interval, set, union or matrix."""

  kind: str  # its brackets; SET; UNION; "matrix" with the number of its rows
  entries: tuple["Leaf | Group", ...]
  name: str = ""  # as of a Leaf


Answer = Leaf | Group

_TEXT = re.compile(units.WRAPPER + r"\s*\{([^{}]*)\}")
_SPACE = re.compile(
  r"(?<!\\)\\(?:!\s*|[,;:> ]|(?:q?quad|displaystyle)(?![A-Za-z])|hspace\{[^{}]*\})|~|\\\\\s*$"
)
_DELIMITER = re.compile(r"\\(?:left|right|big|Big|bigl|bigr|Bigl|Bigr)(?![A-Za-z])\s*\.?")
_PLAIN = (
  (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
  (re.compile(r"\\(?:times|ast)(?![A-Za-z])|[\u00d7\u00b7\u22c5*]"), r"\\cdot "),
  (re.compile(r"\\(?:leqslant|leq|le)(?![A-Za-z])|<=|\u2264"), r"\\leq "),
  (re.compile(r"\\(?:geqslant|geq|ge)(?![A-Za-z])|>=|\u2265"), r"\\geq "),
  (re.compile(r"\\lt(?![A-Za-z])"), "<"),
  (re.compile(r"\\gt(?![A-Za-z])"), ">"),
  (re.compile(r"\\(?:neq|ne)(?![A-Za-z])|\\not\s*=|\u2260"), r"\\neq "),
  (re.compile(r"\\(?:emptyset|varnothing)(?![A-Za-z])|\u2205|\\\{\s*\\\}"), r"\\emptyset "),
  (re.compile("[\u2212\u2013]"), "-"),
  (re.compile("\u03c0"), r"\\pi "),
  (re.compile("\u221e"), r"\\infty "),
  (re.compile("\u222a"), r"\\cup "),
  (re.compile("\u00b1"), r"\\pm "),
  (re.compile("\u221a"), r"\\sqrt "),
  (re.compile("\u00b0"), r"^\\circ "),
  (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
  (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
  (re.compile(r"\\langle(?![A-Za-z])"), "("),
  (re.compile(r"\\rangle(?![A-Za-z])"), ")"),
  (re.compile(r"\\(?:lbrack)(?![A-Za-z])"), "["),
  (re.compile(r"\\(?:rbrack)(?![A-Za-z])"), "]"),
  (re.compile(r"\\degree(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])"), "\u00b0"),
)
# Commands that take one or two arguments, each of which may be one character without braces.
_FRAC = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))")
_SQRT = re.compile(r"\\sqrt\s*([0-9A-Za-z])")
_ONE = re.compile(r"([\^_])\s*\{\s*([0-9A-Za-z])\s*\}")
_THOUSANDS = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")
_ONE_NUMBER = re.compile(
  r"[^0-9,;()\[\]{}_^]*(?:[0-9.]+\s*/\s*)?[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])[^,;]*"
)

_NAME = re.compile(
  r"([A-Za-z](?:_[0-9A-Za-z]|\([a-z]\))?|\\angle\s*[A-Z]{1,3}|\\[A-Za-z]+|[A-Z][A-Z]+"
  r"|\([A-Za-z](?:\s*,\s*[A-Za-z])+\s*\))\s*=([^=]+)"
)
_RATIO = re.compile(
  r"(-?)(?:(-?[0-9.,]+)/(-?[0-9.,]+)|([0-9]*) ?\\frac\{(-?[0-9.,]+)\}\{(-?[0-9.,]+)\})"
)
_REPEATING = re.compile(
  r"(-?)([0-9]*)\.([0-9]*)\\(?:overline|bar)(?:\{(?P<digits>[0-9]+)\}|(?P<digit>[0-9]))"
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z .,'-]*")
_LANGUAGE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}|^(?:(?i:no|yes)|[A-Z][a-z]{2})$")


def read(text: str) -> Answer | None:
  """Returns a parsed answer; None if it is empty, too long or too deep, or has too many entries."""
  if len(text) > LONGEST:
    return None
  depths = itertools.accumulate((char in "([{") - (char in ")]}") for char in text)
  if max(depths, default=0) > DEEPEST:
    return None
  text = _DELIMITER.sub("", _SPACE.sub(_gap, text))
  if text.startswith(("\\(", "\\[", "$")):
    text = re.sub(r"\\[()\[\]]|\\?\$(?=.*\\?\$)", "", text)
  for pattern, plain in _PLAIN:
    text = pattern.sub(plain, text)
  text = _add_braces(_ONE.sub(r"\1\2", text.replace("{,}", ",")))
  text = re.sub(r"\s*(?:,?" + units.WRAPPER + r"\{\s*(?:and|or)\s*\}|,? and | or )\s*", ", ", text)
  return _parse(text.strip().rstrip(".").strip(), 0)


def _gap(match: re.Match) -> str:
  """Returns a space for a command for white space, or nothing between groups of digits."""
  before, after = match.string[: match.start()], match.string[match.end() :]
  return "" if re.search(r"[0-9,]$", before) and re.match(r"[0-9]{3}(?![0-9])|,", after) else " "


def _add_braces(text: str) -> str:
  """Returns a text with `\\frac{1}{2}` for every `\\frac12` and `\\sqrt{2}` for every `\\sqrt2`."""
  text = _SQRT.sub(r"\\sqrt{\1}", text)
  return _FRAC.sub(lambda m: f"\\frac{{{m[1] or m[2] or ''}}}{{{m[3] or m[4] or ''}}}", text)


def _parse(text: str, depth: int) -> Answer | None:
  """Returns the answer that a text is; None if it has too many entries or is too deep."""
  text = re.sub(r"^[A-Za-z]\s*\\in(?![A-Za-z])\s*", "", text)
  if not text or depth > 4:
    return None
  if matrix := re.fullmatch(r"\\begin\{([pbBvV]?)matrix\}(.*)\\end\{\1matrix\}", text, re.DOTALL):
    rows = [row.split("&") for row in re.split(r"\\\\", matrix[2]) if row.strip()]
    bars = matrix[1] if matrix[1] in ("v", "V") else ""
    return _group(f"{bars}matrix{len(rows)}", [entry for row in rows for entry in row], depth)
  if len(parts := _split(text, r"\\cup(?![A-Za-z])")) > 1:
    return _group(UNION, parts, depth)
  if len(parts := _list(text)) > 1:
    return _group(SET, parts, depth)
  if match := re.fullmatch(r"(\\\{|[(\[])(.*)(\\\}|[)\]])", text, re.DOTALL):
    entries = _split(match[2], ",|;")
    if entries and _closed(match[2]):
      kind = SET if match[1] == "\\{" and match[3] == "\\}" else match[1] + match[3]
      if len(entries) == 1 and kind == "()":
        return _parse(match[2].strip(), depth + 1)
      if len(entries) > 1 or kind == SET:
        return _group(kind, entries, depth)
  if len(_signs(text)) > 1:
    return _group(SET, [text], depth)
  if named := _NAME.fullmatch(text):
    answer = _parse(named[2].strip(), depth + 1)
    return answer and answer._replace(name=re.sub(r"\s", "", named[1]))
  return _leaf(text)


def _group(kind: str, texts: list[str], depth: int) -> Group | None:
  """Returns a group of entries; None if one of them cannot be read."""
  if kind == SET:
    texts = [signed for text in texts for signed in _signs(text)]
  if len(texts) > ENTRIES:
    return None
  entries: list[Answer] = []
  for text in texts:
    entry = _parse(text.strip(), depth + 1)
    if entry is None:
      return None
    entries.append(entry)
  return Group(kind, tuple(entries))


def _signs(text: str) -> list[str]:
  """Returns a text with plus and with minus for its one `\\pm`, or else the text alone."""
  return [text.replace("\\pm", sign) for sign in "+-"] if text.count("\\pm") == 1 else [text]


def _split(text: str, separator: str) -> list[str]:
  """Returns the parts of a text between separators outside brackets, which need not match."""
  parts, depth, start = [], 0, 0
  for match in re.finditer(rf"\\[{{}}]|[()\[\]{{}}]|{separator}", text):
    token = match[0]
    if token in ("\\{", "(", "[", "{"):
      depth += 1
    elif token in ("\\}", ")", "]", "}"):
      depth -= 1
    elif depth == 0:
      parts.append(text[start : match.start()])
      start = match.end()
  return [*parts, text[start:]]


def _list(text: str) -> list[str]:
  """Returns the entries of a list without brackets; commas within a number do not separate."""
  if _ONE_NUMBER.fullmatch(text):
    return [text]
  if ", " in text:
    text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
  return _split(text, ",|;")


def _closed(text: str) -> bool:
  """Returns whether the brackets of a text match, unlike in `a)(b`."""
  depth = 0
  for match in re.finditer(r"\\[{}]|[()\[\]{}]", text):
    depth += 1 if match[0] in ("\\{", "(", "[", "{") else -1
    if depth < 0:
      return False
  return depth == 0


def _leaf(text: str) -> Leaf | None:
  """Returns an answer without entries, separated from its unit."""
  unit, language = "", False
  if match := _TEXT.fullmatch(text):
    text, language = match[1].strip(), True
  if text.startswith(("\\$", "$", "-\\$", "-$")):
    unit, text = "$", re.sub(r"\\?\$", "", text, count=1).strip()
  text = text.rstrip("$").strip()
  if not unit:
    text, unit = units.split(text)
  language = language or bool(_TEXT.search(text))
  text = _TEXT.sub(r" \1 ", text).strip()
  language = language or bool(_LANGUAGE.search(text))
  words = language and bool(_WORDS.fullmatch(text))
  if words and len(text) > 1:  # of a single letter the case matters
    text = text.lower()
  text = re.sub(r"\s+", " ", text).rstrip(".") if words else _without_spaces(text)
  if re.fullmatch(r"\([a-zA-Z]\)", text):
    text = text[1]
  return Leaf(text, None if words else exact(text), unit, "", language) if text else None


def _without_spaces(text: str) -> str:
  """Returns a formula without white space, except after a command's name and between digits."""
  text = re.sub(
    r"(\\[A-Za-z]+)\s+(?=[A-Za-z])|([0-9])\s+(?=[0-9])", lambda m: (m[1] or m[2]) + "\0", text
  )
  text = re.sub(r"\s", "", text).replace("\0", " ")
  text = re.sub(r"(?<![A-Za-z}^_\]])\{([0-9.]+)\}(?!\{)", r"\1", text)
  return text[1:] if text.startswith("+") else text


def exact(text: str) -> Fraction | None:
  """Returns the value of an integer, decimal, simple fraction or mixed number; None otherwise."""
  if (value := number(text)) is not None:
    return value
  if match := _REPEATING.fullmatch(text):
    sign, whole, start, *_ = match.groups()
    period = match["digits"] or match["digit"]
    once = int(whole + start + period) - int(whole + start or 0)
    return Fraction(int(sign + "1") * once, (10 ** len(period) - 1) * 10 ** len(start))
  match = _RATIO.fullmatch(text)
  if not match:
    return None
  top, bottom = number(match[2] or match[5]), number(match[3] or match[6])
  if top is None or not bottom or (match[4] and (top < 0 or bottom < 0)):
    return None
  value = Fraction(match[4] or 0) + top / bottom
  return -value if match[1] else value


def equal(expected: Answer, answer: Answer, same: Callable[[str, str], bool]) -> bool:
  """Returns whether two answers are the same; `same` says whether two expressions are equal."""
  if expected.name and answer.name and expected.name != answer.name:
    return False
  if isinstance(expected, Group) and isinstance(answer, Group):
    if expected.kind != answer.kind or len(expected.entries) != len(answer.entries):
      return False
    # Numbers without names answer x=1, y=2 in this order.
    if expected.kind not in _UNORDERED or _has_variables(expected) != _has_variables(answer):
      return all(equal(e, a, same) for e, a in zip(expected.entries, answer.entries))
    table = [[equal(e, a, same) for a in answer.entries] for e in expected.entries]
    return all(map(any, table)) and all(map(any, zip(*table)))
  if isinstance(expected, Group) or isinstance(answer, Group):
    return False
  if not units.agree(expected.unit, answer.unit):
    return False
  if _touches_its_unit(answer, expected) or _touches_its_unit(expected, answer):
    return True
  if expected.value is not None and answer.value is not None:
    both = expected.unit and answer.unit
    percent = 0 if both else (expected.unit == "%") - (answer.unit == "%")
    shifted = {1: answer.value * 100, 0: answer.value, -1: answer.value / 100}[percent]
    return expected.value in (answer.value, shifted)
  same_letters = expected.text.lower() == answer.text.lower()
  if expected.text == answer.text or (expected.words and same_letters):
    return True
  if answer.words and same_letters and len(answer.text) > 1:
    return True
  texts = (expected.text, answer.text)
  if expected.words or answer.words or not all(map(_comparable, texts)):
    return False
  return same(expected.text, answer.text)


def _touches_its_unit(touching: Leaf, spaced: Leaf) -> bool:
  """Returns whether a text such as 5L, which could be algebra, is another answer's 5 L."""
  unit = "" if touching.unit else spaced.unit
  return bool(unit) and touching.text.replace("L", "l") == spaced.text + unit


def _has_variables(group: Group) -> bool:
  """Returns whether the entries name several variables: x=1, y=2, unlike x_1=1, x_2=2."""
  return len({entry.name.partition("_")[0] for entry in group.entries} - {""}) > 1


def _comparable(text: str) -> bool:
  """Returns whether algebra can read a text: no base of a number, no space between digits.

  After a subscript, as in `\\log_2 3`, a space separates.
  """
  return not re.search(r"(?<!_)[0-9] [0-9]|[0-9]_", text)


def key(answer: Answer) -> Hashable:
  """Returns a key that equal answers share, as far as that shows without algebra or units."""
  if isinstance(answer, Group):
    entries = [key(entry) for entry in answer.entries]
    return answer.kind, tuple(sorted(entries, key=repr) if answer.kind in _UNORDERED else entries)
  if answer.words and len(answer.text) > 1:
    return answer.text.lower()
  return answer.text if answer.value is None else answer.value
