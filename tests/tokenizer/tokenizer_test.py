"""Tokenizers: round trips, special tokens in a user's text, chat templates, stop tokens, steps,
transformers.
"""

import json

import pytest
import tokenizers

from grpo_jax.errors import DataError, SettingError
from grpo_jax.tokenizer import making, reading, steps
from grpo_jax.tokenizer.tokenizer import Tokenizer

TEXTS = [
  "Tom has 12 apples and buys 3 more.\nHow many apples does Tom have?",
  "12 + 3 = 15\nTom has 15 apples.\n#### 15",
  "Ann's box costs $1,204.50; she has €7 – naïve?",
]
CHATML = """{%- set role = 'user' %}
{% for m in messages %}
    {%- if loop.first and m.role not in ['system', role] %}{{ raise_exception('roles') }}{% endif %}
  {% generation %}{{ '<|im_start|>' + m.role + '\\n' + (m.content | trim) + '<|im_end|>\\n' }}{% endgeneration %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def make(name):
  return making.train_bpe(TEXTS, 300) if name == "bpe" else making.word_level(TEXTS)


def chat_folder(folder, template=CHATML, **config):
  """A folder like Qwen's: byte-level, ChatML, two stop tokens, a pad that is none of them."""
  making.train_bpe(TEXTS, 300).save(folder)
  backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
  backend.save(str(folder / "tokenizer.json"))
  read = json.loads((folder / "tokenizer_config.json").read_text())
  read |= {
    "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
    "chat_template": template,
  } | config
  (folder / "tokenizer_config.json").write_text(json.dumps(read))
  stops = [backend.token_to_id("<|im_end|>"), backend.token_to_id("<|endoftext|>")]
  (folder / "generation_config.json").write_text(
    json.dumps({"eos_token_id": stops, "temperature": 0.6})
  )
  return folder


@pytest.mark.parametrize("name", ["bpe", "word"])
@pytest.mark.parametrize(
  "text", [*TEXTS, "", " ", "\n\n  x\n", "Zebra quagga ~ {}[]", "007", "a  b   c", "don't"]
)
def test_round_trip(name, text):
  t = make(name)
  assert t.decode(t.encode(text)) == text
  assert all(0 <= i < t.vocab_size for i in t.encode(text))


@pytest.mark.parametrize("name", ["bpe", "word"])
def test_save_and_load(name, tmp_path):
  t = make(name)
  t.save(tmp_path)
  again = reading.load(tmp_path)
  assert [again.encode(x) for x in TEXTS] == [t.encode(x) for x in TEXTS]
  assert (
    (again.eos_ids, again.pad_id, again.vocab_size)
    == (t.eos_ids, t.pad_id, t.vocab_size)
    == ((0,), 1, t.vocab_size)
  )


@pytest.mark.parametrize(
  "template, message",
  [
    ("{{ messages.append(1) }}", "is unsafe"),
    ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "is unsafe"),
    ("{{ raise_exception('only\\nsystem') }}", "only; "),
    ("{% if %}", "xpected"),
    ("{{ 1 + messages }}", "unsupported operand"),
    ("always the same", "does not show the user's message"),
  ],
)
def test_chat_template_is_sandboxed_and_its_errors_are_one_line(template, message, tmp_path):
  t = reading.load(chat_folder(tmp_path, template))
  with pytest.raises(DataError, match=f"^chat_template: [^\n]*{message}[^\n]*$"):
    t.render("x", chat=True)


def test_no_chat_template():
  with pytest.raises(SettingError, match="chat=True"):
    make("word").render("x", chat=True)


def test_plain_template():
  t = make("word")
  # braces of a question are its own
  assert t.decode(t.render("Tom {has} {question}")) == "Tom {has} {question}\n"
  assert t.decode(t.render("Tom", "Q: {question}\nA: {x}")) == "Q: Tom\nA: {x}"
  with pytest.raises(SettingError, match="template='no slot'"):
    t.render("x", "no slot")


@pytest.mark.parametrize("name", ["bpe", "word"])
@pytest.mark.parametrize(
  "pieces, ends",
  [
    ([], []),
    (["", "0"], [1]),  # "" stands for the stop token
    ([" has", "\n", "1", "2", ""], [1, 4]),
    (["1", "\n", "2", "\n", ""], [1, 4]),  # what follows the last line is the last step's
    (["\n", "1", "\n", "\n", " ", "\n", "2"], [2, 6]),  # blank lines are no steps
    (["\n", "\n"], [1]),
  ],
)
def test_step_ends(name, pieces, ends):
  t = make(name)
  tokens = [i for piece in pieces for i in (t.encode(piece) or [t.eos_id])]

  assert t.step_ends(tokens) == ends == steps.step_ends(pieces, steps.pattern("line"))


def test_errors(tmp_path):
  with pytest.raises(DataError, match="no tokenizer.json"):
    reading.load(tmp_path)
  (tmp_path / "tokenizer.json").write_text("{")
  with pytest.raises(DataError, match="tokenizer.json is not JSON"):
    reading.load(tmp_path)
  make("word").save(tmp_path)
  (tmp_path / "tokenizer_config.json").write_text("{")
  with pytest.raises(DataError, match="is not JSON"):
    reading.load(tmp_path)
  assert (
    Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")), {}).eos_ids == ()
  )
