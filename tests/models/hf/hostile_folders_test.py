"""Whatever stands in a model's folder, a run refuses it in one line, soon, and without much memory."""

import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys

import hostile_edits
import hostile_folders
import jax
import pytest
from hostile_edits import CONFIG, DECODER

from experiments import asking, evaluate, sources
from grpo_jax.errors import DataError, GrpoError, said_of
from grpo_jax.setup import build, defaults, experiment
from grpo_jax.tokenizer import chat

SECONDS = 10
MEGABYTES = 300  # more than before; it was 61

ROOT = pathlib.Path(__file__).parents[3]


class Hang(BaseException):
  """It takes too long. No `Exception`, so that nothing takes it for an error of the folder."""


def make(folder: pathlib.Path, edit: hostile_edits.Edit, shape: str) -> str:
  """Writes an edited folder, which has its shape in config.json or in decoder.json."""
  folder.mkdir()
  for name, data in hostile_edits.good_files().items():
    (folder / name).write_bytes(data)
  edit(folder)
  other = folder / (CONFIG if shape == DECODER else DECODER)
  if other.is_file() and not other.is_symlink():
    other.unlink()
  return str(folder)


def start(folder: str) -> None:
  """Does with a folder what a run does: its model, its weights, a prompt."""
  config = defaults.get_config()
  config.init_from, config.data.chat = folder, True
  model = build.model(experiment.make(config), jax.devices()[:1])
  jax.block_until_ready(model.load())
  assert model.render("a" * 40 + "b two?")  # a pattern may take exponential time for it


@pytest.fixture
def deadline():
  """Ends a test that hangs."""

  def hang(*_):
    raise Hang

  before = signal.signal(signal.SIGALRM, hang)
  signal.alarm(SECONDS)
  yield
  signal.alarm(0)
  signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def memory():
  """The largest size of this process before the first case, in megabytes."""
  hostile_edits.good_files()
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("name", hostile_folders.CASES)
def test_refused(name, tmp_path, deadline, memory):
  case = hostile_folders.CASES[name]
  folder = make(
    tmp_path / "m", case.edit, DECODER if DECODER in name or name.startswith("decoder") else CONFIG
  )
  with pytest.raises(GrpoError) as error:
    start(folder)
  message = str(error.value)
  assert case.says in message
  assert message.isprintable() and len(message) < 600
  assert message.startswith(
    (f"init_from={folder}", "tokenizer: ", "chat_template: ", "data.chat=True: ")
  )
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 < memory + MEGABYTES


@pytest.mark.parametrize("name", hostile_folders.ACCEPTED)
def test_accepted(name, tmp_path, deadline):
  edit, reason = hostile_folders.ACCEPTED[name]
  assert reason
  start(make(tmp_path / "m", edit, CONFIG))


def test_there_are_many():
  assert len(hostile_folders.CASES) >= 150


def test_a_template_is_the_end_of_its_process_only(tmp_path, deadline):
  """The next conversation is rendered, by another one; a good template is never started twice."""
  config = {"chat_template": "{{ messages[-1].content }}"}
  assert chat.render(config, "a", "{question}", "").question == "a"
  process = chat._renderer().process.process
  assert (
    chat.render(config, "b", "{question}", "").question == "b"
    and chat._renderer().process.process is process
  )
  process.kill()
  with pytest.raises(DataError, match="ended its process with code -9"):
    chat.render(config, "c", "{question}", "")
  assert chat.render(config, "c", "{question}", "").question == "c"
  assert chat._renderer().process.process is not process


# What must be refused alike by every command that reads a folder: a case of each kind.
ALIKE = (
  *("weights: cut at the end", "weights: header of 2^63", "weights: offsets beyond the file"),
  *("index: upwards", "index: from the root", "weights: a link out", "config: most of everything"),
  *(
    "weights: a pickle",
    "index: a pickle",
    "weights: a pickle beside",
    "template: loops",
    "template: long output",
  ),
  *(
    "template: a text times",
    "template: a class",
    "tokenizer: is config.json",
    "tokenizer: model is a text",
  ),
  *("weights: NaN", "weights: infinity"),
)


def ask(folder: str) -> None:
  """Does with a folder what experiments.sample does."""
  policy = asking.load(folder, None, {})
  policy.model.render("two?")


def judge(folder: str) -> None:
  """Does with a folder what experiments.evaluate does."""
  config = defaults.get_config()
  config.data.chat, config.data.arithmetic.size, config.eval.problems, config.eval.batch = (
    True,
    8,
    8,
    8,
  )
  asked = experiment.make(config)
  evaluate.evaluate_model(asked, folder, None, sources.model(asked, folder, None))


@pytest.mark.slow
@pytest.mark.parametrize("use", [ask, judge])
@pytest.mark.parametrize("name", ALIKE)
def test_other_commands_refuse_it_alike(name, use, tmp_path, deadline):
  case = hostile_folders.CASES[name]
  folder = make(tmp_path / "m", case.edit, CONFIG)
  with pytest.raises(GrpoError) as error, said_of("--path"):
    use(folder)
  message = str(error.value)
  assert case.says in message and message.isprintable() and len(message) < 600
  assert message.startswith((f"--path={folder}", "tokenizer: ", "chat_template: "))


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  [
    "weights: cut at the end",
    pytest.param("tokenizer: model is a text", marks=pytest.mark.long),
    pytest.param("weights: NaN", marks=pytest.mark.long),
  ],
)
@pytest.mark.parametrize("module", ["sample", "evaluate"])
def test_their_commands_say_it_in_one_line(name, module, tmp_path, program):
  """After lines that say what is being done; standard output, which is for what was asked, stays
  empty.
  """
  case = hostile_folders.CASES[name]
  folder = make(tmp_path / "m", case.edit, CONFIG)
  asked = (
    ["--prompt=two?"]
    if module == "sample"
    else ["--config=experiments/arithmetic.py", "--config.data.on_long=cut"]
  )
  found = program(f"experiments.{module}", f"--path={folder}", *asked)
  said = found.stderr.strip().splitlines()
  assert found.returncode == 2 and found.stdout == "", found.stderr
  assert (
    said[0].startswith("starting: ")
    and said[-1].startswith(f"error: --path={folder}")
    and case.says in said[-1]
  )
  assert "Traceback" not in found.stderr and sum(line.startswith("error: ") for line in said) == 1


@pytest.mark.parametrize(
  "name",
  [
    "config.json num_hidden_layers 10^9",
    pytest.param("tokenizer.json deep lists", marks=[pytest.mark.slow, pytest.mark.long]),
    "index: upwards",
    pytest.param("template: percent", marks=[pytest.mark.slow, pytest.mark.long]),
  ],
)
def test_the_command_says_it_in_one_line(name, tmp_path):
  case = hostile_folders.CASES[name]
  folder = make(tmp_path / "m", case.edit, CONFIG)
  (tmp_path / "data").mkdir()
  row = '{"question": "Two apples?", "answer": "1 + 1 = 2\\n#### 2"}\n'
  for split in ("train", "test"):
    (tmp_path / "data" / f"{split}.jsonl").write_text(row * 20)
  command = [sys.executable, "-m", "experiments.run", "--config=experiments/gsm8k.py:model=tiny"]
  command += [
    f"--workdir={tmp_path}/run",
    f"--config.init_from={folder}",
    "--config.model.variant=",
  ]
  command += [
    "--config.tokenizer=",
    "--config.data.chat=True",
    f"--config.data.path={tmp_path}/data",
  ]
  env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}  # one device
  found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
  assert found.returncode == 2, found.stderr
  assert case.says in found.stderr and len(found.stderr.strip().splitlines()) == 1
  shutil.rmtree(tmp_path / "m")
