"""Hosts of one run that differ: all end with code 2 and a line that names what differs. Real
processes, two of them.

Each host has a folder of its own, as with local disks, in which everything that settings name lies
at the same path.
"""

import json
import pathlib
import re
import shutil
import signal
import sys
import time

import conftest
import pytest
from several_hosts import errors, free_port, start, wait

from grpo_jax.distributed import inputs, lifeline
from grpo_jax.tokenizer import making

MOST_SECONDS = 150  # from the start of the processes to the end of all

CONFIG = """
from grpo_jax.setup import defaults
import small_models

def get_config():
  c = defaults.get_config()
  c.steps = 4
  c.tokenizer = "tokenizer"
  c.model.variant = "test_llama"
  c.data.name, c.data.path = "problems.py", "data"
  c.data.prompts = 4
  c.sampler.group = 4
  c.sampler.max_length = 8
  c.sampler.temperature = 1.0
  c.rewards.functions = (("parity", "reward.py:parity", 1.0),)
  c.objective = defaults.objective("objective.py", c)
  c.learner.lr = 1e-2
  c.eval.problems = 40
  c.eval.batch = 8
  c.eval.samples = 0
  c.eval.reward = "reward.py:solved"
  c.checkpoint.export = False
  c.log.measure_every = 0
  c.log.samples_every = 0
  c.log.writers = ()
  c.compilation_cache = ""
  return c
"""

REWARD = """
import sys
sys.path.insert(0, ".")
import helper

def parity(example, completion):
  return sum(completion.tokens) % 5 / helper.MOST

def solved(example, completion):
  return float(sum(completion.tokens) % 2)
"""

PROBLEMS = """
import random
from grpo_jax.data import jsonl

settings = jsonl.settings

def source(split, path, cfg):
  return jsonl.source(split, path, cfg)
"""

NORMAL = ["-m", "experiments.run"]
# In place of `source`: an order without a seed, of all examples, or of all but the first and the
# last.
SHUFFLED = """
def source(split, path, cfg):
  examples = jsonl.source(split, path, cfg)
  random.shuffle(examples)
  return examples
"""
SHUFFLED_INSIDE = """
def source(split, path, cfg):
  if split != "{}":
    return jsonl.source(split, path, cfg)
  first, *examples, last = jsonl.source(split, path, cfg)
  random.shuffle(examples)
  return [first, *examples, last]
"""
FEWER = """
import os

def source(split, path, cfg):
  return jsonl.source(split, path, cfg)[: int(os.environ.get("EXAMPLES", "40"))]
"""

# `python -c` this arguments...: the run, on a machine with another jax.
OTHER_JAX = """
import importlib.metadata, runpy
version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.9.9" if name == "jax" else version(name)
runpy.run_module("experiments.run", run_name="__main__", alter_sys=True)
"""


def fill(folder: pathlib.Path) -> None:
  """Writes everything that a host has."""
  (folder / "data").mkdir(parents=True)
  texts = {
    "config.py": CONFIG,
    "reward.py": REWARD,
    "helper.py": "MOST = 4\n",
    "problems.py": PROBLEMS,
  }
  for name, text in (
    texts.items() | {"objective.py": "from grpo_jax.objectives.grpo import *\n"}.items()
  ):
    (folder / name).write_text(text)
  for split, first in (("train", 10), ("test", 60)):
    lines = [
      json.dumps({"question": f"{a} + 7", "answer": f"{a + 7}"}) for a in range(first, first + 40)
    ]
    (folder / "data" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
  making.word_level(f"{a} + 7 = {a + 7}" for a in range(100)).save(folder / "tokenizer")


def replace(name: str, old: str, new: str):
  """Returns what edits a file of the second host; both must be of the same length for its size to
  stay.
  """

  def edit(first: pathlib.Path, second: pathlib.Path) -> None:
    text = (second / name).read_text()
    assert old in text
    (second / name).write_text(text.replace(old, new, 1))

  return edit


def problems(text: str):
  """Returns what gives both hosts a data set of their own."""

  def edit(first: pathlib.Path, second: pathlib.Path) -> None:
    for folder in (first, second):
      (folder / "problems.py").write_text(PROBLEMS + text)

  return edit


def run(folder: pathlib.Path, last: tuple[str, ...] = (), how: list[str] | None = None, **env: str):
  """Runs both hosts to their end; `last` are arguments, `how` and `env` the command and variables
  of the second.
  """
  return wait(start_both(folder, [NORMAL, how or NORMAL], last, **env))


def start_both(folder: pathlib.Path, how: list[list[str]], last: tuple[str, ...] = (), **env: str):
  """Starts both hosts, each by its command."""
  port, started = free_port(), []
  for host in range(2):
    command = [sys.executable, *how[host], "--config=config.py"]
    command += [
      f"--workdir={folder / 'run'}",
      f"--coordinator=localhost:{port}",
      "--processes=2",
      f"--process={host}",
    ]
    paths = {"PYTHONPATH": f"{conftest.ROOT}:{conftest.ROOT / 'tests' / 'helpers'}"} | (
      env if host else {}
    )
    started.append(
      start(
        [*command, *(last if host else ())], folder / f"host{host}", folder / f"host{host}", **paths
      )
    )
  return started


def both(name: str, first: str, other: str) -> str:
  return f"^error: {name}: host 0 has {first}, host 1 has {other}; all hosts need the same command"


SPECIAL, PRECISION = "tokenizer_config.json", "jax_default_matmul_precision"
DIGEST = "[0-9a-f]{16}"
SIZED = rf"\d+ bytes, {DIGEST}"
ENDS = f"examples, the first {DIGEST}, the last {DIGEST}"
OF_ANOTHER = r"^error: host 1 \(process \d+ on .*\): its prompts of {} are not those of host 0: the order of the data"
CASES = {
  "rate": ({"last": ("--config.learner.lr=0.5",)}, None, both("learner.lr", "0.01", "0.5")),
  "reward": ({}, replace("reward.py", "% 5", "% 4"), both("code of reward.py", SIZED, SIZED)),
  "data": (
    {},
    replace("data/train.jsonl", "20 + 7", "99 + 7"),
    both("data.path/train.jsonl", SIZED, SIZED),
  ),
  "shuffle": (
    {},
    problems(SHUFFLED),
    f"^error: test data: host 0 has 40 {ENDS}, host 1 .*; training data: host 0 has",
  ),
  "order": ({}, problems(SHUFFLED_INSIDE.format("train")), OF_ANOTHER.format("step 1")),
  "evaluation": (
    {},
    problems(SHUFFLED_INSIDE.format("test")),
    OF_ANOTHER.format("the evaluation after 0 steps"),
  ),
  "seed": ({"last": ("--config.seed=1",)}, None, both("seed", "0", "1")),
  "config": (
    {},
    replace("config.py", "ature = 1.0", "ature = 0.9"),
    both("sampler.temperature", "1.0", "0.9"),
  ),
  "shown": (
    {"last": ("--config.log.every=2",)},
    None,
    both("log.every", "1", "2"),
  ),  # may change on resume
  "bad": (
    {"last": ("--config.learner.lr=-1.0",)},
    None,
    both("learner.lr", "0.01", "-1.0"),
  ),  # one alone is refused
  "helper": ({}, replace("helper.py", "4", "2"), both("code of helper", SIZED, SIZED)),
  "examples": (
    {"EXAMPLES": "39"},
    problems(FEWER),
    f"^error: .*training data: host 0 has 40 {ENDS}, host 1 has 39 ",
  ),
  "test": (
    {},
    replace("data/test.jsonl", "61 + 7", "62 + 7"),
    both("data.path/test.jsonl", SIZED, SIZED),
  ),
  "workdir": ({"last": ("--workdir=other",)}, None, both("--workdir", "'/.*/run'", "'.*other'")),
  "tokenizer": (
    {},
    replace(f"tokenizer/{SPECIAL}", "{", "{ "),
    both(f"tokenizer/{SPECIAL}", SIZED, SIZED),
  ),
  "version": ({"how": ["-c", OTHER_JAX]}, None, both("version of jax", "[0-9.]+", "0.9.9")),
  "objective": ({}, replace("objective.py", "*", "* "), both("code of objective.py", SIZED, SIZED)),
  "precision": ({PRECISION.upper(): "bfloat16"}, None, both(PRECISION, "None", "bfloat16")),
  "steps": ({"last": ("--config.steps=9",)}, None, both("steps", "4", "9")),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """The folders of two hosts, before one of them is changed."""
  folder = tmp_path_factory.mktemp("whole")
  for host in range(2):
    fill(folder / f"host{host}")
  return folder


# .ci/run tries these: a prompt's order, a setting, a version.
SHORT = ("order", "bad", "version")


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", [n if n in SHORT else pytest.param(n, marks=pytest.mark.long) for n in CASES]
)
def test_two_hosts_that_differ_both_end_with_what_differs(whole, tmp_path, name):
  how, edit, said = CASES[name]
  shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
  if edit:
    edit(tmp_path / "host0", tmp_path / "host1")
  began = time.time()
  ended = run(tmp_path, **how)
  seconds = max(each.at for each in ended) - began
  print(f"{name}: {seconds:.1f} s")
  for each in ended:
    (line,) = errors(each)
    assert re.search(said, line), line
  assert [each.code for each in ended] == [2, 2]
  assert seconds < MOST_SECONDS
  assert not list((tmp_path / "run").glob("checkpoints/[1-9]*")), "a step was saved"


@pytest.mark.slow
@pytest.mark.long
def test_two_hosts_with_the_same_files_go_on_and_are_told_what_has_changed_since(whole, tmp_path):
  shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
  ended = run(tmp_path)
  assert [each.code for each in ended] == [0, 0], [each.stderr[-2000:] for each in ended]
  assert "warning" not in ended[0].stdout
  before = json.loads((tmp_path / "run" / "inputs.json").read_text())
  assert before["code of reward.py"] and before["training data"].startswith("40 examples")
  more = run(tmp_path, last=("--config.steps=6",))  # of one host alone, on resume
  assert [each.code for each in more] == [2, 2] and "steps: host 0 has 4, host 1 has 6" in more[
    1
  ].stderr
  for host in range(2):
    replace("reward.py", "% 5", "% 4")(tmp_path, tmp_path / f"host{host}")
    replace("config.py", "steps = 4", "steps = 5")(tmp_path, tmp_path / f"host{host}")
  ended = run(tmp_path)
  assert [each.code for each in ended] == [0, 0], [each.stderr[-2000:] for each in ended]
  warnings = [line for line in ended[0].stdout.splitlines() if "warning" in line]
  assert (
    len(warnings) == 1
    and "code of reward.py has changed since step 4 of this run: was " in warnings[0]
  )
  assert json.loads((tmp_path / "run" / "inputs-until-4.json").read_text()) == before
  now = json.loads((tmp_path / "run" / "inputs.json").read_text())
  assert {name for name in now if now[name] != before[name]} == {"code of reward.py"}


# `python -c` this ROLE SECONDS arguments...: the run, where hosts count as lost after SECONDS. The
# "stopped" one stops itself as it begins to learn for the second time.
STOPPED = """
import os, runpy, signal, sys
role, seconds = sys.argv[1], float(sys.argv[2])
sys.argv[1:] = sys.argv[3:]
from grpo_jax.run import writer as metrics
from grpo_jax.distributed import lifeline
lifeline.SILENT_SECONDS = seconds
lifeline.BEAT_SECONDS = min(lifeline.BEAT_SECONDS, seconds / 4)
phase, entered = metrics.Writer.phase, []
def patched(writer, name, arrays=None):
  entered.extend([name] if name == "learn" else [])
  if role == "stopped" and len(entered) == 2 and name == "learn":
    os.kill(os.getpid(), signal.SIGSTOP)
  return phase(writer, name, arrays)
metrics.Writer.phase = patched
runpy.run_module("experiments.run", run_name="__main__", alter_sys=True)
"""


def is_stopped(process) -> bool:
  return pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def content(folder: pathlib.Path) -> dict[str, str]:
  """Every file of a folder with its content."""
  return {str(file): inputs.describe_file(file) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
  "host, seconds",
  [
    (1, lifeline.SILENT_SECONDS),
    (0, 12.0),
    (0, 45.0),
  ],
)
def test_a_host_that_is_stopped_ends_the_others_with_its_name_and_writes_nothing_when_it_is_continued(
  whole, tmp_path, host, seconds
):
  shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
  how = [["-c", STOPPED, "stopped" if each == host else "other", str(seconds)] for each in range(2)]
  started = start_both(tmp_path, how)
  stopped, other = started[host], started[1 - host]
  try:
    deadline = time.time() + 200
    while not is_stopped(stopped[0]):
      assert time.time() < deadline
      time.sleep(0.1)
    began = time.time()
    (ended,) = wait([other])
    print(f"host {host} stopped: {ended.at - began:.1f} s")
    assert ended.code == 1 and ended.at - began < MOST_SECONDS
    (line,) = errors(ended)
    assert re.fullmatch(
      rf"error: host {host} \(process {stopped[0].pid} on .*\): it has not answered for .*", line
    ), line
    was = content(tmp_path / "run")
    stopped[0].send_signal(signal.SIGCONT)
    (ended,) = wait([stopped], 60)
    assert ended.code not in (0, None) and content(tmp_path / "run") == was
    assert line in ended.stderr, ended.stderr[-2000:]  # it says so of itself
  finally:
    stopped[0].kill()
