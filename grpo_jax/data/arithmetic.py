"""Word problems in GSM8K's form, made from a seed: worked steps on lines, then `#### answer`.

Problem `index` of a split is a pure function of (seed, split, index, settings), so that the source
is random-access and stores nothing. Words come from a small closed vocabulary (`word_problems`) and
numbers are written in digits.

The hash of a question's sorted numbers decides the problem's split. So no test problem, whatever
its words, its family or the order of its numbers, is ever in train, for any two seeds.
"""

import hashlib
import operator
import random
import re
from collections.abc import Callable, Sequence
from typing import SupportsIndex

from ml_collections import ConfigDict

from grpo_jax.config import kinds
from grpo_jax.data import long_problems, word_problems
from grpo_jax.data.word_problems import BOXES, ITEMS, PRONOUNS, Problem, Step
from grpo_jax.errors import SettingError
from grpo_jax.types import Example

# Ranges of the settings; `Arithmetic` also refuses settings for which there are no problems.
RANGES: dict[str, kinds.Kind] = {
  "seed": kinds.Whole(0),
  "size": kinds.Whole(1),
  "max_number": kinds.Whole(2),
  "max_factor": kinds.Whole(2),
  "min_steps": kinds.Whole(0),
  "max_steps": kinds.Whole(1),
}

# Problems and families in the order of the tables; the stream of problems depends on it.
PROBLEMS = word_problems.PROBLEMS + long_problems.PROBLEMS
FAMILIES = tuple(dict.fromkeys(problem.family for problem in PROBLEMS))

SPLITS = ("test", "validation", "train")  # a tenth, a tenth and eight tenths of sets of numbers

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
  "+": operator.add,
  "-": operator.sub,
  "*": operator.mul,
  "/": operator.floordiv,
}


def _words(name: int, item: int, box: int) -> dict[str, str]:
  """Returns the words of a problem by indices; the second and third name follow the first."""
  names = list(PRONOUNS)
  first, boxes = names[name], list(BOXES)[box]
  return {
    "A": first,
    "B": names[(name + 1) % len(names)],
    "C": names[(name + 2) % len(names)],
    "He": PRONOUNS[first],
    "items": ITEMS[item],
    "boxes": boxes,
    "box": BOXES[boxes],
  }


def _label(step: Step, words: dict[str, str]) -> str:
  """Returns the words of a step before its equation, capitalized and with a space at the end."""
  label = step.words.format_map(words)
  return f"{label[0].upper()}{label[1:]} "


def split_of(numbers: Sequence[int]) -> str:
  """Returns the split of every problem with these numbers, in any order and with any words."""
  text = ",".join(map(str, sorted(numbers)))
  tenth = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 10
  return SPLITS[min(tenth, 2)]


def solve(
  problem: Problem, numbers: dict[str, int], max_number: int
) -> list[tuple[int, int, int]] | None:
  """Returns (left, right, result) of each step if every result is exact and in 2..max_number."""
  values = dict(numbers)
  solved = []
  for step in problem.steps:
    left, right = (
      values[name] if name in values else int(name) for name in (step.left, step.right)
    )
    if step.op == "/" and left % right:
      return None
    result = _OPERATIONS[step.op](left, right)
    if not 2 <= result <= max_number:
      return None
    values[step.result] = result
    solved.append((left, right, result))
  return solved


class Arithmetic:
  """A random-access source of `size` problems of one split.

  Args:
    split: "train", "validation" or "test".
    seed: chooses the stream of problems; the split of a problem does not depend on it.
    size: number of problems.
    max_number: the largest number in a question, a step or an answer.
    max_factor: the largest factor of a product, and the largest number of friends or boxes.
    min_steps: the smallest number of steps of a problem.
    max_steps: the largest number of steps of a problem.
    families: the families of problems; empty: all.
    words: whether a step has words ("Ann has 48 / 2 = 24") or is the equation alone.
    calls: whether a step calls a calculator ("Ann has <<calc: 48 / 2>>24", environments/calculator)
      in place of an equation.

  An example's meta holds `family`, `numbers` (in the order of the question), `steps` (how many),
  `results` (the exact value of each step as int; the last one is the answer) and `index`.
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
    calls: bool = False,
  ):
    if split not in SPLITS:
      raise SettingError(f"data split {split!r}: arithmetic has {', '.join(sorted(SPLITS))}")
    unknown = [name for name in families if name not in FAMILIES]
    if unknown:
      raise SettingError(
        f"data.arithmetic.families has {unknown[0]!r}: families are {', '.join(FAMILIES)}"
      )
    kept = [
      p
      for p in PROBLEMS
      if min_steps <= len(p.steps) <= max_steps and (not families or p.family in families)
    ]
    if not kept:
      raise SettingError(
        f"data.arithmetic.min_steps = {min_steps}, max_steps = {max_steps}: no family has such "
        f"problems; steps go from 1 to {max(len(problem.steps) for problem in PROBLEMS)}"
      )
    self._split, self._seed, self._size = split, seed, size
    self._words, self._calls = words, calls
    self._max_number, self._max_factor = max_number, max_factor
    self._kept = {family: [p for p in kept if p.family == family] for family in FAMILIES}
    self._kept = {family: problems for family, problems in self._kept.items() if problems}
    for problem in kept:
      self._draw_numbers(problem, random.Random(0))  # refuses settings without a solution

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
    numbers, solved = self._draw_numbers(problem, rng)
    words = _words(_below(rng, len(PRONOUNS)), _below(rng, len(ITEMS)), _below(rng, len(BOXES)))
    question = problem.question.format_map(words | numbers)
    lines = []
    for step, (left, right, result) in zip(problem.steps, solved, strict=True):
      label = _label(step, words) if self._words else ""
      equation = f"{left} {step.op} {right}"
      worked = f"<<calc: {equation}>>{result}" if self._calls else f"{equation} = {result}"
      lines.append(label + worked)
    answer = str(solved[-1][2])
    meta = {
      "family": problem.family,
      "numbers": list(numbers.values()),
      "steps": len(solved),
      "results": [result for _, _, result in solved],
      "index": index,
    }
    return Example(question, "\n".join([*lines, f"#### {answer}"]), answer, meta)

  def _draw_numbers(
    self, problem: Problem, rng: random.Random
  ) -> tuple[dict[str, int], list[tuple[int, int, int]]]:
    """Draws numbers that make the problem solvable and of the split, all equally likely.

    Returns:
      The numbers by name, in the order of the question, and (left, right, result) of each step.
    """
    names = re.findall(r"\{([abcdenmkj])\}", problem.question)
    for _ in range(100_000):
      numbers = {
        name: 2 + _below(rng, (self._max_number if name in "abcde" else self._max_factor) - 1)
        for name in names
      }
      solved = solve(problem, numbers, self._max_number)
      if solved is not None and split_of(list(numbers.values())) == self._split:
        return numbers, solved
    raise SettingError(
      f"data.arithmetic.max_number = {self._max_number}, max_factor = {self._max_factor}: no "
      f"{problem.family} problem of split {self._split} found; try 99 and 9, or leave the family "
      "out of data.arithmetic.families"
    )


def _below(rng: random.Random, n: int) -> int:
  """Returns a random integer in 0..n-1, the same in every version of Python."""
  return int(rng.random() * n)


def settings() -> ConfigDict:
  """Returns the section `data.arithmetic`: the arguments of `Arithmetic` without the split."""
  c = ConfigDict()
  c.seed = 0  # of the stream of problems
  c.size = 100_000  # problems in an epoch
  c.max_number = 99  # largest number in a question, a step or an answer
  c.max_factor = 9  # largest factor of a product
  c.min_steps = 1  # fewest steps of a problem
  c.max_steps = 4  # most steps of a problem
  c.families = ()  # families of problems; empty: all
  c.calls = False  # whether a step calls the calculator of environments/calculator.py
  c.words = True  # whether a step says what it works out, or is the equation alone
  return c


def source(split: str, path: str, cfg: ConfigDict) -> Arithmetic:
  """Returns the data set that `cfg` describes; `path` must be empty, since no files are read."""
  kinds.check(cfg, RANGES, "data.arithmetic.")
  if path:
    raise SettingError(
      f"data.path = {path!r}: arithmetic makes its problems and reads no files; leave it empty"
    )
  return Arithmetic(split, **dict(cfg))
