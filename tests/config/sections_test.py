"""Tests what the table of settings becomes: a config of defaults, and `--help`."""

import json

from grpo_jax.config import sections, table


def test_defaults_are_the_table_in_its_order():
  config = sections.defaults()
  flat = {}

  def collect(section, prefix):
    for name, value in section.items():
      if isinstance(value, dict):
        collect(value, f"{prefix}{name}.")
      else:
        flat[prefix + name] = value

  collect(json.loads(config.to_json()), "")
  table = {name: setting.default for name, setting in sections.SETTINGS.items()}
  assert list(flat) == list(table) and flat == json.loads(json.dumps(table))


def test_help_has_every_setting():
  text = table.help_text(sections.SECTIONS)
  for name, (default, _, meaning) in sections.SETTINGS.items():
    assert f"  {name}={default!r}  [" in text and f"    {meaning}\n" in f"{text}\n"
  assert text.isascii()


def test_nested_values_have_dotted_names():
  config = {"a": 1, "b": {"c": [2], "d": {"e": None}}, "f": {}}
  assert sections.flat(config) == {"a": 1, "b.c": [2], "b.d.e": None}
