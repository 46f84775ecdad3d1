"""A tokenizer.json, looked through before the library reads it, which ends the program over some
that are wrong.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import tokenizers

from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.sandbox import model_folder

FILE = "tokenizer.json"
MOST_ADDED = 20_000  # tokens beside the vocabulary; Gemma has 6_000
MOST_PARTS = 32  # of a normalizer and the like
GROWTH = 64  # times a text may become longer by what replaces its characters

# What may stand in each place. Left out are Precompiled, whose bytes the library believes, and
# FixedLength.
PARTS = {
  "model": ("BPE", "WordLevel", "WordPiece", "Unigram"),
  "normalizer": (
    *(
      "NFC",
      "NFD",
      "NFKC",
      "NFKD",
      "Lowercase",
      "Strip",
      "StripAccents",
      "Prepend",
      "Replace",
      "ByteLevel",
    ),
    *("BertNormalizer", "Nmt"),
  ),
  "pre_tokenizer": (
    *("Split", "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation"),
    *("BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts"),
  ),
  "post_processor": ("TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing"),
  "decoder": (
    "ByteLevel",
    "Replace",
    "ByteFallback",
    "Fuse",
    "Strip",
    "Metaspace",
    "WordPiece",
    "BPEDecoder",
    "CTC",
  ),
}
_INNER = (
  "normalizers",
  "pretokenizers",
  "processors",
  "decoders",
)  # where a Sequence of them has its parts

_KEYS = {place: model_folder.OBJECT for place in PARTS} | {
  "added_tokens": model_folder.list_of(model_folder.OBJECT, MOST_ADDED)
}
_ADDED = {"id": model_folder.TOKEN, "content": model_folder.TEXT, "special": model_folder.SWITCH}


def load(where: str, path: storage.Path) -> tokenizers.Tokenizer:
  """Returns the tokenizer in a folder's tokenizer.json.

  Args:
    where: the setting and its value, for messages.
    path: the folder.

  Raises:
    SettingError: there is none, or one that cannot be read or would take the program with it.
  """
  raw = model_folder.read_json(where, path, FILE, model_folder.TOKENIZER_BYTES)
  if raw is None:
    raise SettingError(f"{where}: no {FILE} in the folder; pass a Hugging Face folder that has one")
  model_folder.check(where, FILE, raw, _KEYS)
  if not raw.get("model"):
    raise SettingError(f"{where}: {FILE} has no model; download it again")
  for i, token in enumerate(raw.get("added_tokens") or ()):
    model_folder.check(where, FILE, token, _ADDED, f"added_tokens[{i}].")
  for place in PARTS:
    _check_parts(where, place, raw.get(place))
  file = model_folder.find(where, path, FILE)
  assert file is not None  # it has just been read
  with storage.reading(file) as copy:
    backend = guarded(f"{where}: {FILE} cannot be read", tokenizers.Tokenizer.from_file, str(copy))
  ids = backend.get_vocab(with_added_tokens=True).values()
  if not ids or max(ids) >= model_folder.TOKENS:
    raise SettingError(
      f"{where}: {FILE} has {len(ids)} tokens, the largest id {max(ids, default=None)}; some "
      "tokens with ids below "
      f"{model_folder.TOKENS} would work"
    )
  return backend


def guarded(what: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
  """Returns what a function of the library returns; what it raises becomes one line.

  It raises plain exceptions; where it panics, one that is no `Exception`.
  """
  try:
    return function(*args, **named)
  except BaseException as error:
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
      raise
    raise SettingError(f"{what} ({model_folder.first_line(error)}); download it again") from error


def _check_parts(where: str, place: str, value: dict[str, Any] | None) -> None:
  """Refuses a part of the tokenizer that is unknown, and replacements that make a text grow without
  bounds.
  """
  parts = list(_parts(value))
  for part in parts:
    if part.get("type") not in PARTS[place]:
      raise SettingError(
        f"{where}: {FILE} has a {place} of type {model_folder.shown(part.get('type'))}; "
        f"{', '.join(PARTS[place])} would work"
      )
  grown = [
    len(text)
    for p in parts
    if isinstance(text := p.get("content") or p.get("prepend") or "", str) and text
  ]
  if len(parts) > MOST_PARTS or math.prod(grown) > GROWTH:
    raise SettingError(
      f"{where}: {FILE} has a {place} of too many parts or too long replacements; at most "
      f"{MOST_PARTS} parts, that "
      f"make a text at most {GROWTH} times as long, would work"
    )


def _parts(value: Any) -> Iterator[dict[str, Any]]:
  """Yields the parts in a sequence, or the one that it is."""
  if not isinstance(value, dict):
    return
  if value.get("type") != "Sequence":
    yield value
    return
  for inner in (value.get(key) for key in _INNER):
    for part in inner if isinstance(inner, list) else ():
      yield from _parts(part)
