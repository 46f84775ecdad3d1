"""Bad input is one line that names the setting, its value and what would work, before anything is
compiled or made.
"""

import collections
import inspect
import math
import subprocess
import sys
import textwrap
import time

import bad_settings
import conftest
import jax
import pytest
import tiny
from bad_settings import ACCEPTED, BAD, Bad
from ml_collections import ConfigDict, config_dict

from experiments import arguments, arithmetic, presets, run
from experiments.measure import benchmark, benchmarks, compare, comparisons
from grpo_jax.config import forms, kinds, sections
from grpo_jax.distributed import sharding
from grpo_jax.errors import SettingError
from grpo_jax.models import decoder, variants
from grpo_jax.reports import jsonl
from grpo_jax.setup import checks, defaults, loop_names, registry
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve

CONFIGS = {name: arithmetic.get_config(f"objective={name}") for name in bad_settings.OBJECTIVES}


def changed(
  name: str, value: object, objective: str = "grpo", also: dict | None = None
) -> ConfigDict:
  """The config with a value that a flag, or a config file that makes sections by hand, can give a
  setting.
  """
  c = CONFIGS[objective].copy_and_resolve_references()
  c.unlock()
  with c.ignore_type():
    for full, each in ((also or {}) | {name: value}).items():
      *holders, last = full.split(".")
      holder = c
      for section in holders:
        if section not in holder:
          holder[section] = ConfigDict()
        holder = holder[section]
      holder[last] = each
  return c.lock()


def before_weights(c: ConfigDict) -> None:
  """What a run looks at before weights are read: all that needs no folder of a model."""
  sections.check(c)
  loop_names.find(c.loop)
  resolve(c)
  sharding.make_layout(c.mesh, jax.devices()[:1])
  checks.check(make(c), tiny.decoder())
  if not c.init_from:
    variants.variant(c.model.variant)
  experiment = make(c)
  assert all(map(len, [*experiment.open_train(), experiment.open_test()]))


def label(bad: Bad) -> str:
  return f"{bad.objective}-{bad.name}-{kinds.shown(bad.value):.30}".encode(
    "ascii", "backslashreplace"
  ).decode()


def test_there_are_enough():
  assert len(BAD) >= 300 and len(bad_settings.BY_HAND) >= 100


@pytest.mark.parametrize("name", sorted({bad.name for bad in BAD}))
def test_a_bad_setting_is_one_line_that_names_it(name):
  for bad in (each for each in BAD if each.name == name):
    start = time.perf_counter()
    with pytest.raises(SettingError) as error:
      before_weights(changed(bad.name, bad.value, bad.objective, bad.also))
      pytest.fail(f"{label(bad)} is accepted")
    line = str(error.value)
    assert bad.name.split(".")[-1] in line and bad.says in line, (label(bad), line)
    assert names_value(bad.value, line), (label(bad), line)
    assert "\n" not in line and len(line) < 1000, (label(bad), line)
    assert time.perf_counter() - start < 20


def names_value(value: object, line: str) -> bool:
  """Whether a line shows a value, or the part of it that is wrong."""
  if value == ():
    return True
  if isinstance(value, tuple | list):
    return kinds.shown(value)[:40] in line or any(names_value(each, line) for each in value)
  if isinstance(value, dict) and value:
    return "{" in line or "a: 1" in line or any(names_value(each, line) for each in value.values())
  return kinds.shown(value)[:40].strip("'\"") in line or str(value)[:40] in line


@pytest.mark.parametrize("odd", ACCEPTED, ids=lambda odd: f"{odd.name}={odd.value!r}")
def test_odd_settings_that_are_taken_on_purpose(odd):
  assert odd.reason
  before_weights(changed(odd.name, odd.value))


def test_the_checks_of_a_loop_hold_the_ranges(tmp_path):
  """For those who call `train` from Python."""
  for loop in ("online", "offline", "reward_model"):
    c = changed("mesh.tensor", 0, also={"loop": loop})
    with pytest.raises(SettingError, match="mesh.tensor=0: use"):
      loop_names.find(loop).train(resolve(c), str(tmp_path / "run"))


# -- the table


def test_every_setting_has_a_row_and_every_row_a_setting():
  c = defaults.get_config()
  elsewhere = (
    "objective.",
    *(f"data.{name}." for name in sections.DATA_SETS),
  )  # in their files
  names = [name for name in arguments.names_of(c) if not name.startswith(elsewhere)]
  holders = {name.rpartition(".")[0] for name in arguments.names_of(c)}
  assert sorted({*names, "objective.name"} - holders) == sorted(sections.KINDS)


def test_the_defaults_and_the_experiments_are_within_their_ranges():
  before_weights(changed("mesh.fsdp", 1))
  for c in CONFIGS.values():
    sections.check(c)
    resolve(c)


def test_the_names_of_choices_are_those_that_the_code_knows():
  for name, known in decoder.HOW.items():
    assert sections.KINDS[f"model.{name}"].names == known
  assert sections.KINDS["sampler.dtype"].names == decoder.HOW["dtype"]
  assert sharding.AXES == forms.MESH_AXES


def test_every_missing_setting_is_named():
  for name in sections.KINDS:
    c = defaults.get_config()
    c.unlock()
    section, _, last = name.rpartition(".")
    del (c[section] if section else c)[last]
    with pytest.raises(
      SettingError, match=f"^{name}: missing; start from grpo_jax.setup.defaults.get_config"
    ):
      sections.check(c)
  with pytest.raises(SettingError, match="^seed: missing"):
    sections.check(ConfigDict())
  c = defaults.get_config()
  c.unlock()
  del c.learner
  with pytest.raises(SettingError, match="^learner: missing"):
    sections.check(c)


def test_a_placeholder_without_a_value_is_named():
  c = defaults.get_config()
  c.unlock()
  c.steps = config_dict.required_placeholder(int)
  with pytest.raises(SettingError, match="^steps: has no value; give it one, --config.steps=VALUE"):
    sections.check(c)


def test_a_section_of_a_data_set_has_the_names_of_its_file():
  for change, message in (
    ({"extra": 1}, "data.arithmetic: has extra, which"),
    ({"size": None}, "data.arithmetic: lacks size"),
  ):
    c = defaults.get_config()
    c.unlock()
    for name, value in change.items():
      if value is None:
        del c.data.arithmetic[name]
      else:
        c.data.arithmetic[name] = value
    with pytest.raises(SettingError, match=message):
      registry.train_data(c.data)


SAID = (
  "steps",
  "seed",
  "mesh.fsdp",
  "learner.b1",
  "sampler.top_p",
  "learner.lr",
  "rewards.deadline",
)


def test_what_rows_say():
  said = {name: sections.KINDS[name].expects for name in SAID}
  assert said == {
    "steps": "a whole number of at least 1, at most 2147483647",
    "seed": "a whole number from 0 to 4294967295",
    "mesh.fsdp": "a whole number of at least 1, at most 2147483647 or -1",
    "learner.b1": "a finite number of at least 0, below 1",
    "sampler.top_p": "a finite number above 0, at most 1",
    "learner.lr": "a finite number (in float32) of at least 0",
    "rewards.deadline": "a finite number of at least 0.001, at most 86400 or 0",
  }


def test_every_objective_checks_every_number_that_it_declares():
  """A number without a range of its own is in FREE, with its reason."""
  free = {"threshold": "of rewards, which may be negative"}
  of_numbers = collections.defaultdict(set)
  for bad in BAD:
    if (
      bad.name.startswith("objective.")
      and isinstance(bad.value, float)
      and math.isfinite(bad.value)
    ):
      of_numbers[bad.objective].add(bad.name.removeprefix("objective."))
  for name in bad_settings.OBJECTIVES:
    section = registry.objective(presets.PRESETS[name][0]).settings()
    numbers = {each for each in section if type(section[each]) in (int, float)}
    assert numbers - of_numbers[name] <= set(free), name


# -- benchmark.py and compare.py


@pytest.mark.parametrize("name", benchmark.WORKLOAD)
def test_the_sizes_of_a_benchmark_have_ranges(name):
  section = benchmarks.get_config().benchmark
  kinds.check(section, benchmark.WORKLOAD)
  with section.ignore_type():
    section[name] = -1
  with pytest.raises(SettingError, match=f"^benchmark.{name}=-1: use "):
    kinds.check(section, benchmark.WORKLOAD, "benchmark.")


@pytest.mark.parametrize(
  "name, value", [("steps", 0), ("lrs", (math.nan,)), ("lrs", 3), ("seeds", (-1,)), ("group", 0)]
)
def test_a_comparison_has_ranges(name, value, capsys):
  c = comparisons.get_config()
  with c.ignore_type():
    c[name] = value
  with pytest.raises(SystemExit) as end:
    compare.check(c)
  assert end.value.code == 2 and capsys.readouterr().err.startswith(f"error: {name}={value}: use ")


# -- whole commands

BASE = "--config=experiments/arithmetic.py"
COMMANDS = [
  ([BASE, "--config.sampler.tries=0"], "sampler.tries=0: use a whole number of at least 1"),
  ([BASE, "--config.log.every=0"], "log.every=0: use"),
  ([BASE, f"--config.steps={10**18}"], "use a whole number of at least 1, at most 2147483647"),
  (
    [BASE, "--config.steps=3", "--config.steps=x"],
    "error: --config.steps=x: expected a whole number",
  ),
  ([BASE, "--config.objective.beta=nan"], "objective.beta=nan: use"),
  ([BASE, "--config.objective.name=os.path"], "objective.name='os.path': has no objective"),
  ([BASE, "--config.mesh.rules=(1,2)"], "mesh.rules=(1, 2): use"),
  (
    [BASE, "--config.rewards.functions=(1,)"],
    "rewards.functions has 1: give (name, function, weight)",
  ),
  ([BASE, "--steps=5"], "--steps=5: no such flag; did you mean --config.steps=5?"),
  ([BASE, "--process=5", "--processes=2"], "--processes=2: goes with --coordinator=HOST:PORT"),
  (["--config=EXITS"], "it ends the program, sys.exit(0)"),
]
MORE = [
  (
    [BASE, "--config.steps=x", "--config.steps=3"],
    "error: --config.steps=x: expected a whole number",
  ),
  ([BASE, "--config.checkpoint.every=0"], "checkpoint.every=0: use"),
  ([BASE, "--config.eval.samples=-1"], "eval.samples=-1: use"),
  (
    [BASE, f"--config.seed={2**70}"],
    "seed=1180591620717411303424: use a whole number from 0 to 4294967295",
  ),
  ([BASE, "--config.objective.name=../x"], "not the name of a module"),
  ([BASE, "--config.objective.clip_low=-1"], "clip_low=-1.0: use"),
  ([BASE, "--config.data.template=x"], "data.template='x': use text with {question} in it"),
  ([BASE, "--config.learner.b2=2"], "learner.b2=2.0: use"),
  ([BASE, "--config.sampler.stop=('',)"], "sampler.stop=('',): use"),
  ([BASE, "--config.tokenizer=nonsense"], "nonsense"),
  ([BASE, "--config.rewards.functions=(('a','math.answer_correct',1e400),)"], "finite"),
  ([BASE, "--lr=1"], "did you mean --config.learner.lr=1?"),
  ([BASE, "--coordinator=host", "--processes=2", "--process=0"], "use HOST:PORT"),
  (
    [BASE, "--coordinator=host:1", "--processes=2", "--process=2"],
    "--process=2: processes are counted from 0",
  ),
  (["--config=EXITS_LATER"], "it ends the program, sys.exit(3)"),
  (["--config=EMPTY"], "seed: missing; start from grpo_jax.setup.defaults.get_config()"),
  ([BASE, "--config.eval.reward=EXITS:f"], "fails to import: SystemExit: 0"),
  (
    [BASE, "--config.data.name=jsonl", "--config.data.path=HALF"],
    "line 2: holds half of a character",
  ),
]
FILES = {
  "EXITS": "import sys\nsys.exit(0)\n",
  # absl loads a config file a second time
  "EXITS_LATER": """
    import pathlib, sys
    from experiments import arithmetic
    def get_config(arg=""):
      seen = pathlib.Path(__file__ + ".seen")
      if seen.exists():
        sys.exit(3)
      seen.touch()
      return arithmetic.get_config(arg)
  """,
  "EMPTY": "from ml_collections import ConfigDict\ndef get_config(arg=''):\n  return ConfigDict()\n",
}


LONG = [pytest.mark.slow, pytest.mark.long]
COMMANDS += [pytest.param(*each, marks=LONG) for each in MORE]


@pytest.mark.parametrize(("args", "message"), COMMANDS, ids=lambda x: str(x)[:60])
def test_a_command_ends_with_one_line_and_code_2(args, message, tmp_path, program):
  for name, text in FILES.items():
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
  (tmp_path / "HALF").write_text(
    '{"question": "a", "answer": "1"}\n{"question": "\\ud800", "answer": "1"}\n'
  )
  for name in (*sorted(FILES, key=len, reverse=True), "HALF"):
    file = f"={tmp_path}/{name}{'.py' if name in FILES else ''}"
    args = [
      arg.replace(f"={name}", file) if arg.split(":")[0].endswith(f"={name}") else arg
      for arg in args
    ]
  start = time.perf_counter()
  done = program("experiments.run", *args, f"--workdir={tmp_path}/run", timeout=60)
  assert done.returncode == 2, done.stderr
  assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
  assert message in done.stderr and not (tmp_path / "run").exists()
  assert time.perf_counter() - start < 60  # seconds on a machine that has nothing else to do


@pytest.mark.parametrize(
  "hosts, message",
  [
    (("h:1", None, 0, False), "--coordinator=h:1: needs --processes"),
    (("h:1", 2, None, False), "--coordinator=h:1: needs --processes"),
    (("h", 2, 0, False), "--coordinator=h: use HOST:PORT"),
    ((":1", 2, 0, False), "--coordinator=:1: use HOST:PORT"),
    (("h:", 2, 0, False), "--coordinator=h:: use HOST:PORT"),
    (("h:0", 2, 0, False), "--coordinator=h:0: use HOST:PORT"),
    (("h:65536", 2, 0, False), "--coordinator=h:65536: use HOST:PORT"),
    (("h:99999999999999999999", 2, 0, False), "use HOST:PORT"),
    (("h:x", 2, 0, False), "use HOST:PORT"),
    (("", 2, 0, False), "use HOST:PORT"),
    (("h:1", 0, 0, False), "--processes=0: use"),
    (("h:1", -1, 0, False), "--processes=-1: use"),
    (("h:1", 2, 2, False), "--process=2: .*less than --processes=2"),
    (("h:1", 2, -1, False), "--process=-1"),
    ((None, 2, None, False), "--processes=2: goes with"),
    ((None, None, 0, False), "--process=0: goes with"),
    ((None, None, -1, True), "--process=-1: .*of at least 0"),
  ],
)
def test_flags_of_several_hosts(hosts, message):
  with pytest.raises(SettingError, match=message):
    run.check_hosts(*hosts)


def test_flags_of_several_hosts_that_go_together():
  for hosts in (
    ("h:1", 2, 1, False),
    ("[::1]:8080", 1, 0, False),
    (None, None, None, True),
    (None, 4, 3, True),
  ):
    run.check_hosts(*hosts)
  assert "jax" not in inspect.getsource(run.check_hosts).replace("before jax is imported", "")


HELP = (
  "experiments.run",
  "experiments.measure.compare",
  "experiments.measure.benchmark",
  "experiments.measure.growth",
)
HELP += ("grpo_jax.reports.plots", "grpo_jax.reports.inspector")


@pytest.mark.parametrize(
  "command", [*HELP[:1], *(pytest.param(each, marks=pytest.mark.slow) for each in HELP[1:])]
)
@pytest.mark.parametrize("flag", ["--help", pytest.param("-h", marks=LONG)])
def test_help_needs_nothing_else(command, flag, program):
  done = program(command, flag)
  assert done.returncode == 0 and done.stderr == "" and f"python -m {command}" in done.stdout
  assert ("learner.lr=1e-06" in done.stdout) == (command == "experiments.run")


@pytest.mark.parametrize("peer", ["trl", "tunix"])
def test_help_of_a_peer_does_not_need_the_peer(peer):
  command = [sys.executable, f"{conftest.ROOT}/experiments/measure/peers/{peer}_step.py"]
  done = subprocess.run([*command, "--help"], text=True, capture_output=True, timeout=60)
  assert done.returncode == 0 and "--prompt_len" in done.stdout and done.stderr == ""
  done = subprocess.run([*command, "--group=0"], text=True, capture_output=True, timeout=60)
  assert done.returncode == 2 and "use a whole number of at least 1" in done.stderr


@pytest.mark.parametrize("report", ["plots", "inspector"])
@pytest.mark.parametrize("given", [[], ["nowhere"], ["a", "b"]])
def test_a_report_of_no_folder_is_one_line_and_code_2(report, given, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["report", *given])
  with pytest.raises(SystemExit) as end:
    jsonl.folder_argument(f"grpo_jax.reports.{report}", "doc")
  told = capsys.readouterr()
  assert end.value.code == 2 and told.out == "" and told.err.count("\n") == 1 and "DIR" in told.err


def test_a_report_that_cannot_be_written_is_one_line_and_code_2(tmp_path, monkeypatch, capsys):
  def draw(folder):
    raise PermissionError(13, "Permission denied")

  monkeypatch.setattr(sys, "argv", ["report", str(tmp_path)])
  with pytest.raises(SystemExit) as end:
    jsonl.folder_command("grpo_jax.reports.plots", "doc", draw, "nothing to draw")
  assert end.value.code == 2
  assert capsys.readouterr().err == f"error: {tmp_path}: Permission denied\n"
  jsonl.folder_command("grpo_jax.reports.plots", "doc", lambda folder: None, "nothing to draw")
  assert capsys.readouterr().out == f"{tmp_path}: nothing to draw\n"
  with pytest.raises(KeyError):  # a bug keeps its traceback
    jsonl.folder_command("grpo_jax.reports.plots", "doc", {}.__getitem__, "nothing to draw")


def test_ctrl_c_while_importing_is_no_traceback(capsys):
  with pytest.raises(SystemExit) as end, arguments.one_line_errors():
    raise KeyboardInterrupt
  assert end.value.code == 130 and capsys.readouterr().err == "interrupted\n"
