"""Word problems in GSM8K's form, made from a seed: worked steps, one a line, then `#### answer`.

Problem `index` of a split is a pure function of (seed, split, index, settings), so the source is random-access and
stores nothing. Words come from a small closed vocabulary and numbers are written in digits: `pieces` cuts any of these
texts into pieces of `vocabulary()`, digits one by one, and the pieces joined are the text again.

Split: the numbers of a question, sorted, are hashed, and the hash alone says to which split the problem belongs. So
no test problem, whatever its words, its family or the order of its numbers, is ever in train, for any two seeds.
"""

import hashlib
import operator
import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, SupportsIndex

from grpo_jax.errors import SettingError
from grpo_jax.types import Example

SPLITS = ("test", "validation", "train")  # one tenth, one tenth, eight tenths of the number multisets

_HE = {"Tom": "He", "Ann": "She", "Sam": "He", "Mia": "She", "Ben": "He", "Zoe": "She", "Max": "He", "Eva": "She"}
_ITEMS = ("apples", "pens", "books", "cards", "shells", "eggs", "cookies", "stamps")
_BOXES = {"boxes": "box", "bags": "bag", "baskets": "basket", "jars": "jar"}
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
  "+": operator.add,
  "-": operator.sub,
  "*": operator.mul,
  "/": operator.floordiv,
}


class Step(NamedTuple):
  """One line of the solution: `words` and then `left op right = result`; the result is named for later steps."""

  words: str
  left: str
  op: str
  right: str
  result: str


class Problem(NamedTuple):
  """One way to ask a problem of a family.

  `{a} {b} {c}` are numbers up to `max_number`, `{n} {m} {k} {j}` numbers up to `max_factor`; every result is named
  `x y z w`. A step's operand is one of these names or a number.
  """

  family: str
  question: str
  steps: tuple[Step, ...]


def _problem(family: str, question: str, *steps: str) -> Problem:
  """Each step is written `words: left op right`, for example `{B} has: a / 2`."""
  rows = []
  for line, result in zip(steps, "xyzw", strict=False):
    words, expression = line.split(": ")
    rows.append(Step(words, *expression.split(), result))
  return Problem(family, question, tuple(rows))


PROBLEMS = (
  _problem(
    "gain",
    "{A} has {a} {items}. {He} finds {b} more. How many {items} does {A} have now?",
    "{A} has: a + b",
  ),
  _problem(
    "gain",
    "{A} finds {a} {items} on Monday and {b} {items} on Friday. How many {items} does {A} find in all?",
    "{A} finds: a + b",
  ),
  _problem(
    "loss",
    "{A} has {a} {items}. {He} gives {b} of them to {B}. How many {items} does {A} have left?",
    "{A} has: a - b",
  ),
  _problem(
    "loss",
    "There are {a} {items} in a {box}. {A} takes {b} of them. How many {items} are left?",
    "There are: a - b",
  ),
  _problem(
    "difference",
    "{A} has {a} {items} and {B} has {b} {items}. How many more {items} does {A} have than {B}?",
    "{A} has: a - b",
  ),
  _problem(
    "difference",
    "There are {a} {items} in a {box}. {A} puts more {items} into the {box} and now there are {b}. "
    "How many {items} does {A} put into the {box}?",
    "{A} puts: b - a",
  ),
  _problem(
    "groups",
    "{A} has {n} {boxes} with {m} {items} in each {box} and loses {b} of them. How many {items} does {A} have left?",
    "{A} has: n * m",
    "{A} has: x - b",
  ),
  _problem(
    "groups",
    "{A} has {b} {items}. {He} finds {n} {items} each day for {m} days. How many {items} does {A} have now?",
    "{A} finds: n * m",
    "{A} has: b + x",
  ),
  _problem(
    "sharing",
    "{A} has {a} {items} and finds {b} more. {He} shares them equally among {n} friends. "
    "How many {items} does each friend get?",
    "{A} has: a + b",
    "Each friend gets: x / n",
  ),
  _problem(
    "sharing",
    "{A} has {a} {items} and loses {b} of them. {He} puts the rest equally into {n} {boxes}. "
    "How many {items} are in each {box}?",
    "{A} has: a - b",
    "Each {box} has: x / n",
  ),
  _problem(
    "comparison",
    "{A} has {a} {items}. {B} has {b} more {items} than {A}. How many {items} do they have in all?",
    "{B} has: a + b",
    "They have: a + x",
  ),
  _problem(
    "comparison",
    "{A} has {a} {items}. {B} has {b} fewer {items} than {A}. How many {items} do they have in all?",
    "{B} has: a - b",
    "They have: a + x",
  ),
  _problem(
    "multiple",
    "{A} has {a} {items}. {B} has half as many {items} and then finds {b} more. How many {items} does {B} have?",
    "{B} has: a / 2",
    "{B} has: x + b",
  ),
  _problem(
    "multiple",
    "{A} has {a} {items}. {B} has twice as many {items} and then loses {b} of them. How many {items} does {B} have?",
    "{B} has: a * 2",
    "{B} has: x - b",
  ),
  _problem(
    "shopping",
    "{A} buys {n} {items} for ${m} each and a {box} for ${b}. How many dollars does {A} pay?",
    "{items} cost: n * m",
    "{A} pays: x + b",
  ),
  _problem(
    "shopping",
    "{A} has ${b}. {He} buys {n} {items} for ${m} each. How many dollars does {A} have left?",
    "{items} cost: n * m",
    "{A} has: b - x",
  ),
  _problem(
    "bus",
    "There are {a} people on a bus. {b} people get off and {c} people get on. How many people are on the bus now?",
    "There are: a - b",
    "There are: x + c",
  ),
  _problem(
    "bus",
    "There are {a} people on a bus. {b} people get on and then half of the people get off. "
    "How many people are on the bus now?",
    "There are: a + b",
    "There are: x / 2",
  ),
  _problem(
    "change",
    "{A} has ${a}. {He} buys {n} {items} for ${m} each and a {box} for ${b}. How many dollars does {A} have left?",
    "{items} cost: n * m",
    "{A} pays: x + b",
    "{A} has: a - y",
  ),
  _problem(
    "two_kinds",
    "{A} buys {n} {items} for ${m} each and {k} {boxes} for ${j} each. How many dollars does {A} pay?",
    "{items} cost: n * m",
    "{boxes} cost: k * j",
    "{A} pays: x + y",
  ),
  _problem(
    "wages",
    "{A} gets ${n} each day for {m} days. {He} spends half of it and then gets ${b} more. "
    "How many dollars does {A} have now?",
    "{A} gets: n * m",
    "{A} has: x / 2",
    "{A} has: y + b",
  ),
  _problem(
    "wages",
    "{A} has ${b}. {He} gets ${n} each day for {m} days and then spends half of the dollars. "
    "How many dollars does {A} have now?",
    "{A} gets: n * m",
    "{A} has: b + x",
    "{A} has: y / 2",
  ),
  _problem(
    "rest",
    "{A} has {n} {boxes} with {m} {items} in each {box}. {He} gives {b} {items} to {B} and shares the rest "
    "equally among {k} friends. How many {items} does each friend get?",
    "{A} has: n * m",
    "{A} has: x - b",
    "Each friend gets: y / k",
  ),
  _problem(
    "three_friends",
    "{A} has {a} {items}. {B} has {b} more {items} than {A}. {C} has twice as many {items} as {A}. "
    "How many {items} do they have in all?",
    "{B} has: a + b",
    "{C} has: a * 2",
    "They have: a + x",
    "They have: z + y",
  ),
  _problem(
    "three_friends",
    "{A} has {a} {items}. {B} has {b} fewer {items} than {A}. {C} has half as many {items} as {B}. "
    "How many {items} do they have in all?",
    "{B} has: a - b",
    "{C} has: x / 2",
    "They have: a + x",
    "They have: z + y",
  ),
  _problem(
    "packing",
    "{A} has {n} {boxes} with {m} {items} in each {box}. {He} finds {a} more {items}, gives {b} {items} to {B} "
    "and shares the rest equally among {k} friends. How many {items} does each friend get?",
    "{A} has: n * m",
    "{A} has: x + a",
    "{A} has: y - b",
    "Each friend gets: z / k",
  ),
)

FAMILIES = tuple(dict.fromkeys(problem.family for problem in PROBLEMS))

PIECE = re.compile(r" ?[A-Za-z]+|#### | [-+*/=] | \$|[0-9]|[.,?\n]| ")


def pieces(text: str) -> list[str]:
  """Cuts a text of this data set into pieces of `vocabulary()`: a word with the space before it, an operator with the
  spaces around it, a digit. `"".join(pieces(text)) == text`.

  Raises:
    ValueError: the text holds a character that no piece can.
  """
  found = PIECE.findall(text)
  if sum(map(len, found)) != len(text):
    raise ValueError(f"not a text of the arithmetic data set: {text!r}")
  return found


def vocabulary() -> list[str]:
  """All pieces that any question or solution can hold, in a fixed order."""
  found = dict.fromkeys(["\n", " ", "#### ", *"0123456789", *(f" {op} " for op in "+-*/=")])
  for problem in PROBLEMS:
    for shift in range(max(len(_HE), len(_ITEMS), len(_BOXES))):
      words = _words(shift, shift, shift)
      texts = [problem.question.format_map(words | dict.fromkeys("abcnmkj", 0))]
      texts += [_label(step, words) for step in problem.steps]
      for text in texts:
        found.update(dict.fromkeys(pieces(text)))
  return list(found)


def _words(name: int, item: int, box: int) -> dict[str, str]:
  names = list(_HE)
  first = names[name % len(names)]
  boxes = list(_BOXES)[box % len(_BOXES)]
  return {
    "A": first,
    "B": names[(name + 1) % len(names)],
    "C": names[(name + 2) % len(names)],
    "He": _HE[first],
    "items": _ITEMS[item % len(_ITEMS)],
    "boxes": boxes,
    "box": _BOXES[boxes],
  }


def _label(step: Step, words: dict[str, str]) -> str:
  label = step.words.format_map(words)
  return f"{label[0].upper()}{label[1:]} "


def split_of(numbers: Sequence[int]) -> str:
  """The split of every problem whose question holds these numbers, in any order and with any words."""
  text = ",".join(map(str, sorted(numbers)))
  tenth = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 10
  return SPLITS[min(tenth, 2)]


def solve(problem: Problem, numbers: dict[str, int], max_number: int) -> list[tuple[int, int, int]] | None:
  """(left, right, result) of each step; None unless every result is exact and in 2..max_number."""
  values = dict(numbers)
  rows = []
  for step in problem.steps:
    left, right = (values[name] if name in values else int(name) for name in (step.left, step.right))
    if step.op == "/" and left % right:
      return None
    result = _OPERATIONS[step.op](left, right)
    if not 2 <= result <= max_number:
      return None
    values[step.result] = result
    rows.append((left, right, result))
  return rows


class Arithmetic:
  """A random-access source of `size` problems of one split.

  Args:
    split: "train", "validation" or "test".
    seed: which stream of problems; the split of a problem does not depend on it.
    size: number of problems.
    max_number: the largest number in a question, a step or an answer.
    max_factor: the largest number of things multiplied, of friends and of boxes.
    min_steps, max_steps: keeps the problems with that many steps.
    families: keeps these families; empty: all.
    words: whether a step says what it works out ("Ann has 48 / 2 = 24") or is the equation alone.

  An example's meta holds `family`, `numbers` (in the question's order), `steps` (how many), `results` (the exact
  value of each step as int; the last one is the answer) and `index`.

  Raises:
    SettingError: no problem fits the settings.
  """

  def __init__(
    self,
    split: str = "train",
    seed: int = 0,
    size: int = 100_000,
    max_number: int = 99,
    max_factor: int = 9,
    min_steps: int = 1,
    max_steps: int = 4,
    families: Sequence[str] = (),
    words: bool = True,
  ):
    if split not in SPLITS:
      raise SettingError(f"data split {split!r}: arithmetic has {', '.join(sorted(SPLITS))}")
    if size < 1:
      raise SettingError(f"data.arithmetic.size = {size}: at least 1")
    unknown = [name for name in families if name not in FAMILIES]
    if unknown:
      raise SettingError(f"data.arithmetic.families has {unknown[0]!r}: families are {', '.join(FAMILIES)}")
    kept = [p for p in PROBLEMS if min_steps <= len(p.steps) <= max_steps and (not families or p.family in families)]
    if not kept:
      raise SettingError(
        f"data.arithmetic.min_steps = {min_steps}, max_steps = {max_steps}: no family has such problems; "
        "steps go from 1 to 4"
      )
    self._split, self._seed, self._size, self._words = split, seed, size, words
    self._max_number, self._max_factor = max_number, max_factor
    self._kept = {family: [p for p in kept if p.family == family] for family in FAMILIES}
    self._kept = {family: problems for family, problems in self._kept.items() if problems}
    for problem in kept:
      self._draw_numbers(problem, random.Random(0))

  def __len__(self) -> int:
    return self._size

  def __getitem__(self, index: SupportsIndex) -> Example:
    index = operator.index(index)
    if not 0 <= index < self._size:
      raise IndexError(f"problem {index} of {self._size}")
    key = f"{self._seed}/{self._split}/{index}".encode()
    rng = random.Random(int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "big"))
    family = list(self._kept)[_below(rng, len(self._kept))]
    problem = self._kept[family][_below(rng, len(self._kept[family]))]
    numbers, rows = self._draw_numbers(problem, rng)
    words = _words(_below(rng, len(_HE)), _below(rng, len(_ITEMS)), _below(rng, len(_BOXES)))
    question = problem.question.format_map(words | numbers)
    lines = []
    for step, (left, right, result) in zip(problem.steps, rows, strict=True):
      label = _label(step, words) if self._words else ""
      lines.append(f"{label}{left} {step.op} {right} = {result}")
    answer = str(rows[-1][2])
    meta = {
      "family": problem.family,
      "numbers": list(numbers.values()),
      "steps": len(rows),
      "results": [result for _, _, result in rows],
      "index": index,
    }
    return Example(question, "\n".join([*lines, f"#### {answer}"]), answer, meta)

  def _draw_numbers(self, problem: Problem, rng: random.Random) -> tuple[dict[str, int], list[tuple[int, int, int]]]:
    """Uniform over the numbers that can be solved and belong to the split."""
    names = re.findall(r"\{([abcnmkj])\}", problem.question)
    for _ in range(100_000):
      numbers = {name: 2 + _below(rng, (self._max_number if name in "abc" else self._max_factor) - 1) for name in names}
      rows = solve(problem, numbers, self._max_number)
      if rows is not None and split_of(list(numbers.values())) == self._split:
        return numbers, rows
    raise SettingError(
      f"data.arithmetic.max_number = {self._max_number}, max_factor = {self._max_factor}: no {problem.family} problem "
      f"of split {self._split} found; try 99 and 9, or leave the family out of data.arithmetic.families"
    )


def _below(rng: random.Random, n: int) -> int:
  """Uniform in 0..n-1 from `Random.random`, the one method whose values are the same in every version of Python."""
  return int(rng.random() * n)


def source(split: str, path: str, cfg) -> Arithmetic:
  """The data set of `cfg.arithmetic` (the arguments of `Arithmetic` but for the split); `path` must be empty."""
  if path:
    raise SettingError(f"data.path = {path!r}: arithmetic makes its problems and reads no files; leave it empty")
  return Arithmetic(split, **dict(cfg.arithmetic))
