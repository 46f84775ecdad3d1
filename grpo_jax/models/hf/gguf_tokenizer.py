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

# Texts that end a turn, which llama.cpp stops at whatever the metadata says.
END_TEXTS = (
  *("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>"),
  "<|end_of_text|>",
)
END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
# Texts of tokens that are special whatever type the file gives them. DeepSeek's bars are wide.
_SPECIAL = re.compile(r"<\|[^|\s]+\|>|<｜[^｜\s]+｜>|<(?:start|end)_of_turn>")


def end_tokens(metadata: Mapping[str, Any], tokens: Sequence[str]) -> list[int]:
  """Returns the ids that end a completion, those that the metadata names first.

  Args:
    metadata: numbers and texts by their keys.
    tokens: texts by id.
  """
  named = [metadata[key] for key in END_KEYS if key in metadata]
  turns = [i for i, text in enumerate(tokens) if text in END_TEXTS]
  return list(dict.fromkeys([*named, *turns]))


def mend(backend: tokenizers.Tokenizer, tokens: Sequence[str]) -> tokenizers.Tokenizer:
  """Returns the tokenizer with what the file does not say.

  Args:
    backend: as transformers builds it, which may be changed.
    tokens: texts by id.
  """
  return _mark_special(backend, tokens)


def _mark_special(backend: tokenizers.Tokenizer, tokens: Sequence[str]) -> tokenizers.Tokenizer:
  """Returns the tokenizer in which all tokens that look special are, spelled as in the file.

  transformers spells tokens with characters outside the byte alphabet, such as those of DeepSeek,
  in bytes, which no text becomes.
  """
  special = {text: i for i, text in enumerate(tokens) if _SPECIAL.fullmatch(text)}
  if any(backend.token_to_id(text) != i for text, i in special.items()):
    parts = json.loads(backend.to_str())
    names = {i: name for name, i in parts["model"]["vocab"].items()}
    names |= {i: text for text, i in special.items()}
    parts["model"]["vocab"] = {name: i for i, name in names.items()}
    backend = tokenizers.Tokenizer.from_str(json.dumps(parts))
  added = [tokenizers.AddedToken(text, normalized=False, special=True) for text in special]
  backend.add_special_tokens(added)
  return backend
