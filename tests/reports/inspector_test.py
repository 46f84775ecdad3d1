"""samples.html."""

import html.parser
import json
import re

import browser
import pytest

from grpo_jax.io import storage
from grpo_jax.reports import inspector
from reports.inspector_page_test import EPISODE, EVERYTHING, GROUP, HOSTILE
from reports.plots_test import FIELDS, GOOD, hostile_lines


class Tags(html.parser.HTMLParser):
  """The tags of a page, and the texts of its chunks of data."""

  def __init__(self, page):
    super().__init__()
    self.tags, self.chunks, self.inside = [], [], False
    self.feed(page)

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.inside = tag == "script" and dict(attrs).get("id", "").startswith("chunk")
    if self.inside:
      self.chunks.append("")

  def handle_data(self, data):
    if self.inside:
      self.chunks[-1] += data

  def handle_endtag(self, tag):
    self.inside = False

  def samples(self, **options):
    """Of all groups."""
    return [row for text in self.chunks for group in json.loads(text, **options) for row in group]


def test_the_page_holds_the_samples_and_they_stay_text(tmp_path):
  row = {"step": 0, "question": "q __CHUNKS__", "completion": f"</script>{HOSTILE} \ud83d"}
  (tmp_path / "samples.jsonl").write_text(json.dumps(row) + "\n")
  assert inspector.write(str(tmp_path)) == tmp_path / "samples.html"
  page = Tags((tmp_path / "samples.html").read_text(encoding="utf-8"))
  assert "img" not in page.tags and page.tags.count("script") == 3
  assert page.samples()[0]["question"] == "q __CHUNKS__"
  assert page.samples()[0]["completion"].startswith(f"</script>{HOSTILE}")


def test_the_page_needs_nothing_else():
  assert "http" not in inspector.template() and "innerHTML" not in inspector.template()


def test_the_page_says_what_it_sorts_by():
  text = inspector.template()
  assert set(re.findall(r"^  (\w+): one =>", text, re.MULTILINE)) == set(
    re.findall(r'<option value="(\w+)">', text.split('<select id="sort">')[1].split("</select>")[0])
  )
  assert (
    "disagreement: how much higher a completion ranks in its group by the learned reward than by "
    "the rule" in text
  )


def test_a_page_of_many_samples_has_those_of_the_last_steps(tmp_path, monkeypatch):
  rows = [GOOD | {"step": n // 2, "sample": n % 2} for n in range(8)]
  lines = [json.dumps(row) + "\n" for row in rows]
  (tmp_path / "samples.jsonl").write_text("".join(lines))
  place, length = storage.place(tmp_path), len(lines[0])
  assert inspector.last_samples(place, 8 * length) == (rows, True)
  # of the first step that is read, samples may be missing
  assert inspector.last_samples(place, 5 * length) == (rows[4:], False)
  assert inspector.last_samples(place, 4 * length + 1) == (rows[6:], False)
  assert inspector.last_samples(place, length) == (rows[6:], False)  # the last one is whole
  assert inspector.last_samples(place, 1)[0][-2:] == rows[6:]
  monkeypatch.setattr(inspector, "LARGEST", 5 * length)
  page = inspector.write(str(tmp_path)).read_text()
  assert '"since":2' in page and page.count('"step":1') == 0
  monkeypatch.undo()
  assert '"since":null' in inspector.write(str(tmp_path)).read_text()


def test_the_first_groups_are_as_many_as_fit_and_at_least_one():
  rows = [GOOD | {"step": 0, "group": n // 2, "sample": n % 2} for n in range(6)]
  each = len(inspector.as_json(rows[:2]))
  assert inspector.first_groups(rows, 3 * each) == (rows, True)
  assert inspector.first_groups(rows, 3 * each - 1) == (rows[:4], False)
  assert inspector.first_groups(rows, 1) == (rows[:2], False)
  assert inspector.first_groups([], 1) == ([], True)


def test_no_samples_no_page(tmp_path):
  assert inspector.write(str(tmp_path)) is None and not (tmp_path / "samples.html").exists()


# -- the data


def test_rows_of_older_runs_are_grouped_by_their_questions():
  new = [{"step": 1, "group": g, "question": "q", "n": n} for n, g in enumerate((3, 0, 3))]
  old = [
    {"step": s, "question": q, "n": n}
    for n, (s, q) in enumerate(((1, "q"), (1, "p"), (1, "q"), (2, "q")), 3)
  ]
  found = [[row["n"] for row in group] for group in inspector.groups([*new, *old])]
  assert found == [[0, 2], [1], [3, 5], [4], [6]]


def test_data_are_in_chunks_of_whole_groups_with_an_index(monkeypatch):
  monkeypatch.setattr(inspector, "CHUNK", 300)
  rows = [
    {"step": step, "question": str(q), "completion": "x" * 40, "reward": float(s), "tokens": ["x"] * (s + 1)}
    for step in (1, 2) for q in range(4) for s in range(2)
  ]  # fmt: skip
  rows[0] |= {"faults": "late", "disagreement": -0.5}
  rows[2] |= {"logprobs_after": [-0.5], "logprob_before": -1.0, "logprob_after": -0.5}
  rows[2]["advantage"], rows[5]["advantage"] = -0.5, 1.0
  rows[6] |= {"logprob_before": -1.0, "logprob_after": -1.5, "advantage": 2.0}
  rows[4] |= {"logprob_before": -1.0, "logprob_after": -1.5, "advantage": -2.0}
  found = list(inspector.chunks(inspector.groups(rows)))
  assert len(found) > 2
  for entries, text in found:
    groups = json.loads(text)
    assert len(groups) == len(entries) and (len(text) <= 310 or len(groups) == 1)
    for entry, group in zip(entries, groups):
      assert entry["step"] == group[0]["step"] and str(entry["group"]) == group[0]["question"]
      assert entry["rewards"] == [0.0, 1.0] and entry["lengths"] == [1, 2]
  entries = [entry for entries, _ in found for entry in entries]
  assert [entry.get("fault") for entry in entries] == [True] + [None] * 7
  assert [entry.get("after") for entry in entries] == [None, True] + [None] * 6
  assert [entry.get("rose") for entry in entries] == [None, True] + [None] * 6
  assert [entry.get("fell") for entry in entries] == [None] * 3 + [True] + [None] * 4
  assert entries[0]["disagreements"] == [-0.5, None] and "disagreements" not in entries[1]


def test_a_page_takes_any_line_of_samples(tmp_path, capsys):
  good = GROUP[0] | {"sampled": [True, True], "turn_rewards": [[0, 1.0]]}
  lines = hostile_lines(good, FIELDS)
  (tmp_path / "samples.jsonl").write_bytes(
    b"\n".join([json.dumps(good).encode(), *lines.values()]) + b"\n"
  )
  text = inspector.write(str(tmp_path)).read_text()
  kept = Tags(text).samples(parse_constant=pytest.fail)
  said = capsys.readouterr().err
  left_out = int(re.search(rf"(\d+) lines of {len(lines) + 1} are damaged", said)[1])
  assert len(kept) == 1 + len(lines) - left_out and said.count("\n") == 1
  assert 40 < left_out < len(lines) - 40
  if browser.PROGRAM:
    assert browser.ask(text, EVERYTHING, tmp_path) == len(kept)


@pytest.mark.parametrize(
  ("rewards", "fits"),
  [
    ([], True),
    ([[0, 1.0], [7, None]], True),
    ([0.5, 1.0], False),
    ([[0]], False),
    ([[0, 1.0, 2.0]], False),
    ([[-1, 1.0]], False),
    ([[0.5, 1.0]], False),
    ([[None, 1.0]], False),
    ([["0", 1.0]], False),
    ([[0, "1"]], False),
    ({"0": 1.0}, False),
  ],
)
def test_a_reward_of_a_turn_is_the_index_of_a_token_and_a_number(rewards, fits):
  assert inspector.ROWS["turn_rewards"].fits(rewards) is fits


@pytest.mark.parametrize(
  ("stands", "fits"),
  [
    ([], True),
    (["short", "at", "past", None], True),
    (["far"], False),
    ([1], False),
    ("at", False),
  ],
)
def test_a_token_stands_short_of_its_bound_at_it_or_past_it(stands, fits):
  assert inspector.ROWS["stands"].fits(stands) is fits


def test_what_an_environment_wrote_stays_text(tmp_path):
  (tmp_path / "samples.jsonl").write_text(json.dumps(EPISODE) + "\n")
  page = Tags(inspector.write(str(tmp_path)).read_text(encoding="utf-8"))
  assert "img" not in page.tags and page.tags.count("script") == 3
  assert page.samples() == [EPISODE]
