"""A run in its folder: what it saves and shows, when it is evaluated, and how it is stopped and
goes on.

DIR/config.json           the config that the folder belongs to
DIR/inputs.json           what else the numbers depend on, see grpo_jax/distributed/inputs.py
DIR/checksums.json        of these and other files that are written as a whole, see grpo_jax/run/manifest.py
DIR/model/                shape (decoder.json) and tokenizer of the policy
DIR/checkpoints/          see grpo_jax/run/checkpoint.py
DIR/compiled/             programs, see grpo_jax/run/compile_cache.py
DIR/metrics.jsonl  samples.jsonl  tensorboard/     see grpo_jax/run/writer.py
DIR/export/  result.json  after the last step; with adapters DIR/adapter/, too, a folder of PEFT
"""

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
from ml_collections import ConfigDict

from grpo_jax.distributed import inputs, lifeline
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.learning.state import TrainState
from grpo_jax.loops.learner import Learner
from grpo_jax.models.hf import peft, tensors
from grpo_jax.run import checkpoint, compile_cache, manifest, provenance, signals, workdir
from grpo_jax.run.profiler import Profiler
from grpo_jax.run.watch import Watch
from grpo_jax.run.writer import Writer, clean
from grpo_jax.sandbox import deadline
from grpo_jax.setup import build, depends, parameters, room

POLICY = checkpoint.LEARNER  # the name of the learner that is evaluated and exported


class Position(depends.Contents, Protocol):
  """Data with a position that is saved and restored."""

  def get_state(self) -> dict[str, Any]:
    """The position, as JSON."""
    ...

  def set_state(self, state: dict[str, Any]) -> None:
    """Goes on from the position of `get_state`."""
    ...


class Evaluation(depends.Contents, Protocol):
  """What measures the policy, or the reward model, on data that it is not trained on
  (evaluator.py).
  """

  def __call__(
    self, writer: Writer, params: Any, step: int, samples: bool = False
  ) -> dict[str, float]:
    """Metrics of `params` after `step` steps, written and shown; `samples` asks for those before
    and after the run.
    """
    ...

  def tested(self) -> list[Any]:
    """What an evaluation is of, as JSON; those before and after are compared only where it is the
    same.
    """
    ...

  def said(self, before: dict[str, float], after: dict[str, float]) -> str:
    """The evaluations before ({} where there is none to compare with) and after a run, in words."""
    ...


class Run:
  """A folder with its checkpoints, evaluator, writer and signals. Use it in a `with` block:

  with Run(config, folder, model, batches, {"policy": policy}, evaluator) as run:
    for step in run.steps():
      ...                       # sample, score, learn
      run.log(step, numbers)    # a line of metrics
      run.after(step)           # evaluates, saves, stops: as the settings say
    run.finish()                # the last evaluation, DIR/export and DIR/result.json
  """

  writer: Writer
  stopping: Callable[[int], str]

  def __init__(
    self,
    config: ConfigDict,
    folder: str,
    model: build.Model,
    data: Position,
    learners: dict[str, Learner],
    evaluator: Evaluation,
    rule: str = "",
  ):
    """Claims the folder and restores or starts what is in it.

    Args:
      config: of the whole run.
      folder: made where it is missing.
      model: of the policy.
      data: what gives the batches.
      learners: what is trained, by name; "policy" is among them.
      evaluator: of the policy.
      rule: the name of the reward with which those of reward models are compared; "": none.

    Raises:
      SettingError: bad settings, before anything is compiled; a folder of another config; no room
        on the disk.
    """
    self.started = time.perf_counter()
    self.config, self.folder, self.model = config, folder, model
    self.here = os.getcwd()  # relative folders of the config are seen from there until the end
    self.data, self.learners = data, learners
    self.evaluator = evaluator
    # of DIR/export; the folder may be gone when the run ends
    self.dtype = provenance.weights_dtype(config.init_from)
    self.stopped = False
    self.watch = Watch(config.sampler.max_length, rule)
    depends_on = depends.gather(config, model.tokenizer, data, evaluator)
    inputs.check_hosts(depends_on)
    # before anything is made in a folder that may be somebody's
    workdir.check_owner(folder, config)
    with contextlib.ExitStack() as resources:
      self._check_lock = resources.enter_context(workdir.locked(folder))
      workdir.check_owner(folder, config)  # of a run that ended meanwhile
      self.programs = resources.enter_context(compile_cache.kept(config.compilation_cache, folder))
      self._restore_or_start()
      workdir.claim(folder, recorded(config))  # after all that the config names has been found
      self.changed = inputs.record(folder, depends_on, self.first)
      if jax.process_index() == 0:
        build.describe(model, str(storage.place(folder) / "model"))
        manifest.record(folder, manifest.START)
      self._resources = resources.pop_all()

  def _restore_or_start(self) -> None:
    """Sets every learner's state and reference, and where the run stands: as they were saved, or at
    the start.
    """
    abstract = {name: learner.abstract() for name, learner in self.learners.items()}
    self.checkpoints = checkpoint.Checkpoints(self.folder, self.config.checkpoint.keep)
    if (done := self.checkpoints.latest() or 0) > self.config.steps:
      raise SettingError(
        f"steps={self.config.steps}: this run has done {done} steps; use at least {done}"
      )
    room.check_state(abstract)
    workdir.check_space(self.folder, abstract)
    restored = self.checkpoints.restore_latest(abstract)
    self.going_on = restored is not None
    self.passed_over, self.lost = (restored.passed_over, restored.lost) if restored else ([], {})
    self.first, self.extra = (
      (restored.step, restored.extra) if restored else (0, {"wall_s": 0.0, "references": {}})
    )
    saved_sizes = self.extra.pop("sizes", {})
    if restored:
      self.data.set_state(restored.data)
    for name, learner in self.learners.items():
      if restored:
        learner.state = restored.states[name]
        learner.sizes.set_state(saved_sizes.get(name, {}))
      else:
        learner.start()
      self.extra["references"][name] = learner.load_reference(
        self.extra["references"].get(name, {})
      )

  def __enter__(self) -> "Run":
    self.writer = self._resources.enter_context(
      Writer(
        self.folder, self.config.log, self.config.steps, self.first, check_lock=self._check_lock
      )
    )
    self.profiler = Profiler(self.config.profile, str(self.writer.folder / "profile"))
    self.stopping = self._resources.enter_context(signals.stop_signals())
    self._resources.callback(self.profiler.close)
    if self.going_on:
      for damage in self.passed_over:
        self.writer.say(f"warning: {damage}; it is passed over and kept in {self.folder}/damaged")
      for name, lost in self.lost.items():
        self.writer.say(
          f"warning: {name} has lost {lost} bytes since the checkpoint; what is left of it is kept"
        )
      for damage in self.writer.damaged_logs():
        self.writer.say(f"warning: {damage}; the file is kept as it is, and reports leave that out")
      for change in self.changed:
        self.writer.say(f"warning: {change}")
      self.writer.say(f"going on from step {self.first} of {self.folder}")
    self._mark(self.first)
    return self

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
    with self._resources:
      if isinstance(error, deadline.Stopped):
        self._stop_in_a_step(str(error))
      elif kind is None:
        self.checkpoints.close()
    return isinstance(error, deadline.Stopped)

  def _mark(self, step: int) -> None:
    """Keeps where the run stands after `step` steps, for a signal that comes before the next ones
    are done.
    """
    deadline.go_back(self.here, "code of this run")  # of a data set, or another that no guard calls
    self.at_step = (step, self._position(), self._states())
    lifeline.begin(f"step {step + 1}")

  def _stop_in_a_step(self, signal_name: str) -> None:
    """Saves where the step (or evaluation) that a signal stopped began: what it sampled is sampled
    again.

    The states are those of then: a loop may have set others since, as the reference of an
    iteration. An update has donated the arrays of the states before it.
    """
    step, position, states = self.at_step
    if self.checkpoints.latest() is None:
      saved = "nothing was saved yet"
    elif any(array.is_deleted() for array in jax.tree.leaves(states)):
      saved = f"the checkpoint of step {self.checkpoints.latest()} is complete"
    else:
      self.save(step, wait=True, position=position, states=states)
      saved = f"saved after step {step} of {self.config.steps}"
    self.writer.say(f"{signal_name}: {saved}; {signals.how_to_go_on()}")
    self.checkpoints.close()

  @property
  def seconds(self) -> float:
    """Seconds spent in this run, earlier processes included."""
    return self.extra["wall_s"] + time.perf_counter() - self.started

  def steps(self) -> Iterator[int]:
    """The steps that are left to do, until a signal stops the run; a new one is evaluated and saved
    before them.
    """
    if not self.going_on:
      self.extra["before"] = self.evaluate(0, samples=True)
      self.extra["tested"] = self.evaluator.tested()
      self.save(0, wait=True)  # from here on, a run that has done a step has a checkpoint
    elif self.extra.pop("evaluation_due", False):
      self._evaluate_after(self.first)
    for step in range(self.first, self.config.steps):
      if self.stopped:
        return
      self._mark(step)
      self.profiler.before(step)
      yield step

  def log(self, step: int, numbers: dict[str, Any]) -> None:
    """Writes the line of a step.

    Raises:
      SettingError: a learner has made too many updates in a row that were not finite.
    """
    if step == self.first:
      numbers = numbers | {"time/first_step": time.perf_counter() - self.started}
    self.writer.step(step, numbers)
    if step == self.first:
      self.writer.say(
        f"the first step is done after {numbers['time/first_step']:.0f} s{self.programs}"
      )
    self.watch(numbers, self.writer)
    for learner in self.learners.values():
      learner.check_finite(numbers, self._safe)

  def _safe(self) -> str:
    return f"checkpoint {self.checkpoints.latest()} of {self.folder} is complete"

  def after(self, step: int, evaluate: bool = False) -> None:
    """What happens between two steps: an evaluation, the end by a signal, a checkpoint; as the
    settings say.

    Args:
      step: that was done.
      evaluate: asks for an evaluation whatever `eval.every` says; the one after the last step is
        `finish`'s.
    """
    config, done = self.config, step + 1
    evaluate |= bool(config.eval.every) and done % config.eval.every == 0
    if evaluate and done < config.steps:
      self._evaluate_after(done)
    if signal_name := self.stopping(step):
      self.stopped = True
      self.save(done, wait=True)
      self.writer.say(
        f"{signal_name}: saved after step {done} of {config.steps}; {signals.how_to_go_on()}"
      )
    elif done % config.checkpoint.every == 0 and done < config.steps:
      self.save(done)

  def _evaluate_after(self, done: int) -> None:
    """Evaluates between two steps; where a signal stops that, a checkpoint says that it is to be
    done.
    """
    self._mark(done)
    self.extra["evaluation_due"] = True
    self.evaluate(done)
    del self.extra["evaluation_due"]

  def evaluate(self, step: int, samples: bool = False) -> dict[str, float]:
    """Metrics of the policy after `step` steps; `samples`: those of the evaluations before and
    after the run, too.
    """
    lifeline.begin(f"the evaluation after {step} steps")
    return self.evaluator(self.writer, self.learners[POLICY].params, step, samples)

  def _position(self) -> tuple[dict[str, Any], dict[str, Any]]:
    """The position in the data, and the sizes of programs that every learner has made so far."""
    return self.data.get_state(), {
      name: learner.sizes.get_state() for name, learner in self.learners.items()
    }

  def _states(self) -> dict[str, TrainState]:
    """The state of each learner."""
    return {name: learner.state for name, learner in self.learners.items()}

  def save(
    self,
    step: int,
    wait: bool = False,
    position: tuple[dict, dict] | None = None,
    states: dict[str, TrainState] | None = None,
  ) -> None:
    """Saves all learners and the position after `step` steps.

    Args:
      step: how many steps are done.
      wait: return only when the checkpoint is complete.
      position: of `_position`; None: as it is now.
      states: of the learners, by their names; None: as they are now.
    """
    with self.writer.phase("save"):
      lifeline.settle()  # nothing is saved of steps whose prompts differed between hosts
      self._check_lock()
      self.writer.upload()  # a checkpoint counts on what the logs hold now
      data, sizes = position or self._position()
      extra = self.extra | {"wall_s": self.seconds, "sizes": sizes}
      self.checkpoints.save(step, states or self._states(), data, extra, wait=wait)

  def finish(self) -> None:
    """Makes the last checkpoint and evaluation, DIR/export and DIR/result.json.

    Does nothing where a signal stopped the run.
    """
    if self.stopped:
      return
    deadline.go_back(self.here, "code of this run")
    config, before = (
      self.config,
      self.extra["before"] if self.extra.get("tested") == self.evaluator.tested() else {},
    )
    self.save(config.steps, wait=True)
    after = self.evaluate(config.steps, samples=True)
    if config.checkpoint.export:
      self.export()
    self._check_lock()
    if jax.process_index() == 0:
      write_result(self.folder, before, after, config.steps, self.seconds)
      manifest.record(self.folder, manifest.END)
    said = self.evaluator.said(before, after)
    self.writer.say(
      f"{said}, {config.steps} steps, {self.seconds:.0f} s; {self.folder}/result.json"
    )

  def export(self) -> None:
    """Writes the policy (or the reward model) to DIR/export, a Hugging Face folder in the first
    weights' dtype.
    """
    with self.writer.phase("export"):
      self._check_lock()
      base = parameters.find_source(self.config.init_from)[0] or None
      out = storage.place(self.folder) / "export"
      decoder, trained = self.model.decoder, self.learners[POLICY].trained
      params = decoder.merged(self.learners[POLICY].params)
      show = exporting(self.writer, params, self.dtype)
      tensors.save(
        out,
        decoder.config,
        params,
        tokenizer=self.model.tokenizer,
        dtype=self.dtype,
        base=base,
        progress=show,
      )
      if decoder.lora:
        peft.save(
          out.with_name("adapter"),
          decoder.config,
          decoder.lora,
          trained,
          decoder.base.shapes(),
          base,
        )


def exporting(writer: Writer, params: Any, dtype: str) -> Callable[[int], None]:
  """Returns a function that shows how much of an export is written, called with the bytes that are."""
  return functools.partial(_exported, writer, tensors.export_bytes(params, dtype))


def _exported(writer: Writer, total: int, done: int) -> None:
  writer.progress("MB exported", done // 1000**2, total // 1000**2)


def recorded(config: ConfigDict) -> ConfigDict:
  """Returns the config as DIR/config.json is to have it.

  `model.hub` says which weights an experiment is made for; where others may have been given,
  nothing is said of them.
  """
  found = config.copy_and_resolve_references()
  if found.init_from:
    found.model.hub = ""
  return found


def write_result(folder: str, before: dict, after: dict, steps: int, seconds: float) -> None:
  """Writes DIR/result.json: both evaluations (`NAME_before`, `NAME_after`), steps and `wall_s`."""
  result = {f"{name.replace('@', '_at_')}_before": value for name, value in before.items()}
  result |= {f"{name.replace('@', '_at_')}_after": value for name, value in after.items()}
  result |= {"steps": steps, "wall_s": round(seconds, 1)}
  with storage.of_a_run(folder):
    storage.write(
      storage.place(folder) / "result.json", json.dumps(clean(result), indent=2).encode()
    )
