"""Reads the tokenizer of a Hugging Face folder.

It holds `tokenizer.json`, `tokenizer_config.json` (special tokens, chat template) and, if there are
several stop tokens, `generation_config.json`.
"""

import os
from collections.abc import Container

import tokenizers

from grpo_jax.config.kinds import Form, Kind
from grpo_jax.errors import DataError
from grpo_jax.io import storage
from grpo_jax.sandbox import model_folder
from grpo_jax.tokenizer import backend as backends
from grpo_jax.tokenizer import chat as chat_templates
from grpo_jax.tokenizer.tokenizer import SENTENCES, Tokenizer

# Kinds of the keys that are read in addition to tokenizer.json.
_ADDED = Form(
  'a text, or {"content": text}',
  lambda x: isinstance(x.get("content") if isinstance(x, dict) else x, str),
)
_TEMPLATE = Form(
  "a text of at most 100000 characters", lambda x: isinstance(x, str) and len(x) <= 100_000
)
_NAMED = Form(
  'a list of {"name": text, "template": text}',
  lambda x: isinstance(x, list) and all(isinstance(e, dict) and _is_named_template(e) for e in x),
)
# a text that two tokenizers should read alike
PROBE = "What is 12 + 7?\nIt is 12 + 7 = 19.\n#### 19"
SPECIALS: dict[str, Kind] = {
  name: _ADDED for name in ("eos_token", "pad_token", "bos_token", "unk_token")
}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token
_ADDED_TOKENS = Form(
  f'an object of at most {backends.MOST_ADDED} {{"content": text}} by their ids',
  lambda x: (
    isinstance(x, dict)
    and len(x) <= backends.MOST_ADDED
    and all(map(_is_added_token, x, x.values()))
  ),
)
CONFIG: dict[str, Kind] = SPECIALS | {
  "chat_template": model_folder.either(_TEMPLATE, _NAMED),
  "added_tokens_decoder": _ADDED_TOKENS,
}
GENERATION: dict[str, Kind] = {
  "eos_token_id": model_folder.TOKEN_IDS,
  "pad_token_id": model_folder.TOKEN,
}
MODEL: dict[str, Kind] = {"eos_token_id": model_folder.TOKEN_IDS}
SENTENCE_BYTES = 20 * 1000**2  # largest tokenizer.model; Gemma's has 4 million


def load(folder: str | os.PathLike, setting: str = "tokenizer") -> Tokenizer:
  """Reads the tokenizer of a Hugging Face folder that is not trusted; `setting` names it."""
  path = storage.place(folder)
  where = f"{setting}={path}"
  backend = backends.load(where, path)
  config = _read_json(where, path, "tokenizer_config.json", CONFIG)
  template = model_folder.read_text(where, path, "chat_template.jinja")
  if template is not None:
    model_folder.check(where, "chat_template.jinja", {"text": template}, {"text": _TEMPLATE})
    config["chat_template"] = template
  if "added_tokens_decoder" in config:
    named = {chat_templates.token_text(config.get(name)) for name in SPECIALS}
    _add_tokens(backend, config["added_tokens_decoder"] or {}, named)
  else:  # folders from before autumn 2023
    config |= _read_json(where, path, "special_tokens_map.json", SPECIALS)
  # config.json, which is the model's, may name stop tokens that the other files do not.
  eos = _read_json(where, path, "config.json", MODEL).get("eos_token_id")
  end = chat_templates.token_text(config.get("eos_token"))
  if end is not None and backend.token_to_id(end) is None:
    raise DataError(
      f"{where}: tokenizer_config.json has eos_token={model_folder.shown(end)}, which is no token "
      "of tokenizer.json; download both again"
    )
  generation = _read_json(where, path, "generation_config.json", GENERATION)
  sentences = model_folder.read_bytes(where, path, SENTENCES, SENTENCE_BYTES) or b""
  return Tokenizer(backend, config, generation, eos, sentences)


def alike(ours: Tokenizer, theirs: Tokenizer) -> bool:
  """Returns whether two tokenizers have the same tokens and end with the same ones."""
  return same_tokens(ours, theirs) and ours.eos_ids == theirs.eos_ids


def same_tokens(ours: Tokenizer, theirs: Tokenizer) -> bool:
  """Returns whether two tokenizers read a text alike, and no token has another id in them.

  Either may have tokens besides. Special ones, such as those of a chat template, are not compared.
  """
  ids, others = _plain_ids(ours), _plain_ids(theirs)
  if any(others.get(piece, i) != i for piece, i in ids.items()):
    return False
  return ours.encode(PROBE) == theirs.encode(PROBE)


def _plain_ids(tokenizer: Tokenizer) -> dict[str, int]:
  """Returns the id of each token but the special ones."""
  special = {"", *tokenizer.special_tokens}
  return {piece: i for i, piece in enumerate(tokenizer.pieces()) if piece not in special}


def _add_tokens(
  backend: tokenizers.Tokenizer, declared: dict[str, dict], named: Container[str | None]
) -> None:
  """Adds tokens of tokenizer_config.json that `backend` lacks or has with other flags.

  Where the two files differ, tokenizer_config.json counts, as in transformers.

  Args:
    backend: the tokenizer of tokenizer.json, which is changed.
    declared: `added_tokens_decoder`, by ids.
    named: texts of the end token and the like, which are special.
  """
  known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
  for _, token in sorted(declared.items(), key=lambda item: int(item[0])):
    flags = {name: token[name] for name in _FLAGS if token.get(name) is not None}
    added = tokenizers.AddedToken(token["content"], **flags)
    if repr(added) not in known:
      added.special = added.special or token["content"] in named
      backend.add_tokens([added])


def _is_added_token(i: str, token: object) -> bool:
  if not (i.isdecimal() and len(i) < 9 and isinstance(token, dict)):
    return False
  text, flags = token.get("content"), [token.get(name) for name in _FLAGS]
  return (
    isinstance(text, str)
    and bool(text)
    and all(flag is None or isinstance(flag, bool) for flag in flags)
  )


def _is_named_template(entry: dict) -> bool:
  return isinstance(entry.get("name"), str) and _TEMPLATE.fits(entry.get("template"))


def _read_json(where: str, path: storage.Path, name: str, table: dict[str, Kind]) -> dict:
  """Returns the object in a JSON file; {} if there is no file."""
  values = model_folder.read_json(where, path, name) or {}
  model_folder.check(where, name, values, table)
  return values
