"""Text to token ids and back: a `tokenizers.Tokenizer` with a chat template, stop tokens and
reasoning steps.

What a person wrote (a question, a solution) is encoded as plain text: `<|im_end|>` in a question
stays ten characters and never is the token; only a template may use special tokens. A token that
the folder does not call special, such as `<think>` or the `<tool_call>` of Qwen, is read in any
text, as it is by transformers.
"""

import json
import os
import re
import threading
from collections.abc import Sequence

import tokenizers

from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.sandbox import model_folder
from grpo_jax.tokenizer import backend as backends
from grpo_jax.tokenizer import chat as chat_templates
from grpo_jax.tokenizer import steps

PLAIN = "{question}\n"
_CANNOT = "tokenizer: a text cannot be encoded"
LONGEST_CHARACTER = 4  # tokens, as many as UTF-8 has bytes
SENTENCES = "tokenizer.model"  # of SentencePiece


class Tokenizer:
  """A `tokenizers.Tokenizer` with what its folder says of special tokens and templates. `load`
  makes one.
  """

  def __init__(
    self,
    backend: tokenizers.Tokenizer,
    config: dict,
    generation: dict | None = None,
    eos=None,
    sentences: bytes = b"",
  ):
    """Takes over `backend` and changes its settings.

    Args:
      backend: the tokenizer of tokenizer.json.
      config: tokenizer_config.json.
      generation: generation_config.json.
      eos: further ids that stop a completion: one, several, or None.
      sentences: tokenizer.model, which is not read but saved along; b"": there is none.
    """
    backend.no_padding()
    backend.no_truncation()
    # special tokens in a text stay text; `_encode_around` adds a template's own
    backend.encode_special_tokens = True
    self._backend = backend
    self._config = config
    self._generation = dict(generation or {})
    self._sentences = sentences
    self._lock = threading.Lock()  # held while it is switched off
    added = {i: token for i, token in backend.get_added_tokens_decoder().items() if token.special}
    self._special = {token.content: i for i, token in added.items()}
    self._special_ids = frozenset(added)
    self._strips = {token.content: (token.lstrip, token.rstrip) for token in added.values()}
    longest_first = sorted(self._special, key=len, reverse=True)
    self._specials = re.compile("(" + ("|".join(map(re.escape, longest_first)) or "(?!)") + ")")
    probe = backends.guarded("tokenizer: 'a' cannot be encoded", backend.encode, "a")
    if 0 not in probe.special_tokens_mask or any(backend.id_to_token(i) is None for i in probe.ids):
      raise SettingError(
        f"tokenizer: tokenizer.json makes {model_folder.shown(probe.ids)} of 'a', which are no "
        "tokens of its "
        "vocabulary; download it again"
      )
    start = probe.special_tokens_mask.index(0)
    self._first = probe.ids[:start]  # what a post-processor puts before a text
    # a token that `text` decodes others behind: a decoder may strip the first one
    self._before = probe.ids[start]
    self._behind = len(self.decode([self._before]))  # where their text begins
    self._texts: dict[int, str] = {}
    self.step_pattern = steps.pattern("line")
    """What ends a reasoning step, of `steps.pattern`."""
    self.step_seconds = 0.0
    """Seconds that the pattern may take for a completion; 0: any time."""

    ids = [self._id("eos_token"), *_as_list(self._generation.get("eos_token_id")), *_as_list(eos)]
    self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in ids if i is not None))
    """Every token that stops a completion, the tokenizer's own end token first."""
    pads = [self._id("pad_token"), self._generation.get("pad_token_id"), *self.eos_ids, 0]
    self.pad_id: int = next(i for i in pads if i is not None)
    ids = backend.get_vocab(with_added_tokens=True).values()
    self.vocab_size: int = 1 + max(ids)
    """One more than the largest id."""
    self.text_size: int = 1 + max((i for i in ids if i not in self._special_ids), default=-1)
    """One more than the largest id that a text may have, without special tokens; a model has as many embeddings."""

  @property
  def eos_id(self) -> int:
    """The end token that a solution is trained to end with.

    Raises:
      SettingError: the folder names none.
    """
    if not self.eos_ids:
      raise SettingError(
        "tokenizer: no eos_token in tokenizer_config.json, nor eos_token_id in "
        "generation_config.json"
      )
    return self.eos_ids[0]

  @property
  def has_chat_template(self) -> bool:
    """Whether the folder has a chat template, with which `render` can make a user's turn."""
    return bool(self._config.get("chat_template"))

  def encode(self, text: str) -> list[int]:
    """The ids of `text` as plain text, with nothing added: special tokens written in it stay text."""
    with self._lock:
      return backends.guarded(_CANNOT, self._backend.encode, text, add_special_tokens=False).ids

  def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
    """The ids of `text` as `encode` returns them, and the index in `text` of the character at which
    each begins.
    """
    with self._lock:
      found = backends.guarded(_CANNOT, self._backend.encode, text, add_special_tokens=False)
    return found.ids, [start for start, _ in found.offsets]

  def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
    """The text of `ids`; bytes that are no character yet come back as U+FFFD."""
    return self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

  def text(self, token: int) -> str:
    """The text of one token behind others; a part of a character that several tokens make comes
    back as U+FFFD.
    """
    if token not in self._texts:
      self._texts[token] = self._decode_behind([token])
    return self._texts[token]

  def texts(self, tokens: Sequence[int]) -> list[str]:
    """The text of each token behind others; that of a character which several tokens make is at the
    last of them.

    Together they are what `decode` returns, but for a space at the beginning, which some decoders
    strip.
    """
    found: list[str] = []
    open_tokens: list[int] = []  # of a character that is not complete
    for token in map(int, tokens):
      open_tokens.append(token)
      text = self._decode_behind(open_tokens) if len(open_tokens) > 1 else self.text(token)
      if text.endswith("\ufffd") and len(open_tokens) < LONGEST_CHARACTER:
        found.append("")
      else:
        found.append(text)
        open_tokens = []
    if open_tokens:
      found[-1] = self._decode_behind(open_tokens)
    return found

  def _decode_behind(self, tokens: Sequence[int]) -> str:
    """The text that tokens add to a text before them."""
    return self.decode([self._before, *tokens])[self._behind :]

  def token_id(self, token: str) -> int:
    """The id of one token written as text, such as "<|im_end|>".

    Raises:
      SettingError: the vocabulary has no such token.
    """
    found = self._backend.token_to_id(token)
    if found is None:
      ids = self.encode(token)
      if len(ids) != 1:
        raise SettingError(
          f"sampler.stop: {token!r} is not one token of this tokenizer; a token of its own would "
          "work"
        )
      found = ids[0]
    return found

  def render(
    self,
    question: str,
    template: str = PLAIN,
    chat: bool = False,
    system: str = "",
    arguments: Sequence[tuple[str, chat_templates.Argument]] = (),
  ) -> list[int]:
    """The ids of a prompt: `template` with its "{question}" filled in, with `chat` as the chat
    template's user turn.

    The ids are those of `transformers` (chat: `apply_chat_template(add_generation_prompt=True,
    **arguments)`, where (("enable_thinking", False),) is for a template that asks for it; plain:
    the tokenizer called on the text, which puts a beginning-of-text token first where the family
    has one), except that special tokens are read in the templates alone, never in the question.

    Raises:
      SettingError: the template has no "{question}", or the chat template cannot be used.
    """
    if "{question}" not in template:
      raise SettingError(
        f'template={template!r}: has no "{{question}}"; such as "{{question}}\\n" would work'
      )
    if chat:
      turn = chat_templates.render(self._config, question, template, system, arguments)
      return self._encode_around(turn.before, turn.question, turn.after)
    before, _, after = template.partition("{question}")
    ids = self._encode_around(before, question, after)
    return ids if ids[: len(self._first)] == self._first else self._first + ids

  def step_ends(self, tokens: Sequence[int]) -> list[int]:
    """The index in `tokens` of the last token of each reasoning step; see
    `steps.step_ends_in_time`.
    """
    return steps.step_ends_in_time(self.texts(tokens), self.step_pattern, self.step_seconds)

  def save(self, folder: str | os.PathLike) -> None:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json, as `load` and
    transformers read them.

    And tokenizer.model, if the folder had one: llama.cpp converts Phi-3's and Gemma's by it. Code
    that tokenizer_config.json names, by `auto_map`, is left out.
    """
    path = storage.place(folder)
    path.mkdir(parents=True, exist_ok=True)
    with storage.writing(path / "tokenizer.json") as file:
      self._backend.save(str(file))
    _write_json(
      path / "tokenizer_config.json", {k: v for k, v in self._config.items() if k != "auto_map"}
    )
    if self._sentences:
      storage.write(path / SENTENCES, self._sentences)
    stops = list(self.eos_ids)
    stop = {"eos_token_id": stops[0] if len(stops) == 1 else stops} if stops else {}
    _write_json(
      path / "generation_config.json", {**self._generation, **stop, "pad_token_id": self.pad_id}
    )

  def _id(self, name: str) -> int | None:
    """The id of a special token by its name in tokenizer_config.json; None where it has none."""
    token = chat_templates.token_text(self._config.get(name))
    return None if token is None else self._backend.token_to_id(token)

  def _encode_around(self, before: str, question: str, after: str) -> list[int]:
    """The ids of before + question + after, with special tokens read in `before` and `after` only.

    The text is encoded as a whole: what becomes of a piece may depend on what it follows. Where
    that would read more special tokens than the templates have, as in a question that holds one, it
    is encoded piece by piece.
    """
    heads, tails = (
      self._specials.split(before),
      self._specials.split(after),
    )  # text, special, text, special, text ...
    pieces = [*heads[:-1], heads[-1] + question + tails[0], *tails[1:]]
    meant = [self._special[piece] for piece in pieces[1::2]]
    ids = self._encode_with_specials(before + question + after)
    return (
      ids if [i for i in ids if i in self._special_ids] == meant else self._encode_pieces(pieces)
    )

  def _encode_with_specials(self, text: str) -> list[int]:
    """The ids of `text` with the special tokens in it read as tokens."""
    with self._lock:
      self._backend.encode_special_tokens = False
      try:
        found = backends.guarded(_CANNOT, self._backend.encode, text, add_special_tokens=False)
      finally:
        self._backend.encode_special_tokens = True
    return found.ids

  def _encode_pieces(self, pieces: Sequence[str]) -> list[int]:
    """The ids of texts and, at odd places, special tokens, which may take the white space beside
    them for their own.

    Where a tokenizer puts a space before the very first word alone, the texts that do not come
    first are encoded behind a line's end, if that stays a token of its own.
    """
    line, ids = self.encode("\n"), []
    first_alone = len(pieces) > 1 and self._encode_with_specials(f"{pieces[1]}a")[
      1:
    ] != self.encode("a")
    for i, piece in enumerate(pieces):
      if i % 2:
        ids.append(self._special[piece])
        continue
      if i and self._strips[pieces[i - 1]][1]:
        piece = piece.lstrip()
      if i + 1 < len(pieces) and self._strips[pieces[i + 1]][0]:
        piece = piece.rstrip()
      behind = self.encode("\n" + piece) if i and piece and first_alone else []
      ids += behind[len(line) :] if behind and behind[: len(line)] == line else self.encode(piece)
    return ids


def _as_list(value) -> list:
  """A list of what a file gives as one value, as several, or not at all."""
  if value is None:
    return []
  return list(value) if isinstance(value, (list, tuple)) else [value]


def _write_json(path: storage.Path, value: dict) -> None:
  """Writes an object as a person can read it."""
  path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
