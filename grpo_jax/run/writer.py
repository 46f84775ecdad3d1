"""Writes the metrics and samples of a run to its folder, to its outputs and to the console.

A terminal shows a bar with the phase, the reward and the time left. Elsewhere (a log file, CI) a
plain line is printed every few seconds. Only process 0 writes and prints. To a bucket the files are
copied as a whole, every `log.bucket_seconds` and before each checkpoint (`upload`).
"""

import collections
import contextlib
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import jax
import numpy as np
import rich.console
import rich.text

from grpo_jax.config import settings
from grpo_jax.io import bucket_logs, storage, tracker_run
from grpo_jax.run import console as terminal
from grpo_jax.run import logs

LOGS = ("metrics.jsonl", "samples.jsonl")
WARNINGS = "warnings.txt"  # all that the run was warned of, for its page
PLAIN_SECONDS = 10.0  # between lines where the console is no terminal
COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's event
TABLE_ROWS = 4  # samples in a table on the console

# The metrics that the bar and the plain lines show where a step has them: metric, label, format.
SHOWN = (
  ("reward/mean", "reward", ".3f"),
  ("loss", "loss", ".4f"),
  ("kl", "KL", ".4f"),
  ("eval/accuracy", "eval", ".1%"),
  ("tokens_per_s/sample", "tok/s", ",.0f"),
  ("reward_faults", "failed rewards", ".0f"),
)

Number = float | np.number | np.ndarray | jax.Array  # a metric, on the host or on a device


class Timer:
  """Holds the seconds that a phase took, once its block has ended."""

  seconds = 0.0


class Output(Protocol):
  """Gets the numbers of a run besides metrics.jsonl, see grpo_jax/writers/__init__.py."""

  def write(self, step: int, metrics: Mapping[str, float], /) -> None:
    """Takes the finite numbers of a step."""
    ...

  def close(self) -> None:
    """Takes the end of the run."""
    ...


class Writer:
  """Writes the metrics and samples of a run, and shows its progress. Use it in a `with` block.

  with Writer(workdir, config.log, config.steps, first_step) as writer:
    with writer.phase("sample") as timer:  # is shown; its seconds become time/sample of the step
      ...
    writer.step(step, metrics)        # after every step; every `log.every` steps writes a line
    writer.samples(step, samples)
    writer.progress("eval", 64, 256)  # shows the progress of a long phase
    writer.evaluation(step, metrics)  # is always written

  Raises:
    StorageError: the folder cannot be written, or the disk is full.
  """

  def __init__(
    self,
    workdir: str,
    log: settings.Log,
    steps: int,
    first_step: int = 0,
    console: rich.console.Console | None = None,
    check_lock: Callable[[], None] | None = None,
    outputs: Mapping[str, Callable[[str, int], Output]] = MappingProxyType({}),
  ):
    """Opens the files.

    Args:
      workdir: the run's folder.
      log: the section `log` of the config.
      steps: the number of steps of the whole run.
      first_step: the step with which this process starts.
      console: where to print; None: standard output.
      check_lock: called before each copy to a bucket; raises if another run may be there.
      outputs: what gets the numbers besides, by its name: functions of (folder, first step).
    """
    self.workdir = storage.place(workdir)
    self.log, self.steps, self.first_step = log, steps, first_step
    self.active = jax.process_index() == 0
    # of each phase since the last line of a step; those of "compile" count in other phases, too
    self.seconds: dict[str, float] = {}
    self._shown: dict[str, float | None] = {}
    self._evaluated = 0  # the step of the last evaluation
    self._ends: collections.deque[float] = collections.deque(maxlen=21)
    self._last_line = -math.inf
    self._warned: set[str] = set()
    self._outputs: dict[str, Output] = {}
    self._phases: dict[str, set[str]] = {}  # the shapes that each phase has seen
    self._in_phase = False
    self._paces = terminal.Pace(), terminal.Pace()  # of work around phases, and of that inside one
    self._around = ""  # the progress of work that consists of several phases
    self._open = contextlib.ExitStack()
    with storage.run_errors(self.workdir):
      names = (*LOGS, *map(logs.sums_name, LOGS), WARNINGS)
      names = (*names, *map(tracker_run.place, tracker_run.TRACKERS)) if self.active else ()
      mirror = bucket_logs.Mirror(workdir, names, log.bucket_seconds, check_lock)
      self._mirror = self._open.enter_context(mirror)
    # on the disk: the run's folder, or one that is copied to its bucket
    self.folder = self._mirror.folder
    if self.active:
      self._open_files(console, outputs)

  def _open_files(
    self,
    console: rich.console.Console | None,
    outputs: Mapping[str, Callable[[str, int], Output]],
  ) -> None:
    """Opens the logs, the outputs and the bar, on process 0."""
    self.console = console or terminal.make()
    if not self.console.is_terminal and console is None:
      self.console.width = 120
    with storage.run_errors(self.workdir):
      self.workdir.mkdir(parents=True, exist_ok=True)
      self._metrics, self._samples = (
        self._open.enter_context(logs.Log(self.folder / name)) for name in LOGS
      )
      for name, make in outputs.items():
        self._outputs[name] = make(str(self.folder), self.first_step)
        self._open.callback(self._attempt, name, self._outputs[name].close)
    self._bar = None
    if self.console.is_terminal:
      self._bar = self._open.enter_context(terminal.bar(self.console, self.steps))
      self._task = self._bar.add_task(
        "", total=self.steps, completed=self.first_step, phase="start", shown="", left=""
      )

  def __enter__(self) -> "Writer":
    jax.monitoring.register_event_duration_secs_listener(self._compiled)
    self._open.callback(jax.monitoring.unregister_event_duration_listener, self._compiled)
    return self

  def upload(self) -> None:
    """Returns once the run's bucket has everything written so far; on a disk at once."""
    if not self._mirror.is_away:
      return
    with storage.run_errors(self.workdir):
      self._mirror.upload(wait=True)

  def damaged_logs(self) -> list[str]:
    """Reads the logs of the run and returns a line for each that has damaged lines."""
    damaged = {name: logs.damage(storage.place(self.folder) / name) for name in LOGS if self.active}
    return [f"{self.workdir}/{name}: {damage}" for name, damage in damaged.items() if damage]

  def _compiled(self, event: str, duration_secs: float, **_: str | int) -> None:
    """Adds up the seconds of compilation; JAX calls it with every duration that it reports."""
    if event == COMPILED:
      self.seconds["compile"] = self.seconds.get("compile", 0.0) + duration_secs

  def __exit__(self, *exception: object) -> None:
    with storage.run_errors(self.workdir):
      self._open.close()

  @contextlib.contextmanager
  def phase(self, name: str, arrays: Any = None) -> Iterator[Timer]:
    """Shows and times a phase. The work must be done, not only dispatched, when the block ends.

    Args:
      name: of the phase.
      arrays: the arguments of a jitted function: it compiles for shapes that are new to the phase.
    """
    programs = self._phases.setdefault(name, set())
    shapes = str([(x.shape, x.dtype) for x in jax.tree.leaves(arrays)])
    is_new = shapes not in programs
    programs.add(shapes)
    line, shown = f"{name} ...", name
    if arrays is not None:
      line = f"{name} ... (compiles its program {len(programs)})"
      shown = f"{name} (compiling)" if is_new else name
    elif len(self._phases) == 1:
      line = f"{name} ... (compiles the first time)"
    self._show(phase=f"{shown}, {self._around}" if self._around else shown)
    if is_new and self.active and self._bar is None:
      self.say(line)
    self._in_phase, timer = True, Timer()
    start = time.perf_counter()
    self._paces[True].begin(start)
    try:
      yield timer
    finally:
      timer.seconds = time.perf_counter() - start
      self._in_phase = False
      self.seconds[name] = self.seconds.get(name, 0.0) + timer.seconds
      self._show(phase=self._around)

  def progress(self, text: str, done: int, total: int) -> None:
    """Shows the progress of a long phase; a plain line at most every PLAIN_SECONDS.

    Between two phases it is that of work which consists of phases: the bar shows it next to them.
    """
    line = self._paces[self._in_phase].line(text, done, total, time.perf_counter())
    if not self._in_phase:
      self._around = line if done < total else ""
    self._show(phase=line)
    if self.active and self._bar is None and time.perf_counter() - self._last_line >= PLAIN_SECONDS:
      self.say(line)

  def step(self, step: int, metrics: Mapping[str, Number], always: bool = False) -> None:
    """Ends a step, counted from 0; its line has `step + 1`, the number of steps done.

    Values are fetched from the device only if a line is written: as `log.every` says, or `always`.
    """
    self._ends.append(time.perf_counter())
    last = step + 1 == self.steps
    if always or step % self.log.every == 0 or last:
      seconds, self.seconds = self.seconds, {}
      if self.active:
        self._write(step + 1, {**{f"time/{name}": s for name, s in seconds.items()}, **metrics})
    if self.active and self._bar is None:
      if step == self.first_step or last or self._ends[-1] - self._last_line >= PLAIN_SECONDS:
        self.say(f"step {step + 1}/{self.steps}  {self._line()}  {self._left(step)} left")
    self._show(completed=step + 1, left=self._left(step))
    with storage.run_errors(self.workdir):
      self._mirror.tick()

  def evaluation(self, step: int, metrics: Mapping[str, Number]) -> None:
    """Writes and prints the metrics of an evaluation after `step` steps."""
    if self.active:
      self._evaluated = step
      self._write(step, metrics)
      line = "  ".join(f"{name} {terminal.number(x)}" for name, x in clean(metrics).items())
      self.say(f"after {step} steps:  {line}")

  def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
    """Writes samples; prints a table of the first group every `log.samples_every` steps.

    A sample has `question`, `completion`, `reward`, `advantage`, and may have `group` (the index of
    its prompt in the batch), `sample` (its own in the group), `answer`, `rewards` (name -> value),
    `ended`, `faults`, `disagreement` (of a reward model and a rule), and for the inspector `tokens`
    (texts), and a number for each token: `advantages`, `logprobs` and `entropies` before the
    update. Where the update was measured there are also `logprobs_after`, `ratios` (that the
    objective clips, after the update), `bounds` (the clip bound of each ratio, by the sign of the
    advantage; times the old probability it is the target of `target_prob`) and `stands` (whether
    the ratio is "short" of its bound, "at" it or "past" it), and the sums over the completion,
    `logprob_before` and `logprob_after`. An episode has `sampled` (false on tokens that the
    environment wrote) and `turn_rewards` ([token index, reward] of each reward).
    """
    if not self.active:
      return
    with storage.run_errors(self.workdir):
      storage.check_there(self.workdir, self._samples.file)
      rows = (clean({"step": step, **sample}) for sample in samples)
      self._samples.write(*(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows))
    if samples and self.log.samples_every and step % self.log.samples_every == 0:
      self.console.print(terminal.samples_table(step, terminal.spread(clean(samples), TABLE_ROWS)))

  def say(self, text: str) -> None:
    """Prints a line, above the bar if there is one; a warning goes to WARNINGS, too."""
    if not self.active:
      return
    line = terminal.printable(text)
    self.console.print(rich.text.Text(line), soft_wrap=True)
    self._last_line = time.perf_counter()
    if line.startswith("warning: "):
      with storage.run_errors(self.workdir), (self.folder / WARNINGS).open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M')} {line.removeprefix('warning: ')}\n")

  def warn(self, about: str, text: str) -> None:
    """Prints a warning, only the first one about the same thing."""
    if about not in self._warned:
      self._warned.add(about)
      self.say(f"warning: {text}")

  def _write(self, step: int, metrics: Mapping[str, Number]) -> None:
    """Writes a line of metrics.jsonl, and its finite numbers to the outputs."""
    values = clean(metrics)
    self._shown |= {name: values[name] for name, _, _ in SHOWN if name in values}
    with storage.run_errors(self.workdir):
      storage.check_there(self.workdir, self._metrics.file)
      self._metrics.write(json.dumps({"step": int(step), **values}, allow_nan=False))
    known = {name: value for name, value in values.items() if value is not None}
    for name, output in self._outputs.items():
      self._attempt(name, functools.partial(output.write, step, known))
    self._show()

  def _attempt(self, name: str, call: Callable[[], None]) -> None:
    """Calls a method of an output; if it fails, the run goes on and says so."""
    try:
      call()
    except Exception as error:  # a network, a server, a user's code
      reason = " ".join(str(error).split())[:200]
      self.warn(
        f"output {name}",
        f"log.writers: {name!r} failed: {type(error).__name__}: {reason}; metrics.jsonl has it all",
      )

  def _show(self, **fields: Any) -> None:
    """Changes what the bar shows, if there is one."""
    if self.active and self._bar is not None:
      self._bar.update(self._task, shown=self._line(), **fields)

  def _line(self) -> str:
    """Returns the last values of the SHOWN metrics in one line."""
    # the loss of a policy gradient says nothing
    hidden = {"loss"} if "reward/mean" in self._shown else set()
    hidden |= set() if self._shown.get("reward_faults") else {"reward_faults"}
    return "  ".join(
      f"{label} {terminal.number(self._shown[name], form)}"
      + (f" at step {self._evaluated}" if name.startswith("eval/") else "")
      for name, label, form in SHOWN
      if name in self._shown.keys() - hidden
    )

  def _left(self, step: int) -> str:
    """Returns the time left after `step`, as H:MM:SS."""
    return terminal.time_left(self._ends, self.steps - step - 1)


def clean(values: Any) -> Any:
  """Returns `values` for JSON: Python's numbers, None for NaN and infinities, lists for arrays.

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
