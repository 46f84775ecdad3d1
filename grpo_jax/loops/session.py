"""What the loops share: everything is made and checked, restored, evaluated, saved, stopped and finished here."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import jax
from ml_collections import ConfigDict

from grpo_jax import checkpoint, evaluate, learn, metrics, optim, sampler, sharding
from grpo_jax import rollouts as host
from grpo_jax import state as states
from grpo_jax.errors import SettingError
from grpo_jax.loops import build, imports
from grpo_jax.models.hf import tensors
from grpo_jax.objectives import common
from grpo_jax.packing.plan import Packing
from grpo_jax.types import Rollouts


class Session:
  """A run in its folder. Use it in a `with` block:

  with Session(config, workdir, model, batches) as s:
    for step in s.steps():          # saves, evaluates and stops between two steps
      with s.writer.phase("learn"):
        s.state, ... = s.update(s.state, ...)
      s.log(step, numbers)

  After the last step there are DIR/result.json and DIR/export.

  Raises:
    SettingError: bad settings, before anything is compiled; too many non-finite steps in a row; a full disk.
  """

  def __init__(self, config: ConfigDict, workdir: str, model: build.Model, batches: Any):
    """`batches`: what gives the data; its get_state and set_state are saved and restored with the rest."""
    self.started = time.perf_counter()
    self.config, self.workdir, self.model, self.batches = config, workdir, model, batches
    self.objective = imports.module("grpo_jax.objectives", config.objective.name, "objective.name")
    check(config, model.layout)
    check_data(config, self.objective)
    self.needs = common.needs(self.objective, config.objective)
    self.evaluator = Evaluator(config, model)
    updates = config.steps * config.learner.mu * config.learner.minibatches
    self.rate = optim.schedule(config.learner, updates)
    tx = optim.make_optimizer(config.learner, updates, critic="values" in self.needs)
    temperature = config.sampler.temperature
    self.update = learn.make_learn(model.decoder, self.objective, tx, config.learner, config.objective, temperature)
    self._report = learn.make_report(model.decoder, self.objective, config.learner, config.objective, temperature)

    checkpoint.claim_workdir(workdir, config)
    if jax.process_index() == 0:
      build.describe(model, os.path.join(workdir, "model"))
    self.checkpoints = checkpoint.Checkpoints(workdir, config.checkpoint.keep)
    abstract = states.abstract(build.abstract_params(model, self.needs), tx)
    checkpoint.check_space(workdir, abstract)
    restored = self.checkpoints.restore_latest(abstract)
    self.first, self.extra = (restored.step, restored.extra) if restored else (0, {"wall_s": 0.0})
    if restored:
      self.state = restored.state
      self.batches.set_state(restored.data)
    else:
      self.state = states.create(build.params(model, self.needs), tx)
    # The reference is not saved: it is read again from its source.
    self.ref_params = build.reference(config.ref_from, model, "ref_from") if "ref" in self.needs else None
    self._resources = contextlib.ExitStack()
    self.restored = restored is not None

  def __enter__(self) -> "Session":
    self.writer = self._resources.enter_context(
      metrics.Writer(self.workdir, self.config.log, self.config.steps, self.first)
    )
    self.stopping = self._resources.enter_context(checkpoint.stop_signals())
    if self.restored:
      self.writer.say(f"going on from step {self.first} of {self.workdir}")
    else:
      self.extra["before"] = self.evaluator(self.writer, self.policy, 0, everything=True)
      self.save(0)
    return self

  def __exit__(self, *exception: Any) -> None:
    self._resources.close()
    if exception[0] is None:
      self.checkpoints.close()

  @property
  def policy(self) -> Any:
    return self.state.params["policy"]

  @property
  def wall(self) -> float:
    """Seconds spent in this run, earlier processes included."""
    return self.extra["wall_s"] + time.perf_counter() - self.started

  def steps(self) -> Iterator[int]:
    """Steps that are left to do; what happens between two of them happens here."""
    config = self.config
    for step in range(self.first, config.steps):
      profile(config.profile, step, self.workdir)
      yield step
      done = step + 1
      if config.eval.every and done % config.eval.every == 0 and done < config.steps:
        self.evaluator(self.writer, self.policy, done)
      if signal_name := self.stopping(step):
        self.save(done, wait=True)
        self.writer.say(f"{signal_name}: saved after step {done} of {config.steps}; {checkpoint.how_to_go_on()}")
        return
      if done % config.checkpoint.every == 0 and done < config.steps:
        self.save(done)
    self.finish()

  def log(self, step: int, numbers: dict[str, Any]) -> None:
    """Ends a step: its line in metrics.jsonl, and the end of the run where nothing is finite any more."""
    numbers |= {"lr": self.rate(self.state.step - 1), "skipped_steps": int(self.state.skipped)}
    self.writer.step(step, numbers)
    c, bad = self.config.learner, int(self.state.bad_steps)
    if bad >= c.max_bad_steps:
      raise SettingError(
        f"learner.lr={c.lr}: {bad} updates in a row were not finite (loss {float(numbers['loss'])}, gradient norm "
        f"{float(numbers['grad_norm'])}); a lower one may work; checkpoint {self.checkpoints.latest()} of "
        f"{self.workdir} is complete"
      )

  def report(self, step: int, rollouts: Rollouts, trace: learn.Trace, packing: Packing) -> tuple[dict, Any]:
    """Every `log.report_every` steps: metrics, and log-probs of the sequences before and after the update, each
    `[P, G]`; else ({}, None). See `learn.make_report`."""
    if not self.config.log.report_every or step % self.config.log.report_every:
      return {}, None
    with self.writer.phase("report"):
      found, *moved = host.to_host(self._report(self.state.params, rollouts, trace, packing))
    return found, moved

  def save(self, step: int, wait: bool = False) -> None:
    with self.writer.phase("save"):
      extra = self.extra | {"wall_s": self.wall}
      self.checkpoints.save(step, self.state, self.batches.get_state(), extra, wait=wait)

  def finish(self) -> None:
    """The last evaluation and checkpoint, DIR/export and DIR/result.json."""
    config, writer = self.config, self.writer
    before = self.extra["before"]
    self.save(config.steps, wait=True)
    after = self.evaluator(writer, self.policy, config.steps, everything=True)
    if config.checkpoint.export:
      with writer.phase("export"):
        folder = os.path.join(self.workdir, "export")
        base = build.find_source(config.init_from)[0] or None
        tensors.save(folder, self.model.decoder.config, self.policy, tokenizer=self.model.tokenizer, base=base)
    result = {f"{name.replace('@', '_at_')}_before": value for name, value in before.items()}
    result |= {f"{name.replace('@', '_at_')}_after": value for name, value in after.items()}
    result |= {"steps": config.steps, "wall_s": round(self.wall, 1)}
    if jax.process_index() == 0:
      path = os.path.join(self.workdir, "result.json")
      with open(path + ".tmp", "w") as f:
        json.dump(metrics.clean(result), f, indent=2)
      os.replace(path + ".tmp", path)
    if "accuracy" in after:
      writer.say(
        f"greedy accuracy {before['accuracy']:.1%} -> {after['accuracy']:.1%} on {self.evaluator.problems} test "
        f"problems, {config.steps} steps, {self.wall:.0f} s; {self.workdir}/result.json"
      )


def check(config: ConfigDict, layout: sharding.Layout) -> None:
  """Refuses numbers that do not divide each other.

  Raises:
    SettingError: names the settings and what would work.
  """
  sharding.check_batch(layout, config.data.prompts, config.sampler.group)
  of_prompt = {"solutions": 1, "pairs": 2}.get(config.offline.data) if config.loop == "offline" else None
  if of_prompt and of_prompt % layout.size("sample"):
    raise SettingError(
      f"mesh.group={layout.size('sample')} with offline.data={config.offline.data!r}, {of_prompt} a prompt: use 1"
    )
  c, shards = config.learner, layout.size("prompt")
  for name, value in (("learner.mu", c.mu), ("learner.minibatches", c.minibatches), ("steps", config.steps)):
    if value < 1:
      raise SettingError(f"{name}={value}: at least 1")
  if config.data.prompts % (c.minibatches * shards):
    raise SettingError(
      f"learner.minibatches={c.minibatches}: data.prompts={config.data.prompts} does not divide into so many over "
      f"{shards} shards; use a divisor of {config.data.prompts // shards}"
    )
  minibatch = config.data.prompts // c.minibatches
  if c.microbatch and (minibatch % c.microbatch or c.microbatch % shards):
    raise SettingError(
      f"learner.microbatch={c.microbatch}: use a multiple of {shards} that divides the minibatch of {minibatch} prompts"
    )
  if c.chunk < 1:
    raise SettingError(f"learner.chunk={c.chunk}: at least 1")
  weights, functions = config.objective.reward_weights, config.rewards.functions
  if weights and len(weights) != len(functions):
    raise SettingError(f"objective.reward_weights={weights}: give {len(functions)}, one for each of rewards.functions")
  if config.sampler.temperature <= 0:
    raise SettingError(f"sampler.temperature={config.sampler.temperature}: log-probs of samples need one above 0")
  for name in ("group", "max_length"):
    if config.sampler[name] < 1:
      raise SettingError(f"sampler.{name}={config.sampler[name]}: at least 1")


def check_data(config: ConfigDict, objective: Any) -> None:
  """Refuses an objective that is not for the data of this loop, and distillation without a teacher.

  Raises:
    SettingError: names the settings and what would work.
  """
  kind = config.offline.data if config.loop == "offline" else "live"
  takes, name = getattr(objective, "DATA", (kind,)), config.objective.name
  if kind not in takes:
    of = lambda kind: "loop='online'" if kind == "live" else f"loop='offline', offline.data={kind!r}"
    raise SettingError(f"objective.name={name!r} with {of(kind)}: use {', or '.join(of(k) for k in takes)}")
  teachers = {"distill": ("ref_from", config.ref_from), "distill_offline": ("offline.teacher", config.offline.teacher)}
  if name in teachers and not teachers[name][1]:
    raise SettingError(f"{teachers[name][0]}='': {name} learns from another model; give its folder, or a run's")


class Evaluator:
  """Greedy and, where everything is asked for, sampled evaluation on the test split."""

  def __init__(self, config: ConfigDict, model: build.Model):
    self.config, self.model = config, model
    self.solved = imports.function(config.eval.reward, "grpo_jax.rewards", "eval.reward")
    self.test = imports.eval_source(config.data) if config.eval.problems else ()
    self.problems = min(config.eval.problems, len(self.test))
    shards = model.layout.size("prompt")
    if config.eval.batch < 1 or config.eval.batch % shards:
      raise SettingError(f"eval.batch={config.eval.batch}: use a multiple of {shards}")
    if config.eval.samples % model.layout.size("sample"):
      raise SettingError(f"eval.samples={config.eval.samples}: use a multiple of {model.layout.size('sample')}")
    greedy = ConfigDict(config.sampler.to_dict() | {"temperature": 0.0, "group": model.layout.size("sample")})
    several = ConfigDict(config.sampler.to_dict() | {"group": config.eval.samples})
    self.greedy = sampler.make_sampler(model.decoder, greedy, model.stop)
    self.several = sampler.make_sampler(model.decoder, several, model.stop)

  def __call__(self, writer: metrics.Writer, params: Any, step: int, everything: bool = False) -> dict[str, float]:
    config, model = self.config, self.model
    if not self.problems:
      return {}
    shared = {
      "layout": model.layout,
      "tokenizer": model.tokenizer,
      "render": model.render,
      "solved": self.solved,
      "max_prompt_length": config.data.max_prompt_length,
      "key": build.key(config.seed, build.EVALUATE, step),
    }
    with writer.phase("eval"):
      found = evaluate.evaluate(self.greedy, params, self.test, config.eval, group=1, **shared)
      if everything and config.eval.samples:
        found |= evaluate.evaluate(self.several, params, self.test, config.eval, group=config.eval.samples, **shared)
    writer.evaluation(step, {f"eval/{k}": v for k, v in found.items()})
    return found


def profile(cfg: ConfigDict, step: int, workdir: str) -> None:
  """Opens and closes the profiler's window."""
  if cfg.steps and step == cfg.first_step:
    jax.profiler.start_trace(os.path.join(workdir, "profile"))
  if cfg.steps and step == cfg.first_step + cfg.steps:
    jax.profiler.stop_trace()
