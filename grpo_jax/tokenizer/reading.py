"""Text to token ids and back: a Hugging Face `tokenizer.json` with its chat template, its stop tokens, its steps.

A folder holds `tokenizer.json`, `tokenizer_config.json` (special tokens, chat template) and, where there are
several stop tokens, `generation_config.json`. What a person wrote (a question, a solution) is encoded as plain
text: `<|im_end|>` in a question stays ten characters and never is the token; only a template may use special tokens.
"""

import json
import os
import pathlib
import re
from collections.abc import Sequence

import tokenizers

from grpo_jax.errors import SettingError
from grpo_jax.tokenizer import chat as chat_templates
from grpo_jax.tokenizer import steps
from grpo_jax.tokenizer.chat import first_line

PLAIN = "{question}\n"


class Tokenizer:
  """A `tokenizers.Tokenizer` with what its folder says of special tokens and templates. `load` makes one."""

  def __init__(self, backend: tokenizers.Tokenizer, config: dict, generation: dict | None = None, eos=None):
    """Takes over `backend` and changes its settings.

    Args:
      backend: the tokenizer of tokenizer.json.
      config: tokenizer_config.json.
      generation: generation_config.json.
      eos: further ids that stop a completion: one, several, or None.
    """
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True  # special tokens in a text stay text; `_encode_around` adds a template's own
    self._backend = backend
    self._config = config
    self._generation = dict(generation or {})
    self._special = {token.content: i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    longest_first = sorted(self._special, key=len, reverse=True)
    self._specials = re.compile("(" + ("|".join(map(re.escape, longest_first)) or "(?!)") + ")")
    probe = backend.encode("a")
    self._first = probe.ids[: probe.special_tokens_mask.index(0)]  # what a post-processor puts before a text
    self._texts: dict[int, str] = {}

    ids = [self._id("eos_token"), *_as_list(self._generation.get("eos_token_id")), *_as_list(eos)]
    self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in ids if i is not None))
    """Every token that stops a completion, the tokenizer's own end token first."""
    pads = [self._id("pad_token"), self._generation.get("pad_token_id"), *self.eos_ids, 0]
    self.pad_id: int = next(i for i in pads if i is not None)
    self.vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values())
    """One more than the largest id; a model may have more embeddings, never fewer."""

  @property
  def eos_id(self) -> int:
    """The end token that a solution is trained to end with.

    Raises:
      SettingError: the folder names none.
    """
    if not self.eos_ids:
      raise SettingError("tokenizer: no eos_token in tokenizer_config.json, nor eos_token_id in generation_config.json")
    return self.eos_ids[0]

  def encode(self, text: str) -> list[int]:
    """The ids of `text` as plain text, with nothing added: special tokens written in it stay text."""
    return self._backend.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
    """The text of `ids`; bytes that are no character yet come back as U+FFFD."""
    return self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

  def text(self, token: int) -> str:
    """The text of one token alone; a part of a character that several tokens make comes back as U+FFFD."""
    if token not in self._texts:
      self._texts[token] = self.decode([token])
    return self._texts[token]

  def token_id(self, token: str) -> int:
    """The id of one token written as text, such as "<|im_end|>".

    Raises:
      SettingError: the vocabulary has no such token.
    """
    found = self._backend.token_to_id(token)
    if found is None:
      ids = self.encode(token)
      if len(ids) != 1:
        raise SettingError(f"sampler.stop: {token!r} is not one token of this tokenizer; a token of its own would work")
      found = ids[0]
    return found

  def render(self, question: str, template: str = PLAIN, chat: bool = False, system: str = "") -> list[int]:
    """The ids of a prompt: `template` with its "{question}" filled in, with `chat` as the chat template's user turn.

    The ids are those of `transformers` (chat: `apply_chat_template(add_generation_prompt=True)`; plain: the tokenizer
    called on the text, which puts a beginning-of-text token first where the family has one), except that special
    tokens are read in the templates alone, never in the question.

    Raises:
      SettingError: the template has no "{question}", or the chat template cannot be used.
    """
    if "{question}" not in template:
      raise SettingError(f'template={template!r}: has no "{{question}}"; such as "{{question}}\\n" would work')
    if chat:
      turn = chat_templates.render(self._config, question, template, system)
      return self._encode_around(turn.before, turn.question, turn.after)
    before, _, after = template.partition("{question}")
    ids = self._encode_around(before, question, after)
    return ids if ids[: len(self._first)] == self._first else self._first + ids

  def step_ends(self, tokens: Sequence[int]) -> list[int]:
    """The index in `tokens` of the last token of each reasoning step; see `steps.step_ends`."""
    return steps.step_ends([self.text(int(token)) for token in tokens])

  def save(self, folder: str | os.PathLike) -> None:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json, as `load` and transformers read them."""
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    self._backend.save(str(path / "tokenizer.json"))
    _write_json(path / "tokenizer_config.json", self._config)
    stops = list(self.eos_ids)
    stop = {"eos_token_id": stops[0] if len(stops) == 1 else stops} if stops else {}
    _write_json(path / "generation_config.json", {**self._generation, **stop, "pad_token_id": self.pad_id})

  def _id(self, name: str) -> int | None:
    """The id of a special token by its name in tokenizer_config.json; None where it has none."""
    token = chat_templates.token_text(self._config.get(name))
    return None if token is None else self._backend.token_to_id(token)

  def _encode_around(self, before: str, question: str, after: str) -> list[int]:
    """The ids of before + question + after, with special tokens read in `before` and `after` only.

    The plain text on both sides of the question is encoded together with it, as it would be without special tokens.
    """
    heads, tails = self._specials.split(before), self._specials.split(after)  # text, special, text, special, text ...
    pieces = [*heads[:-1], heads[-1] + question + tails[0], *tails[1:]]
    ids: list[int] = []
    for i, piece in enumerate(pieces):
      ids += [self._special[piece]] if i % 2 else self.encode(piece)
    return ids


def load(folder: str | os.PathLike) -> Tokenizer:
  """Reads the tokenizer of a Hugging Face folder.

  Raises:
    SettingError: there is no tokenizer.json, or one of the files cannot be read.
  """
  path = pathlib.Path(folder)
  file = path / "tokenizer.json"
  if not file.is_file():
    raise SettingError(f"tokenizer: no tokenizer.json in {path}; pass a Hugging Face folder that has one")
  try:
    backend = tokenizers.Tokenizer.from_file(str(file))
  except Exception as error:  # the library raises plain Exception
    raise SettingError(f"tokenizer: {file} cannot be read ({first_line(error)}); download it again") from error
  config = _read_json(path / "tokenizer_config.json")
  if (path / "chat_template.jinja").is_file():
    config["chat_template"] = (path / "chat_template.jinja").read_text(encoding="utf-8")
  # config.json, the model's own, may name stop tokens that the other files do not.
  eos = _read_json(path / "config.json").get("eos_token_id")
  return Tokenizer(backend, config, _read_json(path / "generation_config.json"), eos)


def _as_list(value) -> list:
  """A list of what a file gives as one value, as several, or not at all."""
  if value is None:
    return []
  return list(value) if isinstance(value, (list, tuple)) else [value]


def _read_json(path: pathlib.Path) -> dict:
  """The object in a JSON file; empty where there is no file."""
  if not path.is_file():
    return {}
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise SettingError(f"tokenizer: {path} is not JSON ({first_line(error)}); download it again") from error


def _write_json(path: pathlib.Path, value: dict) -> None:
  """Writes an object as a person can read it."""
  path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
