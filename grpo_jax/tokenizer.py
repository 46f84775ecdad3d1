"""Text to token ids and back: a Hugging Face `tokenizer.json`, its chat template, its stop tokens, its steps.

A folder holds `tokenizer.json`, `tokenizer_config.json` (special tokens, chat template) and, where there are
several stop tokens, `generation_config.json`. What a person wrote (a question, a solution) is encoded as plain
text: `<|im_end|>` in a question stays ten characters and never is the token; only a template may use special tokens.
`train_bpe` and `word_level` make tokenizers from scratch, saved in the same form.
"""

import datetime
import functools
import json
import os
import pathlib
import re
import string
from collections.abc import Iterable, Sequence

import jinja2
import jinja2.ext
import jinja2.sandbox
import tokenizers

from grpo_jax.errors import SettingError

END = "<|endoftext|>"
PAD = "<|pad|>"
UNKNOWN = "<|unknown|>"
PLAIN = "{question}\n"

# The pieces of `word_level`: GSM8K's answer mark, an operator between spaces, a word with the space before it, one
# digit, a newline, any other mark with the space before it.
_WORDS = re.compile(r"#### | [-+*/=] | ?[A-Za-z]+|[0-9]|\n| ?[^\sA-Za-z0-9]|\s")
# The pieces of `train_bpe`: those of Qwen2 and Qwen3, which keep each digit on its own.
_QWEN = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokenizer:
  """A `tokenizers.Tokenizer` with what its folder says of special tokens and templates. Made by `load`."""

  def __init__(self, backend: tokenizers.Tokenizer, config: dict, generation: dict | None = None, eos: Sequence = ()):
    """`config`, `generation`: tokenizer_config.json and generation_config.json; `eos`: more ids that stop."""
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True  # special tokens in a text stay text; `_fenced` puts in a template's own
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
    """One more than the largest id; a model's embedding may have more rows, never fewer."""

  @property
  def eos_id(self) -> int:
    """The end token that a solution is trained to end with."""
    if not self.eos_ids:
      raise SettingError("tokenizer: no eos_token in tokenizer_config.json, nor eos_token_id in generation_config.json")
    return self.eos_ids[0]

  @property
  def has_chat_template(self) -> bool:
    return bool(self._config.get("chat_template"))

  def encode(self, text: str) -> list[int]:
    """`text` as plain text, with nothing added: special tokens written in it stay text."""
    return self._backend.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
    """The text of `ids`; bytes that are no character yet come back as U+FFFD."""
    return self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

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
    """Prompt ids: `template` with its "{question}" filled in; with `chat`, as the user's turn of the chat template.

    The ids are those of `transformers` (chat: `apply_chat_template(add_generation_prompt=True)`; plain: the tokenizer
    called on the text, which puts a beginning-of-text token first where the family has one), except that special
    tokens are read in the templates alone, never in the question.
    """
    if "{question}" not in template:
      raise SettingError(f'template={template!r}: has no "{{question}}"; such as "{{question}}\\n" would work')
    if not chat:
      ids = self._fenced(*template.split("{question}", 1), question)
      return ids if ids[: len(self._first)] == self._first else self._first + ids
    # Chat templates trim and inspect what they are given: the question is what lies between its surroundings.
    text = self._chat(template.replace("{question}", question, 1), system)
    before, found, after = self._chat(template.replace("{question}", _MARK, 1), system).partition(_MARK)
    if not found or not text.startswith(before) or not text[len(before) :].endswith(after):
      raise SettingError("chat_template: does not show the user's message as it is; chat=False would work")
    return self._fenced(before, after, text[len(before) : len(text) - len(after)])

  def step_ends(self, tokens: Sequence[int]) -> list[int]:
    """Index in `tokens` of each reasoning step's last token. A step is a line that is not blank.

    The token with the line's newline ends it. What follows the last such line (blank lines, the stop token) belongs
    to the last step, so that the last entry is always `len(tokens) - 1`.
    """
    ends: list[int] = []
    blank = True
    for i, token in enumerate(tokens):
      *closed, rest = self.text(int(token)).split("\n")
      if closed:
        if not blank or any(line.strip() for line in closed):
          ends.append(i)
        blank = True
      blank = blank and not rest.strip()
    if blank and ends:
      ends.pop()
    return [*ends, len(tokens) - 1] if len(tokens) else []

  def save(self, folder: str | os.PathLike) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json, as `load` and transformers read them."""
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    self._backend.save(str(path / "tokenizer.json"))
    _write_json(path / "tokenizer_config.json", self._config)
    stops = list(self.eos_ids)
    stop = {"eos_token_id": stops[0] if len(stops) == 1 else stops} if stops else {}
    _write_json(path / "generation_config.json", {**self._generation, **stop, "pad_token_id": self.pad_id})

  def _id(self, name: str) -> int | None:
    content = _content(self._config.get(name))
    return None if content is None else self._backend.token_to_id(content)

  def text(self, token: int) -> str:
    """One token alone, kept. A piece of a character that several tokens make is shown as U+FFFD."""
    if token not in self._texts:
      self._texts[token] = self.decode([token])
    return self._texts[token]

  def _fenced(self, before: str, after: str, question: str) -> list[int]:
    """Ids of before + question + after, special tokens read in `before` and `after` only.

    The plain text around the question is encoded with it in one go, as it would be without this fence.
    """
    heads, tails = self._specials.split(before), self._specials.split(after)  # text, special, text, special, text ...
    parts = [*heads[:-1], heads[-1] + question + tails[0], *tails[1:]]
    ids: list[int] = []
    for i, part in enumerate(parts):
      ids += [self._special[part]] if i % 2 else self.encode(part)
    return ids

  def _chat(self, content: str, system: str) -> str:
    template = self._config.get("chat_template")
    if isinstance(template, list):  # several, under names
      template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    if not template:
      raise SettingError("chat=True: this tokenizer has no chat template; chat=False would work")
    specials = {name: _content(token) for name, token in self._config.items() if name.endswith("_token")}
    messages = [{"role": "system", "content": system}] if system else []
    try:
      return _compiled(template).render(
        messages=[*messages, {"role": "user", "content": content}],
        add_generation_prompt=True,
        **{name: token for name, token in specials.items() if isinstance(token, str)},
      )
    except Exception as error:  # a template can raise anything
      raise SettingError(f"chat_template: {_line(error)}; chat=False would work") from error


def load(folder: str | os.PathLike) -> Tokenizer:
  """The tokenizer of a Hugging Face folder."""
  path = pathlib.Path(folder)
  file = path / "tokenizer.json"
  if not file.is_file():
    raise SettingError(f"tokenizer: no tokenizer.json in {path}; pass a Hugging Face folder that has one")
  try:
    backend = tokenizers.Tokenizer.from_file(str(file))
  except Exception as error:  # the library raises plain Exception
    raise SettingError(f"tokenizer: {file} cannot be read ({_line(error)}); download it again") from error
  config = _read_json(path / "tokenizer_config.json")
  if (path / "chat_template.jinja").is_file():
    config["chat_template"] = (path / "chat_template.jinja").read_text(encoding="utf-8")
  # The model's own config is the last to say what stops.
  return Tokenizer(
    backend, config, _read_json(path / "generation_config.json"), _read_json(path / "config.json").get("eos_token_id")
  )


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
  """A byte-level BPE of at most `vocab_size` tokens trained on `texts`; each digit is a token. Any text round trips."""
  least = 256 + 2
  if vocab_size < least:
    raise SettingError(f"vocab_size={vocab_size}: a byte-level tokenizer needs at least {least}")
  backend = tokenizers.Tokenizer(tokenizers.models.BPE())
  backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
    [
      tokenizers.pre_tokenizers.Split(tokenizers.Regex(_QWEN), "isolated"),
      tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  backend.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=[END, PAD],
    initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  backend.train_from_iterator(texts, trainer)
  return _from_scratch(backend)


def word_level(texts: Iterable[str]) -> Tokenizer:
  """A closed vocabulary of the words of `texts`: a word with the space before it, a digit, a newline are a token each.

  Words outside the vocabulary are spelled in characters, so that every text of printable ASCII and of the characters
  of `texts` round trips.
  """
  texts = list(texts)
  letters = sorted(set().union(*texts))
  words = sorted({piece for text in texts for piece in _WORDS.findall(text)})
  vocab = {token: i for i, token in enumerate(dict.fromkeys([END, PAD, UNKNOWN, *_PRINTABLE, *letters, *words]))}
  # A BPE without merges spells; `ignore_merges` takes a piece whole where the vocabulary has it.
  backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], unk_token=UNKNOWN, ignore_merges=True))
  backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(_WORDS.pattern), "isolated")
  backend.decoder = tokenizers.decoders.Fuse()
  backend.add_special_tokens([END, PAD])
  return _from_scratch(backend)


_MARK = "\ue000question\ue000"  # private-use characters, in nobody's template
_PRINTABLE = ["\n", *(c for c in string.printable if c == " " or not c.isspace())]


def _from_scratch(backend: tokenizers.Tokenizer) -> Tokenizer:
  config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END,
    "pad_token": PAD,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 1 << 30,
  }
  return Tokenizer(backend, config)


class _Generation(jinja2.ext.Extension):
  """`{% generation %}`, with which some templates mark what an assistant says: shown as it is."""

  tags = frozenset({"generation"})

  def parse(self, parser):
    next(parser.stream)
    return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.cache
def _compiled(template: str) -> jinja2.Template:
  """The environment that chat templates are written for."""
  env = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
  )

  def raise_exception(message):
    raise jinja2.TemplateError(message)

  def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

  env.filters["tojson"] = tojson
  env.globals["raise_exception"] = raise_exception
  # Llama's default day: a run's prompts do not change overnight.
  env.globals["strftime_now"] = datetime.date(2024, 7, 26).strftime
  return env.from_string(template)


def _content(token: str | dict | None) -> str | None:
  return token.get("content") if isinstance(token, dict) else token


def _as_list(value) -> list:
  if value is None:
    return []
  return list(value) if isinstance(value, (list, tuple)) else [value]


def _read_json(path: pathlib.Path) -> dict:
  if not path.is_file():
    return {}
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise SettingError(f"tokenizer: {path} is not JSON ({_line(error)}); download it again") from error


def _write_json(path: pathlib.Path, value: dict) -> None:
  path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _line(error: Exception) -> str:
  return str(error).split("\n")[0][:200]
