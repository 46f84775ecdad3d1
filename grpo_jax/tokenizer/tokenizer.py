"""Text to token ids and back, with chat templates, stop tokens and reasoning steps.

Texts by people (a question, a solution) are encoded as plain text: `<|im_end|>` in a question
remains ten characters and never becomes the token; only a template may use special tokens. A token
that the folder does not mark as special, such as `<think>` or the `<tool_call>` of Qwen, is read in
any text, as in transformers.
"""

import contextlib
import itertools
import json
import os
import re
import threading
from collections.abc import Sequence

import tokenizers

from grpo_jax.aliases import Json
from grpo_jax.errors import DataError, SettingError
from grpo_jax.io import storage
from grpo_jax.sandbox import model_folder
from grpo_jax.tokenizer import backend as backends
from grpo_jax.tokenizer import chat as chat_templates
from grpo_jax.tokenizer import steps

PLAIN = "{question}\n"
_CANNOT = "tokenizer: a text cannot be encoded"
LONGEST_CHARACTER = 4  # tokens, one for each byte of UTF-8
SENTENCES = "tokenizer.model"  # file of SentencePiece


class Tokenizer:
  """A `tokenizers.Tokenizer` with special tokens and templates, from `reading.load`."""

  def __init__(
    self,
    backend: tokenizers.Tokenizer,
    config: Json,
    generation: Json | None = None,
    eos: int | Sequence[int] | None = None,
    sentences: bytes = b"",
  ):
    """Takes over `backend` and changes its settings.

    Args:
      backend: the tokenizer of tokenizer.json.
      config: tokenizer_config.json.
      generation: generation_config.json.
      eos: further ids that stop a completion.
      sentences: tokenizer.model, which is only saved along; b"": none.
    """
    backend.no_padding()
    backend.no_truncation()
    # Special tokens in a text stay text; `_encode_around` adds those of a template.
    backend.encode_special_tokens = True
    self._backend = backend
    self._config = config
    self._generation = dict(generation or {})
    self._sentences = sentences
    self._lock = threading.Lock()  # held while `encode_special_tokens` is off
    added = {i: token for i, token in backend.get_added_tokens_decoder().items() if token.special}
    self._special = {token.content: i for i, token in added.items()}
    self._special_ids = frozenset(added)
    self._strips = {token.content: (token.lstrip, token.rstrip) for token in added.values()}
    longest_first = sorted(self._special, key=len, reverse=True)
    self._specials = re.compile("(" + ("|".join(map(re.escape, longest_first)) or "(?!)") + ")")
    probe = backends.guarded("tokenizer: 'a' cannot be encoded", backend.encode, "a")
    if 0 not in probe.special_tokens_mask or any(backend.id_to_token(i) is None for i in probe.ids):
      raise DataError(
        f"tokenizer: tokenizer.json makes {model_folder.shown(probe.ids)} of 'a', which are no "
        "tokens of its vocabulary; download it again"
      )
    start = probe.special_tokens_mask.index(0)
    self._first = probe.ids[:start]  # tokens that a post-processor puts before a text
    # `text` decodes tokens after this one, since a decoder may strip the first token.
    self._before = probe.ids[start]
    self._after = len(self.decode([self._before]))  # index at which their text begins
    self._texts: dict[int, str] = {}
    self.step_pattern = steps.pattern("line")
    """Pattern that ends a reasoning step, see `steps.pattern`."""
    self.step_seconds = 0.0
    """Seconds that the pattern may take for a completion; 0: any time."""
    self.stop_texts: tuple[str, ...] = ()
    """Texts that end a completion and are cut from its text."""

    ids = [self._id("eos_token"), *_as_list(self._generation.get("eos_token_id")), *_as_list(eos)]
    self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in ids if i is not None))
    """Every token that stops a completion, the tokenizer's own end token first."""
    pads = [self._id("pad_token"), self._generation.get("pad_token_id"), *self.eos_ids, 0]
    self.pad_id: int = next(i for i in pads if i is not None)
    vocab_ids = backend.get_vocab(with_added_tokens=True).values()
    self.vocab_size: int = 1 + max(vocab_ids)
    """One more than the largest id."""
    text_ids = [i for i in vocab_ids if i not in self._special_ids]
    self.text_size: int = 1 + max(text_ids, default=-1)
    """One more than the largest id that is not special; a model needs as many embeddings."""

  @property
  def eos_id(self) -> int:
    """End token of a text; the folder must name one."""
    if not self.eos_ids:
      raise DataError(
        "tokenizer: no eos_token in tokenizer_config.json, nor eos_token_id in "
        "generation_config.json"
      )
    return self.eos_ids[0]

  @property
  def has_chat_template(self) -> bool:
    """Whether the folder has a chat template, which `render` needs for a user's turn."""
    return bool(self._config.get("chat_template"))

  def encode(self, text: str) -> list[int]:
    """Returns the ids of `text` as plain text, with nothing added; special tokens stay text."""
    with self._lock:
      return backends.guarded(_CANNOT, self._backend.encode, text, add_special_tokens=False).ids

  def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
    """Returns the ids of `text` as `encode` does, and the index in `text` where each begins."""
    with self._lock:
      encoded = backends.guarded(_CANNOT, self._backend.encode, text, add_special_tokens=False)
    return encoded.ids, [start for start, _ in encoded.offsets]

  def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
    """Returns the text of `ids`; incomplete characters are U+FFFD."""
    return self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

  def text(self, token: int) -> str:
    """Returns the text of a token after others; a part of a character is U+FFFD."""
    if token not in self._texts:
      self._texts[token] = self._decode_after([token])
    return self._texts[token]

  def texts(self, tokens: Sequence[int]) -> list[str]:
    """Returns the text of each token after others; a character belongs to its last token.

    Joined, they are the result of `decode`, except for a space at the beginning, which some
    decoders strip.
    """
    texts: list[str] = []
    incomplete: list[int] = []  # tokens of a character
    for token in map(int, tokens):
      incomplete.append(token)
      text = self._decode_after(incomplete) if len(incomplete) > 1 else self.text(token)
      if text.endswith("\ufffd") and len(incomplete) < LONGEST_CHARACTER:
        texts.append("")
      else:
        texts.append(text)
        incomplete = []
    if incomplete:
      texts[-1] = self._decode_after(incomplete)
    return texts

  def _decode_after(self, tokens: Sequence[int]) -> str:
    """Returns the text that tokens add to a text before them."""
    return self.decode([self._before, *tokens])[self._after :]

  @property
  def special_tokens(self) -> list[str]:
    """Every special token, as it is written."""
    return list(self._special)

  def special_id(self, token: str) -> int | None:
    """Returns the id of a special token such as "<|im_end|>"; None for any other text."""
    return self._special.get(token)

  def all_texts(self) -> list[str]:
    """Returns the text of every token after others, by id; that of a special token is empty."""
    pairs = [[self._before, token] for token in range(self.vocab_size)]
    return [text[self._after :] for text in self._backend.decode_batch(pairs)]

  def pieces(self) -> list[str]:
    """Returns every token as tokenizer.json spells it, by id; "" for an id that it lacks."""
    return [self._backend.id_to_token(token) or "" for token in range(self.vocab_size)]

  def before_stop(self, text: str) -> str | None:
    """Returns the text before the first of `stop_texts` in it; None if it has none of them."""
    starts = [start for stop in self.stop_texts if (start := text.find(stop)) >= 0]
    return text[: min(starts)] if starts else None

  def tokens_before_stop(self, ids: Sequence[int]) -> int | None:
    """Returns how many tokens begin before the first stop text; None if there is none in them."""
    texts = self.texts(ids) if self.stop_texts else []
    before = self.before_stop("".join(texts))
    if before is None:
      return None
    starts = itertools.accumulate(map(len, texts), initial=0)
    return sum(start < len(before) for start in itertools.islice(starts, len(texts)))

  def render(
    self,
    question: str,
    template: str = PLAIN,
    chat: bool = False,
    system: str = "",
    arguments: Sequence[tuple[str, chat_templates.Argument]] = (),
  ) -> list[int]:
    """Returns the ids of a prompt: `template` with the question, in a chat template if `chat`.

    The ids are those of `transformers`: for chat, of `apply_chat_template` with
    `add_generation_prompt=True` and `arguments`, such as (("enable_thinking", False),); otherwise
    of the tokenizer called on the text, which begins with a beginning-of-text token in some
    families. Only, special tokens are read in the templates alone, never in the question.
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

  def reply(
    self,
    observation: str,
    last: int,
    role: str = "user",
    template: str = PLAIN,
    chat: bool = False,
    system: str = "",
    arguments: Sequence[tuple[str, chat_templates.Argument]] = (),
  ) -> list[int]:
    """Returns the ids of an observation, to be read after a turn that was sampled.

    Nothing that was sampled is encoded again. Without `chat` they are those of the text; with it,
    of everything from the end of the assistant's message to the beginning of its next one.

    Args:
      observation: plain text, in which special tokens stay text.
      last: the last token of the turn, which is not repeated if it ends the assistant's message.
      role: of the observation's message.
      others: as for `render`.
    """
    config = self._config
    if not chat:
      spaced = self._encode_later("a") != self.encode("a")  # as by Llama 2, Mistral and Phi-3
      return self._encode_later(observation) if spaced else self.encode(observation)
    parts = chat_templates.render_reply(config, observation, role, template, system, arguments)
    ids = self._encode_around(*parts)
    return ids[1:] if ids[:1] == [last] else ids

  def end_id(
    self,
    template: str = PLAIN,
    chat: bool = False,
    system: str = "",
    arguments: Sequence[tuple[str, chat_templates.Argument]] = (),
  ) -> int:
    """Returns the end token of a written completion: in a chat the template's, if it ends one."""
    if chat:
      with contextlib.suppress(DataError):  # a template that shows no assistant's message
        after = chat_templates.after_answer(self._config, template, system, arguments)
        first = [self._special[text] for text in self._specials.split(after)[1:2]]
        if first and first[0] in self.eos_ids:
          return first[0]
    return self.eos_id

  def step_ends(self, tokens: Sequence[int]) -> list[int]:
    """Returns the index in `tokens` of the last token of each reasoning step."""
    return steps.step_ends_in_time(self.texts(tokens), self.step_pattern, self.step_seconds)

  def save(self, folder: str | os.PathLike) -> None:
    """Writes the files of the tokenizer as `load` and transformers read them.

    They include tokenizer.model if the folder had one: llama.cpp converts Phi-3's and Gemma's by
    it. Code that tokenizer_config.json names, by `auto_map`, is left out.
    """
    path = storage.place(folder)
    path.mkdir(parents=True, exist_ok=True)
    with storage.writing(path / "tokenizer.json") as file:
      self._backend.save(str(file))
    config = {k: v for k, v in self._config.items() if k != "auto_map"}
    _write_json(path / "tokenizer_config.json", config)
    if self._sentences:
      storage.write(path / SENTENCES, self._sentences)
    stops = list(self.eos_ids)
    stop = {"eos_token_id": stops[0] if len(stops) == 1 else stops} if stops else {}
    generation = {**self._generation, **stop, "pad_token_id": self.pad_id}
    _write_json(path / "generation_config.json", generation)

  def _id(self, name: str) -> int | None:
    """Returns the id of a special token by its name in tokenizer_config.json; None: it has none."""
    token = chat_templates.token_text(self._config.get(name))
    return None if token is None else self._backend.token_to_id(token)

  def _encode_around(self, before: str, question: str, after: str) -> list[int]:
    """Returns the ids of the joined texts, with special tokens read in `before` and `after` only.

    The text is encoded as a whole, since the tokens of a piece may depend on the text before it. If
    that reads more special tokens than the templates have, as in a question that holds one, it is
    encoded piece by piece.
    """
    # text, special, text, special, text ...
    heads, tails = self._specials.split(before), self._specials.split(after)
    pieces = [*heads[:-1], heads[-1] + question + tails[0], *tails[1:]]
    expected = [self._special[piece] for piece in pieces[1::2]]
    ids = self._encode_with_specials(before + question + after)
    if [i for i in ids if i in self._special_ids] == expected:
      return ids
    return self._encode_pieces(pieces)

  def _encode_with_specials(self, text: str) -> list[int]:
    """Returns the ids of `text` with its special tokens read as tokens."""
    with self._lock:
      self._backend.encode_special_tokens = False
      try:
        encoded = backends.guarded(_CANNOT, self._backend.encode, text, add_special_tokens=False)
      finally:
        self._backend.encode_special_tokens = True
    return encoded.ids

  def _encode_pieces(self, pieces: Sequence[str]) -> list[int]:
    """Returns the ids of texts and, at odd places, special tokens, which may absorb white space.

    If a tokenizer puts a space before the very first word alone, the texts that do not come first
    are encoded after a newline, if that stays a token of its own.
    """
    ids: list[int] = []
    alone = len(pieces) > 1 and self._encode_with_specials(f"{pieces[1]}a")[1:] != self.encode("a")
    for i, piece in enumerate(pieces):
      if i % 2:
        ids.append(self._special[piece])
        continue
      if i and self._strips[pieces[i - 1]][1]:
        piece = piece.lstrip()
      if i + 1 < len(pieces) and self._strips[pieces[i + 1]][0]:
        piece = piece.rstrip()
      ids += self._encode_later(piece) if i and piece and alone else self.encode(piece)
    return ids

  def _encode_later(self, text: str) -> list[int]:
    """Returns the ids of a text after others, without a space that is put before a first one."""
    newline, both = self.encode("\n"), self.encode("\n" + text)
    return both[len(newline) :] if both[: len(newline)] == newline else self.encode(text)


def _as_list(value: int | Sequence[int] | None) -> list[int]:
  """Returns a list of one value, of several, or of none."""
  if value is None:
    return []
  return [value] if isinstance(value, int) else list(value)


def _write_json(path: storage.Path, value: Json) -> None:
  path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
