"""Every known bug, put into the code on purpose, makes a test fail (`python tests/mutants.py` prints the table)."""

import mutants
import pytest


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_a_mutant_fits_the_code_as_it_is(mutant):
  text = (mutants.ROOT / mutant.file).read_text(encoding="utf-8")
  assert mutants.applied(mutant) != text


@pytest.mark.slow
def test_the_named_tests_pass_without_a_mutant():
  ok, output = mutants.healthy()
  assert ok, output


@pytest.mark.slow
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_mutant_is_caught(mutant):
  found, lines = mutants.caught(mutant)
  assert found, lines
