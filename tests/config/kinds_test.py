"""The kinds of settings."""

from grpo_jax.config import kinds


def test_what_the_kinds_say_in_few_words():
  assert kinds.Whole(1).brief == "whole >= 1"
  assert kinds.Whole(0, 8, also=(-1,)).brief == "whole 0 to 8 or -1"
  assert kinds.Number().brief == "number"
  assert kinds.Number(0, 1, above=True).brief == "number > 0, <= 1"
  assert kinds.Number(0, 1, below=True, also=(7.0,)).brief == "number >= 0, < 1 or 7"
  assert kinds.Choice(("a", "b")).brief == "a, b"
  assert kinds.many(kinds.Whole(1)).brief == "tuple of: whole >= 1"
