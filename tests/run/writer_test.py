"""What a run writes and shows."""

import io
import itertools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console
from ml_collections import ConfigDict

from grpo_jax.errors import StorageError
from grpo_jax.io import tracker_run
from grpo_jax.run.writer import Writer, clean, time
from grpo_jax.setup import weights


def log(**changes):
  some = {
    "every": 1,
    "samples_every": 2,
    "samples": 2,
    "writers": (),
    "bucket_seconds": 60.0,
  }
  return ConfigDict(some | changes)


def console(terminal=False, width=100):
  return rich.console.Console(
    file=io.StringIO(), force_terminal=terminal, width=width, color_system=None
  )


def lines(path):
  return [json.loads(line) for line in path.read_text().split("\n") if line]


def row(reward=1.0, **more):
  return {"question": "1 + 1?", "completion": "#### 2", "reward": reward, "advantage": 0.5} | more


def test_a_line_a_step_in_json(tmp_path):
  one = {"kl": jnp.float32(0.1), "lr": 1e-6, "skipped_steps": np.int32(3), "ok": np.bool_(True)}
  two = {"grad_norm": float("nan"), "ratio_max": np.float32(np.inf), "kl": jnp.bfloat16(0.5)}
  with Writer(tmp_path, log(), 2, console=console()) as writer:
    writer.step(0, one)
    # Each line is there when the step ends, not when the run does.
    assert lines(tmp_path / "metrics.jsonl") == [
      {"step": 1, "kl": 0.1, "lr": 1e-6, "skipped_steps": 3, "ok": True}
    ]
    writer.step(1, two)
  assert lines(tmp_path / "metrics.jsonl")[1] == {
    "step": 2,
    "grad_norm": None,
    "ratio_max": None,
    "kl": 0.5,
  }


def test_a_float32_reads_back_the_same():
  values = np.random.default_rng(0).standard_normal(1000).astype(np.float32) * 1e-3
  text = json.dumps(clean(values))
  np.testing.assert_array_equal(np.array(json.loads(text), np.float32), values)
  assert clean(np.float32(0.1)) == 0.1
  assert clean(np.float64(1 / 3)) == 1 / 3


def test_values_are_fetched_only_where_a_line_is_due(tmp_path):
  class Fetched:
    def __array__(self, dtype=None, copy=None):
      raise AssertionError("fetched")

  with Writer(tmp_path, log(every=3), 5, console=console()) as writer:
    for step in range(5):
      writer.step(step, {"kl": 1.0} if step in (0, 3, 4) else {"kl": Fetched()})
  assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 4, 5]


def test_phases_are_timed_into_the_next_step(tmp_path, monkeypatch):
  clock = iter([10.0, 12.5, 20.0, 21.0, *range(30, 99)])
  monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
  with Writer(
    tmp_path, log(), 2, console=rich.console.Console(file=io.StringIO(), force_terminal=True)
  ) as writer:
    with writer.phase("sample"):
      pass
    with writer.phase("sample"):
      pass
    assert writer.seconds == {"sample": 3.5}
    writer.step(0, {})
    writer.step(1, {})
  assert lines(tmp_path / "metrics.jsonl") == [{"step": 1, "time/sample": 3.5}, {"step": 2}]


def test_a_line_has_the_seconds_of_all_steps_since_the_line_before(tmp_path, monkeypatch):
  clock = itertools.count()
  with Writer(tmp_path, log(every=2), 5, console=console()) as writer:
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    for step in range(5):
      with writer.phase("sample"):
        pass
      writer.step(step, {})
  found = [(line["step"], line["time/sample"]) for line in lines(tmp_path / "metrics.jsonl")]
  assert found == [(1, found[0][1]), (3, 2 * found[0][1]), (5, 2 * found[0][1])]


def test_a_tracker_s_run_in_a_bucket_goes_on(served):
  """Gives outputs a folder on this disk, which is new in each process."""
  ids, names = [], []

  class Output:
    def __init__(self, folder, first_step):
      ids.append(tracker_run.kept_id(folder, "wandb", first_step))
      names.append(pathlib.Path(folder).name)

    def write(self, step, metrics):
      pass

    def close(self):
      pass

  for first in (0, 1):
    with Writer(
      "gs://bucket/tracked", log(), 2, first, console=console(), outputs={"/own/w.py": Output}
    ) as writer:
      writer.step(first, {})
  assert ids[0] == ids[1] and names == ["tracked"] * 2


def test_a_phase_that_fails_is_ended(tmp_path):
  with Writer(tmp_path, log(), 2, console=console()) as writer:
    with pytest.raises(RuntimeError), writer.phase("sample"):
      raise RuntimeError
    assert set(writer.seconds) == {"sample"}


def test_an_evaluation_is_always_written(tmp_path):
  out = console()
  with Writer(tmp_path, log(every=100), 10, console=out) as writer:
    writer.evaluation(7, {"eval/accuracy": np.float32(0.25)})
  assert lines(tmp_path / "metrics.jsonl") == [{"step": 7, "eval/accuracy": 0.25}]
  assert "after 7 steps:  eval/accuracy 0.25" in out.file.getvalue()


def test_the_line_of_a_step_says_when_the_policy_was_evaluated(tmp_path):
  out = console()
  with Writer(tmp_path, log(), 10, first_step=7, console=out) as writer:
    writer.evaluation(7, {"eval/accuracy": 0.25})
    writer.step(7, {"reward/mean": 0.5})
  assert "step 8/10  reward 0.500  eval 25.0% at step 7  " in out.file.getvalue()


def test_warnings_are_kept_with_their_time(tmp_path):
  for _ in range(2):
    with Writer(tmp_path, log(), 2, console=console()) as writer:
      writer.say("saved")
      writer.warn("a", "it is slow\x1b[0m")
      writer.warn("a", "it is slow again")
  lines = (tmp_path / "warnings.txt").read_text().splitlines()
  assert len(lines) == 2 and re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d it is slow.\[0m", lines[0])


def test_a_restart_appends(tmp_path):
  for step in range(2):
    with Writer(tmp_path, log(), 2, first_step=step, console=console()) as writer:
      writer.step(step, {})
  assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2]


class Output:
  """Remembers what it gets, and fails at step 2."""

  def __init__(self, folder, first_step):
    self.got = [(folder, first_step)]

  def write(self, step, metrics):
    self.got.append((step, metrics))
    if step == 2:
      raise OSError("no network")

  def close(self):
    self.got.append("closed")


def test_outputs_get_the_finite_numbers_and_may_fail(tmp_path):
  made, out = [], console()

  def output(folder, first_step):
    made.append(Output(folder, first_step))
    return made[0]

  with Writer(tmp_path, log(), 3, console=out, outputs={"mine": output}) as writer:
    writer.step(0, {"kl": 0.5, "grad_norm": float("nan")})
    writer.step(1, {"kl": 1.5})
    writer.evaluation(2, {"eval/accuracy": 0.5})
  assert made[0].got == [
    (str(tmp_path), 0), (1, {"kl": 0.5}), (2, {"kl": 1.5}), (2, {"eval/accuracy": 0.5}), "closed",
  ]  # fmt: skip
  assert out.file.getvalue().count("log.writers: 'mine' failed: OSError: no network;") == 1
  assert len(lines(tmp_path / "metrics.jsonl")) == 3


def test_a_step_says_how_long_it_compiled(tmp_path):
  twice, x = jax.jit(lambda x: 2 * x + 1), jnp.ones(3)
  with Writer(tmp_path, log(), 2, console=console()) as writer:
    for step in range(2):
      with writer.phase("learn"):
        twice(x).block_until_ready()
      writer.step(step, {})
  first, second = lines(tmp_path / "metrics.jsonl")
  assert 0 < first["time/compile"] < first["time/learn"] and "time/compile" not in second
  seconds = dict(writer.seconds)
  jax.jit(lambda x: 3 * x)(x)
  assert writer.seconds == seconds  # it listens no more


def test_samples_are_written_as_they_are(tmp_path):
  odd = "half a pair \ud83d, a line separator \u2028, 漢字"
  with Writer(tmp_path, log(samples_every=0), 2, console=console()) as writer:
    writer.samples(3, [row(completion=odd, advantages=jnp.ones(2)), row(np.float32(0.1))])
  found = lines(tmp_path / "samples.jsonl")
  assert [(line["step"], line["reward"]) for line in found] == [(3, 1.0), (3, 0.1)]
  assert found[0]["completion"] == odd and found[0]["advantages"] == [1.0, 1.0]


def test_a_table_every_so_often_with_text_left_alone(tmp_path):
  out = console()
  with Writer(tmp_path, log(), 9, console=out) as writer:
    writer.samples(1, [row(completion="not in the table")])
    writer.samples(
      2, [row(completion="[bold]7[/bold] \x1b[31m[/x]", reward=0.25), row(completion="y" * 1000)]
    )
  text = out.file.getvalue()
  assert "samples of step 2" in text and "not in the table" not in text
  assert "[bold]7[/bold] \ufffd[31m[/x]" in text and "0.25" in text and "+0.50" in text
  assert "\x1b" not in text
  assert 500 < text.count("y") < 700


def test_plain_lines_where_there_is_no_terminal(tmp_path, monkeypatch):
  out = console()
  now = [0.0]
  monkeypatch.setattr(time, "perf_counter", lambda: now[0])
  with Writer(tmp_path, log(), 100, console=out) as writer:
    for step in range(100):
      with writer.phase("sample"):
        now[0] += 1.0
      writer.step(step, {"reward/mean": 0.5, "loss": 3.0, "tokens_per_s/sample": 1234.5})
  text = out.file.getvalue().splitlines()
  assert text[0] == "sample ... (compiles the first time)"
  assert text[1] == "step 1/100  reward 0.500  tok/s 1,234  -:--:-- left"
  assert text[2] == "step 11/100  reward 0.500  tok/s 1,234  0:01:29 left"
  assert text[-1].startswith("step 100/100") and text[-1].endswith("0:00:00 left")
  assert len(text) == 1 + 11  # the first, every ten seconds, the last


def test_progress_of_a_long_phase_in_plain_lines(tmp_path, monkeypatch):
  out = console()
  now = [0.0]
  monkeypatch.setattr(time, "perf_counter", lambda: now[0])
  with Writer(tmp_path, log(), 100, console=out) as writer:
    with writer.phase("eval"):
      for done in range(1, 26):
        now[0] += 1.0
        writer.progress("eval", done, 25)
  assert out.file.getvalue().splitlines() == [
    "eval ... (compiles the first time)",
    "eval 10/25, 0:00:15 left",
    "eval 20/25, 0:00:05 left",
  ]
  assert lines(tmp_path / "metrics.jsonl") == []


def test_progress_of_a_long_phase_on_a_terminal(tmp_path):
  out = console(terminal=True)
  with Writer(tmp_path, log(), 3, console=out) as writer:
    with writer.phase("eval"):
      writer.progress("eval", 64, 256)
      writer._bar.refresh()
      assert "eval 64/256" in out.file.getvalue()
    out.file.truncate(0)
    writer._bar.refresh()
    assert "eval" not in out.file.getvalue()  # the phase is over
  assert "0/3" in out.file.getvalue()


def test_progress_of_work_that_has_phases_is_shown_beside_them(tmp_path):
  out = console(terminal=True)

  def shown():
    out.file.truncate(0)
    writer._bar.refresh()
    return out.file.getvalue()

  with Writer(tmp_path, log(), 3, console=out) as writer:
    for done in (1, 2):
      with writer.phase("sample"):
        pass
      writer.progress("prompts sampled", done, 3)
    with writer.phase("sample"):
      assert "sample, prompts sampled 2/3" in shown()
    assert "prompts sampled 2/3" in shown()
    writer.progress("prompts sampled", 3, 3)
    with writer.phase("eval"):
      writer.progress("eval", 1, 2)
      assert "eval 1/2" in shown() and "prompts" not in shown()
    with writer.phase("learn"):
      assert "learn" in shown() and "/2" not in shown() and "prompts" not in shown()


def test_a_bar_on_a_terminal(tmp_path):
  out = console(terminal=True)
  with Writer(tmp_path, log(), 3, first_step=1, console=out) as writer:
    with writer.phase("learn"):
      writer.step(1, {"reward/mean": 0.5, "kl": 0.25})
      writer._bar.refresh()
    writer.step(2, {"reward/mean": float("nan")})
    writer.say("said [/above] the bar")
  text = out.file.getvalue()
  assert "learn" in text and "2/3" in text and "reward 0.500  KL 0.2500" in text
  assert "3/3" in text and "reward nan" in text
  assert "said [/above] the bar" in text


def test_the_bar_fits_a_narrow_terminal(tmp_path):
  out = console(terminal=True, width=50)
  with Writer(tmp_path, log(), 300, console=out) as writer:
    writer.step(0, {"reward/mean": 0.5, "kl": 0.25, "tokens_per_s/sample": 1e6})
    writer.step(1, {})
    with writer.phase("sample"):
      writer._bar.refresh()
  found = [
    line
    for line in out.file.getvalue().replace("\x1b[2K", "").replace("\r", "\n").split("\n")
    if "sample" in line
  ]
  assert found and all(
    re.match(r"sample .*  2/300 \d:\d\d:\d\d reward 0\.500 ", line) for line in found
  )
  assert max(map(len, found)) <= 50


def test_other_processes_are_silent(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  out = console()
  with Writer(tmp_path / "run", log(), 2, console=out, outputs={"x": Output}) as writer:
    with writer.phase("sample"):
      pass
    assert "sample" in writer.seconds
    writer.step(0, {"kl": 1.0})
    writer.samples(0, [row()])
    writer.evaluation(1, {})
    writer.progress("eval", 1, 2)
    writer.say("x")
  assert not (tmp_path / "run").exists() and out.file.getvalue() == ""


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(StorageError, match="workdir=.*file/run: cannot write there: Not a directory"):
    Writer(tmp_path / "file" / "run", log(), 2, console=console())


def test_a_full_disk_is_said_in_one_line(tmp_path):
  (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
  with pytest.raises(
    StorageError, match="workdir=.*: No space left on device; what was saved before is safe"
  ):
    with Writer(tmp_path, log(), 2, console=console()) as writer:
      writer.step(0, {"kl": 1.0})


# -- weights that are read


def test_reading_says_how_far_it_is_where_it_takes_long(monkeypatch):
  """In a log a line every PLAIN_SECONDS; on a terminal a bar, which is gone at the end; on other
  hosts nothing.
  """
  seconds = iter([0.0, 4.0, 11.0, 11.0, 12.0, 22.0, 22.0])
  with monkeypatch.context() as m:
    m.setattr(time, "perf_counter", lambda: next(seconds))
    plain = console()
    with weights.reading("model", plain) as show:
      for done in (1, 2, 3, 4):
        show(done * 10**9, 4 * 10**9)
  assert plain.file.getvalue().splitlines() == [
    f"reading weights of model: {n}.0 of 4.0 GB" for n in (2, 4)
  ]
  terminal = console(terminal=True)
  with weights.reading("model", terminal) as show:
    show(10**9, 4 * 10**9)
  assert re.search("reading weights .*1.0/4.0 GB", terminal.file.getvalue())
  assert terminal.file.getvalue().endswith("\x1b[2K")  # the line is emptied
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  other = console()
  with weights.reading("model", other) as show:
    show(1, 2)
  assert not other.file.getvalue()


def test_a_notebook_gets_plain_lines(tmp_path, monkeypatch, capsys):
  """Without HTML, as rich has it there, and without the bar that a kernel's FORCE_COLOR asks for."""
  monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
  monkeypatch.setenv("FORCE_COLOR", "1")
  with Writer(tmp_path, log(), 2) as writer:
    writer.say("warning: one")
    writer.samples(2, [row()])
  printed = capsys.readouterr().out
  assert printed.startswith("warning: one\n") and "1 + 1?" in printed and "\x1b" not in printed
