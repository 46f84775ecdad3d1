"""docs/reliability.md tells the numbers of what the tests try, and commands that are there."""

import re
import shlex

import bad_settings
import boxed_answers
import damage
import fuzz_checkpoint_test
import fuzz_folders_test
import fuzz_settings_test
import hostile_answers
import hostile_folders
import pytest
from conftest import ROOT

ROWS = [
  [cell.strip() for cell in line.strip("|").split("|")]
  for line in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
  if re.match(r"\| [A-Z]", line) and line.count(" | ") == 3
]


def numbers(name: str) -> list[int]:
  """The numbers in the second column of the row that begins so."""
  (row,) = [row for row in ROWS if row[0].startswith(name)]
  return [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", row[1])]


def test_the_numbers_are_those_of_the_lists():
  lists = len(bad_settings.BAD), len(bad_settings.ACCEPTED)
  for told, counted in zip(numbers("Bad settings"), lists, strict=True):
    assert abs(counted - told) < told / 10  # "about", since every setting adds some
  assert numbers("Hostile model folders") == [
    len(hostile_folders.CASES),
    len(hostile_folders.ACCEPTED),
  ]
  assert numbers("Answers in boxes") == [len(boxed_answers.PAIRS)]
  assert numbers("Hostile answers") == [len(hostile_answers.texts("")), 500]
  assert numbers("Damage to a checkpoint")[0] == len(damage.KINDS) + 1  # and the exchange
  fuzzers = (fuzz_settings_test.FEW, fuzz_folders_test.fuzzed, fuzz_checkpoint_test.FEW)
  assert numbers("Random content") == [few.max_examples for few in fuzzers]


@pytest.mark.parametrize("command", [row[3].strip("`") for row in ROWS])
def test_the_commands_are_there(command):
  program, *arguments = shlex.split(command)
  assert program == "python" and arguments[0] == "-m"
  files = [argument for argument in arguments if argument.endswith(".py") and "=" not in argument]
  assert files or arguments[1] == "experiments.measure.drill"
  assert all((ROOT / file).is_file() for file in files)
