"""GSM8K: 7473 training and 1319 test problems (Cobbe et al., arXiv 2110.14168).

`data.path` is a folder with `train.jsonl` and `test.jsonl` as its authors publish them; or a tensorflow-datasets folder
that holds gsm8k as array_record; or empty: tensorflow-datasets' own folder, into which it is downloaded once.
TensorFlow is not needed.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

from grpo_jax.data import jsonl
from grpo_jax.errors import SettingError
from grpo_jax.types import Example

_ANNOTATION = re.compile(r"<<[^<>\n]*>>")


def source(split: str, path: str, cfg) -> Sequence[Example]:
  """The split "train" or "test".

  Args:
    split: "train" or "test"; tensorflow-datasets also has "train_socratic", "test_socratic".
    path: `data.path`.
    cfg: the data section; `cfg.gsm8k.annotations` keeps the calculator's `<<48/2=24>>` in the solutions.

  Raises:
    SettingError: the files are not there, or a line is malformed.
  """
  annotations = cfg.gsm8k.annotations
  if path and not list(pathlib.Path(path).glob("gsm8k/*")):
    return jsonl.read(
      _jsonl_file(split, path),
      lambda row, where: example(
        jsonl.text(row, "question", where), jsonl.text(row, "answer", where), annotations, where
      ),
    )
  return _Records(_data_source(split, path), annotations)


def example(question: str, answer: str, annotations: bool, where: str) -> Example:
  """One problem; `answer` is its worked steps and `#### x`."""
  final = jsonl.final_answer(answer)
  if not final:
    raise SettingError(f'{where}: field "answer" has no "#### x" at its end')
  return Example(question, answer if annotations else _ANNOTATION.sub("", answer), final, {})


class _Records(Sequence):
  """Rows of tensorflow-datasets as examples."""

  def __init__(self, rows: Sequence[dict[str, Any]], annotations: bool):
    self._rows, self._annotations = rows, annotations

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index):
    if not 0 <= index < len(self):
      raise IndexError(index)
    row = self._rows[index]
    question, answer = (row[name].decode("utf-8") for name in ("question", "answer"))
    return example(question, answer, self._annotations, f"gsm8k, record {index}")


def _jsonl_file(split: str, path: str) -> pathlib.Path:
  file = pathlib.Path(path) / f"{split}.jsonl"
  if not file.is_file():
    state = "this folder" if pathlib.Path(path).is_dir() else "it, and there is no such folder"
    raise SettingError(
      f"data.path = {path!r}: looked for {split}.jsonl and for gsm8k/ (tensorflow-datasets) in {state}; give a folder "
      "with train.jsonl and test.jsonl of github.com/openai/grade-school-math"
    )
  return file


def _data_source(split: str, path: str) -> Sequence[dict[str, Any]]:
  import tensorflow_datasets.text  # registers gsm8k; heavy, so only where it is used

  try:
    builder = tensorflow_datasets.builder("gsm8k", data_dir=path or None, file_format="array_record")
    if not path:
      builder.download_and_prepare()
    return builder.as_data_source(split)
  except Exception as error:  # tensorflow-datasets and its network raise many kinds
    reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    raise SettingError(
      f"data.path = {path!r}: tensorflow-datasets has no gsm8k split {split!r} as array_record there ({reason}); give "
      "a folder with train.jsonl and test.jsonl of github.com/openai/grade-school-math"
    ) from error
