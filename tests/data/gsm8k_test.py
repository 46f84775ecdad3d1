import json
import os
import socket
import subprocess
import sys
import time
from fractions import Fraction

import pytest
from ml_collections import ConfigDict

from grpo_jax.data import gsm8k
from grpo_jax.errors import DataError, SettingError
from grpo_jax.rewards.math import answer_correct, number, well_formed
from grpo_jax.types import STOPPED, Completion, Example

ROWS = [
  {
    "question": "How many?",
    "answer": "Half is 48/2=<<48/2=24>>24.\nIn all 48+24=<<48+24=72>>72.\n#### 72",
  },
  {"question": "And “now”?", "answer": "It is $<<1000*2=2000>>2,000.\n#### 2,000"},
]


def _cfg(annotations=False):
  return ConfigDict({"annotations": annotations})


@pytest.fixture
def folder(tmp_path):
  for split in ("train", "test"):
    (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
  return tmp_path


def test_folder_of_jsonl(folder):
  examples = gsm8k.source("train", str(folder), _cfg())
  assert [example.answer for example in examples] == ["72", "2,000"]
  assert examples[0].solution == "Half is 48/2=24.\nIn all 48+24=72.\n#### 72"
  assert gsm8k.source("train", str(folder), _cfg(True))[0].solution == ROWS[0]["answer"]


def test_tensorflow_datasets_folder(folder, monkeypatch):
  """The real builder, fed from local files, written as array_record and read back without
  TensorFlow.
  """
  import tensorflow_datasets.text

  builder = tensorflow_datasets.builder(
    "gsm8k", data_dir=folder / "tfds", file_format="array_record"
  )
  monkeypatch.setattr(
    builder,
    "_split_generators",
    lambda _: {
      split: builder._generate_examples(folder / f"{split}.jsonl") for split in ("train", "test")
    },
  )
  builder.download_and_prepare()
  examples = gsm8k.source("test", str(folder / "tfds"), _cfg())
  expected = gsm8k.source("test", str(folder), _cfg())
  assert sorted(examples) == sorted(expected) and len(examples) == 2
  _read_in_a_new_process(folder / "tfds")
  with pytest.raises(SettingError, match="no gsm8k split 'dev'"):
    gsm8k.source("dev", str(folder / "tfds"), _cfg())


def _read_in_a_new_process(folder):
  """Where nothing has registered the builder yet, and nothing may load TensorFlow."""
  code = f"""
import sys
from ml_collections import ConfigDict
from grpo_jax.data import gsm8k
assert len(gsm8k.source("train", {str(folder)!r}, ConfigDict({{"annotations": False}}))) == 2
assert "tensorflow" not in sys.modules
"""
  subprocess.run(
    [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.getcwd()}, check=True
  )


def test_download_that_fails_says_what_works(tmp_path, monkeypatch):
  import tensorflow_datasets

  def builder(*args, **kwargs):
    raise ConnectionError("no route to host\nmore")

  monkeypatch.setattr(tensorflow_datasets, "builder", builder)
  monkeypatch.setattr(gsm8k, "_answers", lambda _: True)
  with pytest.raises(
    SettingError, match="data.path = '': .*no route to host.* folder with train.jsonl"
  ) as error:
    gsm8k.source("train", "", _cfg())
  assert "\n" not in str(error.value)


def test_without_a_network_nothing_is_tried_for_minutes(tmp_path, monkeypatch):
  import tensorflow_datasets

  monkeypatch.setattr(tensorflow_datasets.core.constants, "DATA_DIR", str(tmp_path))
  monkeypatch.setattr(gsm8k, "HOST", "http://localhost:9")  # discard: nobody listens
  monkeypatch.setattr(
    tensorflow_datasets, "builder", lambda *_, **__: pytest.fail("began a download")
  )
  with pytest.raises(
    SettingError, match="data.path='': gsm8k is not in .* needs a network .*folder with train.jsonl"
  ):
    gsm8k.source("train", "", _cfg())


def test_a_host_that_says_nothing_is_waited_for_no_longer_than_that(monkeypatch):
  monkeypatch.setattr(gsm8k, "PATIENCE", 0.2)
  with socket.create_server(("localhost", 0)) as silent:
    start = time.perf_counter()
    assert not gsm8k._answers(f"http://localhost:{silent.getsockname()[1]}")
  assert time.perf_counter() - start < 5


def test_what_was_downloaded_before_needs_no_network(tmp_path, monkeypatch):
  monkeypatch.setattr(gsm8k, "_answers", lambda _: False)
  (tmp_path / "1.0.0").mkdir()
  (tmp_path / "1.0.0" / "dataset_info.json").write_text("{}")
  gsm8k._check_network(tmp_path)


def test_missing_files(tmp_path):
  for path in (tmp_path, tmp_path / "nowhere"):
    with pytest.raises(
      SettingError, match="data.path = .*looked for train.jsonl.*give a folder with"
    ) as error:
      gsm8k.source("train", str(path), _cfg())
    assert repr(str(path)) in str(error.value) and "\n" not in str(error.value)


def test_line_without_answer(folder):
  (folder / "train.jsonl").write_text('{"question": "a", "answer": "it is 2"}\n')
  with pytest.raises(DataError, match='train.jsonl, line 1: field "answer" has no'):
    gsm8k.source("train", str(folder), _cfg())


def forms(value):
  """Returns texts of a whole number or decimal as models write it after `####`, and texts that are
  another answer.
  """
  plain = str(value) if value.denominator == 1 else str(float(value))
  sign, digits = ("-", plain[1:]) if plain[0] == "-" else ("", plain)
  whole, _, decimals = digits.partition(".")
  grouped = f"{int(whole):,}" + (f".{decimals}" if decimals else "")
  longer = digits if decimals else f"{digits}.00"
  right = [
    plain,
    f" {plain} ",
    f"{sign}{grouped}",
    f"{sign}{longer}",
    f"{sign}{digits}0" if decimals else f"{plain}.",
  ]
  right += [
    f"{sign}${grouped}",
    f"${sign}{grouped}",
    f"{sign}$ {digits}",
    f"{plain}%",
    f"{plain} $",
    f"{sign}0{digits}",
  ]
  right += [
    f"**{plain}**",
    f"\\boxed{{{plain}}}",
    f"$\\boxed{{{sign}{grouped}}}$",
    f"**${plain}**",
    f"${plain}$",
  ]
  right += [
    f"**\\boxed{{{plain}}}**",
    f"{sign}\\${grouped}",
    f"\\({plain}\\)",
    f"{sign}{grouped.replace(',', '{,}')}",
  ]
  wrong = [
    f"{plain}1",
    f"1{digits}",
    f"{plain} or so",
    f"{plain} 1",
    f"{plain}/3",
    f"{plain}+1",
    f"about {plain}",
  ]
  wrong += [
    f"**{plain}",
    f"\\boxed{{{plain}",
    f"{sign}{digits[:-1]}",
    f"{sign}{whole}.{decimals}1",
    f"{plain}e1",
    "",
    "**",
  ]
  wrong += [
    f"\\boxed{{{plain}1}}",
    f"**{plain}1**",
    f"{plain}\\boxed{{{plain}}}",
    f"{plain}, {plain}",
    f"--{digits}",
  ]
  wrong += [f"{digits}" if sign else f"-{digits}"] if value else []
  return right, wrong


@pytest.mark.parametrize(
  "value", [0, 7, 72, -5, 1000, 1234567, Fraction(5, 2), Fraction(-1, 4), Fraction(24681, 20)]
)
def test_forms_of_an_answer(value):
  check_forms(Fraction(value))


def check_forms(value):
  """Every form of the value is right, alone and after a line of work; every other answer is wrong."""
  example = Example("", "", str(value) if value.denominator == 1 else str(float(value)), {})
  for reward, texts in zip((1.0, 0.0), forms(value)):
    for text in texts:
      for written in (f"#### {text}", f"so it is 3\n#### {text}\n"):
        assert answer_correct(example, Completion(written, [0], STOPPED, [0])) == reward, (
          value,
          written,
        )


@pytest.mark.skipif(
  not os.environ.get("GSM8K_DIR"),
  reason="GSM8K_DIR names no folder with train.jsonl and test.jsonl",
)
def test_forms_of_the_real_answers():
  """Of every answer of the two files; each value once."""
  values = set()
  for split in ("train", "test"):
    values |= {
      number(example.answer) for example in gsm8k.source(split, os.environ["GSM8K_DIR"], _cfg())
    }
  assert len(values) > 900
  for value in values:
    check_forms(value)


@pytest.mark.skipif(
  not os.environ.get("GSM8K_DIR"),
  reason="GSM8K_DIR names no folder with train.jsonl and test.jsonl",
)
def test_the_real_files():
  for split, size in (("train", 7473), ("test", 1319)):
    examples = gsm8k.source(split, os.environ["GSM8K_DIR"], _cfg())
    assert len(examples) == size
    for example in examples:
      assert "<<" not in example.solution and number(example.answer) is not None
      completion = Completion(example.solution, [0], STOPPED, [0])
      assert answer_correct(example, completion) == 1.0 and well_formed(example, completion) == 1.0
