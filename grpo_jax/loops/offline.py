"""Learn from data that does not change: SFT on worked solutions; RFT, DPO and distillation on
samples made first.

`offline.data` says what the completions of a prompt are:

    solutions   the data set's own worked solution (SFT)
    samples     sampler.group samples of a policy, scored by the rewards (RFT, off-policy distillation)
    pairs       one better and one worse of those samples, [chosen, rejected] (DPO), or the lines of `offline.pairs`

Samples are drawn once, from `offline.teacher` or else from where the policy starts, and kept in
DIR/samples.npz.
"""

import functools
import io
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from grpo_jax.data import loader
from grpo_jax.distributed import hosts, inputs
from grpo_jax.errors import SettingError
from grpo_jax.evaluation.evaluator import Evaluator
from grpo_jax.io import storage
from grpo_jax.loops.collect import check_collector, collect, make_collector
from grpo_jax.loops.groups import Scored, choose, select
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.reward_data import pairs
from grpo_jax.loops.reward_data.pairs import FromFile, encoded
from grpo_jax.loops.run import Run
from grpo_jax.objectives import common
from grpo_jax.packing import plan
from grpo_jax.run import signals
from grpo_jax.run.workdir import reason
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import rollouts
from grpo_jax.setup import build, checks, registry
from grpo_jax.types import Example, Prompts, Rollouts

# of the log-probs: the likelihood of what is written is the model's own, whatever it was sampled at
TEMPERATURE = 1.0


def train(config: ConfigDict, workdir: str) -> None:
  """Runs, or goes on with, the experiment in `workdir`; see `Run`."""
  checks.check_settings(config)
  kind = config.offline.data
  model = build.model(config)
  checks.check(config, model.decoder, registry.objective(config.objective.name))
  drawn = kind != "solutions" and not config.offline.pairs
  batches = (
    Kept(config, config.offline.prompts)
    if drawn
    else FromFile(config, model)
    if config.offline.pairs
    else build.batches(config, model)
  )
  if drawn and not (storage.place(workdir) / "samples.npz").exists():
    build.check_source(config.offline.teacher, model, "offline.teacher")
    # what is wrong with data, prompts and rewards is said before the folder is claimed
    check_collector(config, model)
  policy, evaluator = Learner(config, model, TEMPERATURE), Evaluator(config, model)

  with Run(config, workdir, model, batches, {"policy": policy}, evaluator) as run:
    if drawn:
      draw = functools.partial(draw_samples, config, model, run.writer, run.stopping)
      batches.rollouts = kept_samples(config, run, draw, template())
      if batches.rollouts is None:  # a signal ended the drawing
        return
    for step in run.steps():
      with run.writer.phase("data"):
        given = solutions(next(batches), model, config) if kind == "solutions" else next(batches)
      numbers = policy.learn(step, given, run.writer).metrics
      numbers |= {"tokens_per_s/learn": int(given.lengths.sum()) / run.writer.seconds["learn"]}
      numbers |= pairs.left_out(config, given)
      run.log(step, numbers)
      run.after(step)
    run.finish()


def solutions(
  examples: Sequence[Example | None], model: build.Model, config: ConfigDict
) -> Rollouts:
  """The worked solutions as groups of one, each with its end token; longer ones are cut, and then
  have none.
  """
  longest = config.sampler.max_length
  prompts, _ = loader.to_prompts(
    examples, model.render, config.data.max_prompt_length, config.data.on_long
  )
  texts = [
    (e.solution,) if e is not None and n else (None,) for e, n in zip(examples, prompts.lengths)
  ]
  tokens, lengths, ended = encoded(texts, model, longest)
  zeros = np.zeros(tokens.shape, np.float32)
  return Rollouts(plan.trim(prompts), tokens, lengths, ended, zeros, zeros)


class Kept:
  """Endless batches of the samples in DIR/samples.npz, shuffled anew in each epoch; the position is
  saved.
  """

  def __init__(self, config: ConfigDict, prompts: int):
    self.order = loader.Batches([range(prompts)], prompts=config.data.prompts, seed=config.seed)
    self.rollouts: Rollouts | None = None  # numpy, [prompts, ...]; set once they are drawn
    self.get_state, self.set_state, self.contents = (
      self.order.get_state,
      self.order.set_state,
      self.order.contents,
    )

  def __next__(self) -> Rollouts:
    """A batch without the sampler's log-probs: the policy that learns from it is another one by
    now.
    """
    index = np.asarray(next(self.order))
    return common.written(jax.tree.map(lambda x: x[index], self.rollouts))


def kept_samples(config: ConfigDict, run: Run, draw: Callable[[], Any], like: Any) -> Any:
  """The samples of DIR/samples.npz, drawn first if they are not there; None where a signal ended
  that.

  A damaged file is set aside and the samples are drawn again: they follow from the config alone.
  The run's checkpoints keep their checksum.

  Args:
    config: of the model that they are samples of.
    run: what they are for.
    draw: returns the samples, a pytree of numpy arrays; None where a signal ended that.
    like: a tree of the same structure.

  Raises:
    SettingError: what is drawn again is not what the run began with.
  """
  path, known = storage.place(run.folder) / "samples.npz", run.extra.get("samples")
  samples, error = read_samples(path, known, like)
  # on any process: all draw
  if any(each is None for each in hosts.gather(samples and fingerprint(samples))):
    samples = None
  if samples is None:
    if error:
      run.writer.say(
        f"warning: {path} is damaged ({error}); it is kept as {path}.damaged, and samples are "
        "drawn again"
      )
      if jax.process_index() == 0:
        path.replace(f"{path}.damaged")
    samples = draw()
    if samples is None:
      return None
    if known not in (None, fingerprint(samples)):
      raise SettingError(
        f"offline.teacher={config.offline.teacher!r}: the samples drawn from it now are not those "
        "that this run began "
        "with; put it back as it was, or begin anew in another --workdir"
      )
    if jax.process_index() == 0:
      write_samples(path, samples)
  run.extra["samples"] = fingerprint(samples)
  inputs.check_hosts({str(path): run.extra["samples"]})
  return samples


def read_samples(path: storage.Path, known: str | None, like: Any) -> tuple[Any, str]:
  """The samples of a file and ""; or None and what is wrong with it, "" where there is none.

  Args:
    path: of samples.npz.
    known: their fingerprint; None: not known yet.
    like: a tree of their structure.
  """
  if not path.exists():
    return None, ""
  structure = jax.tree.structure(like)
  try:
    with storage.reading(path) as file, np.load(file) as stored:
      samples = jax.tree.unflatten(
        structure, [stored[f"arr_{i}"] for i in range(structure.num_leaves)]
      )
    if known not in (None, fingerprint(samples)):
      return None, "it holds other samples"
  except Exception as error:  # what is damaged can fail in any way
    return None, reason(error)
  return samples, ""


def write_samples(path: storage.Path, samples: Any) -> None:
  """Writes samples.npz as a whole; its folder is made where there is none.

  Raises:
    StorageError: the folder does not take it.
  """
  arrays, _ = jax.tree.flatten(samples)
  content = io.BytesIO()
  np.savez_compressed(content, *arrays)
  with storage.of_a_run(str(path.parent)):
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write(path, content.getvalue())


def fingerprint(samples: Any) -> str:
  """A checksum of what samples.npz holds."""
  found = 0
  for array in jax.tree.leaves(samples):
    found = zlib.crc32(
      np.ascontiguousarray(array), zlib.crc32(f"{array.dtype}{array.shape}".encode(), found)
    )
  return f"{found:08x}"


def template() -> Rollouts:
  """The structure of kept samples: scored, without the learner's own log-probs."""
  zero = np.zeros(())
  return Rollouts(
    Prompts(zero, zero), zero, zero, zero, zero, zero, rewards=zero, given=zero, components=zero
  )


def draw_samples(
  config: ConfigDict, model: build.Model, writer: Writer, stopping: Callable[[int], str]
) -> Rollouts | None:
  """What `draw_scored` returns, without the examples."""
  scored = draw_scored(config, model, writer, stopping)
  return scored and scored.rollouts


def draw_scored(
  config: ConfigDict, model: build.Model, writer: Writer, stopping: Callable[[int], str]
) -> Scored | None:
  """Groups of scored samples of the teacher; None where `stopping` (of the run) says so.

  They are `offline.held_out` groups of different prompts, and then `offline.prompts` groups of
  other prompts.

  Raises:
    SettingError: too few prompts gave samples (pairs: a better and a worse one).
  """
  o, kind = config.offline, config.offline.data
  params = build.reference(o.teacher, model, "offline.teacher")
  collector = pairs.with_requirement(make_collector(config, model), config)
  complete = config.loop == "reward_model" or bool(o.require)
  kept: list[Scored] = []
  prompts: list[bytes] = []  # of all that are kept
  held, rest = [], []
  for step in range(100 * -(-(o.prompts + o.held_out) // config.data.prompts)):
    batch, _ = collect(collector, params, build.key(config.seed, build.SAMPLE, step), writer)
    batch = without_empty(batch._replace(rollouts=rollouts.to_host(batch.rollouts)))
    if kind == "pairs":
      batch = pairs.of_samples(batch, config.seed + step, complete, bool(o.require))
    kept.append(batch)
    prompts += pairs.prompts_of(batch)
    held, rest = pairs.divide(prompts, o.held_out)
    total = o.prompts + o.held_out
    writer.progress("prompts sampled", min(len(held) + len(rest), total), total)
    if len(held) == o.held_out and len(rest) >= o.prompts:
      return choose(kept, [*held, *rest[: o.prompts]])
    if signal_name := stopping(step):
      writer.say(f"{signal_name}: samples are kept when all are drawn; {signals.how_to_go_on()}")
      return None
  gave = "a better and a worse sample" if kind == "pairs" or config.sampler.tries > 1 else "samples"
  beside = f" beside the {len(held)} that are held out" if o.held_out else ""
  raise SettingError(
    f"offline.prompts={o.prompts}: only {len(rest)} prompts gave {gave}{beside}; use fewer, or a "
    "larger sampler.group "
    f"than {config.sampler.group}"
  )


def without_empty(batch: Scored) -> Scored:
  """The groups that were sampled: neither those that only fill the batch nor prompts that were too
  long.
  """
  return select(batch, np.flatnonzero(batch.rollouts.prompts.lengths).tolist())
