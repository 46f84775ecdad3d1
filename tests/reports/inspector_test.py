"""samples.html."""

import html.parser
import json
import re
import shutil

import pytest

from grpo_jax.reports import inspector
from reports.plots_test import FIELDS, GOOD, hostile_lines, shown_by


class Tags(html.parser.HTMLParser):
  def __init__(self):
    super().__init__()
    self.tags, self.data, self.inside = [], "", False

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.inside = dict(attrs).get("id") == "data"

  def handle_data(self, data):
    if self.inside:
      self.data += data

  def handle_endtag(self, tag):
    self.inside = False


def test_the_page_holds_the_samples_and_they_stay_text(tmp_path):
  rows = [
    {
      "step": 0,
      "question": "q",
      "completion": "</script><img src=x onerror=alert(1)> \ud83d",
      "reward": 1.0,
    }
  ]
  (tmp_path / "samples.jsonl").write_text(json.dumps(rows[0]) + "\n")
  assert inspector.write(str(tmp_path)) == tmp_path / "samples.html"
  page = Tags()
  page.feed((tmp_path / "samples.html").read_text(encoding="utf-8"))
  assert "img" not in page.tags and page.tags.count("script") == 2
  data = json.loads(page.data)
  assert data["title"] == tmp_path.name
  assert data["samples"][0]["completion"].startswith("</script><img src=x onerror=alert(1)>")


def test_the_page_needs_nothing_else():
  assert "http" not in inspector.PAGE.read_text() and "innerHTML" not in inspector.PAGE.read_text()


def test_the_page_says_what_it_sorts_by():
  text = inspector.PAGE.read_text()
  assert set(re.findall(r"^    (\w+): sample =>", text, re.MULTILINE)) == set(
    re.findall(r'<option value="(\w+)">', text.split('<select id="sort">')[1].split("</select>")[0])
  )
  assert (
    "disagreement: how much higher a completion ranks in its group by the learned reward than by "
    "the rule" in text
  )


def test_no_samples_no_page(tmp_path):
  assert inspector.write(str(tmp_path)) is None and not (tmp_path / "samples.html").exists()


def test_a_page_takes_any_line_of_samples(tmp_path, capsys):
  lines = hostile_lines(GOOD, FIELDS)
  (tmp_path / "samples.jsonl").write_bytes(
    b"\n".join([json.dumps(GOOD).encode(), *lines.values()]) + b"\n"
  )
  text = inspector.write(str(tmp_path)).read_text()
  data = json.loads(
    re.search(r'type="application/json">(.*?)</script>', text, re.DOTALL)[1],
    parse_constant=pytest.fail,
  )
  said = capsys.readouterr().err
  left_out = int(re.search(rf"(\d+) lines of {len(lines) + 1} are damaged", said)[1])
  assert len(data["samples"]) == 1 + len(lines) - left_out and said.count("\n") == 1
  assert 40 < left_out < len(lines) - 40
  if shutil.which("node"):
    assert len(shown_by(data["samples"])["orders"]) == 8
