"""Tests what a GGUF leaves out of its tokenizer; import_gguf_test.py imports whole files."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from grpo_jax.models.hf import gguf_tokenizer

TOKENS = ["a", "b", "▁", "▁a", "<s>", "<|end|>", "<|a b|>", "<|>", "<end_of_turn>", "<b>"]


def built(**metadata):
  """Returns a tokenizer of TOKENS, mended for a file with that metadata."""
  vocab = {text: i for i, text in enumerate(TOKENS)}
  backend = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")]))
  backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
  backend.add_special_tokens([AddedToken("<s>", normalized=False, special=True)])
  named = {
    "general.architecture": metadata.pop("architecture", "olmo2"),
    **{f"tokenizer.ggml.{key}": value for key, value in metadata.items()},
  }
  return gguf_tokenizer.mend(backend, named, TOKENS)


def test_end_tokens_are_those_that_are_named_and_those_whose_text_says_so():
  metadata = {"tokenizer.ggml.eot_token_id": 4, "tokenizer.ggml.eos_token_id": 8}
  assert gguf_tokenizer.end_tokens(metadata, TOKENS) == [8, 4, 5]
  assert gguf_tokenizer.end_tokens({}, ["a", "<|end_of_text|>"]) == [1]


def test_only_texts_with_bars_or_of_turns_are_special_by_their_looks():
  added = built().get_added_tokens_decoder()
  assert {token.content for token in added.values()} == {"<s>", "<|end|>", "<end_of_turn>"}
  assert all(token.special and not token.normalized for token in added.values())
  assert all(TOKENS[i] == token.content for i, token in added.items())


@pytest.mark.parametrize(
  "metadata, begins",
  [
    ({}, None),
    ({"pre": "qwen2"}, None),
    ({"pre": "llama-bpe"}, True),
    ({"pre": "tekken", "add_bos_token": False}, False),
  ],
)
def test_llama_3_begins_a_text_unless_the_file_says_otherwise(metadata, begins):
  named = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
  assert gguf_tokenizer.adds_begin(named) is begins


@pytest.mark.parametrize(
  "metadata, ids",
  [
    ({"architecture": "llama", "model": "llama"}, [3, 5, 2, 3, 4, 2, 3]),
    ({"architecture": "llama", "model": "llama", "add_space_prefix": False}, [0, 5, 3, 4, 3]),
    ({"architecture": "phi3", "model": "llama"}, [3, 5, 0, 4, 3]),
    ({"architecture": "phi3", "model": "gpt2"}, [3, 5, 3, 4, 3]),
    ({"architecture": "gemma3", "model": "llama"}, [3, 5, 3, 4, 3]),
  ],
)
def test_spaces_by_special_tokens_are_those_of_the_family(metadata, ids):
  assert built(**metadata).encode("a<|end|> a<s> a").ids == ids


def test_characters_are_composed_for_qwen_alone():
  assert built(model="gpt2", pre="qwen2").normalizer.normalize_str("u\u0308") == "\u00fc"
  assert built(model="gpt2", pre="dbrx").normalizer is None
