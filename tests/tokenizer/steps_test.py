"""Steps of a text, by a line, a blank line or a pattern; the words of a token may hold any part of
one.
"""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.errors import SettingError
from grpo_jax.setup import build, defaults
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve
from grpo_jax.tokenizer import making, steps

RULES = ("line", "blank line", r"\. |;", r"(?=Step [0-9]:)")
texts = st.lists(st.sampled_from([*"ab \n\n.;1", "Step 1:"]), max_size=9).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(texts, max_size=12), st.sampled_from(RULES))
def test_ends_increase_to_the_last_token_and_the_steps_are_the_text(tokens, rule):
  ends = steps.step_ends(tokens, steps.pattern(rule))
  assert ends == sorted(set(ends)) and (ends[-1:] == [len(tokens) - 1] if tokens else not ends)
  text = "".join(tokens)
  found = steps.step_texts(text, steps.pattern(rule))
  assert "".join(found) == text
  assert all(step.strip() for step in found) or len(found) == 1
  assert len(ends) <= max(1, len(found))
  by_token = [tokens[a:b] for a, b in itertools.pairwise([0, *(end + 1 for end in ends)])]
  assert "".join(itertools.chain(*by_token)) == text


@pytest.mark.parametrize(
  "rule, text, want",
  [
    ("line", "a\n\nb\n", ["a\n", "\nb\n"]),
    ("blank line", "a\nb\n \nc\n\n\nd", ["a\nb\n \n", "c\n\n", "\nd"]),
    ("blank line", "\n\na\n\n", ["\n\na\n\n"]),
    (r"\. ", "One. Two. ", ["One. ", "Two. "]),
    ("(?=Step [0-9]:)", "Step 1: a Step 2: b", ["Step 1: a ", "Step 2: b"]),
    ("line", " \n", [" \n"]),
    ("line", "", []),
  ],
)
def test_step_texts(rule, text, want):
  assert steps.step_texts(text, steps.pattern(rule)) == want


@pytest.mark.parametrize(
  "rule, message",
  [
    ("(", r"data.steps='\(': is no regular expression: missing \).*; use 'line' or 'blank line'"),
    ("", "data.steps='': matches the empty text"),
    ("x*", r"data.steps='x\*': matches the empty text"),
  ],
)
def test_a_rule_that_is_no_pattern_is_refused(rule, message):
  c = defaults.get_config()
  c.data.steps = rule
  with pytest.raises(SettingError, match=message):
    resolve(c)


def test_the_config_names_the_rule_of_its_tokenizer():
  c = defaults.get_config()
  c.tokenizer, c.data.arithmetic.size, c.data.steps = "words", 8, r"[0-9]"
  tokenizer = build.make_tokenizer(make(c), "")
  tokens = tokenizer.encode("has 4\n5 has")
  assert [tokenizer.text(tokens[end]).strip() for end in tokenizer.step_ends(tokens)] == [
    "4",
    "5",
    "has",
  ]


def test_a_pattern_that_backtracks_is_stopped():
  c = defaults.get_config()
  c.tokenizer, c.data.arithmetic.size, c.data.steps, c.rewards.deadline = (
    "words",
    8,
    r"(\d+)+\.",
    0.2,
  )
  tokenizer = build.make_tokenizer(make(c), "")
  with pytest.raises(
    SettingError,
    match=r"data.steps='\(.*took longer than 0.2 s \(rewards.deadline\) on a .* 40 char",
  ):
    steps.step_ends_in_time(["4"] * 40, tokenizer.step_pattern, tokenizer.step_seconds)
  c.data.steps = "line"
  assert build.make_tokenizer(make(c), "").step_seconds == 0.0


def test_a_character_that_several_tokens_make_ends_a_step():
  tokenizer = making.train_bpe(["a"], 258)  # bytes
  tokenizer.step_pattern = steps.pattern("。")
  tokens = tokenizer.encode("是。a。")
  assert len(tokens) == 10 and tokenizer.step_ends(tokens) == [5, 9]
  assert "".join(tokenizer.texts(tokens)) == "是。a。"
  assert tokenizer.texts(tokens[:5])[-1] == "\ufffd" and len(tokenizer.texts(tokens[:5])) == 5
