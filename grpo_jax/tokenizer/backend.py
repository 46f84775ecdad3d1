"""Checks a tokenizer.json before the library reads it, which some wrong files would crash."""

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import tokenizers

from grpo_jax.aliases import Json
from grpo_jax.config.kinds import Kind
from grpo_jax.errors import DataError
from grpo_jax.io import storage
from grpo_jax.sandbox import model_folder

Result = TypeVar("Result")

FILE = "tokenizer.json"
MOST_ADDED = 20_000  # tokens in addition to the vocabulary; Gemma has 6_000
MOST_PARTS = 32  # parts of a normalizer and the like
GROWTH = 64  # factor by which replacements of characters may lengthen a text

# Types that each place may have. Precompiled is left out because the library trusts its bytes, and
# FixedLength, too.
PARTS = {
  "model": ("BPE", "WordLevel", "WordPiece", "Unigram"),
  "normalizer": (
    *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Prepend", "Replace"),
    *("ByteLevel", "BertNormalizer", "Nmt"),
  ),
  "pre_tokenizer": (
    *("Split", "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation"),
    *("BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts"),
  ),
  "post_processor": ("TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing"),
  "decoder": (
    *("ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"),
    *("BPEDecoder", "CTC"),
  ),
}
_INNER = ("normalizers", "pretokenizers", "processors", "decoders")  # keys of a Sequence's parts

_KEYS: dict[str, Kind] = {place: model_folder.OBJECT for place in PARTS} | {
  "added_tokens": model_folder.list_of(model_folder.OBJECT, MOST_ADDED)
}
_ADDED: dict[str, Kind] = {
  "id": model_folder.TOKEN,
  "content": model_folder.TEXT,
  "special": model_folder.SWITCH,
}


def load(where: str, path: storage.Path) -> tokenizers.Tokenizer:
  """Returns the tokenizer in a folder's tokenizer.json; `where` is the setting and its value."""
  raw = model_folder.read_json(where, path, FILE, model_folder.TOKENIZER_BYTES)
  if raw is None:
    raise DataError(f"{where}: no {FILE} in the folder; pass a Hugging Face folder that has one")
  model_folder.check(where, FILE, raw, _KEYS)
  if not raw.get("model"):
    raise DataError(f"{where}: {FILE} has no model; download it again")
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
    raise DataError(
      f"{where}: {FILE} has {len(ids)} tokens, the largest id {max(ids, default=None)}; some "
      f"tokens with ids below {model_folder.TOKENS} would work"
    )
  return backend


def guarded(what: str, function: Callable[..., Result], *args: object, **named: object) -> Result:
  """Returns the result of a function of the library, whose errors become a line.

  The library raises plain exceptions, or one that is no `Exception` when it panics.
  """
  try:
    return function(*args, **named)
  except BaseException as error:
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
      raise
    raise DataError(f"{what} ({model_folder.first_line(error)}); download it again") from error


def _check_parts(where: str, place: str, value: object) -> None:
  """Refuses unknown parts, and replacements that lengthen a text without bounds."""
  parts = list(_parts(value))
  for part in parts:
    if part.get("type") not in PARTS[place]:
      raise DataError(
        f"{where}: {FILE} has a {place} of type {model_folder.shown(part.get('type'))}; "
        f"{', '.join(PARTS[place])} would work"
      )
  growth = [
    len(text)
    for part in parts
    if isinstance(text := part.get("content") or part.get("prepend") or "", str) and text
  ]
  if len(parts) > MOST_PARTS or math.prod(growth) > GROWTH:
    raise DataError(
      f"{where}: {FILE} has a {place} of too many parts or too long replacements; at most "
      f"{MOST_PARTS} parts, that make a text at most {GROWTH} times as long, would work"
    )


def _parts(value: object) -> Iterator[Json]:
  """Yields the parts of a Sequence, or a single part."""
  if not isinstance(value, dict):
    return
  if value.get("type") != "Sequence":
    yield value
    return
  for inner in (value.get(key) for key in _INNER):
    for part in inner if isinstance(inner, list) else ():
      yield from _parts(part)
