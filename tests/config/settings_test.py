"""Tests the table of settings: defaults that fit, and meanings that read well."""

import pytest

from grpo_jax.config import sections


@pytest.mark.parametrize("name", sections.SETTINGS)
def test_a_row_has_a_default_that_fits_and_a_meaning(name):
  default, kind, meaning = sections.SETTINGS[name]
  assert kind.fits(default) and kind.brief and kind.expects
  assert meaning.endswith(".") and "  " not in meaning and "|" not in meaning
