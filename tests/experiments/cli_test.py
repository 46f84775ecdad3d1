"""The command line: what is wrong with it is said in one line, at once; what is right reaches the
loop.
"""

import ast
import socket
import subprocess
import sys
import textwrap

import conftest
import jax
import pytest
from ml_collections import ConfigDict

from experiments import arguments, run
from grpo_jax import reports
from grpo_jax.errors import SettingError
from grpo_jax.setup import defaults

CONFIG = """
from experiments import arguments
from grpo_jax.setup import defaults

def get_config(arg=""):
  args = arguments.parse_arg(arg, model=("tiny", "large"), layers=8, chat=False)
  config = defaults.get_config()
  config.loop = "nonsense"
  return config
"""


@pytest.fixture
def config(tmp_path):
  path = tmp_path / "config.py"
  path.write_text(CONFIG)
  return str(path)


def test_arguments_have_the_types_of_their_defaults():
  args = arguments.parse_arg(
    "layers=2, lr=3e-4,chat,model=large,name=x=y",
    layers=8,
    lr=1.0,
    chat=False,
    model=("s", "large"),
    name="",
  )
  assert args.to_dict() == {"layers": 2, "lr": 3e-4, "chat": True, "model": "large", "name": "x=y"}
  assert arguments.parse_arg("", layers=8, model=("s", "large")).to_dict() == {
    "layers": 8,
    "model": "s",
  }
  assert arguments.parse_arg("chat=no", chat=True).chat is False


@pytest.mark.parametrize(
  ("arg", "message"),
  [
    (
      "layer=2",
      "layer: this config has no such argument; it has: layers=8, chat=False, model=s|large; a "
      "setting is --config.NAME=VALUE",
    ),
    ("layers=two", "layers=two: expected a whole number, as in layers=8"),
    ("layers", "layers: a value is missing; write layers=VALUE, as in layers=8"),
    ("chat=maybe", "chat=maybe: expected true or false, as in chat=False"),
    ("model=huge", "model=huge: choose from s, large"),
  ],
)
def test_a_wrong_argument_says_what_would_work(arg, message):
  with pytest.raises(SettingError) as error:
    arguments.parse_arg(arg, layers=8, chat=False, model=("s", "large"))
  assert str(error.value) == message


def test_an_argument_that_is_given_twice():
  with pytest.raises(SettingError, match="layers=3: layers is given twice; give it once"):
    arguments.parse_arg("layers=2,layers=3", layers=8)


def test_an_error_has_nothing_that_a_terminal_obeys(capsys):
  with pytest.raises(SystemExit):
    arguments.fail("a\x1b[31mb\x07\nc \ud800 \u0663")
  assert capsys.readouterr().err == "error: a\ufffd[31mb\ufffd c \ufffd \u0663\n"


def test_the_nearest_names_are_offered():
  names = arguments.names_of(
    ConfigDict(
      {"steps": 1, "learner": {"lr": 1.0, "mu": 1}, "eval": {"every": 1}, "log": {"every": 1}}
    )
  )
  assert names == [
    "eval",
    "eval.every",
    "learner",
    "learner.lr",
    "learner.mu",
    "log",
    "log.every",
    "steps",
  ]
  assert arguments.nearest("learner.lrr", names) == ["learner.lr"]
  assert arguments.nearest("lr", names) == ["learner.lr"]
  assert arguments.nearest("every", names) == ["eval.every", "log.every"]
  assert arguments.nearest("step", names) == ["steps"]
  assert arguments.nearest("qqq", names) == []


WRONG = [
  ([], "error: --config is missing, as in --config=experiments/arithmetic.py"),
  (["--config=CONFIG", "."], "error: .: not understood; write --workdir=."),
  (["."], "; python -m experiments.report . shows what is there"),
  (["--config=experiments/gsm8.py"], "no such file; did you mean experiments/gsm8k.py?"),
  (["--config=CONFIG"], "error: --workdir is missing"),
  (
    ["--config=CONFIG:modle=tiny"],
    "modle: this config has no such argument; it has: model=tiny|large, layers=8",
  ),
  (["--config=CONFIG:model=huge"], "model=huge: choose from tiny, large"),
  (
    ["--config=CONFIG", "--config.learner.lrr=1"],
    "--config.learner.lrr: no such setting; did you mean learner.lr?",
  ),
  (
    ["--config=CONFIG", "--config.objective.tau_positive=2"],
    "--config.objective.tau_positive: grpo has no such setting, which other objectives have; it "
    "has: advantage, ",
  ),
  (
    ["--config=CONFIG", "--config.objective.clip_hi=2"],
    "--config.objective.clip_hi: no such setting; did you mean objective.clip_high",
  ),
  (
    ["--config=CONFIG", "--config.learner.zzz=1"],
    "--config.learner.zzz: no such setting; learner has: ",
  ),
  (["--config=CONFIG", "--config.steps=1e3"], "--config.steps=1e3: expected a whole number"),
  (["--config=CONFIG", "--config.steps", "many"], "--config.steps: expected a whole number"),
  (["--config=CONFIG", "--config.learner=3"], "--config.learner=3: expected a section"),
  (
    ["--config=CONFIG", "--wrkdir=x"],
    "Unknown command line flag 'wrkdir'. Did you mean: workdir ?",
  ),
  (["--config=CONFIG", "--steps=5"], "--steps=5: no such flag; did you mean --config.steps=5?"),
  (["--config=CONFIG", "--lr=5"], "--lr=5: no such flag; did you mean --config.learner.lr=5?"),
  (
    ["--config=CONFIG", "--learner.mu=5"],
    "--learner.mu=5: no such flag; did you mean --config.learner.mu=5?",
  ),
  (
    ["--config=CONFIG", "--noconfig.steps"],
    "--noconfig.steps: only a setting that is True or False",
  ),
  (
    ["--config=CONFIG", "--config.=3"],
    "--config.=3: the name of a setting is missing, as in --config.steps=3",
  ),
  (
    ["--config=CONFIG", "--config.data.mixture[0]=1"],
    "--config.data.mixture[0]=1: tuple index out of range",
  ),
  (["--config=README.md"], "README.md is no Python file; its name should end in .py"),
  (["--flagfile=/nowhere"], "Unable to open flagfile"),
  (["--config=CONFIG", "stray"], "stray: not understood; a setting is written --config.NAME=VALUE"),
  (
    ["--config.steps=3", "--config=CONFIG"],
    "error: --config.steps=3: stands before --config; write --config=FILE first",
  ),
  (
    ["--config.steps", "3", "--config=CONFIG"],
    "error: --config.steps: stands before --config; write --config=FILE first",
  ),
]


@pytest.mark.parametrize(("args", "message"), WRONG, ids=[" ".join(args) for args, _ in WRONG])
def test_bad_input_is_one_line_and_code_2_at_once(args, message, config, tmp_path, program):
  # What is answered before the config file is loaded is answered before jax is imported.
  quick = not any("=CONFIG" in arg for arg in args)
  if quick:
    (tmp_path / "jax.py").write_text("raise RuntimeError('imported jax')")
  done = program(
    "experiments.run", *(arg.replace("CONFIG", config) for arg in args), PYTHONPATH=str(tmp_path)
  )
  assert done.returncode == 2 and done.stdout == ""
  assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
  assert message in done.stderr


@pytest.mark.parametrize(
  ("text", "message"),
  [
    (
      "def get_config(arg=''):\n  return 3\n",
      "get_config() must return an ml_collections.ConfigDict, not int",
    ),
    (
      "import ml_collections\ndef get_config(arg=''):\n  return "
      "ml_collections.FrozenConfigDict()\n",
      "must return an ml_collections.ConfigDict, not FrozenConfigDict",
    ),
    ("import sys\nsys.exit()\n", "broken.py: it ends the program, sys.exit(None); return a config"),
    (
      "def get_config(arg=''):\n  return nothing\n",
      "broken.py:2: NameError: name 'nothing' is not defined",
    ),
    ("x = 1\n", "AttributeError: module 'config' has no attribute 'get_config'"),
    ("def get_config(:\n", "SyntaxError"),
  ],
)
def test_a_broken_config_file_is_one_line(text, message, tmp_path, program):
  (tmp_path / "broken.py").write_text(text)
  done = program("experiments.run", f"--config={tmp_path}/broken.py", "--workdir=w")
  assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr


def test_a_loop_that_is_not_there(config, tmp_path, program):
  done = program("experiments.run", f"--config={config}", f"--workdir={tmp_path}/run")
  assert done.returncode == 2 and not (tmp_path / "run").exists()
  assert done.stderr.startswith("error: loop='nonsense': no module grpo_jax.loops.nonsense; ")


def with_loop(folder, text):
  """Returns a config whose loop is a file of a user's."""
  (folder / "made_up.py").write_text(textwrap.dedent(text))
  config = defaults.get_config()
  config.loop, config.steps = str(folder / "made_up.py"), 3
  return config


def test_the_loop_gets_the_config_and_what_it_wrote_is_drawn(tmp_path):
  text = """
    LIKE = "online"

    def train(config, workdir):
      with open(workdir + "/metrics.jsonl", "w") as f:
        f.write('{"step": 0, "reward/mean": %d}\\n' % config.steps)
      with open(workdir + "/samples.jsonl", "w") as f:
        f.write('{"step": 0, "question": "q", "completion": "c", "reward": 1, "advantage": 1}\\n')
  """
  run.start(with_loop(tmp_path, text), str(tmp_path))
  assert (tmp_path / "curve.png").exists() and (tmp_path / "samples.html").exists()
  assert '"reward/mean": 3' in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
  "flags, setting, count",
  [
    ("", "steps=1", 4),
    pytest.param(f"{conftest.DEVICES}=2", "steps=1", 2, marks=[pytest.mark.slow, pytest.mark.long]),
    pytest.param("", "data.prompts=6", 2, marks=pytest.mark.slow),  # what divides both
    pytest.param("", "mesh.fsdp=1", 1, marks=[pytest.mark.slow, pytest.mark.long]),
  ],
)
def test_a_cpu_is_so_many_devices(flags, setting, count, tmp_path, program):
  (tmp_path / "made_up.py").write_text(
    "import jax\nLIKE = 'online'\ndef train(config, workdir): print('devices', jax.device_count())"
  )
  (tmp_path / "config.py").write_text(CONFIG.replace("nonsense", str(tmp_path / "made_up.py")))
  args = [
    f"--config={tmp_path}/config.py",
    f"--workdir={tmp_path}/w",
    "--config.data.prompts=8",
    "--config.mesh.cpu_devices=4",
    f"--config.{setting}",
  ]
  assert f"devices {count}\n" in program("experiments.run", *args, XLA_FLAGS=flags).stdout


def test_without_matplotlib_the_run_says_so_and_ends_well(monkeypatch, tmp_path, capsys):
  config = with_loop(tmp_path, "LIKE = 'online'\ndef train(config, workdir): pass")
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  monkeypatch.delitem(sys.modules, "grpo_jax.reports.plots", raising=False)
  monkeypatch.delattr(reports, "plots", raising=False)
  run.start(config, str(tmp_path))
  out = capsys.readouterr().out
  assert out.startswith("starting: ") and out.count("\n") == 2
  assert out.splitlines()[1].startswith("no curve.png: matplotlib is missing")


def test_what_a_loop_refuses_is_one_line_and_code_2(capsys):
  with pytest.raises(SystemExit) as end, arguments.one_line_errors():
    raise SettingError("data.path=x: no such folder;\n  pass one")
  assert end.value.code == 2
  assert capsys.readouterr().err == "error: data.path=x: no such folder; pass one\n"
  with pytest.raises(ValueError), arguments.one_line_errors():
    raise ValueError("a bug keeps its traceback")


def test_help_shows_how(program):
  done = program("experiments.run", "--help")
  assert "python -m experiments.run --config=FILE" in done.stdout and "--workdir" in done.stdout
  assert "  --config: Config file of an experiment and its arguments" in done.stdout
  assert done.returncode == 0 and done.stderr == ""


def test_hosts_wait_a_day_for_one_that_still_writes(monkeypatch):
  given = {}
  monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: given.update(options))
  monkeypatch.setenv("XLA_FLAGS", "")
  run.join_hosts("localhost:1", 2, 0)
  assert (
    given["shutdown_timeout_seconds"] == 24 * 3600 and given["heartbeat_timeout_seconds"] == 100
  )


@pytest.mark.slow
def test_two_processes_find_each_other():
  with socket.socket() as s:
    s.bind(("localhost", 0))
    port = s.getsockname()[1]
  join = (
    "import sys, jax; from experiments import run; run.join_hosts(sys.argv[1], 2, int(sys.argv[2]))"
  )
  code = (
    f"{join}; import os; print(run.ORDER_FLAG + '=false' in os.environ['XLA_FLAGS'], "
    "jax.process_count())"
  )
  command = [sys.executable, "-c", code, f"localhost:{port}"]
  started = [
    subprocess.Popen(
      [*command, str(i)],
      cwd=conftest.ROOT,
      env=conftest.environment(),
      stdout=subprocess.PIPE,
      text=True,
    )
    for i in range(2)
  ]
  assert [process.communicate(timeout=120)[0].split()[-2:] for process in started] == [
    ["True", "2"]
  ] * 2


@pytest.mark.parametrize(
  "platforms, devices, want",
  [
    ("cpu", ["/dev/accel0"], True),
    ("tpu,cpu", [], False),
    ("", [], True),
    ("", ["/dev/accel0"], False),
  ],
)
def test_the_flag_for_collectives_on_cpus_is_set_there_alone(platforms, devices, want, monkeypatch):
  monkeypatch.setattr(
    run.glob, "glob", lambda pattern: [d for d in devices if pattern == "/dev/accel*"]
  )
  assert run.on_cpu(platforms) == want


def test_a_command_without_a_config_asks_for_none(program):
  done = program("experiments.measure.growth")
  assert done.returncode == 2 and done.stderr.startswith(
    "error: --workdir is missing: the folder of growth.jsonl"
  )


def test_a_message_is_no_longer_than_a_person_reads(capsys):
  with pytest.raises(SystemExit):
    arguments.fail(SettingError("x" * 10_000))
  assert len(capsys.readouterr().err) < 2100


def test_a_text_in_a_tuple_may_have_a_newline():
  """As a shell hands it on from a command of two lines."""
  config = defaults.get_config()
  for value, found in (
    ("('\nQ:', 'x')", ("\nQ:", "x")),
    ("('a',\n 'b')", ("a", "b")),
    ('("it\'s\n",)', ("it's\n",)),
  ):
    arg = arguments._one_line_texts(f"--config.sampler.stop={value}", config)
    assert ast.literal_eval(arg.partition("=")[2]) == found
  text = "--config.data.template={question}\n'\n'"
  assert arguments._one_line_texts(text, config) == text  # a text is taken as it is


@pytest.mark.parametrize("value", ["('abc'", "['it's']", "(a,b)", "('a',))"])
def test_a_tuple_that_cannot_be_read_is_no_text(value, capsys):
  with pytest.raises(SystemExit) as end:
    arguments._one_line_texts(f"--config.sampler.stop={value}", defaults.get_config())
  assert end.value.code == 2 and "expected a tuple, as in" in capsys.readouterr().err
