"""docs/settings.md is what the table of settings says."""

import conftest
import pytest

from grpo_jax.config import sections
from grpo_jax.setup import settings_page


def test_the_page_is_up_to_date():
  path = conftest.ROOT / "docs" / "settings.md"
  assert path.read_text(encoding="utf-8") == settings_page.page(), (
    "run python -m grpo_jax.setup.settings_page > docs/settings.md"
  )


def test_a_default_is_a_cell_of_a_table():
  for value, cell in (("\n", "`'\\n'`"), ("a|b", "`'a\\|b'`"), ((), "`()`"), ("x" * 99, "see")):
    assert settings_page.cell(value).startswith(cell)


@pytest.mark.parametrize(
  "name, file",
  [
    ("data.redraw", "loops/collector.py"),
    ("iterative.replay", "loops/teaching.py"),
    ("checkpoint.keep", "loops/run.py"),
    ("sampler.top_p", "ops/decoding.py"),
    ("learner.lr", "learning/optimizer.py"),
    ("mesh.fsdp", "distributed/sharding.py"),
    ("steps", "loops/run.py"),
    ("eval.batch", "evaluation/evaluator.py"),
  ],
)
def test_the_files_that_read_a_setting(name, file):
  section, _, last = name.rpartition(".")
  assert file in settings_page.readers(section, last, settings_page.read_sources())


def test_every_setting_is_read():
  """One that no file reads would change nothing."""
  sources = settings_page.read_sources()
  for name in sections.SETTINGS:
    section, _, last = name.rpartition(".")
    assert settings_page.readers(section, last, sources), name


def test_a_name_in_another_table_is_no_reader():
  """`group` is a field of samples.jsonl, too."""
  readers = settings_page.readers("mesh", "group", settings_page.read_sources())
  assert readers == ["distributed/sharding.py"]
