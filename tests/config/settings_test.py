"""The table of settings: defaults that fit, meanings that read well, and `--help`."""

import json

import pytest

from grpo_jax.config import settings, table


@pytest.mark.parametrize("name", settings.SETTINGS)
def test_a_row_has_a_default_that_fits_and_a_meaning(name):
  default, kind, meaning = settings.SETTINGS[name]
  assert kind.fits(default) and kind.brief and kind.expects
  assert meaning.endswith(".") and "  " not in meaning and "|" not in meaning


def test_defaults_are_the_table_in_its_order():
  config = settings.defaults()
  flat = {}

  def collect(section, prefix):
    for name, value in section.items():
      if isinstance(value, dict):
        collect(value, f"{prefix}{name}.")
      else:
        flat[prefix + name] = value

  collect(json.loads(config.to_json()), "")
  table = {name: setting.default for name, setting in settings.SETTINGS.items()}
  assert list(flat) == list(table) and flat == json.loads(json.dumps(table))


def test_help_has_every_setting():
  text = table.help_text(settings.SECTIONS)
  for name, (default, _, meaning) in settings.SETTINGS.items():
    assert f"  {name}={default!r}  [" in text and f"    {meaning}\n" in f"{text}\n"
  assert text.isascii()
