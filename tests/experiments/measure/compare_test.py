"""experiments/measure/compare.py on made-up runs: what is run, what is counted, what is chosen, what the
page says.
"""

import dataclasses
import errno
import html.parser
import importlib
import io
import json
import os
import pathlib
import signal
import sys
import threading

import numpy as np
import pytest
import rich.console
import small_models
from ml_collections import ConfigDict

from experiments import arguments, arithmetic, progress
from experiments.measure import (
  compare,
  comparisons,
  jobs,
  off_policy,
  on_policy,
  processes,
  reward_comparison,
)
from grpo_jax.errors import SettingError
from grpo_jax.reports import comparison, jsonl
from grpo_jax.run import signals

# What experiments.run leaves, at once: an accuracy that depends on arm, learning rate and seed.
FAKE = """
import json, os, pathlib, sys, time
given = dict(a.removeprefix("--").removeprefix("config.").split("=", 1) for a in sys.argv[1:])
folder, lr, seed, steps = pathlib.Path(given["workdir"]), float(given["learner.lr"]), int(given["seed"]), 4
with open(folder / "calls", "a") as f:
  f.write("x")
if lr == 1.0:
  sys.exit("error: learner.lr=1.0: 10 updates in a row were not finite")
if lr == 8.0:  # a library that ends the process
  print("starting", flush=True)
  os._exit(0)
if lr == 9.0:
  print("SIGTERM: saved; to go on, run the same command again: python\\nwarning: something", flush=True)
  os._exit(0)
if given.get("learner.b1") == "2":
  sys.exit("error: learner.b1=2: at most 1")
memory = bytearray(int(given.get("learner.b2", 0)) * 2**20)
if lr == 7.0 and not (folder / "stopped").exists():  # waits for its signal, as a run that saves and ends
  import signal
  signal.signal(signal.SIGTERM, lambda *_: ((folder / "stopped").touch(), sys.exit(0)))
  (folder / "ready").touch()
  time.sleep(30)
tokens = 100 if "ppo" in given["config"] else 50
rows = [{"step": 0, "eval/accuracy": 0.2}]
for step in range(1, steps + 1):
  rows.append({"step": step, "loss": 0.0, "tokens": tokens})
rows.append({"step": steps, "eval/accuracy": 0.2 + 100 * lr + 0.01 * (seed % 100)})
(folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
(folder / "config.json").write_text(json.dumps({"loop": "online"}))
(folder / "result.json").write_text(json.dumps({"accuracy_after": rows[-1]["eval/accuracy"], "wall_s": 12.0}))
"""


def faked(monkeypatch, tmp_path):
  """Returns the config of two arms, whose runs are of a program that only writes their files."""
  fake = tmp_path / "fake.py"
  fake.write_text(FAKE)
  monkeypatch.setattr(
    compare,
    "command",
    lambda run: [sys.executable, "-S", str(fake), *run.flags, f"--workdir={run.folder}"],
  )
  monkeypatch.setattr(processes, "POLL_SECONDS", 0.01)
  c = comparisons.get_config("arms=grpo+ppo")
  c.lrs, c.tune_seeds, c.seeds, c.steps, c.settings = (0.001, 0.002), (100,), (0, 1), 4, ()
  return c


@pytest.fixture
def config(monkeypatch, tmp_path):
  return faked(monkeypatch, tmp_path)


@pytest.fixture
def workdir(tmp_path):
  (tmp_path / "all").mkdir()
  return tmp_path / "all"


def run_all(config, workdir, asked=()):
  with processes.locked(workdir) as lock:
    return compare.run_all(config, workdir, lock, asked)


def calls(workdir):
  """How often each run was started."""
  return {
    str(p.parent.relative_to(workdir)): len(p.read_text()) for p in workdir.glob("*/*/*/calls")
  }


@pytest.mark.parametrize(
  ("module", "arg"),
  [
    (comparisons, ""),
    (comparisons, "quick"),
    (reward_comparison, "orm={judge},prm={judge}"),
    (off_policy, ""),
    (on_policy, ""),
  ],
  ids=["objectives", "quick", "rewards", "off_policy", "on_policy"],
)
def test_every_arm_is_a_run_whose_settings_exist(module, arg, tmp_path):
  shape = dataclasses.replace(small_models.SMALL["test_qwen3"], scores=True)
  (tmp_path / "model").mkdir()
  (tmp_path / "model" / "decoder.json").write_text(json.dumps(dataclasses.asdict(shape)))
  c = module.get_config(arg.format(judge=tmp_path))
  compare.check(c)
  compare.check_runs(c)
  for arm in jobs.names(c):
    run = jobs.job(c, pathlib.Path("w"), arm, 3e-4, 0)
    file, objective = run.flags[0].removeprefix("--config=").split(":")
    base = importlib.import_module(file.removesuffix(".py").replace("/", ".")).get_config(objective)
    assert set(s.split("=")[0] for s in run.flags[1:]) <= {
      f"--config.{name}" for name in arguments.names_of(base)
    }
    assert run.folder == pathlib.Path(f"w/{arm}/0.0003/0")
  assert {arm for _, names in c.questions for arm in names} == set(jobs.names(c))


def test_an_arm_differs_from_another_only_in_what_it_is():
  c = comparisons.get_config()
  common = set(jobs.job(c, pathlib.Path("w"), "grpo", 1e-3, 3).flags[1:])
  kl = set(jobs.job(c, pathlib.Path("w"), "kl_loss", 1e-3, 3).flags[1:])
  assert kl - common == {"--config.objective.beta=0.04"} and common < kl
  assert {"--config.learner.lr=0.001", "--config.seed=3", "--config.data.test=test"} < common
  assert "--config.offline.prompts=3200" in common
  assert "--config.data.test=validation" in jobs.job(c, pathlib.Path("w"), "grpo", 1e-3, 100).flags


def test_arms_are_chosen_by_name():
  assert jobs.names(comparisons.get_config("arms=rft+grpo,quick")) == ("rft", "grpo")
  with pytest.raises(
    SettingError, match=r"arms=grpo\+pppo: no arm 'pppo'; choose from grpo\+ppo\+"
  ):
    comparisons.get_config("arms=grpo+pppo")


def test_off_policy_arms_make_as_many_updates_on_a_rollout():
  for updates, passes in ((8, 1), (16, 2)):
    c = off_policy.get_config(f"updates={updates}")
    for arm in jobs.names(c):
      flags = jobs.job(c, pathlib.Path("w"), arm, 1e-4, 0).flags
      assert [f for f in flags if "learner.m" in f] == [
        "--config.learner.minibatches=8",
        f"--config.learner.mu={passes}",
      ]
  with pytest.raises(SettingError, match="updates=12: use a multiple of 8"):
    off_policy.get_config("updates=12")


def test_on_policy_arms_make_one_update_on_a_rollout():
  c = on_policy.get_config()
  for arm in jobs.names(c):
    file, argument = jobs.job(c, pathlib.Path("w"), arm, 1e-4, 0).flags[0].split(":")
    assert file == "--config=experiments/arithmetic.py"
    learner = arithmetic.get_config(argument).learner
    assert (learner.mu, learner.minibatches) == (1, 1)


def test_an_arm_without_its_reward_model_is_refused():
  assert jobs.names(reward_comparison.get_config("arms=steps+outcome")) == ("steps", "outcome")
  with pytest.raises(
    SettingError, match="orm='': the arm fixed needs a reward model; write :orm=FOLDER"
  ):
    reward_comparison.get_config("arms=prm+fixed,prm=folder")


@pytest.mark.parametrize("name", ["", "../a", "a/b", "a\n", " a"])
def test_the_name_of_an_arm_is_one_of_a_folder(name, capsys):
  c = comparisons.get_config("arms=grpo")
  c.arms = ((name, "grpo"),)
  with pytest.raises(SystemExit) as end:
    compare.check(c)
  err = capsys.readouterr().err
  assert (
    end.value.code == 2 and err.startswith("error: arms has the name ") and err.count("\n") == 1
  )


def test_bad_input_is_one_line(program, tmp_path):
  def refused(args, message, **env):
    done = program("experiments.measure.compare", *args, **env)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr, (
      done.stderr
    )

  # The config of a run imports jax; that of a comparison is answered without.
  refused(["--config=experiments/arithmetic.py", "--workdir=w"], "--config: needs arms and a grid")
  (tmp_path / "jax.py").write_text("raise RuntimeError('imported jax')")
  for args, message in [
    (["--config=experiments/measure/comparisons.py"], "--workdir is missing"),
    (
      ["--config=experiments/measure/comparisons.py", "--workdir=w", "--config.seeds=(0, 100)"],
      "100 is among tune_seeds",
    ),
    (
      ["--config=experiments/measure/comparisons.py", "--workdir=w", "--config.lrs=()"],
      "lrs=(): at least one",
    ),
    (
      ["--config=experiments/measure/comparisons.py", "--workdir=/nowhere", "--draw_only"],
      "/nowhere: no such folder",
    ),
  ]:
    refused(args, message, PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize(
  "name,change,message",
  [
    ("learner.lrr=3", {}, "learner.lrr"),
    ("learner.b1=2", {}, "learner.b1=2.0: use a finite number of at least 0, below 1"),
    ("", {"base": "experiments/nowhere.py"}, "experiments/nowhere.py"),
    pytest.param(
      *("", {"arms": (("grpo", "grpo"), ("late", "grpo", "iterative.epochs=0"))}),
      "iterative.epochs=0",
      marks=[pytest.mark.slow, pytest.mark.long],
    ),
    ("eval.reward=math.none", {}, "eval.reward='math.none': "),
    (
      "",
      {"base": "experiments/gemma3_270m.py", "settings": ("first.rewards.deadline=-1",)},
      "first.rewards.deadline=-1.0: use",
    ),
    pytest.param(
      *("rewards.outcome_models=(('judge', '/no/where', 1.0),)", {}),
      "rewards.outcome_models has 'judge', '/no/where': no such folder",
      marks=[pytest.mark.slow, pytest.mark.long],
    ),
    (
      "",
      {"arms": (("grpo", "grpo", "loop=iterative", "iterative.reward_model=/no/where"),)},
      "iterative.reward_model='/no/where': no such folder",
    ),
    ("eval.problems=0", {}, "eval.problems=0: accuracies are compared; use at least 1"),
  ],
)
def test_settings_of_all_arms_are_checked_before_the_first_run(name, change, message, capfd):
  c = comparisons.get_config("arms=grpo")
  c.settings = (name,) if name else ()
  c.update(change)
  with pytest.raises(SystemExit) as ended:
    compare.check_runs(c)
  assert ended.value.code == 2
  err = capfd.readouterr().err
  assert err.count("\n") == 1 and message in err


def test_damaged_settings_of_a_run_are_named(config, workdir, capsys):
  run = jobs.next_job(config, workdir)
  run.folder.mkdir(parents=True)
  (run.folder / "settings.json").touch()
  with pytest.raises(SystemExit):
    jobs.next_job(config, workdir)
  assert f"{run.folder}/settings.json is damaged; remove it" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_line(config, workdir, monkeypatch, capsys):
  """Says so where somebody else's comparison is drawn."""

  def refuse(path, content):
    raise OSError(errno.EROFS, "Read-only file system", str(path))

  monkeypatch.setattr(compare.storage, "write", refuse)
  with pytest.raises(SystemExit) as ended:
    compare.draw(config, workdir)
  assert ended.value.code == 2
  said = f"error: --workdir={workdir}: cannot be written to (Read-only file system)\n"
  assert capsys.readouterr().err == said


def test_everything_is_run_once(config, workdir, capsys):
  assert run_all(config, workdir)
  tuned = ["0.001/100", "0.002/100"]
  assert calls(workdir) == {
    f"{arm}/{r}": 1 for arm in ("grpo", "ppo") for r in [*tuned, "0.002/0", "0.002/1"]
  }
  rows = jsonl.read(workdir / "runs.jsonl")
  assert [(r["arm"], r["lr"], r["seed"], r["split"]) for r in rows[:3]] == [
    ("grpo", 0.001, 100, "validation"),
    ("grpo", 0.002, 100, "validation"),
    ("grpo", 0.002, 0, "test"),
  ]
  assert all(r["finished"] and r["exit"] == 0 and r["seconds"] > 0 for r in rows)
  out = capsys.readouterr().out.splitlines()
  assert out[0] == "run 1/8  grpo lr 0.001 seed 100 on validation  0%  -:--:-- left"
  assert [line.split()[1] for line in out] == [f"{i}/8" for i in range(1, 9)]
  assert run_all(config, workdir)
  assert set(calls(workdir).values()) == {1} and len(jsonl.read(workdir / "runs.jsonl")) == 8
  (workdir / "ppo/0.002/1/result.json").unlink()
  assert (
    run_all(config, workdir)
    and calls(workdir)["ppo/0.002/1"] == 2
    and sum(calls(workdir).values()) == 9
  )


@pytest.mark.slow
def test_peak_memory_is_of_the_run(config, workdir):
  own = compare_peak()
  big = 600 + own
  config.arms, config.lrs, config.seeds = (("grpo", "grpo", f"learner.b2={big}"),), (0.001,), (0,)
  assert run_all(config, workdir)
  assert (
    (own + 200) * 1.048 < jsonl.read(workdir / "runs.jsonl")[0]["peak_memory_mb"] < big * 1.05 + 60
  )
  (arm,) = comparison.finished_arms(workdir, ("grpo",), (0.001,), (), (0,))
  assert arm.runs[0].memory_mb == jsonl.read(workdir / "runs.jsonl")[0]["peak_memory_mb"]


def compare_peak():
  """Peak memory of this process in MiB: Linux hands it on."""
  import resource

  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def test_a_run_that_fails_ends_the_comparison_in_one_line(config, workdir, capsys):
  config.settings = ("learner.b1=2",)
  with pytest.raises(SystemExit) as end:
    run_all(config, workdir)
  assert end.value.code == 2
  error = capsys.readouterr().err
  assert error == (
    f"error: {workdir}/grpo/0.001/100/log.txt: experiments.run ended with 1 and no result: "
    "learner.b1=2: at most 1\n"
  )
  assert calls(workdir) == {"grpo/0.001/100": 1}


def test_a_run_that_ends_with_0_and_no_result_has_failed_unless_a_signal_stopped_it(
  config, workdir, capsys
):
  config.lrs = (8.0,)
  with pytest.raises(SystemExit) as end:
    run_all(config, workdir)
  assert end.value.code == 2
  assert capsys.readouterr().err.endswith(
    "log.txt: experiments.run ended with 0 and no result: starting\n"
  )
  config.lrs = (9.0,)
  assert not run_all(config, workdir)
  assert compare.STOPPED in signals.how_to_resume()


def test_a_signal_stops_the_run_and_the_same_command_goes_on(config, workdir):
  config.lrs, asked = (7.0,), []
  ready = workdir / "grpo/7/0/ready"

  def ask():
    while not ready.exists():
      threading.Event().wait(0.01)
    asked.append(signal.SIGTERM)

  threading.Thread(target=ask).start()
  assert not run_all(config, workdir, asked)
  assert (ready.parent / "stopped").exists() and calls(workdir) == {"grpo/7/0": 1}
  assert jsonl.read(workdir / "runs.jsonl")[0]["finished"] is False
  config.arms = config.arms[:1]
  config.seeds = (0,)
  assert run_all(config, workdir) and calls(workdir) == {"grpo/7/0": 2}


def test_signals_are_gathered_and_handed_back():
  before = signal.getsignal(signal.SIGTERM)
  with processes.stop_signals() as asked:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
  assert asked == [signal.SIGTERM, signal.SIGINT] and signal.getsignal(signal.SIGTERM) == before


def test_a_folder_is_used_by_one_comparison(workdir, capsys):
  with processes.locked(workdir), pytest.raises(SystemExit), processes.locked(workdir):
    pass
  assert (
    "another comparison, or a run that it left, is there; wait for process"
    in capsys.readouterr().err
  )
  with processes.locked(workdir):
    pass


def test_runs_of_other_settings_are_refused(config, workdir, capsys):
  assert run_all(config, workdir)
  config.steps = 5
  with pytest.raises(SystemExit):
    run_all(config, workdir)
  error = capsys.readouterr().err
  assert "grpo/0.001/100 holds a run with --config.steps=4" in error and error.count("\n") == 1
  config.steps, config.seeds = 4, (0, 1, 2)  # more seeds are no other settings
  assert run_all(config, workdir) and calls(workdir)["grpo/0.002/2"] == 1


def test_a_bar_on_a_terminal(monkeypatch):
  console = rich.console.Console(
    file=io.StringIO(), force_terminal=True, width=100, color_system=None
  )
  monkeypatch.setattr(progress.terminal, "make", lambda: console)
  clock = iter([10.0, 16.0])
  monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
  with progress.Progress(8, 2) as shown:
    shown.show(2, "[first]")
    shown.show(4, "second")
  text = console.file.getvalue()
  assert "50%  0:00:12 left  second" in text and "\x1b[?25h" in text  # the cursor is back


class Tags(html.parser.HTMLParser):
  def __init__(self):
    super().__init__()
    self.tags, self.sources, self.text = [], [], ""

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.sources += [
      v for k, v in attrs if k in ("src", "href", "xlink:href") and not v.startswith("#")
    ]

  def handle_data(self, data):
    self.text += data


def test_the_page_stands_alone_and_shows_what_is_finished(config, workdir, capsys):
  pytest.importorskip("matplotlib")
  compare.draw(config, workdir)
  assert "No run that is shown is finished" in (workdir / "compare.html").read_text()
  assert run_all(config, workdir)
  (workdir / "ppo/0.002/1/result.json").unlink()
  compare.draw(config, workdir)
  assert (
    capsys.readouterr().out.splitlines()[-1]
    == f"{workdir}/compare.html and compare.md: 7 of 8 runs"
  )
  page = Tags()
  page.feed((workdir / "compare.html").read_text())
  assert page.sources == [] and "script" not in page.tags and page.tags.count("svg") == 1
  assert page.tags.count("table") == 2
  assert (
    "GRPO and PPO: group, critic, both" in page.text
    and "ppo (1)" in page.text
    and "grpo (2)" in page.text
  )
  text = (workdir / "compare.md").read_text()
  # ppo samples 100 tokens a step, grpo 50: at 200 tokens ppo is half way from 0.2 to 0.4.
  assert "The start solves 20.0%. Accuracy is read" in text
  assert "200 completion tokens" in text and "Not finished: 7 of 8 runs" in text
  assert "| grpo | 0.002* | 2 | 40.5% ± 0.7 | 40.0 to 41.0 | +20.5 | - | - | - | 1 | " in text
  assert "| ppo | 0.002* | 1 | 30.0% | 30.0 to 30.0 | +10.0 | - | - | - | 1 | " in text


def test_what_is_said_of_starts_and_machines_is_of_the_runs(config, workdir):
  """Says the same where it is drawn elsewhere; older lines have no machine."""
  assert run_all(config, workdir)
  path = workdir / "runs.jsonl"
  lines = [line | {"machine": "3 abaci"} for line in jsonl.read(path)]
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  grid = (tuple(config.lrs), tuple(config.tune_seeds))
  arms = comparison.finished_arms(workdir, jobs.names(config), *grid, tuple(config.seeds))
  lower = arms[0].runs[0]._replace(accuracy=[0.1, *arms[0].runs[0].accuracy[1:]])
  arms[0] = arms[0]._replace(runs=[lower, *arms[0].runs[1:]])
  text = " ".join(compare.notes(config, workdir, arms))
  assert "The starts solve 10.0% to 20.0%. " in text and "Runs one at a time on 3 abaci; " in text
  lines = [{name: x for name, x in line.items() if name != "machine"} for line in lines]
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  assert "Runs one at a time; " in " ".join(compare.notes(config, workdir, arms))


@pytest.mark.parametrize(
  "arms, panels",
  [
    (("a", "b", "c"), [("First", ("a", "b")), ("Second", ("a", "c"))]),
    (("a", "b"), [("First", ("a", "b"))]),
    (("a", "b", "d"), [("First", ("a", "b")), ("Others", ("d",))]),
    (("b", "c"), [("Arms", ("b", "c"))]),
  ],
)
def test_a_question_has_a_panel_for_two_arms_at_least(arms, panels):
  asked = ConfigDict({"questions": (("First", ("a", "b")), ("Second", ("a", "c")))})
  assert compare.panels(asked, arms) == panels


def test_without_matplotlib_there_is_the_table(config, workdir, monkeypatch):
  assert run_all(config, workdir)
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  monkeypatch.delitem(sys.modules, "grpo_jax.reports.curves", raising=False)
  monkeypatch.delattr("grpo_jax.reports.curves", raising=False)
  compare.draw(config, workdir)
  text = (workdir / "compare.html").read_text()
  assert "matplotlib is missing" in text and "<svg" not in text and "40.5% ± 0.7" in text


def test_the_spread_goes_as_far_as_all_runs():
  curves = pytest.importorskip("grpo_jax.reports.curves", exc_type=ImportError)
  x, mean, low, high = curves.spread(
    [(np.array([0.0, 10.0]), np.array([0.0, 1.0])), (np.array([0.0, 20.0]), np.array([0.0, 1.0]))]
  )
  assert (x[0], x[-1]) == (0.0, 10.0)
  np.testing.assert_allclose([mean[-1], low[-1], high[-1]], [0.75, 0.5, 1.0])
