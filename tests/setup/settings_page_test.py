"""docs/settings.md is what the table of settings says."""

import conftest

from grpo_jax.setup import settings_page


def test_the_page_is_up_to_date():
  path = conftest.ROOT / "docs" / "settings.md"
  assert path.read_text(encoding="utf-8") == settings_page.page(), (
    "run python -m grpo_jax.setup.settings_page > docs/settings.md"
  )


def test_a_default_is_a_cell_of_a_table():
  for value, cell in (("\n", "`'\\n'`"), ("a|b", "`'a\\|b'`"), ((), "`()`"), ("x" * 99, "see")):
    assert settings_page.cell(value).startswith(cell)
