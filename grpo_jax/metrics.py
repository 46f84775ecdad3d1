"""What a person sees of a run: numbers in DIR/metrics.jsonl and TensorBoard, samples in DIR/samples.jsonl, a console.

On a terminal there is a bar that stays in its place, with the phase, the reward and the time left; elsewhere (a log
file, CI) a plain line every few seconds. Only process 0 writes and prints; on the others everything here is silent.
"""

import collections
import contextlib
import json
import math
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import rich.console
import rich.progress
import rich.table
import rich.text

from grpo_jax.errors import SettingError

PLAIN_SECONDS = 10.0  # between lines where the console is no terminal
COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's event
TABLE_ROWS = 4  # samples in a table on the console
TABLE_CHARACTERS = 600  # of a question or completion in it

# What the bar and the plain lines show, where a step has it: metric, label, format.
SHOWN = (
  ("reward/mean", "reward", ".3f"),
  ("loss", "loss", ".4f"),
  ("kl", "KL", ".4f"),
  ("eval/accuracy", "eval", ".1%"),
  ("tokens_per_s/sample", "tok/s", ",.0f"),
)


class Writer:
  """Writes the metrics and samples of a run, and shows where it is. Use it in a `with` block.

  with Writer(workdir, config.log, config.steps, first_step) as writer:
    with writer.phase("sample"):      # shown; its seconds become time/sample of the next `step`
      ...
    writer.step(step, metrics)        # every step: the bar moves, every `log.every` a line is written
    writer.samples(step, rows)
    writer.evaluation(step, metrics)  # always written
  """

  def __init__(
    self,
    workdir: str,
    log: Any,
    steps: int,
    first_step: int = 0,
    console: rich.console.Console | None = None,
  ):
    """`log`: the config section; `steps`: of the whole run; `first_step`: where this process starts."""
    self.workdir = pathlib.Path(workdir)
    self.log, self.steps, self.first_step = log, steps, first_step
    self.active = jax.process_index() == 0
    self.seconds: dict[str, float] = {}
    """Seconds spent in each phase since the last `step`; "compile", where there was any, is part of the others."""
    self._shown: dict[str, float] = {}
    self._ends: collections.deque[float] = collections.deque(maxlen=21)
    self._last_line, self._phases = -math.inf, set()
    self._open = contextlib.ExitStack()
    if not self.active:
      return
    self.console = console or rich.console.Console()
    if not self.console.is_terminal and console is None:
      self.console.width = 120
    with self._disk():
      self.workdir.mkdir(parents=True, exist_ok=True)
      self._metrics = self._open.enter_context(_append(self.workdir / "metrics.jsonl"))
      self._samples = self._open.enter_context(_append(self.workdir / "samples.jsonl"))
      self._tensorboard = None
      if log.tensorboard:
        import tensorboardX

        self._tensorboard = tensorboardX.SummaryWriter(str(self.workdir / "tensorboard"), purge_step=first_step)
        self._open.callback(self._tensorboard.close)
    self._bar = None
    if self.console.is_terminal:
      self._bar = self._open.enter_context(_bar(self.console, steps))
      self._task = self._bar.add_task("", total=steps, completed=first_step, phase="start", shown="", left="")

  def __enter__(self) -> "Writer":
    jax.monitoring.register_event_duration_secs_listener(self._compiled)
    self._open.callback(jax.monitoring.unregister_event_duration_listener, self._compiled)
    return self

  def _compiled(self, event: str, seconds: float, **_: Any) -> None:
    if event == COMPILED:
      self.seconds["compile"] = self.seconds.get("compile", 0.0) + seconds

  def __exit__(self, *exception) -> None:
    with self._disk():
      self._open.close()

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Shows what the run is doing, and times it: the work must be done, not just dispatched, when the block ends."""
    self._show(phase=name)
    if self.active and self._bar is None and name not in self._phases:
      self.say(f"{name} ... (compiles the first time)" if not self._phases else f"{name} ...")
    self._phases.add(name)
    start = time.perf_counter()
    try:
      yield
    finally:
      self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
      self._show(phase="")

  def step(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Ends step `step` (from 0); its line says `step + 1`, the steps done, as an evaluation's and a checkpoint's do.

    Values are fetched from the device only where a line is due.
    """
    metrics = {**{f"time/{name}": seconds for name, seconds in self.seconds.items()}, **metrics}
    self.seconds = {}
    self._ends.append(time.perf_counter())
    last = step + 1 == self.steps
    if self.active and (step % self.log.every == 0 or last):
      self._write(step + 1, metrics)
    if self.active and self._bar is None:
      if step == self.first_step or last or self._ends[-1] - self._last_line >= PLAIN_SECONDS:
        self.say(f"step {step + 1}/{self.steps}  {self._line()}  {self._left(step)} left")
    self._show(completed=step + 1, left=self._left(step))

  def evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Writes and prints an evaluation made after `step` updates."""
    if self.active:
      self._write(step, metrics)
      self.say(f"after {step} steps:  " + "  ".join(f"{name} {_number(x)}" for name, x in clean(metrics).items()))

  def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the first `log.samples` rows to samples.jsonl, and a table every `log.samples_every` steps.

    A row has `question`, `completion`, `reward`, `advantage`, and may have `answer`, `rewards` (name -> value),
    `ended`, `faults`, and for the inspector `tokens` (texts), `advantages` and `logprobs` (a number a token).
    """
    if not self.active:
      return
    with self._disk():
      for row in rows[: self.log.samples]:
        self._samples.write(json.dumps(clean({"step": step, **row}), ensure_ascii=False, allow_nan=False) + "\n")
      self._samples.flush()
    if rows and self.log.samples_every and step % self.log.samples_every == 0:
      self.console.print(samples_table(step, rows[:TABLE_ROWS]))

  def say(self, text: str) -> None:
    """Prints a line, above the bar if there is one."""
    if self.active:
      self.console.print(rich.text.Text(printable(text)), soft_wrap=True)
      self._last_line = time.perf_counter()

  def _write(self, step: int, metrics: Mapping[str, Any]) -> None:
    values = clean(metrics)
    self._shown |= {name: values[name] for name, _, _ in SHOWN if name in values}
    with self._disk():
      self._metrics.write(json.dumps({"step": int(step), **values}, allow_nan=False) + "\n")
      self._metrics.flush()
      if self._tensorboard:
        for name, value in values.items():
          if value is not None:
            self._tensorboard.add_scalar(name, value, step)
    self._show()

  def _show(self, **fields) -> None:
    if self.active and self._bar is not None:
      self._bar.update(self._task, shown=self._line(), **fields)

  def _line(self) -> str:
    hidden = {"loss"} if "reward/mean" in self._shown else set()  # a policy gradient's loss says nothing
    shown = [(label, self._shown[name], form) for name, label, form in SHOWN if name in self._shown.keys() - hidden]
    return "  ".join(f"{label} {_number(value, form)}" for label, value, form in shown)

  def _left(self, step: int) -> str:
    return time_left(self._ends, self.steps - step - 1)

  @contextlib.contextmanager
  def _disk(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      raise SettingError(
        f"workdir={self.workdir}: cannot write there: {error.strerror or error}; "
        "what was saved before is safe, the same command goes on from it"
      ) from error


def clean(values: Any) -> Any:
  """`values` as JSON takes it: numbers as Python's, NaN and infinities as None, arrays as lists.

  A float32 becomes the shortest decimal that reads back as the same float32.
  """
  if isinstance(values, Mapping):
    return {str(name): clean(value) for name, value in values.items()}
  if isinstance(values, str | bool | int | None):
    return values
  if isinstance(values, list | tuple):
    return [clean(value) for value in values]
  if isinstance(values, float):
    return values if math.isfinite(values) else None
  array = np.asarray(values)
  if array.ndim:
    return [clean(value) for value in array]
  if array.dtype.kind in "biu":
    return array.item()
  return clean(float(array) if array.dtype == np.float64 else float(str(np.float32(array))))


def time_left(ends: Sequence[float], steps: int) -> str:
  """H:MM:SS for `steps` more, from the times at which the last ones ended; the first, which compiles, counts not."""
  if steps <= 0:
    return "0:00:00"
  if len(ends) < 2:
    return "-:--:--"
  seconds = round((ends[-1] - ends[0]) / (len(ends) - 1) * steps)
  return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def samples_table(step: int, rows: Sequence[Mapping[str, Any]]) -> rich.table.Table:
  """Question, completion, reward and advantage of some samples. Their text is never taken for markup."""
  table = rich.table.Table(title=f"samples of step {step}", title_justify="left", show_lines=True, expand=True)
  table.add_column("question", ratio=2, overflow="fold")
  table.add_column("completion", ratio=3, overflow="fold")
  table.add_column("reward", justify="right", no_wrap=True)
  table.add_column("advantage", justify="right", no_wrap=True)
  for row in rows:
    reward, advantage = clean(row["reward"]), clean(row["advantage"])
    style = "" if not advantage else "green" if advantage > 0 else "red"
    texts = (_cut(printable(str(row[name]))) for name in ("question", "completion"))
    table.add_row(
      *map(rich.text.Text, texts), _number(reward, ".2f"), rich.text.Text(_number(advantage, "+.2f"), style=style)
    )
  return table


def printable(text: str) -> str:
  """`text` without the control characters that a terminal would obey: a sample may say anything."""
  return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)


def _cut(text: str) -> str:
  return text if len(text) <= TABLE_CHARACTERS else text[: TABLE_CHARACTERS - 4] + " ..."


def _number(value: float | None, form: str = ".4g") -> str:
  return "nan" if value is None else format(value, form)


def _append(path: pathlib.Path):
  return path.open("a", encoding="utf-8", errors="backslashreplace")  # half a character pair is written as \udXXX


def _bar(console: rich.console.Console, steps: int) -> rich.progress.Progress:
  """Phase, bar, steps done, time left, numbers; where it is narrow, the bar goes and the numbers are cut."""

  def cell(width: int | None = None) -> rich.table.Column:
    return rich.table.Column(min_width=width, no_wrap=True, overflow="ellipsis")

  def field(name: str, width: int | None = None) -> rich.progress.TextColumn:
    return rich.progress.TextColumn(f"{{task.fields[{name}]}}", table_column=cell(width), markup=False)

  return rich.progress.Progress(
    field("phase", 6),
    rich.progress.BarColumn(bar_width=20),
    rich.progress.MofNCompleteColumn(table_column=cell(2 * len(str(steps)) + 1)),
    field("left", 7),
    field("shown"),
    console=console,
    refresh_per_second=4,
  )
