"""docs/papers.md names every row of presets.py, and tests that are there."""

import re

import mutants
import pytest
from conftest import ROOT

from experiments import presets

PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def test_every_row_of_presets_has_its_paper():
  rows = re.findall(r"^\|(?:[^|]*\|){2}([^|]*)\|", PAGE, re.MULTILINE)
  named = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
  assert presets.PRESETS.keys() <= named
  assert len(TESTS) > 20


@pytest.mark.parametrize("file, test", TESTS)
def test_the_tests_that_it_names_are_there(file, test):
  assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8")


def test_each_bug_of_others_is_put_in_here():
  """Compares the tests that the last part of the page names with those of mutants."""
  _, bugs = PAGE.split("## Their bug, our test")
  caught = {test.partition("[")[0] for mutant in mutants.MUTANTS for test in mutant.test.split()}
  named = {f"{file}::{test}" for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", bugs)}
  assert len(named) > 30 and named <= caught
