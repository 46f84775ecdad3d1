import gzip
import json
import os

import pytest
from ml_collections import ConfigDict

from grpo_jax.data import gsm8k, jsonl, step_labels
from grpo_jax.errors import DataError, GrpoError, SettingError
from grpo_jax.types import Example


def _cfg(question="question", answer="answer", solution="", choices=""):
  return ConfigDict(
    {"question": question, "answer": answer, "solution": solution, "choices": choices}
  )


def _write(path, *rows):
  path.write_text(
    "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
  )
  return str(path)


def test_file_and_folder(tmp_path):
  row = {"question": "1 + 1?", "answer": "1 + 1 = 2\n#### 2", "source": "me"}
  file = _write(tmp_path / "train.jsonl", row, "", {"question": "2?", "answer": 2.5})
  expected = [
    Example("1 + 1?", "1 + 1 = 2\n#### 2", "2", {"source": "me"}),
    Example("2?", "2.5", "2.5", {}),
  ]
  assert jsonl.source("train", file, _cfg()) == expected
  assert jsonl.source("train", str(tmp_path), _cfg()) == expected


def test_what_follows_the_line_of_the_answer_is_not_the_answer(tmp_path):
  """As a reward reads it: of "#### 2, then a remark" the answer is 2."""
  solution = "1 + 1 = 2\n#### 2\nThis was easy."
  (found,) = jsonl.source(
    "train", _write(tmp_path / "a.jsonl", {"question": "1 + 1?", "answer": solution}), _cfg()
  )
  assert (found.answer, found.solution) == ("2", solution)


@pytest.mark.parametrize(
  "answer, expected",
  [
    ("text\n#### Step 1\nfoo", None),
    ("#### Step 1\nfoo\n#### Step 2\nso \\boxed{7}", None),
    ("#### Step 1\nfoo\n#### seven\n\n", "seven"),
    ("text\n#### $1,000\nThis was easy.", "$1,000"),
    ("text\n####\n", None),
  ],
)
def test_a_heading_within_an_answer_does_not_split_it(tmp_path, answer, expected):
  file = _write(tmp_path / "a.jsonl", {"question": "?", "answer": answer})
  (found,) = jsonl.source("train", file, _cfg())
  assert (found.answer, found.solution) == (expected or answer.strip(), answer)


def test_field_names(tmp_path):
  file = _write(tmp_path / "a.jsonl", {"q": "1 + 1?", "work": "one and one", "a": "2", "id": 7})
  assert jsonl.source("train", file, _cfg("q", "a", "work")) == [
    Example("1 + 1?", "one and one", "2", {"id": 7})
  ]


def _choice(path, answer, options=("Oslo", "Bern", "Rome"), **more):
  """The example of one question with options."""
  line = {"question": "Where?", "answer": answer, "options": options} | more
  (found,) = jsonl.source("train", _write(path / "a.jsonl", line), _cfg(choices="options"))
  return found


def test_multiple_choice(tmp_path):
  question = "Where?\nA) Oslo\nB) Bern\nC) Rome"
  meta = {"options": ["Oslo", "Bern", "Rome"], "id": 7}
  assert _choice(tmp_path, "B", id=7) == Example(question, "B", "B", meta)
  assert _choice(tmp_path, "Not Oslo.\n#### b", id=7) == Example(
    question, "Not Oslo.\n#### b", "B", meta
  )
  file = _write(tmp_path / "a.jsonl", {"q": "2?", "a": 0, "work": "as it is", "of": [2, 2.5]})
  found = jsonl.source("train", file, _cfg("q", "a", "work", "of"))
  assert found == [Example("2?\nA) 2\nB) 2.5", "as it is", "A", {"of": [2, 2.5]})]


@pytest.mark.parametrize(
  "answer, options, letter",
  [
    ("B", ("Oslo", "Bern", "Rome"), "B"),
    ("(c)", ("Oslo", "Bern", "Rome"), "C"),
    (0, ("Oslo", "Bern", "Rome"), "A"),
    ("2", ("Oslo", "Bern", "Rome"), "C"),
    (" Bern ", ("Oslo", "Bern", "Rome"), "B"),
    ("Bern", ("Bern, or so", "Berne", " Bern"), "C"),
    (1, (0, 4, 2, 6), "B"),  # a number is an index, unless an option is that number
    (2, (0, 4, 2, 6), "C"),
    (2, ("1", "2", "0"), "C"),
    ("6", (0, 4, 2, 6), "D"),  # no index
    ("2.5", (1.5, 2.5), "B"),
    (2.5, (1.5, 2.5), "B"),
    ("x", ("x", "y"), "A"),  # no letter of an option
    ("B", ("A", "B"), "B"),
    ("B", ("same", "same"), "B"),
  ],
)
def test_the_answer_is_a_letter_an_index_or_a_text(tmp_path, answer, options, letter):
  assert _choice(tmp_path, answer, options).answer == letter


@pytest.mark.parametrize(
  "answer, options, message",
  [
    (
      "Paris",
      ("Oslo", "Bern"),
      "'Paris', which is none of the options; give the letter of one of the 2 options",
    ),
    ("bern", ("Oslo", "Bern"), "none of the options"),
    ("C", ("Oslo", "Bern"), "none of the options"),
    (2, ("Oslo", "Bern"), "'2', which is none of the options"),
    (-1, ("Oslo", "Bern"), "none of the options"),
    ("A", ("B", "A"), "'A', which may mean A or B"),
    ("1", ("1", "2"), "may mean A or B"),
    (3, (1, 3, 5, 7), "'3', which may mean B or D"),
    ("same", ("same", "same", "other"), "may mean A or B"),
    (True, ("Oslo", "Bern"), 'field "answer" should be text'),
    (None, ("Oslo", "Bern"), 'field "answer" should be text'),
    ("A", ("Oslo",), 'field "options" should be a list of 2 to 26 texts'),
    ("A", tuple(range(27)), 'field "options" should be a list of 2 to 26 texts'),
    ("A", "Oslo, Bern", 'field "options" should be a list'),
    ("A", ("Oslo", ""), 'field "options" should be text that is not empty'),
    ("A", ("Oslo", ["Bern"]), 'field "options" should be text'),
  ],
)
def test_bad_choices(tmp_path, answer, options, message):
  with pytest.raises(DataError, match=message) as error:
    _choice(tmp_path, answer, options)
  assert "a.jsonl, line 1" in str(error.value) and "\n" not in str(error.value)


def test_options_that_are_missing(tmp_path):
  file = _write(tmp_path / "a.jsonl", {"question": "a", "answer": "B"})
  with pytest.raises(DataError, match='line 1: no field "options"; the line has answer, question'):
    jsonl.source("train", file, _cfg(choices="options"))


@pytest.mark.parametrize(
  "value, text", [(0.00001, "0.00001"), (1e16, "10000000000000000"), (2.5, "2.5")]
)
def test_numbers_are_written_out(tmp_path, value, text):
  file = _write(tmp_path / "a.jsonl", {"question": "a", "answer": value})
  (found,) = jsonl.source("train", file, _cfg())
  assert found.answer == text


def test_unicode_stays_on_its_line(tmp_path):
  file = tmp_path / "a.jsonl"
  text = "a\u2028b\u0085c"
  file.write_bytes(
    b"\xef\xbb\xbf" + json.dumps({"question": text, "answer": "1"}, ensure_ascii=False).encode()
  )
  assert jsonl.source("train", str(file), _cfg())[0].question == text


@pytest.mark.parametrize(
  "line, message",
  [
    ('{"question": "a", "answer"', "is not JSON"),
    ("[1, 2]", "should be a JSON object, and is list"),
    (
      '{"question": "a"}',
      'no field "answer"; the line has question; data.jsonl.answer=.answer. names it',
    ),
    ('{"question": "a", "answer": null}', 'field "answer"'),
    ('{"question": " ", "answer": "1"}', 'field "question"'),
    ('{"question": true, "answer": "1"}', 'field "question"'),
  ],
)
def test_bad_line(tmp_path, line, message):
  file = _write(tmp_path / "a.jsonl", {"question": "a", "answer": "1"}, "", line)
  with pytest.raises(DataError, match=message) as error:
    jsonl.source("train", file, _cfg())
  assert f"{file}, line 3" in str(error.value) and "\n" not in str(error.value)


def test_not_utf8(tmp_path):
  file = tmp_path / "a.jsonl"
  file.write_bytes(b'{"question": "a", "answer": "1"}\n{"question": "\xff", "answer": "1"}\n')
  with pytest.raises(DataError, match="line 2: is not UTF-8"):
    jsonl.source("train", str(file), _cfg())


def test_missing_files(tmp_path):
  for path, message in (
    ("", "data.path is empty"),
    (str(tmp_path / "x.jsonl"), "no such file or folder"),
  ):
    with pytest.raises(SettingError, match=message):
      jsonl.source("train", path, _cfg())
  _write(tmp_path / "train.jsonl", {"question": "a", "answer": "1"})
  with pytest.raises(
    SettingError, match="looked for test.jsonl in this folder, which has train.jsonl"
  ):
    jsonl.source("test", str(tmp_path), _cfg())
  with pytest.raises(DataError, match="has no line"):
    jsonl.source("train", _write(tmp_path / "empty.jsonl", ""), _cfg())


@pytest.mark.parametrize("field", ["question", "answer", "other"])
def test_half_of_a_character_is_told_its_line(tmp_path, field):
  row = {"question": "a", "answer": "b", "other": "c"}
  # written as two escapes, which are a character together
  pair = json.dumps(row | {field: "\U0001f600"})
  (tmp_path / "train.jsonl").write_text(pair + "\n" + json.dumps(row | {field: "x \ud800"}) + "\n")
  with pytest.raises(DataError, match="train.jsonl, line 2: holds half of a character"):
    jsonl.read(tmp_path / "train.jsonl")
  (tmp_path / "train.jsonl").write_text(pair + "\n")
  assert jsonl.read(tmp_path / "train.jsonl")[0][0][field] == "\U0001f600"


ROW = b'{"question": "1 + 1?", "answer": "2"}\n'


@pytest.mark.parametrize(
  "content, message",
  [
    (ROW + b'{"question": "a", "question": "b", "answer": "1"}', "line 2: .*the key 'question' is there twice"),
    (ROW + b'{"question": "a", "answer": "1", "meta": {"x": 1, "x": 2}}', "line 2: .*the key 'x' is there twice"),
    (ROW + b'{"question": "a", "answer": NaN}', 'line 2: field "answer" should be text .*, and is NaN'),
    (ROW + b'{"question": "a", "answer": -Infinity}', 'line 2: field "answer" should be text .*, and is -Infinity'),
    (ROW + b'{"question": "a", "answer": 1e999}', 'line 2: field "answer" should be text .*, and is Infinity'),
    (ROW + b'{"question": "a", "answer": "1",}', "line 2: is not JSON"),
    (ROW + b'{"question": "a"} {"answer": "1"}', "line 2: is not JSON: Extra data after '{\"question\": \"a\"} '"),
    (b"[\n" + ROW + b"]", "line 1: is not JSON"),
    (gzip.compress(ROW), "is compressed by gzip; give text in UTF-8 with one JSON object on each line"),
    (b"\x28\xb5\x2f\xfd\x04", "is compressed by zstd"),
    (b"PK\x03\x04\x14", "is a zip archive"),
    (b"PAR1\x15\x04", "is in the format parquet"),
    (ROW.decode().encode("utf-16"), "is text in UTF-16"),
    (b"\xfe\xff" + ROW.decode().encode("utf-16-be"), "is text in UTF-16"),
    (ROW.decode().encode("utf-16-le"), "line 1: is not JSON"),
    (ROW * 3 + b'{"question": "' + b"a " * 2_500_000 + b'", "answer": "1"}', "line 4: has more than 5000000 bytes"),
    (b"\0" * 5_000_001, "line 1: has more than 5000000 bytes"),
  ],
  ids=range(17),
)  # fmt: skip
def test_a_file_that_cannot_be_data(content, message, tmp_path):
  (tmp_path / "a.jsonl").write_bytes(content)
  with pytest.raises(DataError, match=message) as error:
    jsonl.source("train", str(tmp_path / "a.jsonl"), _cfg())
  assert str(error.value).startswith(f"{tmp_path}/a.jsonl") and "\n" not in str(error.value)


def test_a_whole_number_of_any_size_is_text(tmp_path):
  (tmp_path / "a.jsonl").write_text('{"question": "1 + 1?", "answer": %s}' % ("7" * 400))
  assert jsonl.source("train", str(tmp_path / "a.jsonl"), _cfg())[0].answer == "7" * 400


@pytest.mark.parametrize(
  "content", [b"\xef\xbb\xbf" + ROW, ROW.replace(b"\n", b"\r\n"), b"\n\r\n" + ROW + b"\n", ROW * 2]
)
def test_ways_to_write_lines(content, tmp_path):
  (tmp_path / "a.jsonl").write_bytes(content)
  found = jsonl.source("train", str(tmp_path / "a.jsonl"), _cfg())
  assert {(each.question, each.answer) for each in found} == {("1 + 1?", "2")}


def test_a_field_that_nobody_reads_may_be_nan(tmp_path):
  (tmp_path / "a.jsonl").write_bytes(b'{"question": "a", "answer": "1", "score": NaN}')
  assert jsonl.source("train", str(tmp_path / "a.jsonl"), _cfg())[0].meta["score"] != 0


@pytest.mark.parametrize("kind", ["pipe", "device", "link", "folder"])
@pytest.mark.parametrize("data", ["jsonl", "gsm8k", "step_labels"])
def test_what_is_no_file_is_not_read(kind, data, tmp_path):
  """A pipe that nobody writes to and a device have no end."""
  file = tmp_path / "train.jsonl"
  if kind == "pipe":
    os.mkfifo(file)
  elif kind == "folder":
    file.mkdir()
  elif kind == "link":
    file.symlink_to("/dev/zero")
  path = (
    "/dev/zero"
    if kind == "device" and data != "gsm8k"
    else str(tmp_path if data == "gsm8k" else file)
  )
  read = {
    "jsonl": lambda: jsonl.source("train", path, _cfg()),
    "gsm8k": lambda: gsm8k.source("train", path, ConfigDict({"annotations": False})),
    "step_labels": lambda: step_labels.read(path),
  }
  with pytest.raises(
    GrpoError, match="is a folder, a pipe or a device|looked for train.jsonl"
  ) as error:
    read[data]()
  assert "cannot be read" not in str(error.value)
