"""A tokenizer.json, checked before the library reads it."""

import json
import re

import pytest

from grpo_jax.errors import DataError
from grpo_jax.tokenizer import backend, making


@pytest.fixture
def folder(tmp_path):
  making.train_bpe(["ab abc abcd"] * 9, 300).save(tmp_path)
  return tmp_path


def edit(folder, **changes) -> None:
  file = folder / backend.FILE
  file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_good_file_is_read(folder):
  assert backend.load("tokenizer=x", folder).encode("abc").ids


LONG = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 9}] * 2


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"model": {}}, "has no model; download it again"),
    ({"model": {"type": "Rule"}}, "has a model of type 'Rule'; BPE, WordLevel"),
    ({"decoder": {"type": "FixedLength"}}, "has a decoder of type 'FixedLength'"),
    (
      {"normalizer": {"type": "Sequence", "normalizers": [{"type": "X"}]}},
      "normalizer of type 'X'",
    ),
    ({"normalizer": {"type": "Sequence", "normalizers": LONG}}, "too long replacements"),
    ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 33}}, "too many parts"),
    ({"added_tokens": [{"id": -1}]}, "has added_tokens[0].id=-1"),
    ({"model": {"type": "BPE", "vocab": 3}}, "cannot be read ("),
  ],
)
def test_what_is_refused(folder, changes, said):
  edit(folder, **changes)
  with pytest.raises(DataError, match=f"^tokenizer=x: tokenizer.json .*{re.escape(said)}"):
    backend.load("tokenizer=x", folder)


def test_a_folder_without_the_file(tmp_path):
  with pytest.raises(DataError, match="^tokenizer=x: no tokenizer.json in the folder"):
    backend.load("tokenizer=x", tmp_path)


class PanicException(BaseException):
  """As the library raises it."""


@pytest.mark.parametrize("error", [ValueError("one\ntwo"), PanicException("one\ntwo")])
def test_an_error_of_the_library_becomes_a_line(error):
  def fails(*args):
    raise error

  with pytest.raises(DataError, match=r"^it fails \(one\); download it again$"):
    backend.guarded("it fails", fails)


def test_an_interrupt_stays_one():
  def stops():
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    backend.guarded("it fails", stops)
