"""Iterative GRPO: what is the reference when, what the reward model learns from, and that it goes
on as it was.
"""

import json
from typing import Any

import documented
import pytest
import tiny_runs

from grpo_jax.errors import CheckpointError, SettingError
from grpo_jax.loops import iterative, online, teaching
from grpo_jax.run import checkpoint, manifest
from grpo_jax.setup import checks, defaults
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve

M = tiny_runs.ITERATIVE["iterative.steps"]


def config(**settings):
  own = {
    "steps": 5,
    "mesh.group": 2,
    "iterative.kept_steps": 3,
    "eval.problems": 0,
    "checkpoint.every": 1,
    "checkpoint.keep": 9,
  }
  return tiny_runs.config(tiny_runs.ITERATIVE | own | settings)


def saved(workdir, step):
  about = json.loads((workdir / "checkpoints" / str(step) / "about" / "metadata").read_text())[
    "arrays"
  ]
  return {
    name: {k.partition("params.")[2]: v for k, v in about.items() if k.startswith(name)}
    for name in LEARNERS
  }


LEARNERS = ("policy", "reward_model", "reference")


def parameters(saved_at: dict, name: str) -> dict:
  """Checksums of the policy's tree, or of what has its shape."""
  return {k: v for k, v in saved_at[name].items() if k.startswith("policy.")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("whole")
  iterative.train(resolve(config()), str(workdir))
  return workdir


@pytest.mark.slow
def test_the_reference_is_the_policy_as_it_was_when_the_iteration_began(whole):
  at = {step: saved(whole, step) for step in range(6)}
  for step in range(1, 6):
    began = (step - 1) // M * M
    assert parameters(at[step], "reference") == parameters(at[began], "policy"), step
    assert parameters(at[step], "reference") != parameters(at[step], "policy"), step


@pytest.mark.slow
def test_the_reward_model_learns_at_the_end_of_an_iteration(whole):
  at = {step: saved(whole, step)["reward_model"] for step in range(6)}
  changed = [step for step in range(1, 6) if at[step] != at[step - 1]]
  assert changed == [2, 4]
  lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
  taught = {line["step"]: line for line in lines if "reward_model/new" in line}
  assert sorted(taught) == [2, 4]
  assert taught[2]["reward_model/new"] > 0 and taught[2]["reward_model/replayed"] == 0
  # its scores are 0 before it has learned
  assert taught[2]["reward_model/new_pair_accuracy"] == 0.5
  assert 0 <= taught[4]["reward_model/new_pair_accuracy"] <= 1
  assert 0 < taught[4]["reward_model/replayed"] <= taught[4]["reward_model/updates"]
  assert [line["iteration"] for line in lines if "iteration" in line] == [1, 1, 2, 2, 3]
  assert documented.unexplained(lines) == []
  assert all(
    "reward/reward_model" in line and "reward/parity" in line
    for line in lines
    if "iteration" in line
  )


@pytest.mark.long
@pytest.mark.slow
def test_the_end_of_an_iteration_has_its_line_whatever_log_every_is(tmp_path):
  """Has there, and nowhere else, what the reward model learned."""
  iterative.train(
    resolve(config(**{"log.every": 3, "steps": 4, "checkpoint.export": False})), str(tmp_path)
  )
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert [line["step"] for line in lines if "loss" in line] == [1, 2, 4]
  assert [line["step"] for line in lines if "reward_model/new" in line] == [2, 4]


@pytest.mark.long
@pytest.mark.slow
def test_it_learns_from_groups_that_dynamic_sampling_drops(tmp_path):
  """Learns although its scores of 0, the only reward, leave no group whose rewards differ."""
  changes = {
    "sampler.tries": 2,
    "rewards.functions": (("parity", tiny_runs.PARITY, 0.0),),
    "steps": 2,
    "checkpoint.export": False,
  }
  iterative.train(resolve(config(**changes)), str(tmp_path))
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert [line["sampling_tries"] for line in lines if "loss" in line] == [2, 2]
  (taught,) = [line for line in lines if "reward_model/new" in line]
  assert taught["reward_model/new"] > 4  # pairs of both steps and both tries
  assert saved(tmp_path, 2)["reward_model"] != saved(tmp_path, 0)["reward_model"]


@pytest.mark.slow
def test_the_files_of_its_reward_model_have_checksums(whole):
  names = ["reward_model/config.json", "reward_model/model.safetensors", "result.json"]
  assert set(names) <= set(manifest.read(str(whole)))
  kept = checkpoint.about(str(whole), 5)["extra"]
  assert kept["kind"] == "reward_model"


@pytest.mark.slow
def test_a_run_is_not_done_before_its_reward_model_is_written(tmp_path, monkeypatch):
  """Writes result.json last, which says to a later run that all is there."""

  def fails(out, *args):
    raise OSError(f"no room for {out}")

  monkeypatch.setattr(iterative, "export_merged", fails)
  with pytest.raises(OSError, match="no room for .*reward_model"):
    iterative.train(resolve(config(**{"steps": 2, "checkpoint.every": 9})), str(tmp_path))
  assert not (tmp_path / "result.json").exists()
  assert saved(tmp_path, 2)  # and what it learned is safe


@pytest.mark.slow
@pytest.mark.parametrize("first", [pytest.param(3, marks=pytest.mark.long), 4])
def test_a_run_that_goes_on_is_the_run_that_was_not_stopped(whole, tmp_path, first):
  iterative.train(resolve(config(steps=first)), str(tmp_path))
  iterative.train(resolve(config()), str(tmp_path))
  assert saved(tmp_path, 5) == saved(whole, 5)
  assert sorted(int(path.stem) for path in (tmp_path / "replay").iterdir()) == list(range(5))


def steps_even(example, completion):
  return [(end, float(completion.tokens[end] % 2 == 0)) for end in completion.step_ends]


@pytest.mark.slow
def test_labels_of_steps_train_a_process_reward_model(tmp_path, capsys):
  changes = {
    "rewards.functions": (("even", f"{__file__}:steps_even", 0.1),),
    "iterative.labels": "even",
  }
  changes |= {
    "data.steps": "[aeiou]",
    "steps": 4,
    "eval.problems": 8,
    "eval.batch": 8,
    "eval.samples": 0,
  }
  iterative.train(resolve(config(**changes)), str(tmp_path))
  at = {step: saved(tmp_path, step)["reward_model"] for step in range(5)}
  assert [step for step in range(1, 5) if at[step] != at[step - 1]] == [2, 4]
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  taught = [line for line in lines if "reward_model/new" in line]
  assert [line["step"] for line in taught] == [2, 4]
  assert all(
    0 <= line["reward_model/new_step_accuracy"] <= 1 and line["reward_model/loss"] > 0
    for line in taught
  )
  assert all(
    line["rewards_given"] > 1 and "reward/reward_model" in line
    for line in lines
    if "reward/even" in line
  )
  # Without eval.every the end of each iteration is evaluated, and the last one once, as the end of
  # the run.
  tested = [(line["step"], line.get("iteration")) for line in lines if "eval/accuracy" in line]
  assert tested == [(0, None), (2, 1), (4, 2)]
  said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("iteration ")]
  assert len(said) == 2 and "accuracy 0.0%, reward model agreed with the labels on " in said[0], (
    said
  )
  assert all(line.endswith("% of its new steps") for line in said)


@pytest.mark.slow
def test_another_run_is_scored_by_its_reward_model(whole, tmp_path):
  folder = str(whole / "reward_model")
  changes = {"loop": "online", "steps": 1, "rewards.functions": ()}
  scored = config(**changes, **{"rewards.outcome_models": (("judge", folder, 1.0),)})
  online.train(resolve(scored), str(tmp_path / "run"))
  (line,) = [
    json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
  ]
  assert (
    line["reward/judge"] == pytest.approx(line["reward/mean"], abs=1e-5) and line["reward/std"] > 0
  )


@pytest.mark.long
@pytest.mark.slow
def test_what_the_reward_model_says_is_compared_with_the_rule(tmp_path):
  """In a step, in its samples, and in each evaluation; one that is new gives 0 to all, which goes
  with no length.
  """
  functions = (("odd", f"{__file__}:odd", 0.0),)
  changes = {
    "steps": 1,
    "rewards.functions": functions,
    "iterative.labels": "odd",
    "checkpoint.export": False,
  }
  evaluated = {
    "eval.problems": 6,
    "eval.batch": 4,
    "eval.samples": 0,
    "eval.reward": f"{__file__}:odd",
  }
  iterative.train(resolve(config(**changes, **evaluated)), str(tmp_path))
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  tested, (step,) = (
    [line for line in lines if name in line] for name in ("eval/accuracy", "reward/mean")
  )
  assert len(tested) == 2 and all("eval/reward/reward_model" in line for line in tested)
  assert step["agreement/reward_model"] == 0.5 and "length/reward_correlation" not in step
  rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
  assert any(row["disagreement"] is not None for row in rows)


def odd(example, completion):
  return len(completion.tokens) % 2


@pytest.mark.slow
@pytest.mark.parametrize(
  ("setting", "folder", "message"),
  [
    ("outcome_models", "none", "outcome_models has 'judge', 'none': no such folder"),
    ("process_models", "export", "process_models has 'judge', '.*export': is no reward model"),
  ],
)
def test_a_folder_without_a_reward_model_is_refused(whole, tmp_path, setting, folder, message):
  folder = folder if folder == "none" else str(whole / folder)
  with pytest.raises(SettingError, match=message):
    online.train(
      resolve(config(**{"loop": "online", f"rewards.{setting}": (("judge", folder, 1.0),)})),
      str(tmp_path / "run"),
    )
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"iterative.labels": "right"},
      "iterative.labels='right': use the name of one of rewards.functions, parity",
    ),
    ({"iterative.pairs": 6}, "iterative.pairs=6: use a multiple of 4"),
    (
      {
        "rewards.functions": (("reward_model", "math.answer_correct", 1.0),),
        "iterative.labels": "reward_model",
      },
      "another",
    ),
  ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path, changes, message):
  with pytest.raises(SettingError, match=message):
    iterative.train(resolve(config(**changes)), str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


def test_objectives_of_another_model_are_refused(tmp_path):
  c = config()
  c.objective = defaults.objective("distill", c)
  with pytest.raises(SettingError, match="learns from another model, and the reference of this"):
    iterative.train(resolve(c), str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


def test_a_run_keeps_the_kind_of_reward_model_that_it_began_with():
  extra: Any = {}
  experiment = make(config())
  for kind in (teaching.STEPS, teaching.STEPS):
    iterative.keep_kind(extra, kind, experiment)
  with pytest.raises(CheckpointError, match="began with a process_reward_model.*rewards.deadline"):
    iterative.keep_kind(extra, teaching.OUTCOME, experiment)


def test_a_loop_like_it_spares_a_reward_model_that_is_in_its_folder_already(tmp_path):
  loop = tmp_path / "my_loop.py"
  loop.write_text("from grpo_jax.loops.iterative import train\nLIKE = 'iterative'\n")
  mine = tmp_path / "run" / "reward_model" / "config.json"
  mine.parent.mkdir(parents=True)
  mine.write_text("mine\n")
  with pytest.raises(CheckpointError, match="holds reward_model/ and no config.json"):
    iterative.train(resolve(config(loop=str(loop))), str(tmp_path / "run"))
  assert [path.name for path in (tmp_path / "run").iterdir()] == ["reward_model"]


def gdpo(weight, reward_weights):
  changes = {
    "objective.advantage": "gdpo",
    "objective.reward_weights": reward_weights,
    "iterative.weight": weight,
  }
  return config(**changes)


@pytest.mark.parametrize(
  ("weight", "reward_weights"), [(1.0, ()), (1.0, (1.0, 1.0)), (0.0, (1.0, 0.0))]
)
def test_under_gdpo_the_reward_model_that_learns_is_one_of_the_rewards(weight, reward_weights):
  c = gdpo(weight, reward_weights)
  checks.check_rewards(make(c))
  c.sampler.group = 1  # then the settings are tried on components of that number
  with pytest.raises(SettingError, match="sampler.group=1: objective.advantage='gdpo' compares"):
    checks.check_group(make(c))


@pytest.mark.parametrize(
  ("weight", "reward_weights", "message"),
  [
    (1.0, (1.0,), "give 2, .*: parity, reward_model"),
    (1.0, (1.0, 1.0, 1.0), "give 2, .*: parity, reward_model"),
    (0.0, (), "gdpo gives each reward the weight 1, and 'reward_model' has 0 .*iterative.weight"),
  ],
)
def test_under_gdpo_weights_that_are_not_one_for_each_are_refused(weight, reward_weights, message):
  with pytest.raises(SettingError, match=f"reward_weights=.*{message}"):
    checks.check_rewards(make(gdpo(weight, reward_weights)))
