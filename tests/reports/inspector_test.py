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
  good = GOOD | {"sampled": [True], "turn_rewards": [[0, 1.0]]}
  lines = hostile_lines(good, FIELDS)
  (tmp_path / "samples.jsonl").write_bytes(
    b"\n".join([json.dumps(good).encode(), *lines.values()]) + b"\n"
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


# -- episodes

needs_node = pytest.mark.skipif(not shutil.which("node"), reason="needs node, to run the script")
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\n"
EPISODE = {
  "step": 1,
  "question": "a number?",
  "completion": f"12\n{HOSTILE}14",
  "reward": 0.5,
  "tokens": ["1", "2", "\n", HOSTILE, "14", "\n"],
  "sampled": [True, True, True, False, True, True],
  "turn_rewards": [[2, -0.5], [5, 1.0]],
  "advantages": [0.5, 0.5, 0.5, 0.0, 1.0, 1.0],
  "logprobs": [-1.0, -1.0, -1.0, 0.0, -2.0, -2.0],
}
# The cards as lists [tag with its class, text, background, title, children ...].
CARDS = """
fields.colour.value = COLOUR;
fields.colour.changed();
const tree = x => [x.className ? `${x.tag}.${x.className}` : x.tag, x.textContent, x.style.background ?? "", x.title ?? "",
  ...x.children.map(tree)];
console.log(JSON.stringify({ cards: fields.list.children.map(tree), legend: !fields.legend?.hidden }));
"""
GREEN, PALE = "rgba(47, 125, 74, 0.5)", "rgba(47, 125, 74, 0.25)"


def cards(samples, colour="advantages"):
  return shown_by(samples, CARDS.replace("COLOUR", json.dumps(colour)))


def token(text, background, advantage, logprob):
  return ["span", text, background, f"advantages {advantage}\nlogprobs {logprob}"]


@needs_node
def test_a_single_turn_is_shown_as_tokens_without_a_speaker():
  row = GOOD | {"tokens": ["2", "!"], "advantages": [0.5, -0.5], "logprobs": [-0.1, -0.2]}
  page = cards([row])
  ((tag, _, _, _, facts, question, shown),) = page["cards"]
  assert (tag, facts[0], question) == ("article", "div.facts", ["div.question", "1 + 1?", "", ""])
  red = "rgba(179, 64, 47, 0.5)"
  tokens = [token("2", GREEN, 0.5, -0.1), token("!", red, -0.5, -0.2)]
  assert shown == ["pre", "", "", "", *tokens]
  assert [fact[1:2] + fact[4][1:2] for fact in facts[4:]] == [
    ["step ", "3"],
    ["length ", "2"],
    ["reward ", "1"],
    ["advantage ", "0.5"],
    ["a ", "1"],
  ]
  assert cards([row], "")["cards"][0][-1] == ["pre", "2", "", ""]


@needs_node
def test_an_episode_is_a_conversation_with_the_rewards_of_its_turns():
  page = cards([EPISODE])
  ((*_, facts, _, shown),) = page["cards"]
  assert shown[0] == "div.turns" and [turn[0] for turn in shown[4:]] == [
    "div.turn policy",
    "div.turn environment",
    "div.turn policy",
  ]
  first, middle, last = (turn[4:] for turn in shown[4:])
  assert first == [
    ["span.who", "policy", "", ""],
    ["pre", "", "", "", *(token(text, PALE, 0.5, -1) for text in ("1", "2", "\n"))],
    ["b.worth bad", "reward -0.5", "", ""],
  ]
  # what the environment wrote is one text, without a colour and without numbers
  assert middle == [["span.who", "environment", "", ""], ["pre", HOSTILE, "", ""]]
  assert last[1][4:] == [token(text, GREEN, 1, -2) for text in ("14", "\n")]
  assert last[2] == ["b.worth good", "reward 1", "", ""]
  names = {fact[1].strip(): fact[4][1] for fact in facts[4:]}
  assert names == {"step": "1", "length": "6", "turns": "2", "only read": "1", "reward": "0.5"}


@needs_node
def test_an_episode_is_a_conversation_in_any_colour():
  (*_, shown) = cards([EPISODE], "logprobs")["cards"][0]
  assert [turn[5][2:4] for turn in shown[4:]] == [["", ""]] * 3
  assert shown[4][5][4][2] == "rgba(59, 111, 182, 0.15)" and shown[5][5] == ["pre", HOSTILE, "", ""]
  (*_, plain) = cards([EPISODE], "")["cards"][0]
  assert [turn[5] for turn in plain[4:]] == [
    ["pre", text, "", ""] for text in ("12\n", HOSTILE, "14\n")
  ]


@needs_node
def test_the_legend_names_the_environment_only_where_it_wrote_something():
  assert cards([GOOD, EPISODE])["legend"] is True
  alone = EPISODE | {"sampled": [True] * 6}
  assert cards([GOOD])["legend"] is False and cards([GOOD, alone])["legend"] is False


@needs_node
@pytest.mark.parametrize(
  ("changes", "speakers"),
  [
    ({"sampled": []}, "p"),
    ({"sampled": [False, True]}, "ep"),
    ({"sampled": [True] * 3 + [False] * 9}, "pe"),
    ({"turn_rewards": None}, "pep"),
    ({"turn_rewards": [[99, 1.0], [0, None], [1, 0.25]]}, "pep"),
    ({"tokens": None}, ""),
    ({"tokens": []}, ""),
    ({"sampled": None}, ""),
    ({"tokens": ["x" * 60000] * 6}, "p"),
  ],
)
def test_an_episode_whose_fields_do_not_fit_is_shown(changes, speakers):
  (*_, shown) = cards([EPISODE | changes])["cards"][0]
  assert "".join(turn[4][1][0] for turn in shown[4:] if turn[0].startswith("div.turn")) == speakers


@needs_node
def test_a_turn_shows_every_reward_that_was_given_in_it():
  row = EPISODE | {"turn_rewards": [[0, None], [1, 0.25], [4, 0.0]]}
  (*_, shown) = cards([row])["cards"][0]
  assert [turn[6:] for turn in shown[4:]] == [
    [["b.worth good", "reward nan, 0.25", "", ""]],
    [],
    [["b.worth", "reward 0", "", ""]],
  ]


@needs_node
def test_a_line_that_an_environment_ends_first_is_no_empty_line():
  row = EPISODE | {"tokens": ["\n", "2", "\n", "\n\n<tool>", "14", "\n"]}
  (*_, shown) = cards([row], "")["cards"][0]
  assert [turn[5][1] for turn in shown[4:]] == ["\n2\n", "\n<tool>", "14\n"]


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


def test_what_an_environment_wrote_stays_text(tmp_path):
  (tmp_path / "samples.jsonl").write_text(json.dumps(EPISODE) + "\n")
  page = Tags()
  page.feed(inspector.write(str(tmp_path)).read_text(encoding="utf-8"))
  assert "img" not in page.tags and page.tags.count("script") == 2
  assert json.loads(page.data)["samples"] == [EPISODE]
