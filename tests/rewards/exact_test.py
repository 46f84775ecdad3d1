"""Answers that are a text."""

import pytest

from grpo_jax.rewards import exact
from grpo_jax.types import TRUNCATED
from rewards.verifiers_test import completion, example


@pytest.mark.parametrize(
  "text, arguments, reward",
  [
    ("New York", {}, 1),
    (" New\n York ", {}, 1),
    ("so\n#### New York", {}, 1),
    ("new york", {}, 0),
    ("new york", {"case": False}, 1),
    ("New  York", {"space": True}, 0),
    (" New York ", {"space": True}, 1),
    ("New York.", {}, 0),
    ("NewYork", {}, 0),
    ("in New York", {}, 0),
    ("", {}, 0),
    ("New York\n#### ", {}, 0),
  ],
)
def test_exact_match(text, arguments, reward):
  assert exact.exact_match(example("New York"), completion(text), **arguments) == reward


def test_a_text_that_was_cut_off_is_no_answer():
  assert exact.exact_match(example("New York"), completion("New York", TRUNCATED)) == 0.0
  with pytest.raises(ValueError, match="own answer is empty"):
    exact.exact_match(example(" "), completion(""))
