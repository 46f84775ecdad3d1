"""The rows that a class of settings has, and how `--help` shows them."""

import dataclasses

from grpo_jax.config import table
from grpo_jax.config.kinds import Whole


@dataclasses.dataclass(frozen=True)
class Kept:
  """What is kept."""

  some: int = table.setting(3, Whole(1), "How many.")
  inner: tuple = ()  # no setting: it has no row


def test_the_rows_of_a_class_are_its_settings():
  section = table.section_of(Kept, "kept")
  assert section == ("kept", "What is kept", {"some": (3, Whole(1), "How many.")})
  assert Kept().some == 3


def test_help_names_each_setting_with_its_default_and_values():
  text = table.help_text([table.section_of(Kept, "kept"), table.section_of(Kept)])
  assert "\nWhat is kept:\n  kept.some=3  [whole >= 1]\n    How many." in text
  assert "\n  some=3  " in text
