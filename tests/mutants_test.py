"""Every known bug, put into the code on purpose, makes a test fail: `python
tests/helpers/mutants.py` prints a table.

A test that fails in every copy of the code would seem to catch its mutant: under `long` the tests
that mutants name must pass in a copy without one.
"""

import mutants
import pytest


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_a_mutant_fits_the_code_as_it_is(mutant):
  text = (mutants.ROOT / mutant.file).read_text(encoding="utf-8")
  assert mutants.applied(mutant) != text


FOLDERS = [mutant.file.rpartition("/")[0] for mutant in mutants.MUTANTS]
CASES = [  # .ci/run tries the first one of each folder
  pytest.param(mutant, marks=pytest.mark.long if FOLDERS[i] in FOLDERS[:i] else ())
  for i, mutant in enumerate(mutants.MUTANTS)
]


@pytest.mark.slow
@pytest.mark.long
def test_what_catches_a_mutant_passes_in_a_copy_without_one():
  found, output = mutants.healthy()
  assert found, output


@pytest.mark.slow
@pytest.mark.parametrize("mutant", CASES, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_mutant_is_caught(mutant):
  found, lines = mutants.caught(mutant)
  assert found, lines
