"""What hostile rewards (hostile_rewards.py) do to the other rewards, to the process and to the run:
nothing.
"""

import contextlib
import gc
import json
import locale
import os
import random
import re
import signal
import sys
import threading
import warnings
import zlib

import hostile_rewards
import numpy as np
import pytest

from grpo_jax.config import settings
from grpo_jax.errors import SettingError
from grpo_jax.rewards import combine
from grpo_jax.sandbox import deadline
from grpo_jax.setup import scorers
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example

ON_ERROR = -0.5


def batch() -> tuple[list[Example], list[list[Completion]]]:
  """Two prompts with three completions each, of two to four tokens."""
  meta = {"results": [3, 1, 2], "deep": {"list": [{"x": 1}]}, "set": {1, 2}, "array": np.arange(3)}
  examples = [Example(f"question {p}", "#### 7", "7", {"n": p, **meta}) for p in range(2)]
  lengths = ((2, 3, 4), (4, 2, 3))
  groups = [
    [
      Completion(f"text {p}{g}", range(n), (STOPPED, TRUNCATED)[g % 2], [0, n - 1])
      for g, n in enumerate(lengths[p])
    ]
    for p in range(2)
  ]
  return examples, groups


def witness(example, completion):
  """A number that follows from all that it is given."""
  return zlib.crc32(repr((example, completion)).encode()) % 1000 / 1000


def witness_of_group(example, completions):
  return [witness(example, completion) for completion in completions]


WITNESSES = ("first", witness, 1.0), ("last", witness, 2.0), ("group", witness_of_group, 4.0)


def load(code: str, tmp_path) -> tuple[str, object, float]:
  file = tmp_path / "mine.py"
  file.write_text(code)
  rows = (("bad", f"{file}:reward", 0.25),)
  (loaded,) = scorers.reward_functions(settings.Rewards(functions=rows), [])
  return loaded.name, loaded.reward.score, loaded.weight


@contextlib.contextmanager
def kept():
  """Puts back what a reward may leave behind that no run depends on."""
  hooks, modules, switch = (
    (sys.excepthook, threading.excepthook),
    dict(sys.modules),
    sys.getrecursionlimit(),
  )
  environment, errors, place = dict(os.environ), np.geterr(), locale.setlocale(locale.LC_ALL)
  states = random.getstate(), np.random.get_state()  # noqa: NPY002
  with warnings.catch_warnings():
    try:
      yield
    finally:
      gc.enable()
      sys.excepthook, threading.excepthook = hooks
      sys.modules.update(modules)
      sys.setrecursionlimit(switch)
      os.environ.clear()
      os.environ.update(environment)
      np.seterr(**errors)
      locale.setlocale(locale.LC_ALL, place)
      random.setstate(states[0])
      np.random.set_state(states[1])  # noqa: NPY002


def process() -> list:
  """What of this process a run depends on."""
  handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
  files = [(os.fstat(n).st_dev, os.fstat(n).st_ino) for n in (1, 2)]
  return [
    os.getcwd(),
    os.getpid(),
    handlers,
    files,
    signal.getitimer(signal.ITIMER_REAL),
    os._exit,
    json.dumps,
  ]


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.parametrize(
  "want, code", [row[1:] for row in hostile_rewards.ROWS], ids=[r[0] for r in hostile_rewards.ROWS]
)
def test_it_changes_nothing_for_other_rewards_or_the_process(want, code, tmp_path):
  word, _, text = want.partition(" ")
  if word == "refused":
    with pytest.raises(SettingError, match=f"rewards.functions.*{re.escape(text)}") as error:
      load(code, tmp_path)
    assert "\n" not in str(error.value)
    return
  first, last, of_group = WITNESSES
  alone = combine.score(WITNESSES, *batch(), 5)
  before = process()
  rewards = [first, load(code, tmp_path), last, of_group]
  with kept():
    if word == "ends":
      with pytest.raises(KeyboardInterrupt):
        combine.score(rewards, *batch(), 5, ON_ERROR, 30.0)
      return
    for _ in range(2):  # what the first batch leaves behind is not seen by the second
      streams = sys.stdout, sys.stderr
      scores = combine.score(rewards, *batch(), 5, ON_ERROR, 30.0)
      assert (sys.stdout, sys.stderr) == streams and process() == before
      check(scores, alone, word, text)


def check(scores: combine.Scores, alone: combine.Scores, word: str, text: str) -> None:
  """Compares scores with those of the witnesses alone, `bad` being worth on its last token what the
  row says.
  """
  np.testing.assert_array_equal(scores.components[..., [0, 2, 3]], alone.components)
  np.testing.assert_array_equal(scores.given, alone.given)
  worth = {"fault": ON_ERROR, "none": np.nan}.get(word)
  worth = float(text) if worth is None else worth
  np.testing.assert_array_equal(scores.components[..., 1], np.full((2, 3), worth))
  expected = alone.rewards.astype(np.float64) + np.where(
    alone.given, 0.25 * np.nan_to_num(worth), 0.0
  )
  np.testing.assert_allclose(scores.rewards, expected, rtol=1e-6)
  assert len(scores.faults) == (6 if word == "fault" else 0)
  assert all(
    fault.name == "bad" and text in fault.message and len(fault.message) <= 500
    for fault in scores.faults
  )


def test_there_are_as_many_as_are_counted():
  names = [name for name, *_ in hostile_rewards.ROWS]
  assert len(set(names)) == len(names) == 102


@pytest.mark.parametrize("code", ["os.chdir('/')", "sys.stdout = io.StringIO()", "os.close(1)"])
def test_what_a_reward_left_behind_is_told_by_name(code, tmp_path, capfd):
  deadline._warned.clear()
  combine.score([load(hostile_rewards.body(code), tmp_path)], *batch(), 5)
  said = capfd.readouterr().out
  assert said.count("warning: ") == 1 and "changed back" in said + "changed back" * (
    "opened again" in said
  )
  assert (
    f"reward ({tmp_path}/mine.py)" in said
    or "a reward closed or replaced the standard output" in said
  )


def test_what_it_is_told_can_be_compared_copied_and_written_as_ever():
  (example, _), ((completion, *_), _) = batch()
  assert example.meta["results"] == [3, 1, 2] and isinstance(example.meta["deep"], dict)
  assert json.loads(json.dumps(example.meta["deep"])) == {"list": [{"x": 1}]}
  assert sorted(example.meta["results"]) == [1, 2, 3] and example.meta["results"] + [4] == [
    3,
    1,
    2,
    4,
  ]
  changed = example._replace(meta={"list": [1]})
  with pytest.raises(TypeError, match=r"change a copy: copy.deepcopy\(example.meta\)"):
    changed.meta["list"].append(2)
  assert completion._replace(tokens=[1]).tokens == (1,) and completion.tokens == (0, 1)


@pytest.mark.parametrize("setting", ["functions", "outcome_models", "process_models"])
def test_names_that_cannot_be_a_metric_are_refused(setting):
  def find(name):
    fine = ("fine", "math.well_formed", 1.0)
    if setting == "functions":
      cfg = settings.Rewards(functions=((name, "math.well_formed", 1.0), fine))
    else:
      cfg = settings.Rewards(**{"functions": (fine,), setting: ((name, "folder", 1.0),)})
    models = [model for model, *_ in scorers.reward_models(cfg)]
    return scorers.reward_functions(cfg, models)

  for name in hostile_rewards.NAMES:
    with pytest.raises(SettingError, match=f"rewards.{setting} has.*(use|give)") as error:
      find(name)
    assert "\n" not in str(error.value)
  for name in hostile_rewards.GOOD_NAMES:
    find(name)
