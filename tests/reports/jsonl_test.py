"""Lines of a run's logs."""

from grpo_jax.reports import jsonl
from reports.plots_test import write


def test_a_line_that_was_cut_off_ends_the_file(tmp_path):
  write(tmp_path / "a.jsonl", [{"step": 0, "text": "one\u2028line"}, {"step": 1}], '{"step": 2, "k')
  assert [row["step"] for row in jsonl.read(tmp_path / "a.jsonl")] == [0, 1]
  assert jsonl.read(tmp_path / "none.jsonl") == []
