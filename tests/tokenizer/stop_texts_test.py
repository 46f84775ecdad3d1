"""Texts that end a completion are found wherever the tokens divide them, by search as the truth."""

import itertools

import jax
import numpy as np
import pytest
import tiny
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from grpo_jax.errors import SettingError
from grpo_jax.sampling import rollouts, sampler, stream
from grpo_jax.tokenizer import making, stop_texts
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import STOPPED, TRUNCATED

LETTERS = st.text("ab\nß", max_size=4)


def first_end(texts: list[bytes], stops: list[str]) -> int | None:
  """The first token with which the joined bytes hold a stop text, by searching them."""
  for n, text in enumerate(itertools.accumulate(texts)):
    if any(stop.encode() in text for stop in stops):
      return n
  return None


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
  st.lists(LETTERS, min_size=1, max_size=8),
  st.lists(LETTERS.filter(bool), min_size=1, max_size=3),
  st.data(),
)
def test_the_table_finds_the_first_end_that_a_search_finds(pieces, stops, data):
  tokens = [piece.encode() for piece in pieces]
  table = stop_texts.table(tokens, stops, len(tokens) + 2)
  ids = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=12))
  state, found = stop_texts.START, None
  for n, token in enumerate(ids):
    state = table[state, token]
    if state == len(table):
      found = n
      break
  assert found == first_end([tokens[i] for i in ids], stops)
  assert (table[:, len(tokens) :] == stop_texts.START).all()  # ids that the tokenizer lacks


def test_a_character_may_be_divided_between_tokens():
  tokens = ["é".encode()[:1], "é".encode()[1:], b"e"]
  table = stop_texts.table(tokens, ["é"], 3)
  assert table[table[0, 0], 1] == len(table) and table[table[0, 0], 2] == stop_texts.START


@pytest.mark.parametrize("kind", ["bpe", "words", "sentences"])
def test_the_bytes_of_tokens_are_those_of_a_text(kind):
  """Joined, the bytes of a text's tokens are the text, characters of several tokens included."""
  text = "Tom has 3 äpples…\n\nQuestion: 🍏?"
  if kind == "sentences":
    tokenizer = sentences()
  else:
    tokenizer = making.train_bpe([text] * 2, 300) if kind == "bpe" else making.word_level([text])
  found = stop_texts.token_bytes(tokenizer)
  ids = tokenizer.encode(text)
  joined = b"".join(found[i] for i in ids).decode()
  assert joined == tokenizer.decode([ids[0], *ids])[len(tokenizer.decode([ids[0]])) :]
  assert all(found[end] == b"" for end in tokenizer.eos_ids)
  if kind != "words":
    assert joined.strip() == text and len(ids) > len(text.split())


def sentences() -> Tokenizer:
  """A tokenizer as SentencePiece makes them, with a token for each byte that has none."""
  pieces = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁TomhasplQueti", "</s>"]
  vocab = {piece: i for i, piece in enumerate(pieces)}
  backend = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True, fuse_unk=True))
  backend.normalizer = tokenizers.normalizers.Replace(" ", "▁")
  backend.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
  )
  backend.add_special_tokens(["</s>"])
  return Tokenizer(backend, {"eos_token": "</s>"})


TEXTS = [chr(97 + token % 5) for token in range(tiny.V)]  # what each token of the tiny model says
STOPS = ["ab", "ccc"]


@pytest.mark.parametrize("slots", [0, 3])
@pytest.mark.parametrize("mesh", [tiny.ONE, (1, 2, 2, 2)])
def test_a_completion_ends_with_a_stop_text_and_is_the_same_until_there(mesh, slots):
  cfg = tiny.section("sampler", group=tiny.G, max_length=tiny.L, slots=slots * 4)
  table = stop_texts.table([text.encode() for text in TEXTS], STOPS, tiny.V)
  free, stopping = (
    sampler.make_sampler(tiny.decoder(mesh=mesh), cfg, (0,), each) for each in (None, table)
  )
  prompts = rollouts.to_device(tiny.layout(mesh), tiny.prompts())
  arguments = tiny.params(mesh=mesh), prompts, jax.random.key(0)
  whole, cut = (rollouts.to_host(make(*arguments)[0]) for make in (free, stopping))
  ended = 0
  for p, g in itertools.product(range(tiny.P), range(tiny.G)):
    ids = whole.tokens[p, g, : whole.lengths[p, g]]
    end = first_end([TEXTS[i].encode() for i in ids], STOPS)
    length = len(ids) if end is None else end + 1
    assert cut.lengths[p, g] == length
    np.testing.assert_array_equal(cut.tokens[p, g, :length], ids[:length])
    np.testing.assert_array_equal(cut.tokens[p, g, length:], 0)
    assert cut.ended[p, g] == (STOPPED if end is not None else whole.ended[p, g])
    ended += end is not None
  assert 5 < ended < tiny.P * tiny.G - 5
  forced = np.full((tiny.P, tiny.G), tiny.L, np.int32)
  by_length = rollouts.to_host(stopping(*arguments, forced)[0])
  assert (by_length.lengths[by_length.prompts.lengths > 0] == tiny.L).all()


def test_a_stream_ends_where_a_rollout_does():
  cfg = tiny.section("sampler", group=tiny.G, max_length=tiny.L)
  table = stop_texts.table([text.encode() for text in TEXTS], STOPS, tiny.V)
  made = sampler.make_sampler(tiny.decoder(), cfg, (0,), table)
  prompts = rollouts.to_device(tiny.layout(), tiny.prompts())
  *_, last = stream.parts(made, made.ready(tiny.params()), prompts, jax.random.key(0), 3)
  whole = rollouts.to_host(made(tiny.params(), prompts, jax.random.key(0))[0])
  np.testing.assert_array_equal(last.seen.tokens, whole.tokens)
  np.testing.assert_array_equal(last.seen.lengths, whole.lengths)


def test_a_stop_text_is_cut_from_the_text_and_kept_in_the_tokens():
  text = "a b\nc 7\n\nQuestion: d"
  tokenizer = making.train_bpe([text], 300)
  special = tokenizer.eos_id
  tokens, table = stop_texts.set_stops(tokenizer, ("\n\nQuestion:", "\n\nQuestion:"), 400)
  assert tokens == (special,) and table is not None and table.shape == (11, 400)
  ids = np.array(tokenizer.encode("a b\nc 7\n\nQuestion:"), np.int32)
  found = rollouts.completion(ids, len(ids), STOPPED, tokenizer)
  assert found.text == "a b\nc 7" and list(found.tokens) == ids.tolist()
  # the stop text belongs to the last step, and makes none of its own
  assert len(found.step_ends) == 2 and found.step_ends[-1] == len(ids) - 1
  other = np.array([*tokenizer.encode("a b"), special])
  assert rollouts.completion(other, len(other), STOPPED, tokenizer).text == "a b"
  assert rollouts.completion(ids[:3], 3, TRUNCATED, tokenizer).text == tokenizer.decode(ids[:3])


def test_a_special_token_ends_a_completion_by_its_id():
  tokenizer = making.train_bpe(["a b"], 300)
  end = tokenizer.decode([tokenizer.eos_id], skip_special=False)
  assert stop_texts.set_stops(tokenizer, (end,), 300) == ((tokenizer.eos_id,), None)
  assert tokenizer.stop_texts == ()


def test_a_text_around_a_special_token_is_refused():
  tokenizer = making.train_bpe(["a b"], 300)
  end = tokenizer.decode([tokenizer.eos_id], skip_special=False)
  with pytest.raises(SettingError, match="sampler.stop has .* is in no text; give it alone"):
    stop_texts.set_stops(tokenizer, (f"x{end}",), 300)
