"""Tokenizers made from texts."""

import pytest
import tokenizers
from tokenizer_test import TEXTS, make

from grpo_jax.errors import SettingError
from grpo_jax.tokenizer import making
from grpo_jax.tokenizer.tokenizer import Tokenizer


def test_bpe_round_trips_any_bytes_and_splits_digits():
  t = make("bpe")
  assert t.decode(t.encode("日本語 🙂\t\r\n")) == "日本語 🙂\t\r\n"
  assert [t.decode([i]) for i in t.encode("1204")] == list("1204")
  assert t.vocab_size == 300
  with pytest.raises(SettingError, match="vocab_size=100"):
    making.train_bpe(TEXTS, 100)


def test_word_level_pieces():
  t = make("word")
  pieces = [t.decode([i]) for i in t.encode("Tom has 12 apples and\n12 + 3")]
  assert pieces == ["Tom", " has", " ", "1", "2", " apples", " and", "\n", "1", "2", " + ", "3"]
  # the order of texts does not matter
  assert making.word_level(TEXTS[::-1]).encode(TEXTS[0]) == t.encode(TEXTS[0])
  # a word that is not in the vocabulary is spelled
  assert [t.decode([i]) for i in t.encode("toms")] == list("toms")
  assert t.decode(t.encode("日")) == making.UNKNOWN


def test_step_ends_when_a_token_holds_more_than_a_newline(tmp_path):
  t = making.train_bpe(["x.\n\nx.\n\nx.\n\n"] * 9, 300)
  tokens = [*t.encode("x.\n\n"), *t.encode("x.\n\n"), *t.encode("x")]
  n = len(t.encode("x.\n\n"))
  assert t.step_ends(tokens) == [n - 1, 2 * n - 1, 2 * n]
  # Each id its own text: "a\nb" ends one step and begins the next; "\nc\n" ends one of its own.
  vocab = {text: i for i, text in enumerate(["a\nb", "\nc\n", "d", "\n"])}
  backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, "d"))
  backend.decoder = tokenizers.decoders.Fuse()
  t = Tokenizer(backend, {})
  assert t.step_ends([0, 3]) == [0, 1]
  assert t.step_ends([0, 2, 1, 2]) == [0, 2, 3]
  assert t.step_ends([1, 3, 2]) == [0, 2]
