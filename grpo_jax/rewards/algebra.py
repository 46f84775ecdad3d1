"""Compares expressions by math-verify and sympy, in a process that sandbox/serving.py can end.

math-verify's own timeouts are signals, which raise in threads and stop nothing inside one
operation; they are off. A request {"pairs": [[expected, answer], ...]} gets the reply
{"equal": [true or false, ...]} or {"error": reason}; `boxed` starts the process.
"""

import functools
import logging
import re
import resource
import string
import sys

from grpo_jax.aliases import Json
from grpo_jax.sandbox import serving

MEMORY = 1024**3  # bytes of address space; sympy with its caches takes 100 MB
SECONDS = 0.25  # of computing for one answer; most take some milliseconds
# Bytes of memory after which the process ends as if stopped: sympy hides a MemoryError.
LARGEST = 400 * 1024**2

# Compared before the first request, so that the processes do not learn the grammar during one:
# learning takes a tenth of a second, and on a slow core more than SECONDS, for an answer that is
# the first of its kind.
FIRST: tuple[tuple[str, str], ...] = (
  ("\\frac{1}{2}x^2", "0.5x^{2}"),
  ("2\\sqrt{3}", "\\sqrt{12}"),
  ("1+2\\sqrt{5}", "1-\\sqrt{20}"),
  ("\\sin(x)", "\\cos(x)"),
  ("x<2", "2>x"),
  ("\\frac{3}{5}", "{\\frac{3}{7}}"),
  ("\\frac{4\\pi}{3}", "3\\pi"),
  ("(a-1)(a+4)", "a^2+3a-5"),
  ("5a^2b", "5ab^2"),
  ("2A_{16}+b_{16}", "b_{16}+2A_{16}"),
)

_SYMBOL = re.compile(r"\\[A-Za-z]+'*|[A-Za-z]'*")  # a command or a letter, with its primes
_UNCLEAR = re.compile(r"(?<![A-Za-z'])'|\u2032|\u2019")  # a prime of something else
_IN_A_ROW = re.compile(r"(?<![\\A-Za-z])[A-Z]{2,}")
_LABEL = re.compile(r"[A-Z][0-9]")  # a product has its number in front
# Names without a meaning of their own: e and i are numbers, d begins a differential.
_NAMES = "".join(sorted({*string.ascii_lowercase} - {*"dei"}))


def tell_apart(expected: str, answer: str) -> tuple[str, str] | None:
  """Returns two expressions with other names for the symbols that math-verify would confuse.

  It ignores the case of letters, drops primes, multiplies letters in a row in any order, and reads
  `\\gamma` as a function of what follows. So `\\gamma`, a symbol with a prime, and a capital letter
  whose small one occurs as well, is renamed to a letter that does not occur.

  Returns:
    None if that does not suffice: capitals in a row are a word, as in HHT and THH, something else
    has a prime, or no letter is left.
  """
  both = f"{expected}\n{answer}"
  symbols = dict.fromkeys(_SYMBOL.findall(both))
  confused = [
    s for s in symbols if "'" in s or s == "\\gamma" or (s != s.lower() and s.lower() in symbols)
  ]
  free = [name for name in _NAMES if not {name, name.upper()} & symbols.keys()]
  if _differ_in_words(expected, answer) or _UNCLEAR.search(both) or len(confused) > len(free):
    return None
  names = {s: " " * s.startswith("\\") + name for s, name in zip(confused, free)}
  expected, answer = _SYMBOL.sub(lambda m: names.get(m[0], m[0]), both).split("\n")
  return expected, answer


def _differ_in_words(expected: str, answer: str) -> bool:
  """Returns whether the capitals in a row differ where they cannot be a product.

  They are a word where they are the whole of a text, where a number follows a capital, or where the
  same letters stand in two orders.
  """
  rows = [{*_IN_A_ROW.findall(text)} for text in (expected, answer)]
  words = rows[0] | rows[1]
  return rows[0] != rows[1] and bool(
    {expected, answer} & words
    or _LABEL.search(f"{expected}\n{answer}")
    or len({"".join(sorted(word)) for word in words}) < len(words)
  )


class Comparer:
  """Compares expressions by math-verify, which is imported here alone."""

  def __init__(self) -> None:
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable()  # it warns that its timeouts are off
    plain = NormalizationConfig(
      basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
    )
    config = LatexExtractionConfig(normalization_config=plain)
    self.parse = functools.lru_cache(maxsize=1000)(
      functools.partial(
        parse, extraction_config=[config], fallback_mode="no_fallback", parsing_timeout=None
      )
    )
    self.verify = functools.partial(verify, float_rounding=10, timeout_seconds=None)
    for expected, answer in FIRST:
      self.equal(expected, answer)

  def equal(self, expected: str, answer: str) -> bool:
    """Returns whether two LaTeX expressions are equal; False if one of them cannot be read."""
    texts = tell_apart(expected, answer)
    parsed = [self.parse(f"${text}$") for text in texts or ()]
    return bool(texts) and all(parsed) and self.verify(*parsed)

  def __call__(self, request: Json) -> Json:
    """Returns the reply to a request."""
    reply = {"equal": [self.equal(expected, answer) for expected, answer in request["pairs"]]}
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > LARGEST:
      sys.exit(1)  # a new process with less memory takes its place
    return reply


if __name__ == "__main__":
  serving.serve(Comparer(), MEMORY, SECONDS)
