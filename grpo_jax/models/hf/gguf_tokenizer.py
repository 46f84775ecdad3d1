"""Mends a tokenizer that was rebuilt from a GGUF file, which does not say all of it.

The file has the vocabulary, its merges and the types of the tokens. What it leaves out, or has
wrong, llama.cpp knows by the architecture, by the name of the rules for splitting texts
(`tokenizer.ggml.pre`) and by the texts of the tokens. So does this module.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers

# Texts that end a turn, which llama.cpp stops at whatever the metadata says.
END_TEXTS = (
  *("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>"),
  "<|end_of_text|>",
)
END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
# Texts of tokens that are special whatever type the file gives them. DeepSeek's bars are wide.
_SPECIAL = re.compile(r"<\|[^|\s]+\|>|<｜[^｜\s]+｜>|<(?:start|end)_of_turn>")

# Values of tokenizer.ggml.pre: with these a word of the vocabulary is a token whether or not merges
# make it, and a text starts with the begin token; with those below characters are composed.
_LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "tekken")
_NFC = ("qwen2", "deepseek-r1-qwen")
_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3; its other special tokens take it away
_SPACE = "▁"


def end_tokens(metadata: Mapping[str, Any], tokens: Sequence[str]) -> list[int]:
  """Returns the ids that end a completion, those that the metadata names first.

  Args:
    metadata: numbers and texts by their keys.
    tokens: texts by id.
  """
  named = [metadata[key] for key in END_KEYS if key in metadata]
  turns = [i for i, text in enumerate(tokens) if text in END_TEXTS]
  return list(dict.fromkeys([*named, *turns]))


def adds_begin(metadata: Mapping[str, Any]) -> bool | None:
  """Returns whether a text starts with the begin token; None leaves it to transformers."""
  if metadata.get("tokenizer.ggml.pre") in _LLAMA3:
    return bool(metadata.get("tokenizer.ggml.add_bos_token", True))
  return None


def mend(
  backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], tokens: Sequence[str]
) -> tokenizers.Tokenizer:
  """Returns the tokenizer with what the file does not say.

  Args:
    backend: as transformers builds it, which may be changed.
    metadata: numbers and texts by their keys.
    tokens: texts by id.
  """
  backend = _mark_special(backend, tokens)
  family, before = metadata.get("general.architecture"), metadata.get("tokenizer.ggml.pre")
  if metadata.get("tokenizer.ggml.model") == "llama":
    if family == "phi3":
      _strip_after_special(backend)
    elif family == "llama":
      _prefix_space(backend, metadata.get("tokenizer.ggml.add_space_prefix", True), tokens)
  elif before in _LLAMA3:
    backend.model.ignore_merges = True
  elif before in _NFC:
    backend.normalizer = normalizers.NFC()
  return backend


def _mark_special(backend: tokenizers.Tokenizer, tokens: Sequence[str]) -> tokenizers.Tokenizer:
  """Returns the tokenizer in which all tokens that look special are, spelled as in the file.

  transformers spells tokens with characters outside the byte alphabet, such as those of DeepSeek,
  in bytes, which no text becomes.
  """
  special = {text: i for i, text in enumerate(tokens) if _SPECIAL.fullmatch(text)}
  if any(backend.token_to_id(text) != i for text, i in special.items()):
    parts = json.loads(backend.to_str())
    if not isinstance(parts["model"]["vocab"], dict):
      raise ValueError("its special tokens have other numbers than the file's")
    names = {i: name for name, i in parts["model"]["vocab"].items()}
    names |= {i: text for text, i in special.items()}
    parts["model"]["vocab"] = {name: i for i, name in names.items()}
    backend = tokenizers.Tokenizer.from_str(json.dumps(parts))
  added = [tokenizers.AddedToken(text, normalized=False, special=True) for text in special]
  backend.add_special_tokens(added)
  return backend


def _strip_after_special(backend: tokenizers.Tokenizer) -> None:
  """Lets Phi-3's special tokens take away the white space after them."""
  for token in backend.get_added_tokens_decoder().values():
    if token.content not in _KEEPS_SPACE:
      flags = {"normalized": False, "special": token.special}
      backend.add_tokens([tokenizers.AddedToken(token.content, rstrip=True, **flags)])


def _prefix_space(backend: tokenizers.Tokenizer, prefix: bool, tokens: Sequence[str]) -> None:
  """Puts a space before each text between special tokens, as Llama 2 does, or before none.

  Mistral's tokenizers with a token [INST] are left as they are, with a space before a text that
  comes first: their chat template has the other spaces itself.
  """
  if prefix and "[INST]" in tokens:
    return
  parts = [normalizers.Prepend(_SPACE)] if prefix else []
  backend.normalizer = normalizers.Sequence([*parts, normalizers.Replace(" ", _SPACE)])
  backend.pre_tokenizer = None
  if not prefix:
    backend.decoder = decoders.Sequence(
      [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
