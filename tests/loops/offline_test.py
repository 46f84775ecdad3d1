"""The offline loop: what is kept of samples and pairs, and that they are drawn once.

Two steps on a tiny model for each kind of data, in this process; the runs share what is compiled.
"""

import contextlib
import dataclasses
import json
import pathlib
import re
import shutil
import signal
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import damage
import jax
import numpy as np
import pytest
import tiny
from ml_collections import ConfigDict

from grpo_jax.errors import CheckpointError, SettingError, StorageError
from grpo_jax.learning import learn, movement
from grpo_jax.loops import export, groups, offline
from grpo_jax.loops.reward_data import pairs, replay
from grpo_jax.loops.run import Run
from grpo_jax.ops.advantages import totals
from grpo_jax.rewards.combine import Fault
from grpo_jax.sampling import rollouts as host
from grpo_jax.sampling import sampler
from grpo_jax.setup import build, checks, defaults, references
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example, Prompts, Rollouts

OBJECTIVES = {"solutions": "sft", "samples": "rft", "pairs": "dpo"}
P, G, L = 4, 4, 6
KEPT = 8  # prompts that are sampled for


def parity(example: Example, completion: Completion) -> float:
  """The same for all samples of every other prompt or so."""
  return 1.0 if len(example.question) % 2 else sum(completion.tokens) % 5 / 4


def config(kind: str) -> ConfigDict:
  c = defaults.get_config()
  c.loop, c.offline.data = "offline", kind
  c.steps = 2
  c.tokenizer = "words"
  c.model.variant = "test_qwen3"
  c.data.arithmetic.size = 64
  c.data.prompts = P
  c.data.max_prompt_length, c.data.on_long = (
    16,
    "cut",
  )  # all of one width: nothing is compiled twice
  c.offline.prompts = KEPT
  c.sampler.group, c.sampler.max_length = G, L
  c.rewards.functions = (("parity", "offline_test:parity", 1.0),)
  c.objective = defaults.objective(OBJECTIVES[kind], c)
  c.learner.lr = 1e-2
  c.eval.problems = 0
  c.log.measure_every, c.log.samples_every = int(kind == "samples"), 0
  c.log.writers = ()
  return c


class Runs:
  """Runs of one kind, in folders of their own; one model on one device, and each program is
  compiled once.
  """

  def __init__(self, kind: str, folder: pathlib.Path, shared: dict[str, Any]):
    self.kind, self.folder, self.shared = kind, folder, shared
    self.sampled: list[Rollouts] = []  # everything that was sampled
    self.draws = 0  # how often samples were drawn

  @contextlib.contextmanager
  def patched(self, stop_after: int, stop_drawing: bool) -> Iterator[None]:
    log, draw_samples = Run.log, offline.draw_samples

    def once(make: Callable, of: Callable = lambda *args: self.kind) -> Callable:
      def get(*args: Any) -> Any:
        key = (make.__name__, of(*args))
        if key not in self.shared:
          self.shared[key] = make(*args)
        return self.shared[key]

      return get

    def logged(run: Run, step: int, numbers: dict) -> None:
      log(run, step, numbers)
      if step + 1 == stop_after:
        signal.raise_signal(signal.SIGTERM)

    def drawn(*args: Any) -> Rollouts:
      self.draws += 1
      return draw_samples(*args)

    def recorded(*args: Any) -> Callable:
      sample = make_sampler(*args)

      def record(*args: Any, **size: int | None) -> Any:
        out = sample.run(*args, **size)
        self.sampled.append(host.to_host(out[0]))
        if stop_drawing:
          signal.raise_signal(signal.SIGTERM)
        return out

      return dataclasses.replace(sample, run=record)

    make_model = build.model
    make_sampler = once(sampler.make_sampler, lambda decoder, cfg, stop, table: repr(cfg))
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(
        build,
        "model",
        once(lambda config: make_model(config, jax.devices()[:1]), lambda config: "model"),
      )
      patch.setattr(learn, "make_learn", once(learn.make_learn))
      patch.setattr(movement, "make_movement", once(movement.make_movement))
      patch.setattr(sampler, "make_sampler", recorded)
      patch.setattr(Run, "log", logged)
      patch.setattr(offline, "draw_samples", drawn)
      yield

  def start(self, name: str, stop_after: int = 0, stop_drawing: bool = False) -> pathlib.Path:
    """The command once; with `stop_after` a SIGTERM comes in that step, with `stop_drawing` while
    it samples.
    """
    with self.patched(stop_after, stop_drawing):
      offline.train(resolve(config(self.kind)), str(self.folder / name))
    return self.folder / name

  def kept(self, name: str) -> Rollouts:
    like = jax.tree.structure(offline.template())
    with np.load(self.folder / name / "samples.npz") as stored:
      assert len(stored) == like.num_leaves
      return jax.tree.unflatten(like, [stored[f"arr_{i}"] for i in range(like.num_leaves)])


def numbers(folder: pathlib.Path) -> dict[str, Any]:
  """What a run leaves, but timings."""
  lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
  return {
    "metrics": [
      {k: v for k, v in x.items() if not k.startswith(("time/", "tokens_per_s/"))} for x in lines
    ],
    "weights": (folder / "export" / "model.safetensors").read_bytes(),
    "steps": json.loads((folder / "result.json").read_text())["steps"],
  }


@pytest.fixture(scope="module")
def shared() -> dict[str, Any]:
  return {}


@pytest.fixture(scope="module")
def whole(request, tmp_path_factory, shared) -> Runs:
  """A run that nothing happened to, in `whole`."""
  runs = Runs(request.param, tmp_path_factory.mktemp(request.param), shared)
  runs.start("whole")
  return runs


of_every_kind = pytest.mark.parametrize("whole", OBJECTIVES, indirect=True, scope="module")
of_samples = pytest.mark.parametrize("whole", ["samples"], indirect=True, scope="module")
of_pairs = pytest.mark.parametrize("whole", ["pairs"], indirect=True, scope="module")


@of_every_kind
def test_two_steps_learn_something(whole):
  left = numbers(whole.folder / "whole")
  assert left["steps"] == 2 and [line["step"] for line in left["metrics"]] == [1, 2]
  for line in left["metrics"]:
    assert line["grad_norm"] > 0 and np.isfinite(line["loss"]) and line["skipped_steps"] == 0
  assert (whole.folder / "whole" / "samples.npz").exists() == (whole.kind != "solutions")


@pytest.mark.slow
@pytest.mark.parametrize(
  "whole",
  [k if k == "samples" else pytest.param(k, marks=pytest.mark.long) for k in OBJECTIVES],
  indirect=True,
  scope="module",
)
def test_stopped_after_one_step_it_goes_on_with_the_same_samples_to_the_same_numbers(whole):
  before = whole.draws
  stopped = whole.start("stopped", stop_after=1)
  assert (
    len((stopped / "metrics.jsonl").read_text().splitlines()) == 1
    and not (stopped / "result.json").exists()
  )

  def stamp():
    return [path.stat().st_mtime_ns for path in stopped.glob("samples.npz")]

  drawn = stamp()
  whole.start("stopped")
  assert numbers(stopped) == numbers(whole.folder / "whole")
  lines = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text().splitlines()]
  assert not any("time/compile" in line for line in lines)  # the whole run had compiled all of it
  whole.start("stopped")  # a finished run may be asked for once more
  assert numbers(stopped) == numbers(whole.folder / "whole")
  assert stamp() == drawn and whole.draws - before == len(drawn) == (whole.kind != "solutions")
  if drawn:
    jax.tree.map(np.testing.assert_array_equal, whole.kept("stopped"), whole.kept("whole"))


@pytest.mark.long
@pytest.mark.slow
@of_samples
def test_damaged_samples_are_drawn_again(whole, capsys):
  stopped = whole.start("cut", stop_after=1)
  other = whole.kept("whole")
  for kind in (*damage.KINDS.values(), None):
    folder = whole.folder / f"damaged {kind.__name__ if kind else 'exchange'}"
    shutil.copytree(stopped, folder)
    if kind:
      kind(folder / "samples.npz")
    else:
      offline.write_samples(
        folder / "samples.npz", dataclasses.replace(other, tokens=other.tokens + 1)
      )
    draws = whole.draws
    whole.start(folder.name)
    assert numbers(folder) == numbers(whole.folder / "whole")
    said = re.search(
      r"warning: .*samples.npz is damaged \((.*)\); it is kept as", capsys.readouterr().out
    )
    if whole.draws == draws:  # a changed byte may be one that means nothing
      assert kind is damage.flip and not said
    else:
      assert bool(said) == (folder / "samples.npz.damaged").exists() == (kind is not damage.delete)
    if not kind:
      assert said[1] == "it holds other samples"


def test_a_folder_that_takes_no_more_ends_the_run_with_the_code_of_a_restart(tmp_path):
  (tmp_path / "replay").touch()
  with pytest.raises(
    StorageError, match="workdir=.*replay: cannot write there: (Not a directory|File exists)"
  ):
    replay.Replay(str(tmp_path)).add(2, np.zeros(3))
  with pytest.raises(StorageError, match="workdir=.*replay: cannot write there: Not a directory"):
    export.write_result(str(tmp_path / "replay"), {}, {}, 2, 1.0)


@of_samples
def test_samples_that_cannot_be_drawn_again_end_the_run(whole):
  stopped = whole.start("other teacher", stop_after=1)
  (stopped / "samples.npz").unlink()
  different = dataclasses.replace(whole.kept("whole"), lengths=whole.kept("whole").lengths + 1)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(offline, "draw_samples", lambda *_: different)
    with pytest.raises(CheckpointError, match="are not those that this run began with"):
      whole.start("other teacher")
  assert not (stopped / "samples.npz").exists()


@of_samples
def test_the_report_says_that_samples_of_high_reward_became_likelier(whole):
  for line in numbers(whole.folder / "whole")["metrics"]:
    assert line["moved_right_way"] > 0.5 and line["moved_nats"] > 0
    assert "tokens/at_bound" not in line  # RFT has no ratio


@of_samples
def test_stopped_while_samples_are_drawn_it_draws_them_anew(whole, capsys):
  sampled = len(whole.sampled)
  stopped = whole.start("undrawn", stop_drawing=True)
  assert len(whole.sampled) == sampled + 1 < sampled + KEPT // P
  assert "SIGTERM: nothing was saved yet; to go on" in capsys.readouterr().out
  assert not (stopped / "samples.npz").exists() and not (stopped / "result.json").exists()
  whole.start("undrawn")
  assert numbers(stopped) == numbers(whole.folder / "whole")


@of_samples
def test_one_try_keeps_exactly_what_was_sampled(whole):
  """Groups of equal rewards, too, and no empty row."""
  kept, sampled = whole.kept("whole"), whole.sampled[: KEPT // P]
  assert (
    kept.lengths.shape == (KEPT, G)
    and (kept.lengths > 0).all()
    and (kept.prompts.lengths > 0).all()
  )
  for name in ("tokens", "lengths", "ended", "sampler_logprobs", "truncated_logprobs"):
    np.testing.assert_array_equal(
      vars(kept)[name], np.concatenate([vars(r)[name] for r in sampled]), err_msg=name
    )
  for p, (row, n) in enumerate(
    (row, n) for r in sampled for row, n in zip(r.prompts.tokens, r.prompts.lengths)
  ):
    assert kept.prompts.lengths[p] == n
    np.testing.assert_array_equal(kept.prompts.tokens[p, :n], row[:n])
  total = totals(kept.rewards, kept.given)
  equal = total.max(1) == total.min(1)
  assert 0 < equal.sum() < KEPT
  np.testing.assert_array_equal(total[~equal], kept.tokens.sum(2)[~equal] % 5 / 4)  # 0 on padding


@of_pairs
def test_every_chosen_sample_has_more_reward_than_the_rejected_one(whole):
  kept = whole.kept("whole")
  assert (
    kept.lengths.shape == (KEPT, 2)
    and (kept.lengths > 0).all()
    and (kept.prompts.lengths > 0).all()
  )
  chosen, rejected = totals(kept.rewards, kept.given).T
  assert (chosen > rejected).all()
  np.testing.assert_array_equal(totals(kept.rewards, kept.given), kept.tokens.sum(2) % 5 / 4)
  ranges = [  # prompt, and the most and the least reward of its samples
    (row[:n].tolist(), {f(group.sum(1) % 5 / 4) for f in (max, min)})
    for r in whole.sampled
    for row, n, group in zip(r.prompts.tokens, r.prompts.lengths, r.tokens)
  ]
  for p, n in enumerate(kept.prompts.lengths):
    assert (kept.prompts.tokens[p, :n].tolist(), {chosen[p], rejected[p]}) in ranges


@pytest.mark.parametrize(
  "objective, loop, data, message",
  [
    (
      "grpo",
      "offline",
      "samples",
      "objective.name='grpo' with loop='offline', offline.data='samples': use loop='online'",
    ),
    (
      "dpo",
      "online",
      "pairs",
      "objective.name='dpo' with loop='online': use loop='offline', offline.data='pairs'",
    ),
    (
      "dpo",
      "offline",
      "samples",
      "'dpo' with loop='offline', offline.data='samples': use .*offline.data='pairs'",
    ),
    ("sft", "offline", "pairs", "'sft' with .* use loop='offline', offline.data='solutions'"),
    (
      "rft",
      "offline",
      "pairs",
      "'rft' with .* use loop='online', or loop='offline', offline.data='samples'",
    ),
    ("distill", "online", "samples", "ref_from='': distill learns from another model"),
    (
      "distill_offline",
      "offline",
      "samples",
      "offline.teacher='': distill_offline learns from another model",
    ),
    ("rft", "online", "solutions", ""),
    ("rft", "offline", "samples", ""),
  ],
)
def test_an_objective_is_refused_data_that_it_does_not_learn_from(objective, loop, data, message):
  c = defaults.get_config()
  c.loop, c.offline.data = loop, data
  c.objective = defaults.objective(objective, c)
  with pytest.raises(SettingError, match=message) if message else contextlib.nullcontext():
    checks.check_data(make(c))


@pytest.mark.parametrize(
  "changes, message",
  [
    (
      {"objective.advantage": "gdpo", "objective.reward_weights": (1.0, 2.0)},
      r"objective.reward_weights=\(1.0, 2.0\): give 1, one for each",
    ),
  ],
)
def test_numbers_that_cannot_be_are_refused(changes, message):
  c = defaults.get_config()
  c.update_from_flattened_dict(changes)
  with pytest.raises(SettingError, match=message):
    checks.check(make(c), tiny.decoder())


def test_an_example_without_a_solution_teaches_nothing(monkeypatch):
  """Its end token alone would teach the policy to answer nothing."""
  experiment = make(config("solutions"))
  model = build.model(experiment)
  examples = [Example("1 + 1", "", "2", {}), Example("1 + 2", "1 + 2 = 3", "3", {}), None]
  rollouts = offline.solutions(examples, model, experiment)
  assert rollouts.lengths[:, 0].tolist()[::2] == [0, 0] and rollouts.lengths[1, 0] > 1
  monkeypatch.setattr(
    build, "batches", lambda *_: types.SimpleNamespace(first=lambda n: examples[:1])
  )
  with pytest.raises(
    SettingError, match="offline.data='solutions' with data.name='arithmetic': no"
  ):
    offline.Solutions(experiment, model)


def test_solutions_and_prompts_that_are_too_long_are_counted_and_warned_of():
  c = config("solutions")
  c.data.on_long, c.data.max_prompt_length = "skip", 4
  experiment = make(c)
  fits, long_solution = Example("1 + 1", "2", "2", {}), Example("1 + 2", "1 2 3 4 5 6 7", "7", {})
  long_prompt = Example("1 + 2 + 3 + 4 + 5", "15", "15", {})
  batch = offline.solutions([fits, long_solution, long_prompt], build.model(experiment), experiment)
  warned: dict[str, str] = {}
  writer: Any = types.SimpleNamespace(warn=warned.__setitem__)
  assert offline.length_metrics(experiment, batch, writer) == {
    "solutions_cut": 1,
    "prompts_too_long": 1,
  }
  assert "1 of 3 solutions of a step have more than sampler.max_length=6 tokens" in str(warned)
  assert "1 of 3 prompts of a step have more than data.max_prompt_length=4 tokens" in str(warned)


@pytest.mark.parametrize("data, most", [("solutions", 1), ("pairs", 2), ("samples", 8)])
def test_the_mesh_divides_the_completions_that_a_prompt_has(data, most):
  c = defaults.get_config()
  c.loop, c.offline.data, c.sampler.group = "offline", data, 8
  for group in (1, 2, 4, 8):
    refused = pytest.raises(
      SettingError, match=f"mesh.group={group} with offline.data='{data}', {most} a prompt: use 1"
    )
    with contextlib.nullcontext() if group <= most else refused:
      checks.check_batch(make(c), tiny.layout((1, 1, group, 1)))


# -- what is kept, from groups made by hand


def scored(first: int, *each: Sequence[Sequence[float]]) -> groups.Scored:
  """Groups whose prompts are the tokens first, first + 1 ...; sample g of one is given each[p][g]
  at its steps.

  A group of no samples has a prompt that was too long.
  """
  p, g = len(each), max(map(len, each))
  steps = np.array([[len(values) for values in group] or [0] * g for group in each], np.int32)
  at = np.arange(L) < steps[..., None]
  rewards = np.zeros((p, g, L), np.float32)
  rewards[at] = [value for group in each for values in group for value in values]
  ids = np.arange(first, first + p)
  tokens = at * (ids[:, None, None] * 100 + np.arange(g)[:, None])
  prompts = Prompts(np.where(steps[:, :1] > 0, ids[:, None], 0), (steps[:, 0] > 0).astype(np.int32))
  ended = np.where(steps % 2, STOPPED, TRUNCATED)
  components = np.where(at, rewards, 0).sum(2, keepdims=True)
  rollouts = Rollouts(
    prompts, tokens, steps, ended, -1.0 * tokens, -2.0 * tokens, rewards, at, components
  )
  return groups.Scored([Example(str(n), "", "", {}) for n in ids], rollouts, [], 0.0)


TIED = [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]  # the steps differ and the totals do not
ROUNDED = [
  [0.1, 0.2, 0.4],
  [0.1, 0.4, 0.2],
  [0.4, 0.1, 0.2],
]  # nor do these, but added up in float32
FLAT = [[1.0], [1.0], [1.0]]
OUTCOMES = [[0.5], [1.0], [0.0]]
TWO_WORST = [[-1.0], [2.0], [0.5, -1.5]]


def test_a_sample_on_which_a_reward_failed_is_in_no_pair():
  batch = scored(1, OUTCOMES, OUTCOMES)
  ((best, worst),) = {tuple(r) for r in pairs.of_samples(batch, 0).rollouts.tokens[:1, :, 0] - 100}
  failed = batch._replace(
    faults=[Fault(0, int(worst), "steps", ""), Fault(1, int(best), "steps", "")]
  )
  found = pairs.of_samples(failed, 0).rollouts.tokens[:, :, 0]
  assert 100 + worst not in found and 200 + best not in found


def draw(
  monkeypatch, kind: str, batches: Iterator[groups.Scored], tries: int = 2
) -> tuple[Rollouts, int]:
  """`draw_samples` where those batches are what `collect` gives; and how many it took."""
  keys = []

  def give(collector: Any, params: Any, key: jax.Array, writer: Any) -> Any:
    keys.append(tuple(jax.random.key_data(key).tolist()))
    return types.SimpleNamespace(batch=next(batches))

  monkeypatch.setattr(offline, "collect", give)
  monkeypatch.setattr(references, "reference", lambda *args: None)
  monkeypatch.setattr(offline, "make_collector", lambda *args: None)
  c = config(kind)
  c.offline.prompts, c.sampler.tries = 5, tries
  model: Any = types.SimpleNamespace(decoder=None, stop=())
  shown: list[tuple[int, int]] = []
  writer: Any = types.SimpleNamespace(
    progress=lambda text, done, total: shown.append((done, total))
  )
  kept = offline.draw_samples(make(c), model, writer, lambda: "")
  assert len(set(keys)) == len(keys)  # no two batches with the same noise
  assert shown == sorted(shown) and len(shown) == len(keys) and shown[-1] == (5, 5)
  return kept, len(keys)


def test_pairs_are_drawn_until_enough_groups_do_not_tie(monkeypatch):
  batches = [scored(n, TIED, OUTCOMES, FLAT, ROUNDED) for n in range(1, 40, 4)]
  kept, taken = draw(monkeypatch, "pairs", iter(batches))
  assert kept.prompts.tokens[:, 0].tolist() == [2, 6, 10, 14, 18] and taken == 5
