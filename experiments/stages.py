"""Divides a config into its runs: `first`, if it has one, is the config of a run before it.

    stages.put_first(c, sft_config)

The first run is made in DIR/first, and the run of the config in DIR. It starts from the policy that
the first one ends with, unless other settings name that model by RUN, such as a reward model. A
setting of the first run is --config.first.NAME=VALUE. The same command again goes on wherever it
was stopped.
"""

import contextlib
import json
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from grpo_jax.config import sections
from grpo_jax.errors import GrpoError, SettingError
from grpo_jax.io import storage

FIRST = "first"  # the name of the section, and of the folder
SEEDS_APART = 1000  # the seed of a first run less that of the next one
RUN = "{first}"  # stands for the folder of the first run, in any setting


def put_first(config: ConfigDict, first: ConfigDict, *shared: str) -> None:
  """Makes `first` the run before that of `config`, which is changed in place.

  Its seed follows from that of `config` and is another one: with the same seed both would draw the
  same problems in the same order, and the second run would begin with those that the first has
  learned.

  Args:
    config: of the run that starts from the policy of the first one.
    first: any config; it may have a `first` of its own.
    *shared: settings and sections that the two then have in common, with the values of `config`,
      so that one flag sets both: besides `init_from`.
  """
  config.first = first
  first.seed = config.get_ref("seed") + SEEDS_APART
  for name in ("init_from", *shared):
    section, _, last = name.rpartition(".")
    mine, its = (operator.attrgetter(section)(c) if section else c for c in (config, first))
    its[last] = mine[last] if isinstance(mine[last], ConfigDict) else mine.get_ref(last)


class Stage(NamedTuple):
  """Names a run: its config, without `first`, and its folder."""

  config: ConfigDict
  workdir: str


def divide(config: ConfigDict, workdir: str, section: str = "") -> list[Stage]:
  """Returns the runs of a config in the order in which they are made, after their checks.

  Args:
    config: of the last run; it is not changed.
    workdir: of the last run.
    section: where in the whole config this one is, as in "first.".

  Raises:
    SettingError: a value is out of its range; the two runs disagree about the first weights.
  """
  try:
    sections.check(config)
  except SettingError as error:
    raise SettingError(f"{section}{error}") from error
  own = config.copy_and_resolve_references()
  sections.expand(own)
  if FIRST not in own:
    return [Stage(own, workdir)]
  with own.unlocked():
    first = own[FIRST]
    del own[FIRST]
  if not isinstance(first, ConfigDict):
    raise SettingError(f"{section}{FIRST}={first!r:.80}: use the config of a run, a ConfigDict")
  folder = f"{workdir.rstrip('/')}/{FIRST}"
  stages = divide(first, folder, f"{section}{FIRST}.")
  written = own.to_dict()
  if (filled := fill(written, folder)) != written:
    own.update(filled)
    return [*stages, Stage(own, workdir)]
  if own.init_from not in ("", storage.expanded("init_from", first.get("init_from", ""))):
    raise SettingError(
      f"{section}init_from={own.init_from!r}: the run starts from what {section}{FIRST} ends with; "
      f'use --config.{section}{FIRST}.init_from, or leave "" here'
    )
  own.init_from = folder
  return [*stages, Stage(own, workdir)]


@contextlib.contextmanager
def named(stage: Stage, stages: Sequence[Stage]) -> Iterator[None]:
  """Says in an error which run it is about, unless it is the last one."""
  try:
    yield
  except GrpoError as error:
    if depth := len(stages) - 1 - stages.index(stage):
      raise type(error)(f"{'.'.join([FIRST] * depth)}: {error}") from error
    raise


def check_ended(stage: Stage, later: Stage) -> None:
  """Refuses more steps of a run that has ended, if a later one has started from what it had."""
  done = _steps_done(stage)
  if done is None or done >= stage.config.steps:
    return
  if (storage.place(later.workdir) / "config.json").exists():
    raise SettingError(
      f"{FIRST}.steps={stage.config.steps}: the run in {later.workdir} has started from what "
      f"{stage.workdir} had after {done} steps; use {FIRST}.steps={done}, or another --workdir"
    )


def fill(value: Any, folder: str) -> Any:
  """Returns a value of a config, or a section, with the folder for RUN."""
  if isinstance(value, dict):
    return {name: fill(each, folder) for name, each in value.items()}
  if isinstance(value, list | tuple):
    return type(value)(fill(each, folder) for each in value)
  return folder if value == RUN else value


def is_done(stage: Stage) -> bool:
  """Returns whether a run has ended: result.json has all of its steps."""
  return _steps_done(stage) == stage.config.steps


def _steps_done(stage: Stage) -> int | None:
  """Returns the steps that a run had when it ended; None if it has not."""
  path = storage.place(stage.workdir) / "result.json"
  try:
    return int(json.loads(path.read_text(encoding="utf-8"))["steps"])
  except (OSError, ValueError, KeyError, TypeError):  # missing or damaged: the run tells
    return None
