"""Word problems of one to four steps of the data set `arithmetic`, by families.

`long_problems` has the longer ones. The order of everything here is
part of the data set: another order makes another stream of problems.
"""

from typing import NamedTuple

PRONOUNS = {
  "Tom": "He",
  "Ann": "She",
  "Sam": "He",
  "Mia": "She",
  "Ben": "He",
  "Zoe": "She",
  "Max": "He",
  "Eva": "She",
}
ITEMS = ("apples", "pens", "books", "cards", "shells", "eggs", "cookies", "stamps")
BOXES = {"boxes": "box", "bags": "bag", "baskets": "basket", "jars": "jar"}


class Step(NamedTuple):
  """A line of a solution: `words`, then `left op right = result`; later steps name the result."""

  words: str
  left: str
  op: str
  right: str
  result: str


class Problem(NamedTuple):
  """One way to ask a problem of a family, and the steps that solve it.

  In the question `{a} {b} {c} {d} {e}` are numbers up to `max_number` and `{n} {m} {k} {j}` numbers
  up to `max_factor`. The results of the steps are named `x y z w v u t s`, in this order. A step's
  operand is one of these names or a number.
  """

  family: str
  question: str
  steps: tuple[Step, ...]


def problem(family: str, question: str, *lines: str) -> Problem:
  """Returns a problem from steps in the form `words: left op right`, as in `{B} has: a / 2`."""
  steps = []
  for line, result in zip(lines, "xyzwvuts", strict=False):
    words, expression = line.split(": ")
    left, op, right = expression.split()
    steps.append(Step(words, left, op, right, result))
  return Problem(family, question, tuple(steps))


PROBLEMS = (
  problem(
    "gain",
    "{A} has {a} {items}. {He} finds {b} more. How many {items} does {A} have now?",
    "{A} has: a + b",
  ),
  problem(
    "gain",
    "{A} finds {a} {items} on Monday and {b} {items} on Friday. How many {items} does {A} find in "
    "all?",
    "{A} finds: a + b",
  ),
  problem(
    "loss",
    "{A} has {a} {items}. {He} gives {b} of them to {B}. How many {items} does {A} have left?",
    "{A} has: a - b",
  ),
  problem(
    "loss",
    "There are {a} {items} in a {box}. {A} takes {b} of them. How many {items} are left?",
    "There are: a - b",
  ),
  problem(
    "difference",
    "{A} has {a} {items} and {B} has {b} {items}. How many more {items} does {A} have than {B}?",
    "{A} has: a - b",
  ),
  problem(
    "difference",
    "There are {a} {items} in a {box}. {A} puts more {items} into the {box} and now there are "
    "{b}. How many {items} does {A} put into the {box}?",
    "{A} puts: b - a",
  ),
  problem(
    "groups",
    "{A} has {n} {boxes} with {m} {items} in each {box} and loses {b} of them. How many {items} "
    "does {A} have left?",
    "{A} has: n * m",
    "{A} has: x - b",
  ),
  problem(
    "groups",
    "{A} has {b} {items}. {He} finds {n} {items} each day for {m} days. How many {items} does {A} "
    "have now?",
    "{A} finds: n * m",
    "{A} has: b + x",
  ),
  problem(
    "sharing",
    "{A} has {a} {items} and finds {b} more. {He} shares them equally among {n} friends. How many "
    "{items} does each friend get?",
    "{A} has: a + b",
    "Each friend gets: x / n",
  ),
  problem(
    "sharing",
    "{A} has {a} {items} and loses {b} of them. {He} puts the rest equally into {n} {boxes}. How "
    "many {items} are in each {box}?",
    "{A} has: a - b",
    "Each {box} has: x / n",
  ),
  problem(
    "comparison",
    "{A} has {a} {items}. {B} has {b} more {items} than {A}. How many {items} do they have in all?",
    "{B} has: a + b",
    "They have: a + x",
  ),
  problem(
    "comparison",
    "{A} has {a} {items}. {B} has {b} fewer {items} than {A}. How many {items} do they have in "
    "all?",
    "{B} has: a - b",
    "They have: a + x",
  ),
  problem(
    "multiple",
    "{A} has {a} {items}. {B} has half as many {items} and then finds {b} more. How many {items} "
    "does {B} have?",
    "{B} has: a / 2",
    "{B} has: x + b",
  ),
  problem(
    "multiple",
    "{A} has {a} {items}. {B} has twice as many {items} and then loses {b} of them. How many "
    "{items} does {B} have?",
    "{B} has: a * 2",
    "{B} has: x - b",
  ),
  problem(
    "shopping",
    "{A} buys {n} {items} for ${m} each and a {box} for ${b}. How many dollars does {A} pay?",
    "{items} cost: n * m",
    "{A} pays: x + b",
  ),
  problem(
    "shopping",
    "{A} has ${b}. {He} buys {n} {items} for ${m} each. How many dollars does {A} have left?",
    "{items} cost: n * m",
    "{A} has: b - x",
  ),
  problem(
    "bus",
    "There are {a} people on a bus. {b} people get off and {c} people get on. How many people are "
    "on the bus now?",
    "There are: a - b",
    "There are: x + c",
  ),
  problem(
    "bus",
    "There are {a} people on a bus. {b} people get on and then half of the people get off. How "
    "many people are on the bus now?",
    "There are: a + b",
    "There are: x / 2",
  ),
  problem(
    "change",
    "{A} has ${a}. {He} buys {n} {items} for ${m} each and a {box} for ${b}. How many dollars "
    "does {A} have left?",
    "{items} cost: n * m",
    "{A} pays: x + b",
    "{A} has: a - y",
  ),
  problem(
    "two_kinds",
    "{A} buys {n} {items} for ${m} each and {k} {boxes} for ${j} each. How many dollars does {A} "
    "pay?",
    "{items} cost: n * m",
    "{boxes} cost: k * j",
    "{A} pays: x + y",
  ),
  problem(
    "wages",
    "{A} gets ${n} each day for {m} days. {He} spends half of it and then gets ${b} more. How "
    "many dollars does {A} have now?",
    "{A} gets: n * m",
    "{A} has: x / 2",
    "{A} has: y + b",
  ),
  problem(
    "wages",
    "{A} has ${b}. {He} gets ${n} each day for {m} days and then spends half of the dollars. How "
    "many dollars does {A} have now?",
    "{A} gets: n * m",
    "{A} has: b + x",
    "{A} has: y / 2",
  ),
  problem(
    "rest",
    "{A} has {n} {boxes} with {m} {items} in each {box}. {He} gives {b} {items} to {B} and shares "
    "the rest equally among {k} friends. How many {items} does each friend get?",
    "{A} has: n * m",
    "{A} has: x - b",
    "Each friend gets: y / k",
  ),
  problem(
    "three_friends",
    "{A} has {a} {items}. {B} has {b} more {items} than {A}. {C} has twice as many {items} as "
    "{A}. How many {items} do they have in all?",
    "{B} has: a + b",
    "{C} has: a * 2",
    "They have: a + x",
    "They have: z + y",
  ),
  problem(
    "three_friends",
    "{A} has {a} {items}. {B} has {b} fewer {items} than {A}. {C} has half as many {items} as "
    "{B}. How many {items} do they have in all?",
    "{B} has: a - b",
    "{C} has: x / 2",
    "They have: a + x",
    "They have: z + y",
  ),
  problem(
    "packing",
    "{A} has {n} {boxes} with {m} {items} in each {box}. {He} finds {a} more {items}, gives {b} "
    "{items} to {B} and shares the rest equally among {k} friends. How many {items} does each "
    "friend get?",
    "{A} has: n * m",
    "{A} has: x + a",
    "{A} has: y - b",
    "Each friend gets: z / k",
  ),
)
