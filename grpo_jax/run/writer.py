"""Writes what a person sees of a run: metrics.jsonl, samples.jsonl and TensorBoard in its folder,
and the console.

A terminal shows a bar that stays in its place, with the phase, the reward and the time left.
Elsewhere (a log file, CI) there is a plain line every few seconds. Only process 0 writes and
prints; on the others nothing here does anything. To a bucket the files are copied whole, every
`log.bucket_seconds` and where a checkpoint counts on them (`upload`).
"""

import collections
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import rich.console
import rich.text

from grpo_jax.io import bucket_logs, storage
from grpo_jax.run import console as terminal
from grpo_jax.run import logs

LOGS = ("metrics.jsonl", "samples.jsonl")
PLAIN_SECONDS = 10.0  # between lines where the console is no terminal
# the event with which JAX reports a compilation
COMPILED = "/jax/core/compile/backend_compile_duration"
TABLE_ROWS = 4  # samples in a table on the console

# What the bar and the plain lines show of the metrics that a step has: metric, label, format.
SHOWN = (
  ("reward/mean", "reward", ".3f"),
  ("loss", "loss", ".4f"),
  ("kl", "KL", ".4f"),
  ("eval/accuracy", "eval", ".1%"),
  ("tokens_per_s/sample", "tok/s", ",.0f"),
  ("reward_faults", "failed rewards", ".0f"),
)


class Writer:
  """Writes the metrics and samples of a run, and shows how far it is. Use it in a `with` block.

  with Writer(workdir, config.log, config.steps, first_step) as writer:
    with writer.phase("sample"):      # is shown; its seconds become time/sample of the next `step`
      ...
    writer.step(step, metrics)        # after every step: the bar moves, and every `log.every` steps a line is written
    writer.samples(step, samples)
    writer.progress("eval", 64, 256)  # shows how far a long phase is
    writer.evaluation(step, metrics)  # is always written

  Raises:
    StorageError: the folder cannot be written, or the disk is full.
  """

  def __init__(
    self,
    workdir: str,
    log: Any,
    steps: int,
    first_step: int = 0,
    console: rich.console.Console | None = None,
    check_lock: Callable[[], None] | None = None,
  ):
    """Opens the files.

    Args:
      workdir: the run's folder.
      log: the section `log` of the config.
      steps: the number of steps of the whole run.
      first_step: the step with which this process starts.
      console: where to print; None: standard output.
      check_lock: is called before anything is copied to a bucket; raises where another run may be
        there.
    """
    self.workdir = storage.place(workdir)
    self.log, self.steps, self.first_step = log, steps, first_step
    self.active = jax.process_index() == 0
    self.seconds: dict[str, float] = {}
    """Seconds spent in each phase since the last `step`. Those of "compile" are counted in other phases, too."""
    self._shown: dict[str, float] = {}
    self._ends: collections.deque[float] = collections.deque(maxlen=21)
    self._last_line, self._warned = -math.inf, set()
    self._phases: dict[str, set[str]] = {}  # the shapes that each has seen
    self._in_phase = False
    self._beside = ""  # how far work is that has phases of its own
    self._open = contextlib.ExitStack()
    with storage.of_a_run(self.workdir):
      names = (*LOGS, *map(logs.sums_name, LOGS)) if self.active else ()
      self._mirror = self._open.enter_context(
        bucket_logs.Mirror(workdir, names, log.bucket_seconds, check_lock)
      )
    # of the disk: the run's own, or one that is copied to its bucket
    self.folder = self._mirror.folder
    if not self.active:
      return
    self.console = console or rich.console.Console()
    if not self.console.is_terminal and console is None:
      self.console.width = 120
    with storage.of_a_run(self.workdir):
      self.workdir.mkdir(parents=True, exist_ok=True)
      self._metrics, self._samples = (
        self._open.enter_context(logs.Log(self.folder / name)) for name in LOGS
      )
      self._tensorboard = None
      if log.tensorboard:
        import tensorboardX

        self._tensorboard = tensorboardX.SummaryWriter(
          str(self.folder / "tensorboard"), purge_step=first_step + 1
        )
        self._open.callback(self._tensorboard.close)
    self._bar = None
    if self.console.is_terminal:
      self._bar = self._open.enter_context(terminal.bar(self.console, steps))
      self._task = self._bar.add_task(
        "", total=steps, completed=first_step, phase="start", shown="", left=""
      )

  def __enter__(self) -> "Writer":
    jax.monitoring.register_event_duration_secs_listener(self._compiled)
    self._open.callback(jax.monitoring.unregister_event_duration_listener, self._compiled)
    return self

  def upload(self) -> None:
    """Returns when a run's bucket has all that was written until now; on a disk it has."""
    if not self._mirror.is_away:
      return
    with storage.of_a_run(self.workdir):
      if self.active and self._tensorboard:
        self._tensorboard.flush()
      self._mirror.upload(wait=True)

  def damaged_logs(self) -> list[str]:
    """Returns a line on each log of the run that has damaged lines; it has read the whole of them."""
    damaged = {name: logs.damage(storage.place(self.folder) / name) for name in LOGS if self.active}
    return [f"{self.workdir}/{name}: {said}" for name, said in damaged.items() if said]

  def _compiled(self, event: str, seconds: float, **_: Any) -> None:
    """Adds up the seconds of compilation; JAX calls it with every duration that it reports."""
    if event == COMPILED:
      self.seconds["compile"] = self.seconds.get("compile", 0.0) + seconds

  def __exit__(self, *exception) -> None:
    with storage.of_a_run(self.workdir):
      self._open.close()

  @contextlib.contextmanager
  def phase(self, name: str, arrays: Any = None) -> Iterator[None]:
    """Shows what the run is doing, and times it: the work must be done, not only dispatched, when
    the block ends.

    Args:
      name: of the phase.
      arrays: what a jitted function is called with: for shapes that this phase has not seen it
        compiles, and says so.
    """
    programs = self._phases.setdefault(name, set())
    shapes = str([(x.shape, x.dtype) for x in jax.tree.leaves(arrays)])
    new = shapes not in programs
    programs.add(shapes)
    note = (
      f"compiles its program {len(programs)}" if arrays is not None else "compiles the first time"
    )
    said = f"{name} ... ({note})" if arrays is not None or len(self._phases) == 1 else f"{name} ..."
    shown = f"{name} (compiling)" if new and arrays is not None else name
    self._show(phase=f"{shown}, {self._beside}" if self._beside else shown)
    if new and self.active and self._bar is None:
      self.say(said)
    self._in_phase = True
    start = time.perf_counter()
    try:
      yield
    finally:
      self._in_phase = False
      self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
      self._show(phase=self._beside)

  def progress(self, text: str, done: int, total: int) -> None:
    """Shows that `done` of `total` are done of a phase that takes long; a plain line at most every
    PLAIN_SECONDS.

    Between two phases: of work that consists of phases. A bar shows that beside them, until all is
    done.
    """
    said = f"{text} {done}/{total}"
    if not self._in_phase:
      self._beside = said if done < total else ""
    self._show(phase=said)
    if self.active and self._bar is None and time.perf_counter() - self._last_line >= PLAIN_SECONDS:
      self.say(said)

  def step(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Ends a step, counted from 0; its line says `step + 1`, the steps done, as evaluations and
    checkpoints do.

    Values are fetched from the device only where a line is written.
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
    with storage.of_a_run(self.workdir):
      self._mirror.tick()

  def evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Writes and prints an evaluation that was made after `step` steps."""
    if self.active:
      self._write(step, metrics)
      found = "  ".join(f"{name} {terminal.number(x)}" for name, x in clean(metrics).items())
      self.say(f"after {step} steps:  {found}")

  def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
    """Writes the first `log.samples` samples to samples.jsonl, and prints a table every
    `log.samples_every` steps.

    A sample has `question`, `completion`, `reward`, `advantage`, and may have `answer`, `rewards`
    (name -> value), `ended`, `faults`, `disagreement` (of a reward model and a rule), and for the
    inspector `tokens` (texts), `advantages` and `logprobs` (a number for each token).
    """
    if not self.active:
      return
    with storage.of_a_run(self.workdir):
      storage.check_there(self.workdir, self._samples.file)
      few = (clean({"step": step, **sample}) for sample in samples[: self.log.samples])
      self._samples.write(
        *(json.dumps(sample, ensure_ascii=False, allow_nan=False) for sample in few)
      )
    if samples and self.log.samples_every and step % self.log.samples_every == 0:
      self.console.print(terminal.samples_table(step, clean(samples[:TABLE_ROWS])))

  def say(self, text: str) -> None:
    """Prints a line; it stands above the bar if there is one."""
    if self.active:
      self.console.print(rich.text.Text(terminal.printable(text)), soft_wrap=True)
      self._last_line = time.perf_counter()

  def warn(self, about: str, text: str) -> None:
    """Prints a warning, the first time that one is given about the same."""
    if about not in self._warned:
      self._warned.add(about)
      self.say(f"warning: {text}")

  def _write(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Writes a line of metrics.jsonl and its finite numbers to TensorBoard."""
    values = clean(metrics)
    self._shown |= {name: values[name] for name, _, _ in SHOWN if name in values}
    with storage.of_a_run(self.workdir):
      storage.check_there(self.workdir, self._metrics.file)
      self._metrics.write(json.dumps({"step": int(step), **values}, allow_nan=False))
      if self._tensorboard:
        for name, value in values.items():
          if value is not None:
            self._tensorboard.add_scalar(name, value, step)
    self._show()

  def _show(self, **fields: Any) -> None:
    """Changes what the bar shows, if there is one."""
    if self.active and self._bar is not None:
      self._bar.update(self._task, shown=self._line(), **fields)

  def _line(self) -> str:
    """The last numbers of SHOWN in one line."""
    # the loss of a policy gradient says nothing
    hidden = {"loss"} if "reward/mean" in self._shown else set()
    hidden |= set() if self._shown.get("reward_faults") else {"reward_faults"}
    shown = [
      (label, self._shown[name], form)
      for name, label, form in SHOWN
      if name in self._shown.keys() - hidden
    ]
    return "  ".join(f"{label} {terminal.number(value, form)}" for label, value, form in shown)

  def _left(self, step: int) -> str:
    """The time left after `step`, as H:MM:SS."""
    return terminal.time_left(self._ends, self.steps - step - 1)


def clean(values: Any) -> Any:
  """Returns `values` as JSON takes them: numbers of Python, None for NaN and infinities, lists for
  arrays.

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
