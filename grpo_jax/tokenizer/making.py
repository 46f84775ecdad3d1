"""Makes tokenizers from texts, for models that are trained from scratch.

`train_bpe` learns the pieces of a byte-level BPE; `word_level` has a closed vocabulary of words.
Their tokenizers are saved and loaded like any other.
"""

import re
import string
from collections.abc import Iterable

import tokenizers

from grpo_jax.errors import SettingError
from grpo_jax.tokenizer.tokenizer import Tokenizer

END = "<|endoftext|>"
PAD = "<|pad|>"
UNKNOWN = "<|unknown|>"

# How `word_level` splits a text: GSM8K's answer mark, an operator between spaces, a word with the
# space before it, one digit, a newline, any other character with the space before it.
_WORDS = re.compile(r"#### | [-+*/=] | ?[A-Za-z]+|[0-9]|\n| ?[^\sA-Za-z0-9]|\s")
# How `train_bpe` splits a text before it learns: as Qwen2 and Qwen3 do, each digit by itself.
_QWEN = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRINTABLE = ["\n", *(c for c in string.printable if c == " " or not c.isspace())]


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
  """Trains a byte-level BPE of at most `vocab_size` tokens, of which each digit is one."""
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
  return _with_config(backend)


def word_level(texts: Iterable[str]) -> Tokenizer:
  """Returns a tokenizer whose tokens are the words of `texts`, each with the space before it.

  A digit and a newline are a token each. Words outside the vocabulary are spelled in characters, so
  that every text of printable ASCII and of the characters of `texts` round trips.
  """
  texts = list(texts)
  letters = sorted(set().union(*texts))
  words = sorted({word for text in texts for word in _WORDS.findall(text)})
  tokens = dict.fromkeys([END, PAD, UNKNOWN, *_PRINTABLE, *letters, *words])
  vocab = {token: i for i, token in enumerate(tokens)}
  # A BPE without merges spells a word in characters; `ignore_merges` takes it whole if the
  # vocabulary has it.
  backend = tokenizers.Tokenizer(
    tokenizers.models.BPE(vocab, [], unk_token=UNKNOWN, ignore_merges=True)
  )
  backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(
    tokenizers.Regex(_WORDS.pattern), "isolated"
  )
  backend.decoder = tokenizers.decoders.Fuse()
  backend.add_special_tokens([END, PAD])
  return _with_config(backend)


def _with_config(backend: tokenizers.Tokenizer) -> Tokenizer:
  """Returns a Tokenizer with the tokenizer_config.json that transformers needs to read it."""
  config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END,
    "pad_token": PAD,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 1 << 30,
  }
  return Tokenizer(backend, config)
