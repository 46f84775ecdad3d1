"""A run's folder: any number of learners under their names, and a reference that stays the one it
began with.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from grpo_jax.distributed import inputs, lifeline
from grpo_jax.errors import CheckpointError, DataError, SettingError
from grpo_jax.evaluation.evaluator import Evaluator
from grpo_jax.learning import state as train_state
from grpo_jax.loops.learner import Learner
from grpo_jax.loops.run import Run, recorded
from grpo_jax.run.writer import Writer
from grpo_jax.sampling import rollouts
from grpo_jax.sandbox import deadline
from grpo_jax.setup import build, checks, defaults, references, weights
from grpo_jax.setup.experiment import make
from grpo_jax.types import Prompts, Rollouts

TX = optax.adam(0.1)


class Fake:
  """A learner of one number, which each step of `loop` moves by one."""

  def __init__(self, start: float, pins: dict | None = None):
    self.first, self.pins, self.seen = start, pins or {}, []

  def trees(self) -> dict:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return {"policy": {"x": jax.device_put(jnp.float32(self.first), one)}}

  @property
  def params(self):
    return self.state.params["policy"]

  def abstract(self):
    return train_state.abstract(self.trees(), TX)

  def start(self):
    self.state = train_state.create(self.trees(), TX)

  def load_reference(self, pin):
    self.seen.append(pin)
    return self.pins

  def get_sizes(self):
    return {}

  def set_sizes(self, sizes):
    pass

  def check_finite(self, metrics, safe):
    pass


class Position:
  index = 0

  def get_state(self):
    return {"index": self.index}

  def set_state(self, state):
    self.index = state["index"]

  def contents(self):
    return {}


@pytest.fixture(scope="module")
def config():
  c = defaults.get_config()
  c.steps, c.tokenizer, c.model.variant = 5, "words", "test_qwen3"
  c.data.arithmetic.size = 8
  c.eval.problems, c.checkpoint.every, c.checkpoint.export = 0, 2, False
  c.log.writers = ()
  return c


@pytest.fixture(scope="module")
def model(config):
  return build.model(make(config), jax.devices()[:1])


def loop(config, model, folder, learners, stop_after=None):
  """Adds one to every learner in each step, and ends without a word after `stop_after` steps."""
  data = Position()
  with Run(make(config), str(folder), model, data, learners, Evaluator(make(config), model)) as run:
    steps = []
    for step in run.steps():
      if len(steps) == stop_after:
        run.checkpoints.wait()
        return steps, data
      steps.append(step)
      data.index += 10
      for learner in learners.values():
        params = jax.tree.map(lambda x: x + 1, learner.state.params)
        learner.state = train_state.TrainState(**(vars(learner.state) | {"params": params}))
      run.log(step, {})
      run.after(step)
    run.finish()
  return steps, data


def test_two_learners_are_saved_and_restored_under_their_names(config, model, tmp_path):
  first = {"policy": Fake(0.0, {"step": 7}), "reward_model": Fake(100.0)}
  assert loop(config, model, tmp_path, first, stop_after=3)[0] == [0, 1, 2]
  assert first["policy"].seen == [{}]
  again = {"policy": Fake(-1.0, {"step": 7}), "reward_model": Fake(-1.0)}
  steps, data = loop(config, model, tmp_path, again)
  assert steps == [2, 3, 4] and data.index == 50  # from the checkpoint after two steps
  assert again["policy"].params["x"] == 5.0 and again["reward_model"].params["x"] == 105.0
  assert again["policy"].seen == [{"step": 7}] and again["reward_model"].seen == [{}]
  assert (tmp_path / "result.json").exists()


def test_a_change_of_what_a_run_depends_on_is_told_after_checkpoint_0(
  config, model, tmp_path, capsys
):
  loop(config, model, tmp_path, {"policy": Fake(0.0)}, stop_after=0)
  assert (tmp_path / "checkpoints" / "0").exists()
  path = tmp_path / "inputs.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {"init_from": "other weights"}))
  assert loop(config, model, tmp_path, {"policy": Fake(-1.0)})[0] == [0, 1, 2, 3, 4]
  assert "warning: init_from has changed since step 0 of this run" in capsys.readouterr().out


def test_a_run_goes_on_after_a_new_default_of_a_setting_that_it_does_not_read(
  config, model, tmp_path
):
  loop(config, model, tmp_path, {"policy": Fake(0.0)}, stop_after=3)
  path = tmp_path / "config.json"
  older = json.loads(path.read_text())
  older["learner"]["entropy_step"] = (
    0.005  # of the weight of an entropy bonus, which this run lacks
  )
  path.write_text(json.dumps(older))
  assert loop(config, model, tmp_path, {"policy": Fake(-1.0)})[0] == [2, 3, 4]


@pytest.mark.parametrize(("updated", "saved"), [(False, 3), (True, 2)])
def test_a_stop_in_a_step_saves_where_it_began_unless_an_update_took_the_arrays(
  config, model, tmp_path, updated, saved
):
  """Whatever else the step has set, as the reference at the beginning of an iteration."""
  learners = {"policy": Fake(5.0), "reference": Fake(0.0)}
  with Run(
    make(config), str(tmp_path), model, Position(), learners, Evaluator(make(config), model)
  ) as run:
    for step in run.steps():
      if step == 3:
        state = learners["reference"].state
        learners["reference"].state = dataclasses.replace(
          state, params=jax.tree.map(lambda x: x + 1, state.params)
        )
        if updated:
          jax.tree.map(lambda x: x.delete(), learners["policy"].state.params)
        raise deadline.Stopped("SIGTERM")
      run.log(step, {})
      run.after(step)
  again = {"policy": Fake(-1.0), "reference": Fake(-1.0)}
  assert (
    Run(make(config), str(tmp_path), model, Position(), again, Evaluator(make(config), model)).first
    == saved
  )
  assert again["policy"].params["x"] == 5.0 and again["reference"].params["x"] == 0.0


def test_fewer_steps_than_were_done_are_refused(config, model, tmp_path):
  loop(config, model, tmp_path, {"policy": Fake(0.0)}, stop_after=3)
  fewer = config.copy_and_resolve_references()
  fewer.steps = 1
  left = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
  with pytest.raises(SettingError, match="steps=1: this run has done 2 steps; use at least 2"):
    loop(fewer, model, tmp_path, {"policy": Fake(0.0)})
  assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == left


@pytest.mark.slow
def test_a_run_that_is_made_longer_evaluates_where_it_had_ended(config, model, tmp_path):
  """Cuts its last line, which is after the last checkpoint, when the run goes on."""
  evaluated = []

  def evaluate(self, step, samples=False):
    evaluated.append(step)
    return {}

  found = config.copy_and_resolve_references()
  found.learner.schedule, found.eval.every = "constant", 2
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Run, "evaluate", evaluate)
    for found.steps, want in ((4, [0, 2, 4]), (4, [4]), (5, [4, 5]), (7, [6, 7])):
      loop(found, model, tmp_path, {"policy": Fake(0.0)})
      assert evaluated == want
      evaluated.clear()


@pytest.mark.slow
def test_a_run_that_is_made_longer_repeats_an_evaluation_that_its_loop_asked_for(
  config, model, tmp_path, monkeypatch
):
  """Does so at the end of an iteration, whatever eval.every is."""
  evaluated = []

  def evaluate(self, step, samples=False):
    evaluated.append(step)
    return {}

  def after(self, step, evaluate=False, own=Run.after):
    own(self, step, evaluate=step + 1 == 4)

  monkeypatch.setattr(Run, "evaluate", evaluate)
  monkeypatch.setattr(Run, "after", after)
  found = config.copy_and_resolve_references()
  found.learner.schedule = "constant"
  for found.steps, want in ((4, [0, 4]), (6, [4, 6])):
    loop(found, model, tmp_path, {"policy": Fake(0.0)})
    assert evaluated == want
    evaluated.clear()


@pytest.mark.slow
def test_an_evaluation_that_was_not_made_before_is_not_compared(config, model, tmp_path):
  loop(config, model, tmp_path, {"policy": Fake(0.0)}, stop_after=3)
  found = config.copy_and_resolve_references()
  found.eval.problems = 4
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Run, "evaluate", lambda self, step, samples=False: {"accuracy": 0.5})
    loop(found, model, tmp_path, {"policy": Fake(0.0)})
  result = json.loads((tmp_path / "result.json").read_text())
  assert result["accuracy_after"] == 0.5 and "accuracy_before" not in result


def test_what_a_log_has_lost_is_told(config, model, tmp_path, capsys):
  loop(config, model, tmp_path, {"policy": Fake(0.0)}, stop_after=3)
  log = tmp_path / "metrics.jsonl"
  lines = log.read_text().splitlines(keepends=True)
  log.write_text(lines[0] + lines[1][:5])
  loop(config, model, tmp_path, {"policy": Fake(0.0)})
  assert "warning: metrics.jsonl has lost" in capsys.readouterr().out
  assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 3, 4, 5]


def test_damaged_lines_of_before_the_checkpoint_are_told_and_kept(config, model, tmp_path, capsys):
  loop(config, model, tmp_path, {"policy": Fake(0.0)}, stop_after=3)
  log = tmp_path / "metrics.jsonl"
  damaged = log.read_bytes().replace(b'{"step": 1,', b'{"step": 6,')
  log.write_bytes(damaged)
  loop(config, model, tmp_path, {"policy": Fake(0.0)})
  said = (
    f"warning: {log}: 1 line of 2 is damaged (line 1); the file is kept as it is, and reports "
    "leave that out"
  )
  assert said in capsys.readouterr().out and log.read_bytes().startswith(damaged.splitlines()[0])


def test_a_checkpoint_without_one_of_the_learners_is_refused(config, model, tmp_path):
  loop(config, model, tmp_path, {"policy": Fake(0.0)}, stop_after=3)
  with pytest.raises(CheckpointError, match="it holds policy and no reward_model"):
    loop(config, model, tmp_path, {"policy": Fake(0.0), "reward_model": Fake(0.0)})


def test_the_model_that_an_experiment_is_made_for_is_not_said_of_other_weights(config):
  c = config.copy_and_resolve_references()
  c.model.hub = "Qwen/Qwen3-0.6B"
  assert recorded(make(c))["model"]["hub"] == c.model.hub  # no weights were given
  c.init_from = "llama"
  assert recorded(make(c))["model"]["hub"] == "" and c.model.hub


# -- the reference


def save_policy(folder, config, model, step, scale):
  """A checkpoint of a run whose policy is the model's start times `scale`."""
  learner = Fake(0.0)
  params = {"policy": jax.tree.map(lambda x: x * scale, model.load())}
  learner.trees = lambda: params
  run = Run(
    make(config),
    str(folder),
    model,
    Position(),
    {"policy": learner},
    Evaluator(make(config), model),
  )
  learner.start()
  run.checkpoints.save(
    step, {"policy": learner.state}, Position().get_state(), run.extra, wait=True
  )
  run.checkpoints.close()


def test_a_reference_is_the_same_when_its_run_has_gone_on(config, model, tmp_path):
  source = tmp_path / "source"
  save_policy(source, config, model, 1, 2.0)
  c = config.copy_and_resolve_references()
  c.ref_from = str(source)
  tree, pin = references.pinned_reference(c, model, {})
  assert pin["step"] == 1
  save_policy(source, config, model, 2, 3.0)
  again, same = references.pinned_reference(c, model, pin)
  assert same == pin
  jax.tree.map(np.testing.assert_array_equal, tree, again)
  other, new = references.pinned_reference(c, model, {})
  assert new["step"] == 2 and new["fingerprint"] != pin["fingerprint"]
  with pytest.raises(
    CheckpointError, match="ref_from=.*does not hold the parameters that this run began with"
  ):
    references.pinned_reference(c, model, pin | {"step": 2})
  save_policy(source, config, model, 3, 4.0)  # two are kept: the first is gone
  with pytest.raises(CheckpointError, match="checkpoint 1 cannot be read"):
    references.pinned_reference(c, model, pin)


# -- the shape of the policy


@pytest.mark.parametrize("variant", ["test_windows", "test_llama3"])
def test_a_run_starts_from_another_ones_shape(variant, config, tmp_path):
  """Also from one that is no Hugging Face family's."""
  c = config.copy_and_resolve_references()
  c.model.variant = variant
  first = build.model(make(c), jax.devices()[:1])
  build.describe(first, str(tmp_path / "model"))
  assert weights.read_shape(str(tmp_path / "model")) == first.decoder.config
  (tmp_path / "model" / weights.SHAPE).write_text("{")
  with pytest.raises(DataError, match="init_from=.*decoder.json is not JSON"):
    weights.read_shape(str(tmp_path / "model"))


def test_an_export_that_cannot_be_is_refused_before_anything_starts(config):
  c = config.copy_and_resolve_references()
  c.checkpoint.export, c.eval.problems = True, 0
  checks.check(make(c), tiny.decoder())
  with pytest.raises(SettingError, match="checkpoint.export=True: .*use checkpoint.export=False"):
    checks.check(make(c), tiny.decoder("test_windows"))


@pytest.mark.slow
def test_what_the_run_depends_on_and_has_changed_is_told_when_it_is_resumed(
  config, model, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(Position, "contents", lambda self: {"training data": "8 examples"})
  loop(config, model, tmp_path, {"policy": Fake(0.0)}, stop_after=3)
  assert json.loads((tmp_path / "inputs.json").read_text())["training data"] == "8 examples"
  loop(config, model, tmp_path, {"policy": Fake(0.0)}, stop_after=1)
  assert "warning" not in capsys.readouterr().out
  monkeypatch.setattr(Position, "contents", lambda self: {"training data": "9 examples"})
  loop(config, model, tmp_path, {"policy": Fake(0.0)}, stop_after=1)
  said = " ".join(capsys.readouterr().out.split())
  assert (
    "warning: training data has changed since step 2 of this run: was 8 examples, is 9 examples"
    in said
  )
  assert json.loads((tmp_path / "inputs-until-2.json").read_text())["training data"] == "8 examples"
  (tmp_path / "inputs.json").unlink()  # a folder from before
  loop(config, model, tmp_path, {"policy": Fake(0.0)})
  assert "warning" not in capsys.readouterr().out and (tmp_path / "inputs.json").exists()


def test_a_model_that_was_trained_for_less_is_told_of(config, model, tmp_path, capsys):
  lengths = config.data.max_prompt_length, config.sampler.max_length
  for number, said in ((sum(lengths), False), (sum(lengths) - 1, True)):
    shape = dataclasses.replace(model.decoder.config, context=number)
    one = model._replace(decoder=dataclasses.replace(model.decoder, config=shape))
    loop(config, one, tmp_path / str(number), {"policy": Fake(0.0)}, stop_after=1)
    out = " ".join(capsys.readouterr().out.split())
    warning = f"more than the {number} that the model was trained for (max_position_embeddings)"
    assert (warning in out) == said


def test_a_file_of_that_name_in_a_folder_that_is_no_run_s_is_not_written_to(
  config, model, tmp_path
):
  (tmp_path / "inputs.json").write_text("mine")
  with pytest.raises(CheckpointError, match=r"holds inputs.json and no config.json"):
    loop(config, model, tmp_path, {"policy": Fake(0.0)})
  assert (tmp_path / "inputs.json").read_text() == "mine"


def test_hosts_that_differ_are_refused_before_anything_is_made_in_the_folder(
  config, model, tmp_path, monkeypatch
):
  def refuse(values):
    assert values["version of jax"] == jax.__version__
    raise SettingError("hosts differ")

  monkeypatch.setattr(inputs, "check_hosts", refuse)
  with pytest.raises(SettingError, match="hosts differ"):
    loop(config, model, tmp_path / "run", {"policy": Fake(0.0)})
  assert not (tmp_path / "run").exists()


def test_a_step_is_saved_once_its_prompts_are_known_to_be_the_same_on_all_hosts(
  config, model, tmp_path, monkeypatch
):
  def differ():
    raise deadline.Stopped("prompts differ")  # in place of the end of the process

  monkeypatch.setattr(lifeline, "settle", differ)
  learner = Fake(0.0)
  run = Run(
    make(config),
    str(tmp_path),
    model,
    Position(),
    {"policy": learner},
    Evaluator(make(config), model),
  )
  with pytest.raises(deadline.Stopped), run._resources:
    run.writer = Writer(str(tmp_path), config.log, config.steps)
    run.save(1, wait=True)
  assert run.checkpoints.latest() is None


def test_prompts_are_compared_before_anything_is_sampled_or_learned_from_them(monkeypatch):
  prompts = Prompts(np.ones((2, 3), np.int32), np.full(2, 3, np.int32))
  batch = Rollouts(prompts, *[np.ones((2, 1, 4), np.int32)] * 5)

  def compare(*trees):
    raise SettingError(f"compared {[x.shape for x in jax.tree.leaves(trees)]}")

  monkeypatch.setattr(lifeline, "compare", compare)
  with pytest.raises(SettingError, match=r"compared \[\(2, 3\), \(2,\)\]"):
    rollouts.draw(None, None, prompts, None, None)
  with pytest.raises(SettingError, match=r"compared \[\(2, 3\), \(2,\), \(2, 1, 4\)\]"):
    Learner.learn(object.__new__(Learner), 0, batch, None)
