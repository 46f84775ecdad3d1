"""Any task of reasoning-gym (arXiv 2505.24760), made from a seed and scored by the task's scorer.

    c.data.name = "reasoning_gym"
    c.data.reasoning_gym.task = "chain_sum"
    c.data.reasoning_gym.level = 2                      # of the task's own curriculum
    c.data.reasoning_gym.settings = {"max_terms": 4}    # the task's own settings, after the level
    c.rewards.functions = (("solved", "reasoning_gym.solved", 1.0),)
    c.eval.reward = "reasoning_gym.solved"

The hash of a question decides its split, so that no question of one split is ever in another, for
any two seeds. Two seeds alone would not do: problem i of seed s is drawn by `Random(s + i)`, so
that near seeds share their streams, and small tasks ask the same question many times.

A curriculum is a run for each level, each from the run of the one before (`init_from`).
"""

import dataclasses
import difflib
import functools
import hashlib
import operator
import types
from collections.abc import Callable
from typing import Protocol, SupportsIndex

from ml_collections import ConfigDict

from grpo_jax.config import kinds
from grpo_jax.data.jsonl import Record
from grpo_jax.errors import GrpoError, SettingError
from grpo_jax.types import Example

INSTALL = "pip install -e '.[gym]' -c constraints.txt"

RANGES: dict[str, kinds.Kind] = {
  "task": kinds.PATH,
  "seed": kinds.Whole(0, 2**31 - 1),
  "size": kinds.Whole(1),
  "level": kinds.Whole(0, also=(-1,)),
  "answer_in": kinds.Choice(("tags", "line")),
}

SPLITS = ("test", "validation", "train")  # one fifth, one fifth and three fifths of the questions
TRIES = 150  # problems that are tried to find one of the split


def settings() -> ConfigDict:
  """Returns the section `data.reasoning_gym`."""
  c = ConfigDict()
  c.task = "chain_sum"  # a name of reasoning_gym.factory.DATASETS
  c.seed = 0  # of the problems
  c.size = 10_000  # problems in an epoch, of each split
  c.level = -1  # of the task's curriculum, from 0; -1: the task's own defaults
  c.settings = ConfigDict()  # the task's own, by name
  c.answer_in = "tags"  # where the answer is: in the last <answer>...</answer>, or the last "line"
  return c


def source(split: str, path: str, cfg: ConfigDict) -> "Problems":
  """Returns the problems of a split; `path` must be empty, since no files are read."""
  kinds.check(cfg, RANGES, "data.reasoning_gym.")
  if path:
    raise SettingError(
      f"data.path={path!r}: reasoning_gym makes its problems and reads no files; leave it empty"
    )
  if split not in SPLITS:
    raise SettingError(f"data split {split!r}: reasoning_gym has {', '.join(sorted(SPLITS))}")
  make = functools.partial(_make_dataset, _factory(), cfg)
  problems = Problems(make, cfg.task, split, cfg.size, cfg.answer_in)
  if problems[0].question != Problems(make, cfg.task, split, cfg.size, cfg.answer_in)[0].question:
    raise SettingError(
      f"data.reasoning_gym.task={cfg.task!r}: makes other problems each time, whatever its seed; "
      "use another task"
    )
  return problems


class Dataset(Protocol):
  """Lists the parts of a data set of reasoning-gym that are used here."""

  def __getitem__(self, index: int) -> Record: ...

  def score_answer(self, answer: str, entry: Record) -> float: ...


class Problems:
  """A split of a task, whose problems are made when they are asked for.

  An example's meta holds `task`, `entry` (reasoning-gym's own, with its metadata), `score` (answer
  text -> number, the task's own scorer) and `answer_in`. Its answer and solution are empty if
  reasoning-gym has none (as for rush_hour, which has many answers and a scorer).

  Problem i of a split is the first one of the split among the i-th problems of data sets 0, 1, 2,
  ... One that the task fails to make is passed over. Data set n of `size` problems is `make(n)`.
  """

  def __init__(
    self, make: Callable[[int], Dataset], task: str, split: str, size: int, answer_in: str
  ):
    self._make, self._task, self._split = make, task, split
    self._size, self._answer_in = size, answer_in
    self._datasets: list[Dataset] = []  # those made so far

  def __len__(self) -> int:
    return self._size

  def __getitem__(self, index: SupportsIndex) -> Example:
    index = operator.index(index)
    if not 0 <= index < self._size:
      raise IndexError(f"problem {index} of {self._size}")
    failed: Exception | None = None
    for attempt in range(TRIES):
      if attempt == len(self._datasets):
        self._datasets.append(self._make(attempt))
      try:
        entry = self._datasets[attempt][index]
      except Exception as error:  # some tasks find no problem for some seeds
        failed = error
        continue
      if split_of(entry["question"]) == self._split:
        return self._example(entry, self._datasets[attempt])
    shown = f"data.reasoning_gym.task={self._task!r}"
    if failed:
      raise SettingError(
        f"{shown}: of {TRIES} problems some could not be made ({type(failed).__name__}: {failed}), "
        f"and no other has a question of split {self._split}: use another level or other settings"
      )
    raise SettingError(
      f"{shown}: of {TRIES} problems none has a question of split {self._split}; it has too few "
      "questions to be split: use a larger level, or settings with more of them"
    )

  def _example(self, entry: Record, dataset: Dataset) -> Example:
    answer = "" if entry["answer"] is None else str(entry["answer"])
    tagged = self._answer_in == "tags" and answer
    meta = {
      "task": self._task,
      "entry": entry,
      "score": functools.partial(_score, dataset, entry),
      "answer_in": self._answer_in,
    }
    solution = f"<answer>{answer}</answer>" if tagged else answer
    return Example(entry["question"], solution, answer, meta)


def split_of(question: str) -> str:
  """Returns the split of a question; white space does not count."""
  text = " ".join(question.split())
  fifth = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 5
  return SPLITS[min(fifth, 2)]


def _score(dataset: Dataset, entry: Record, answer: str) -> float:
  return dataset.score_answer(answer, entry)


def _factory() -> types.ModuleType:
  """Returns reasoning-gym's tables of tasks and curricula, whose import takes seconds."""
  try:
    import reasoning_gym.factory
  except ImportError as error:
    raise SettingError(
      f"data.name='reasoning_gym': needs the package reasoning-gym ({error}); {INSTALL}"
    ) from error
  return reasoning_gym.factory


def _make_dataset(factory: types.ModuleType, cfg: ConfigDict, number: int) -> Dataset:
  """Returns the task's data set of that number, which continues where the one before ends."""
  if cfg.task not in factory.DATASETS:
    near = difflib.get_close_matches(cfg.task, factory.DATASETS, 3) or sorted(factory.DATASETS)[:8]
    raise SettingError(
      f"data.reasoning_gym.task={cfg.task!r}: reasoning-gym has no such task; of its "
      f"{len(factory.DATASETS)} the nearest are {', '.join(near)}"
    )
  make, config = factory.DATASETS[cfg.task]
  changes, names = cfg.settings.to_dict(), [field.name for field in dataclasses.fields(config)]
  free = [name for name in names if name not in ("seed", "size")]
  for name in changes:
    if name not in free:
      raise SettingError(
        f"data.reasoning_gym.settings.{name}: {cfg.task} has no such setting; use {', '.join(free)}"
      )
  try:
    first = {"seed": cfg.seed + number * cfg.size, "size": cfg.size}
    values = _level_settings(factory, cfg) | changes | first
    return make(config=config(**{name: value for name, value in values.items() if name in names}))
  except GrpoError:
    raise
  except Exception as error:  # tasks check their settings by assertions and errors of any kind
    reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    raise SettingError(
      f"data.reasoning_gym: {cfg.task} refuses level={cfg.level}, settings={changes}, "
      f"size={cfg.size}: {reason}"
    ) from error


def _level_settings(factory: types.ModuleType, cfg: ConfigDict) -> Record:
  """Returns the settings of a level of the task's curriculum, which include those of lower ones."""
  if cfg.level < 0:
    return {}
  if cfg.task not in factory.CURRICULA:
    raise SettingError(
      f"data.reasoning_gym.level={cfg.level}: {cfg.task} has no curriculum; use -1 and its settings"
    )
  curriculum = factory.CURRICULA[cfg.task]()
  levels = max((len(a.levels) for a in curriculum.attributes.values()), default=1)
  if cfg.level >= levels:
    raise SettingError(
      f"data.reasoning_gym.level={cfg.level}: the levels of {cfg.task} go from 0 to {levels - 1}; "
      "-1: its defaults"
    )
  curriculum.set_global_level(cfg.level)
  return vars(curriculum.generate_configuration())
