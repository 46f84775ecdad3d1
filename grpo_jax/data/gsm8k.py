"""GSM8K: 7473 training and 1319 test problems (Cobbe et al., arXiv 2110.14168).

`data.path` names a folder with `train.jsonl` and `test.jsonl` as the authors publish them, or a
tensorflow-datasets folder that holds gsm8k as array_record. If it is empty, tensorflow-datasets
downloads the data once into its own folder. TensorFlow is not needed.
"""

import http.client
import pathlib
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence

from ml_collections import ConfigDict

from grpo_jax.data import jsonl
from grpo_jax.errors import DataError, GrpoError, SettingError
from grpo_jax.io import storage
from grpo_jax.rewards.math import after_mark
from grpo_jax.types import Example

# The calculator's annotations in solutions, as in "48/2 = <<48/2=24>>24".
_ANNOTATION = re.compile(r"<<[^<>\n]*>>")

HOST = "https://raw.githubusercontent.com"  # from which tensorflow-datasets downloads
PATIENCE = 5.0  # seconds that the host has to answer

FIELDS = ("question", "answer")
FILES = "train.jsonl and test.jsonl of github.com/openai/grade-school-math"


def settings() -> ConfigDict:
  """Returns the settings of the data set, the section `data.gsm8k`."""
  c = ConfigDict()
  c.annotations = False  # keep the calculator annotations <<48/2=24>> in solutions
  return c


def source(split: str, path: str, cfg: ConfigDict) -> "list[Example] | _Records":
  """Reads one split; tensorflow-datasets also has train_socratic and test_socratic."""
  # tensorflow-datasets reads its files from a disk only.
  prepared = storage.place(path) / "gsm8k"
  if path and (storage.in_bucket(path) or not prepared.is_dir() or not any(prepared.iterdir())):
    examples = []
    for record, where in jsonl.read(_jsonl_file(split, path)):
      question, answer = (jsonl.text(record, name, where) for name in FIELDS)
      examples.append(example(question, answer, cfg.annotations, where))
    return examples
  return _Records(_data_source(split, path), cfg.annotations)


def example(question: str, answer: str, annotations: bool, where: str) -> Example:
  """Returns an example from an answer of worked steps and `#### x`; `where` begins messages."""
  final = after_mark(answer)
  if not final:
    raise DataError(f'{where}: field "answer" has no "#### x" at its end')
  return Example(question, answer if annotations else _ANNOTATION.sub("", answer), final, {})


class _Records:
  """Shows records of tensorflow-datasets as examples."""

  def __init__(self, records: Sequence[dict[str, bytes]], annotations: bool):
    self._records, self._annotations = records, annotations

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, index: int) -> Example:
    if not 0 <= index < len(self):
      raise IndexError(index)
    question, answer = (self._records[index][name].decode("utf-8") for name in FIELDS)
    return example(question, answer, self._annotations, f"gsm8k, record {index}")


def _jsonl_file(split: str, path: str) -> storage.Path:
  """Returns the file of a split, which must exist."""
  file = storage.place(path) / f"{split}.jsonl"
  if not file.is_file():
    if storage.in_bucket(path):
      raise SettingError(
        f"data.path = {path!r}: looked for {split}.jsonl there; give a folder with {FILES} "
        "(tensorflow-datasets' own files are read from a disk only)"
      )
    state = "this folder" if storage.place(path).is_dir() else "it, and there is no such folder"
    raise SettingError(
      f"data.path = {path!r}: looked for {split}.jsonl and for gsm8k/ (tensorflow-datasets) in "
      f"{state}; give a folder with {FILES}"
    )
  return file


def _data_source(split: str, path: str) -> Sequence[dict[str, bytes]]:
  """Returns the records of tensorflow-datasets, which downloads them if `path` is empty."""
  import tensorflow_datasets.text  # registers gsm8k; slow to import

  try:
    if not path:
      _check_network(pathlib.Path(tensorflow_datasets.core.constants.DATA_DIR) / "gsm8k")
    builder = tensorflow_datasets.builder(
      "gsm8k", data_dir=path or None, file_format="array_record"
    )
    if not path:
      builder.download_and_prepare()
    return builder.as_data_source(split)
  except GrpoError:
    raise
  except Exception as error:  # tensorflow-datasets and its network raise errors of many kinds
    reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    raise SettingError(
      f"data.path = {path!r}: tensorflow-datasets has no gsm8k split {split!r} as array_record "
      f"there ({reason}); give a folder with {FILES}"
    ) from error


def _check_network(prepared: pathlib.Path) -> None:
  """Refuses a download that cannot succeed, which tensorflow-datasets would retry for minutes.

  Any version of the data set in `prepared` is left to tensorflow-datasets.
  """
  if list(prepared.rglob("dataset_info.json")) or _answers(HOST):
    return
  raise SettingError(
    f"data.path='': gsm8k is not in {prepared}, and to download it needs a network ({HOST} does "
    f"not answer within {PATIENCE:g} s); give a folder with {FILES}, as in "
    "--config.data.path=$GSM8K_DIR"
  )


def _answers(url: str) -> bool:
  """Returns whether a host answers within PATIENCE seconds, through a proxy if one is set."""
  answers: list[bool] = []

  def ask() -> None:
    try:
      urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:  # this is an answer, too
      answers.append(True)
    except (OSError, http.client.HTTPException):
      answers.append(False)
    else:
      answers.append(True)

  # Looking up a name may take longer than the timeout.
  asking = threading.Thread(target=ask, daemon=True)
  asking.start()
  asking.join(PATIENCE)
  return answers == [True]
