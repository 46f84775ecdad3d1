"""Finds texts that end a completion, however the tokens of a model divide them.

A stop text such as "\\n\\nQuestion:" may be one token or several, and may begin or end inside a
token. The sampler follows an automaton over bytes (Aho and Corasick, 1975), one step a token: its
state says how much of a stop text the completion ends in. `table` has the next state of every state
and token, so a step is one lookup.
"""

import re
from collections.abc import Sequence

import numpy as np

from grpo_jax.errors import SettingError
from grpo_jax.tokenizer.tokenizer import Tokenizer

Table = np.ndarray  # [states, vocab] uint16, see `table`
START = 0  # the state in which no stop text has begun
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # SentencePiece's name of a byte


def set_stops(
  tokenizer: Tokenizer, texts: Sequence[str], vocab: int
) -> tuple[tuple[int, ...], Table | None]:
  """Returns the tokens that end a completion, and the table of other texts that do, if any.

  Args:
    tokenizer: is told of these texts, which it cuts.
    texts: `sampler.stop`: special tokens, or texts of any length.
    vocab: of the model.
  """
  for text in texts:
    inside = [token for token in tokenizer.special_tokens if token in text and token != text]
    if inside:
      raise SettingError(
        f"sampler.stop has {text!r}: the special token {inside[0]!r} is in no text; give it alone, "
        "or the text without it"
      )
  special = {text: token for text in texts if (token := tokenizer.special_id(text)) is not None}
  tokenizer.stop_texts = tuple(dict.fromkeys(text for text in texts if text not in special))
  tokens = tuple(dict.fromkeys((*tokenizer.eos_ids, *special.values())))
  if not tokenizer.stop_texts:
    return tokens, None
  return tokens, table(token_bytes(tokenizer), tokenizer.stop_texts, vocab)


def table(tokens: Sequence[bytes], texts: Sequence[str], vocab: int) -> Table:
  """Returns the next state of each state and token, [states, vocab] uint16.

  The state `states` means that a stop text has been written, wherever in a token it ended.

  Args:
    tokens: the bytes of each token, as `token_bytes` returns them.
    texts: the stop texts, at least one.
    vocab: of the model; ids that the tokenizer lacks begin anew.
  """
  step = _automaton([text.encode() for text in texts])  # [states + 1, 256]
  states, width = len(step) - 1, max(map(len, tokens))
  lengths = np.array([len(token) for token in tokens])
  # zeros behind the end of a token are never read
  padded = np.frombuffer(b"".join(token.ljust(width, b"\0") for token in tokens), np.uint8)
  padded = padded.reshape(len(tokens), width)
  found = np.repeat(np.arange(states, dtype=np.uint16)[:, None], len(tokens), axis=1)
  for place in range(width):
    longer = np.flatnonzero(lengths > place)
    found[:, longer] = step[found[:, longer], padded[longer, place]]
  whole = np.full((states, vocab), START, np.uint16)
  whole[:, : len(tokens)] = found[:, :vocab]
  return whole


def _automaton(patterns: Sequence[bytes]) -> np.ndarray:
  """Returns the next state of each state and byte, [states + 1, 256]; the last state stays.

  A state is a beginning of a pattern, and the last state says that a whole pattern was read.
  """
  prefixes = list(dict.fromkeys(p[:n] for p in patterns for n in range(len(p))))
  number = {prefix: state for state, prefix in enumerate(prefixes)}
  step = np.full((len(prefixes) + 1, 256), len(prefixes), np.uint16)
  for prefix, state in number.items():
    for byte in range(256):
      text = prefix + bytes([byte])
      if not any(pattern in text for pattern in patterns):
        step[state, byte] = next(
          number[text[i:]] for i in range(len(text) + 1) if text[i:] in number
        )
  return step


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
  """Returns the bytes that each token adds to a text; special tokens, which are cut, add none."""
  texts, pieces = tokenizer.all_texts(), tokenizer.pieces()
  alphabet = _byte_alphabet()
  found = []
  for text, piece in zip(texts, pieces):
    if "\ufffd" not in text:
      found.append(text.encode())
    elif byte := BYTE.fullmatch(piece):
      found.append(bytes([int(byte[1], 16)]))
    else:
      found.append(bytes(alphabet[letter] for letter in piece if letter in alphabet))
  return found


def _byte_alphabet() -> dict[str, int]:
  """Returns the byte that each letter of a byte-level BPE stands for, as GPT-2 wrote them."""
  printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [byte for byte in range(256) if byte not in printed]
  letters = {chr(byte): byte for byte in printed}
  return letters | {chr(256 + n): byte for n, byte in enumerate(others)}
