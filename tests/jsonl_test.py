import json

import pytest
from ml_collections import ConfigDict

from grpo_jax.data import jsonl
from grpo_jax.errors import SettingError
from grpo_jax.types import Example


def _cfg(question="question", answer="answer", solution=""):
  return ConfigDict({"jsonl": {"question": question, "answer": answer, "solution": solution}})


def _write(path, *rows):
  path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
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
  (found,) = jsonl.source("train", _write(tmp_path / "a.jsonl", {"question": "1 + 1?", "answer": solution}), _cfg())
  assert (found.answer, found.solution) == ("2", solution)


def test_field_names(tmp_path):
  file = _write(tmp_path / "a.jsonl", {"q": "1 + 1?", "work": "one and one", "a": "2", "id": 7})
  assert jsonl.source("train", file, _cfg("q", "a", "work")) == [Example("1 + 1?", "one and one", "2", {"id": 7})]


def test_unicode_stays_on_its_line(tmp_path):
  file = tmp_path / "a.jsonl"
  text = "a\u2028b\u0085c"
  file.write_bytes(b"\xef\xbb\xbf" + json.dumps({"question": text, "answer": "1"}, ensure_ascii=False).encode())
  assert jsonl.source("train", str(file), _cfg())[0].question == text


@pytest.mark.parametrize(
  "line, message",
  [
    ('{"question": "a", "answer"', "is not JSON"),
    ("[1, 2]", "should be a JSON object, and is list"),
    ('{"question": "a"}', 'no field "answer"; the line has question'),
    ('{"question": "a", "answer": null}', 'field "answer"'),
    ('{"question": " ", "answer": "1"}', 'field "question"'),
    ('{"question": true, "answer": "1"}', 'field "question"'),
  ],
)
def test_bad_line(tmp_path, line, message):
  file = _write(tmp_path / "a.jsonl", {"question": "a", "answer": "1"}, "", line)
  with pytest.raises(SettingError, match=message) as error:
    jsonl.source("train", file, _cfg())
  assert f"{file}, line 3" in str(error.value) and "\n" not in str(error.value)


def test_not_utf8(tmp_path):
  file = tmp_path / "a.jsonl"
  file.write_bytes(b'{"question": "a", "answer": "1"}\n{"question": "\xff", "answer": "1"}\n')
  with pytest.raises(SettingError, match="line 2: is not UTF-8"):
    jsonl.source("train", str(file), _cfg())


def test_missing_files(tmp_path):
  for path, message in (("", "data.path is empty"), (str(tmp_path / "x.jsonl"), "no such file or folder")):
    with pytest.raises(SettingError, match=message):
      jsonl.source("train", path, _cfg())
  _write(tmp_path / "train.jsonl", {"question": "a", "answer": "1"})
  with pytest.raises(SettingError, match="looked for test.jsonl in this folder, which has train.jsonl"):
    jsonl.source("test", str(tmp_path), _cfg())
  with pytest.raises(SettingError, match="has no line"):
    jsonl.source("train", _write(tmp_path / "empty.jsonl", ""), _cfg())
