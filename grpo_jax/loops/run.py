"""Keeps a run in its folder: saves, restores, evaluates, stops and ends it.

DIR/config.json           the config that the folder belongs to
DIR/inputs.json           what else the numbers depend on (distributed/inputs.py)
DIR/checksums.json        of these and other files that are written as a whole (run/manifest.py)
DIR/model/                shape (decoder.json) and tokenizer of the policy
DIR/checkpoints/          run/checkpoint.py
DIR/compiled/             programs (run/compile_cache.py)
DIR/metrics.jsonl  samples.jsonl  tensorboard/     run/writer.py
DIR/export/  adapter/  result.json     after the last step (export.py)
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType

import jax

from grpo_jax.aliases import Json
from grpo_jax.distributed import inputs, lifeline
from grpo_jax.errors import SettingError
from grpo_jax.evaluation.evaluation import Evaluation
from grpo_jax.io import storage
from grpo_jax.learning.state import TrainState
from grpo_jax.loops import export
from grpo_jax.loops.protocols import Data, Trained
from grpo_jax.run import checkpoint, compile_cache, heap, manifest, provenance, signals, workdir
from grpo_jax.run.checkpoint_files import Extra
from grpo_jax.run.profiler import Profiler
from grpo_jax.run.watch import Watch, limits_of
from grpo_jax.run.writer import Number, Writer
from grpo_jax.sandbox import deadline
from grpo_jax.setup import build, depends, outputs, room, unread, weights
from grpo_jax.setup.experiment import Experiment

POLICY = checkpoint.LEARNER  # the name of the learner that is evaluated and exported


class Run:
  """Holds a folder with its checkpoints, evaluator, writer and signals; for a `with` block:

  with Run(experiment, folder, model, batches, {"policy": policy}, evaluator) as run:
    for step in run.steps():
      ...                       # sample, score, learn
      run.log(step, metrics)    # writes a line of metrics
      run.after(step)           # evaluates, saves, stops: as the settings say
    run.finish()                # the last evaluation, DIR/export and DIR/result.json
  """

  writer: Writer
  profiler: Profiler
  stopping: Callable[[], str]
  extra: Extra

  def __init__(
    self,
    experiment: Experiment,
    folder: str,
    model: build.Model,
    data: Data,
    learners: Mapping[str, Trained],
    evaluator: Evaluation,
    rule: str = "",
  ):
    """Claims the folder and restores what is in it, or starts the run.

    Args:
      experiment: the whole run.
      folder: created if it is missing.
      model: of the policy.
      data: gives the batches.
      learners: what checkpoints hold, by name; "policy" is among them.
      evaluator: of the policy.
      rule: the reward with which reward models are compared; empty if there is none.
    """
    self.started = time.perf_counter()
    self.experiment, self.folder, self.model = experiment, folder, model
    self.working_directory = os.getcwd()  # relative paths of the config start here until the end
    self.data, self.learners, self.evaluator = data, learners, evaluator
    # read now: the folder of the first weights may be gone, or another, when the run ends
    self.dtype = provenance.weights_dtype(experiment.init_from)
    self.base, self.stopped = weights.find_source(experiment.init_from)[0], False
    length, e = experiment.sampler.max_length, experiment.environment
    self.watch = Watch(limits_of(length, e.turn_length, e.turns if e.name else 0), rule)
    inputs.check_hosts(depends_on := depends.gather(experiment, model.tokenizer, data, evaluator))
    ours = experiment.config_json(), experiment.own_defaults(), unread.names(experiment)
    workdir.check_owner(folder, *ours, experiment.kind)  # before anything is made in it
    with contextlib.ExitStack() as resources:
      self._check_lock = resources.enter_context(workdir.locked(folder))
      workdir.check_owner(folder, *ours, experiment.kind)  # of a run that ended meanwhile
      self.programs = resources.enter_context(
        compile_cache.kept(experiment.compilation_cache, folder)
      )
      self._restore_or_start()
      workdir.claim(folder, recorded(experiment))  # once everything that the config names was there
      self.changed = inputs.record(folder, depends_on, self.first if self.resumed else None)
      if jax.process_index() == 0:
        build.describe(model, str(storage.place(folder) / "model"))
        manifest.record(folder, manifest.START)
      self._resources = resources.pop_all()

  def _restore_or_start(self) -> None:
    """Sets the step, the data's position and every learner: as saved, or to the start."""
    abstract = {name: learner.abstract() for name, learner in self.learners.items()}
    self.checkpoints = checkpoint.Checkpoints(self.folder, self.experiment.checkpoint.keep)
    if (done := self.checkpoints.latest() or 0) > self.experiment.steps:
      raise SettingError(
        f"steps={self.experiment.steps}: this run has done {done} steps; use at least {done}"
      )
    room.check_state(abstract)
    workdir.check_space(self.folder, abstract)
    restored = self.checkpoints.restore_latest(abstract)
    self.resumed = restored is not None
    self.passed_over: list[str] = []  # damaged checkpoints, each with what is wrong
    self.lost: dict[str, int] = {}  # bytes that logs have lost
    self.first, self.extra = 0, Extra(wall_s=0.0, references={})
    if restored:
      self.passed_over, self.lost = restored.passed_over, restored.lost
      self.first, self.extra = restored.step, restored.extra
      self.data.set_state(restored.data)
    saved_sizes = self.extra.pop("sizes", {})
    for name, learner in self.learners.items():
      if restored:
        learner.state = restored.states[name]
        learner.set_sizes(saved_sizes.get(name, {}))
      else:
        learner.start()
      pin = self.extra["references"].get(name, {})
      self.extra["references"][name] = learner.load_reference(pin)

  def __enter__(self) -> "Run":
    self.writer = self._resources.enter_context(
      Writer(
        self.folder,
        self.experiment.log,
        self.experiment.steps,
        self.first,
        check_lock=self._check_lock,
        outputs=outputs.make(self.experiment),
      )
    )
    self.profiler = Profiler(self.experiment.profile, str(self.writer.folder / "profile"))
    self.stopping = self._resources.enter_context(signals.stop_signals())
    self._resources.callback(self.profiler.close)
    self._tell_what_was_resumed()
    self._mark(self.first)
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> bool:
    with self._resources:
      if isinstance(error, deadline.Stopped):
        self._stop_in_a_step(str(error))
      elif kind is None:
        self.checkpoints.close()
    return isinstance(error, deadline.Stopped)

  def _tell_what_was_resumed(self) -> None:
    """Prints a warning of whatever was damaged or has changed since it was saved, and the step."""
    for damage in self.passed_over:
      self.writer.say(f"warning: {damage}; it is passed over and kept in {self.folder}/damaged")
    for name, lost in self.lost.items():
      self.writer.say(
        f"warning: {name} has lost {lost} bytes since the checkpoint; what is left of it is kept"
      )
    for damage in self.writer.damaged_logs():
      self.writer.say(f"warning: {damage}; the file is kept as it is, and reports leave that out")
    for change in [*self.changed, *build.beyond_context(self.model, self.experiment)]:
      self.writer.say(f"warning: {change}")
    if self.resumed:
      self.writer.say(f"going on from step {self.first} of {self.folder}")

  def _mark(self, step: int) -> None:
    """Remembers the state after `step` steps, for a signal that comes during the next one."""
    # user code that no guard calls, such as a data set's, may have changed the directory
    deadline.go_back(self.working_directory, "code of this run")
    self.at_step = (step, self._position(), self._states())
    lifeline.begin(f"step {step + 1}")

  def _stop_in_a_step(self, signal_name: str) -> None:
    """Saves the state before the step or evaluation that a signal stopped; it will be repeated.

    The loop may have set other states since (the reference of an iteration). If an update has
    donated the arrays of the remembered states, the last checkpoint has to do.
    """
    step, position, states = self.at_step
    if self.checkpoints.latest() is None:
      saved = "nothing was saved yet"
    elif any(array.is_deleted() for array in jax.tree.leaves(states)):
      saved = f"the checkpoint of step {self.checkpoints.latest()} is complete"
    else:
      self.save(step, wait=True, position=position, states=states)
      saved = f"saved after step {step} of {self.experiment.steps}"
    self.writer.say(f"{signal_name}: {saved}; {signals.how_to_resume()}")
    self.checkpoints.close()

  @property
  def seconds(self) -> float:
    """Seconds spent in this run, earlier processes included."""
    return self.extra["wall_s"] + time.perf_counter() - self.started

  def steps(self) -> Iterator[int]:
    """Yields the remaining steps until a signal; a new run is evaluated and saved first."""
    if not self.resumed:
      self.extra["before"] = self.evaluate(0, samples=True)
      self.extra["tested"] = self.evaluator.tested()
      self.save(0, wait=True)  # from here on, a run that has done a step has a checkpoint
    elif self.extra.pop("evaluation_due", False) and self.first < self.experiment.steps:
      self._evaluate_after(self.first)
    for step in range(self.first, self.experiment.steps):
      if self.stopped:
        return
      self._mark(step)
      self.profiler.before(step)
      yield step

  def log(self, step: int, metrics: Mapping[str, Number], always: bool = False) -> None:
    """Writes the metrics of a step (`always` as a line), and ends a run that is not finite."""
    own = {"time/first_step": time.perf_counter() - self.started} if step == self.first else {}
    self.profiler.after(step)  # writes the trace, which is no part of the first step
    self.writer.step(step, {**metrics, **own}, always)
    if own:
      self.writer.say(f"the first step is done after {own['time/first_step']:.0f} s{self.programs}")
    self.watch(metrics, self.writer)
    for learner in self.learners.values():
      learner.check_finite(metrics, self._safe)

  def _safe(self) -> str:
    return f"checkpoint {self.checkpoints.latest()} of {self.folder} is complete"

  def after(self, step: int, evaluate: bool = False) -> None:
    """Evaluates, saves or ends the run between two steps, as the settings and signals say.

    Args:
      step: the step that was done.
      evaluate: asks for an evaluation whatever `eval.every` is; `finish` makes the last one.
    """
    experiment, done = self.experiment, step + 1
    evaluate |= bool(experiment.eval.every) and done % experiment.eval.every == 0
    if evaluate and done < experiment.steps:
      self._evaluate_after(done)
    elif evaluate:  # `finish` evaluates, after the last save: a run that is made longer does again
      self.extra["evaluation_due"] = True
    if signal_name := self.stopping():
      self.stopped = True
      self.save(done, wait=True)
      self.writer.say(
        f"{signal_name}: saved after step {done} of {experiment.steps}; {signals.how_to_resume()}"
      )
    elif done % experiment.checkpoint.every == 0 and done < experiment.steps:  # not the last
      self.save(done)

  def _evaluate_after(self, done: int) -> None:
    """Evaluates between two steps; a checkpoint that a signal saves meanwhile repeats it later."""
    self._mark(done)
    self.extra["evaluation_due"] = True
    self.evaluate(done)
    del self.extra["evaluation_due"]

  def evaluate(self, step: int, samples: bool = False) -> dict[str, float]:
    """Returns the metrics of the policy; `samples` adds those that only the first and last have."""
    lifeline.begin(f"the evaluation after {step} steps")
    return self.evaluator(self.writer, self.learners[POLICY].params, step, samples)

  def _position(self) -> tuple[Json, dict[str, Json]]:
    """Returns the position in the data, and the sizes of every learner's programs."""
    sizes = {name: learner.get_sizes() for name, learner in self.learners.items()}
    return self.data.get_state(), sizes

  def _states(self) -> dict[str, TrainState]:
    """Returns the state of each learner."""
    return {name: learner.state for name, learner in self.learners.items()}

  def save(
    self,
    step: int,
    wait: bool = False,
    position: tuple[Json, dict[str, Json]] | None = None,
    states: dict[str, TrainState] | None = None,
  ) -> None:
    """Saves all learners and the position after `step` steps.

    Args:
      step: the number of steps done.
      wait: return only when the checkpoint is complete.
      position: from `_position`; None: the current one.
      states: of the learners by name; None: the current ones.
    """
    with self.writer.phase("save"):
      lifeline.settle()  # no step is saved whose prompts differed between hosts
      self._check_lock()
      self.writer.upload()  # a checkpoint relies on the present content of the logs
      data, sizes = position or self._position()
      extra = self.extra.copy()
      extra["wall_s"], extra["sizes"] = self.seconds, sizes
      # on a CPU a save beside the next step would hold a second state and take the step's cores
      at_once = wait or self.model.layout.platform == "cpu"
      self.checkpoints.save(step, states or self._states(), data, extra, wait=at_once)
      if at_once:
        heap.release()  # the copies that were written

  def finish(self, export_more: Callable[[], None] = lambda: None) -> None:
    """Makes the last checkpoint and evaluation, the exports and result.json, unless stopped."""
    if self.stopped:
      return
    deadline.go_back(self.working_directory, "code of this run")
    experiment = self.experiment
    before = self.extra["before"] if self.extra.get("tested") == self.evaluator.tested() else {}
    self.save(experiment.steps, wait=True)
    self.extra.pop("evaluation_due", None)
    after = self.evaluate(experiment.steps, samples=True)
    if experiment.checkpoint.export:
      self.export()
      export_more()
    self._check_lock()
    if jax.process_index() == 0:
      how = experiment.steps, self.seconds, experiment.checkpoint.export
      export.write_result(self.folder, before, after, *how)
      manifest.record(self.folder, manifest.END)
    self.writer.say(
      f"{self.evaluator.summary(before, after)}, {experiment.steps} steps, {self.seconds:.0f} s; "
      f"{self.folder}/result.json"
    )

  def export(self) -> None:
    """Writes the policy or reward model to DIR/export, and its adapters to DIR/adapter."""
    with self.writer.phase("export"):
      self._check_lock()
      folder, base = storage.place(self.folder), self.base
      learner = self.learners[POLICY]
      export.export_merged(
        folder / "export", self.model, learner.params, self.dtype, base, self.writer
      )
      export.export_adapters(folder / "adapter", self.model, learner, base)


def recorded(experiment: Experiment) -> Json:
  """Returns the config as DIR/config.json keeps it.

  `model.hub` names the weights that an experiment is made for; if `init_from` names weights, they
  may be others, so it is left empty.
  """
  config = experiment.config_json()
  return config | {"model": config["model"] | ({"hub": ""} if experiment.init_from else {})}
