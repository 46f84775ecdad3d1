"""What samples.html shows in a browser."""

import browser
import pytest

from grpo_jax.reports import inspector
from reports.plots_test import GOOD

pytestmark = browser.needed

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\n"
# Draws every group in every colour, asks for the numbers of each token, and counts completions.
EVERYTHING = """
let cards = 0;
for (const entry of groups) {
  const rows = await rowsOf(entry);
  for (const option of $("colour").options) {
    $("colour").value = option.value;
    samplesShown = Infinity;
    draw(entry, rows);
  }
  for (const row of rows) for (let i = 0; i < 3; i++) numbers(row, i);
  cards += document.querySelectorAll("article").length;
}
return cards;
"""

# Two completions of a group. The first token's ratio is past its bound, the second's short of it.
GROUP = [
  GOOD | {
    "group": 4, "sample": sample, "answer": "2", "reward": reward, "advantage": advantage,
    "tokens": ["2", "!"], "advantages": [advantage] * 2, "logprobs": [-1.0, -0.2],
    "entropies": [1.0, 0.5], "logprobs_after": [-0.5, -0.1], "ratios": [1.649, 1.105],
    "bounds": [1.2, 1.2], "stands": ["past", "short"], "logprob_before": -1.2,
    "logprob_after": -0.6, "rewards": {"a": reward}, "ended": "stopped",
  }
  for sample, reward, advantage in ((0, 0.0, -0.5), (1, 1.0, 0.5))
]  # fmt: skip
# The cards as lists [tag with its class, text, background, children ...], and the legend.
CARDS = """
const tree = x => [x.className ? `${x.tagName.toLowerCase()}.${x.className}` : x.tagName.toLowerCase(), x.textContent,
  x.style.background, ...[...x.children].map(tree)];
return { cards: [...document.querySelectorAll("article")].map(tree), legend: $("legend").textContent, main: $("group").textContent };
"""
GREEN, RED = "rgba(47, 125, 74, 0.55)", "rgba(179, 64, 47, 0.55)"


def cards(samples, folder, colour="advantages"):
  return browser.ask(inspector.page(samples, "run"), CARDS, folder, f"colour={colour}")


def body(card):
  """Of a card without its numbers."""
  return card[5][3:]


def test_a_group_is_side_by_side_with_its_best_completion_first(tmp_path):
  page = cards(GROUP, tmp_path)
  assert "right answer 2" in page["main"] and "2 completions, mean reward 0.5" in page["main"]
  best, worst = page["cards"]
  assert best[0] == "article.good" and worst[0] == "article.bad"
  assert best[3][1] == "reward 1advantage +0.5" and worst[3][1] == "reward 0advantage -0.5"
  facts = [fact[1] for fact in best[4][3:]]
  assert facts == [
    "completion 1", "tokens 2", "ended stopped",
    "log-prob of all tokens -1.2 before the update, -0.6 after",
  ]  # fmt: skip
  tokens = [["span", "2", GREEN], ["span", "!", GREEN]]
  assert body(best) == [["pre", "2!", "", *tokens]]
  assert [token[2] for token in body(worst)[0][3:]] == [RED, RED]


@pytest.mark.parametrize(
  ("colour", "spans", "words"),
  [
    ("logprobs", [["span", "2", "rgba(59, 111, 182, 0.137)"], ["span", "!", "rgba(59, 111, 182, 0.027)"]], "less likely"),
    ("entropies", [["span", "2", "rgba(214, 122, 26, 0.275)"], ["span", "!", "rgba(214, 122, 26, 0.137)"]], "less certain"),
    ("change", [["span", "2", GREEN], ["span", "!", "rgba(47, 125, 74, 0.11)"]], "more likely after the update"),
    ("stands", [["span.past", "2", ""], ["span.short", "!", ""]], "short of its bound"),
  ],
)  # fmt: skip
def test_tokens_are_coloured_by_what_is_known_of_them(tmp_path, colour, spans, words):
  page = cards(GROUP, tmp_path, colour)
  assert body(page["cards"][0])[0][3:] == spans and words in page["legend"]
  assert cards(GROUP, tmp_path, "")["cards"][0][5][3:] == [["pre", "2", ""]]


def test_a_token_tells_its_numbers_in_words(tmp_path):
  script = """
  document.querySelector("article span[data-i]").click();
  const first = $("token").textContent;
  press("ArrowRight");
  return [first, $("token").textContent];
  """
  target = GROUP[1] | {"bounds": [1.6487, None], "stands": ["at", None]}
  first, second = browser.ask(inspector.page([target], "run"), PRESS + script, tmp_path)
  assert first == (
    "2 token 1 of 2: probability 0.3679 before the update, 0.6065 after it log-prob -1 before, -0.5 "
    "after ratio after / before 1.649 clip bound 1.649, a probability of 0.6065: the ratio is at it "
    "advantage +0.5 entropy before the update 1 nats "
  )
  assert second.startswith("! token 2 of 2:") and "clip bound none" in second


def test_the_ratio_of_a_whole_completion_is_called_that(tmp_path):
  row = GROUP[1] | {
    "ratios": [1.001, 1.001],
    "bounds": [1.0004, 1.0004],
    "stands": ["past", "past"],
  }
  (told,) = browser.ask(
    inspector.page([row], "run"), "return [numbers(parsed.groups[0][0], 0)]", tmp_path
  )
  assert ["ratio of the whole completion after / before", "1.001"] in told
  assert ["clip bound", "1: the ratio is past it"] in told


def test_a_small_ratio_is_that_of_its_token_if_the_others_are_not_the_same(tmp_path):
  """Goes by all of them: GSPO's are near 1, too, and all of a small update are 1."""
  for ratios, after, whole in (
    ([1.003, 1.003], -0.997, True),
    ([1.003, 1.0], -0.997, False),
    ([1.0, 1.0], -0.9999, False),
  ):
    row = GROUP[1] | {"logprobs_after": [after, -0.2], "ratios": ratios}
    told = browser.ask(
      inspector.page([row], "run"), "return numbers(parsed.groups[0][0], 0)", tmp_path
    )
    assert any("of the whole completion" in name for name, _ in told) == whole
    assert any("a probability of" in value for _, value in told) != whole


def test_rows_of_older_runs_are_shown_with_what_they_have(tmp_path):
  old = [GOOD, GOOD | {"completion": "3", "tokens": ["3"], "reward": 0.0, "advantage": -0.5}]
  page = cards(old, tmp_path)
  assert [card[3][1] for card in page["cards"]] == [
    "reward 1advantage +0.5",
    "reward 0advantage -0.5",
  ]
  page = cards(old, tmp_path, "stands")
  assert "This step's update was not measured" in page["legend"]
  assert [body(card) for card in page["cards"]] == [[["pre", "2", ""]], [["pre", "3", ""]]]
  page = cards([{"step": 0, "question": "q", "completion": "c"}], tmp_path, "logprobs")
  assert "written without it" in page["legend"] and body(page["cards"][0]) == [["pre", "c", ""]]


PRESS = """
const press = key => document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const wait = () => new Promise(done => setTimeout(done, 100));
"""
MANY = [
  GOOD | {"step": step, "group": group, "sample": s, "question": f"question {step} {group}", "reward": s * 0.5 * (group - 1)}
  for step in (1, 2, 3) for group in (5, 2, 7) for s in (0, 1)
]  # fmt: skip


def test_keys_go_to_other_groups_and_the_address_names_them(tmp_path):
  script = """
  const seen = [location.hash];
  for (const key of ["j", "J", "j", "k", "K", "k", "c"]) { press(key); await wait(); seen.push(location.hash); }
  seen.push($("where").textContent, document.querySelector(".prompt .text").textContent);
  return seen;
  """
  seen = browser.ask(inspector.page(MANY, "run"), PRESS + script, tmp_path, "step=2&group=5")
  assert seen == [
    "#step=2&group=5", "#step=2&group=2", "#step=3&group=5", "#step=3&group=2", "#step=3&group=5",
    "#step=2&group=5", "#step=1&group=7", "#step=1&group=7&colour=logprobs",
    "step 1, group 7", "question 1 7",
  ]  # fmt: skip


def test_a_link_opens_its_group_with_its_colour_and_filter(tmp_path):
  script = (
    'return [$("where").textContent, $("colour").value, $("only").value, $("count").textContent]'
  )
  page = inspector.page(MANY, "run")
  fragment = "step=3&group=2&colour=change&only=differ"
  assert browser.ask(page, script, tmp_path, fragment) == [
    "step 3, group 2", "change", "differ", "8 of 9"
  ]  # fmt: skip
  shown = browser.ask(page, script, tmp_path, "step=9&group=9&colour=odd&only=odd")
  assert shown == ["step 1, group 5", "advantages", "", "1 of 9"]


def test_groups_are_filtered_by_text_and_reward(tmp_path, monkeypatch):
  monkeypatch.setattr(inspector, "CHUNK", 1000)  # the search goes through several
  script = """
  const answers = [];
  for (const [id, value] of [["text", "QUESTION 2"], ["low", "1"], ["high", "2"], ["text", "nowhere"]]) {
    $(id).value = value;
    await refresh();
    answers.push(found.map(entry => `${entry.step}.${entry.group}`).join(" "));
  }
  return [...answers, $("where").textContent, document.querySelectorAll("article").length];
  """
  assert browser.ask(inspector.page(MANY, "run"), script, tmp_path) == [
    "2.5 2.2 2.7", "2.5 2.7", "2.5", "", "no group is like that", 0
  ]  # fmt: skip


def test_groups_are_sorted_by_disagreement_length_and_reward(tmp_path):
  keys = ("question", "disagreement", "tokens", "reward")
  rows = [("a", 0.1, 3, 1.0), ("b", -0.8, 1, None), ("c", None, 4, -1.0), ("d", 0.5, 2, 1.0)]
  samples = [
    dict(zip(keys, (q, d, ["x"] * n, r)), step=0, completion="x" * n) for q, d, n, r in rows
  ]
  script = """
  const orders = {};
  for (const by of ["", ...Object.keys(ORDERS)]) orders[by] = sorted(groups, by).map(entry => "abcd"[entry.group]).join("");
  return [orders, [...$("sort").options].filter(option => option.disabled).length, $("about").hidden];
  """
  assert browser.ask(inspector.page(samples, "run"), script, tmp_path) == [
    {
      "": "abcd",
      "apart": "bdac",  # what has none comes last
      "over": "dabc",
      "under": "badc",
      "long": "cadb",
      "short": "bdac",
      "most": "adcb",  # ties stay as sampled
      "least": "cadb",
    },
    0,
    False,
  ]
  none = [{name: x for name, x in row.items() if name != "disagreement"} for row in samples]
  orders, disabled, hidden = browser.ask(inspector.page(none, "run"), script, tmp_path)
  assert orders["apart"] == "abcd" and disabled == 3 and hidden is True


def test_a_page_of_many_groups_parses_what_is_looked_at(tmp_path):
  """And draws the first tokens of completions that would be too many at once."""
  tokens, zeros = ["x"] * 9000, [0.5] * 9000
  long = GOOD | {"tokens": tokens, "advantages": zeros, "completion": "x" * 9000}
  rows = [long | {"group": g, "sample": s} for g in range(30) for s in range(8)]
  script = """
  const spans = () => document.querySelectorAll("article span[data-i]").length;
  const before = [chunks.length > 10, parsed.chunk, spans()];
  document.querySelector("button.more").click();
  const more = spans();
  await go(29);
  return [...before, more, parsed.chunk === chunks.length - 1, spans()];
  """
  assert browser.ask(inspector.page(rows, "run"), script, tmp_path) == [
    True, 0, 8 * 5000, 8 * 5000 + 4000, True, 8 * 5000
  ]  # fmt: skip


def test_a_large_group_is_drawn_in_parts(tmp_path):
  rows = [GOOD | {"group": 0, "sample": s} for s in range(100)]
  script = """
  const before = document.querySelectorAll("article").length;
  document.querySelector("main > button.more").click();
  return [before, document.querySelectorAll("article").length];
  """
  assert browser.ask(inspector.page(rows, "run"), script, tmp_path) == [64, 100]


def test_a_file_that_was_cut_off_says_so(tmp_path):
  page = inspector.page(GROUP, "run").replace('<i id="chunk1" hidden></i>', "")
  assert "ends early" in browser.ask(page, 'return $("group").textContent', tmp_path)


@pytest.mark.parametrize("width", [320, 400])
def test_a_phone_shows_a_group_without_scrolling_sideways(tmp_path, width):
  """The narrowest window of the browser is wider, so the page is in a frame."""
  wide = [row | {"question": "x" * 300, "odd": "y" * 300, "completion": "z" * 300} for row in GROUP]
  script = f"""
  const frame = document.createElement("iframe");
  Object.assign(frame.style, {{ width: "{width}px", border: 0 }});
  frame.srcdoc = "<!doctype html>" + document.documentElement.outerHTML.split("<script>\\n  addEventListener")[0];
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  await new Promise(done => setTimeout(done, 300));
  const root = frame.contentDocument.documentElement, lefts = [...root.querySelectorAll("article")].map(x => x.getBoundingClientRect().left);
  return [frame.contentWindow.innerWidth, root.scrollWidth <= root.clientWidth, lefts.length, new Set(lefts).size];
  """
  assert browser.ask(inspector.page(wide, "run"), script, tmp_path) == [width, True, 2, 1]


def test_what_the_teacher_was_asked_is_folded_away(tmp_path):
  rows = [row | {"teacher_prompt": asked} for row, asked in zip(GROUP, (HOSTILE, None))]
  found = [body(card)[-1] for card in cards(rows, tmp_path)["cards"]]
  assert [details[0] for details in found] == ["details"] * 2
  assert sorted((summary[1], text[1]) for *_, summary, text in found) == [
    ("it has no teacher", ""),
    ("what the teacher was asked", HOSTILE),
  ]


# -- episodes

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
PALE = "rgba(47, 125, 74, 0.275)"


def turns(card):
  """Of a card: [class, texts ...] of each."""
  return body(card)[0][3:]


def test_an_episode_is_a_conversation_with_the_rewards_of_its_turns(tmp_path):
  (card,) = cards([EPISODE], tmp_path)["cards"]
  assert body(card)[0][0] == "div.turns"
  first, middle, last = turns(card)
  assert [turn[0] for turn in (first, middle, last)] == [
    "div.turn policy",
    "div.turn environment",
    "div.turn policy",
  ]
  assert first[3:] == [
    ["span.who", "policy", ""],
    ["b.worth bad", "reward -0.5", ""],
    ["pre", "12\n", "", *(["span", text, PALE] for text in ("1", "2", "\n"))],
  ]
  # what the environment wrote is one text, without a colour and without numbers
  assert middle[3:] == [["span.who", "environment", ""], ["pre", HOSTILE, ""]]
  assert last[4] == ["b.worth good", "reward 1", ""]
  assert last[5][3:] == [["span", text, GREEN] for text in ("14", "\n")]
  assert [fact[1] for fact in card[4][3:]] == ["tokens 6", "turns 2", "only read 1"]


def test_an_episode_is_a_conversation_in_any_colour(tmp_path):
  page = cards([EPISODE], tmp_path, "logprobs")
  assert "environment text that the policy read" in page["legend"]
  first, middle, _ = turns(page["cards"][0])
  assert first[-1][3][2] == "rgba(59, 111, 182, 0.137)" and middle[-1] == ["pre", HOSTILE, ""]
  plain = turns(cards([EPISODE], tmp_path, "")["cards"][0])
  assert [turn[-1] for turn in plain] == [["pre", x, ""] for x in ("12\n", HOSTILE, "14\n")]
  alone = EPISODE | {"sampled": [True] * 6}
  assert "environment" not in cards([GOOD, alone], tmp_path)["legend"]


def test_an_episode_whose_fields_do_not_fit_is_shown(tmp_path):
  cases = [
    ({"sampled": []}, "p"),
    ({"sampled": [False, True]}, "ep"),
    ({"sampled": [True] * 3 + [False] * 9}, "pe"),
    ({"turn_rewards": None}, "pep"),
    ({"turn_rewards": [[99, 1.0], [0, None], [1, 0.25]]}, "pep"),
    ({"tokens": None}, ""),
    ({"tokens": []}, ""),
    ({"sampled": None}, ""),
    ({"tokens": ["x" * 60000] * 6}, "p"),
  ]
  rows = [EPISODE | changes | {"reward": -n} for n, (changes, _) in enumerate(cases)]
  script = """
  return [...document.querySelectorAll("article")].map(card => [...card.querySelectorAll(".who")].map(who => who.textContent[0]).join(""));
  """
  found = browser.ask(inspector.page(rows, "run"), script, tmp_path)
  assert found == [speakers for _, speakers in cases]


def test_a_turn_shows_every_reward_that_was_given_in_it(tmp_path):
  row = EPISODE | {"turn_rewards": [[0, None], [1, 0.25], [4, 0.0]]}
  found = turns(cards([row], tmp_path)["cards"][0])
  assert [turn[4:-1] for turn in found] == [
    [["b.worth good", "reward nan, 0.25", ""]],
    [],
    [["b.worth", "reward 0", ""]],
  ]


def test_a_line_that_an_environment_ends_first_is_no_empty_line(tmp_path):
  row = EPISODE | {"tokens": ["\n", "2", "\n", "\n\n<tool>", "14", "\n"]}
  found = turns(cards([row], tmp_path, "")["cards"][0])
  assert [turn[-1][1] for turn in found] == ["\n2\n", "\n<tool>", "14\n"]
