"""The comparison of several runs."""

import json

import numpy as np
import pytest
from compare_test import calls, faked, run_all

from experiments.measure import compare
from grpo_jax.reports import comparison, comparison_page


@pytest.fixture
def config(monkeypatch, tmp_path):
  return faked(monkeypatch, tmp_path)


@pytest.fixture
def workdir(tmp_path):
  (tmp_path / "all").mkdir()
  return tmp_path / "all"


def made_up(path, rows, config=None, result=None):
  """A run's folder."""
  path.mkdir(parents=True)
  (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  (path / "config.json").write_text(json.dumps(config or {"loop": "online"}))
  if result is not None:
    (path / "result.json").write_text(json.dumps({"accuracy_after": result, "wall_s": 60.0}))
  return path


def online(path, tokens, accuracy):
  """A finished run of len(tokens) steps that was evaluated before and after each."""
  rows = [{"step": 0, "eval/accuracy": accuracy[0]}]
  for step, (n, right) in enumerate(zip(tokens, accuracy[1:]), 1):
    rows += [{"step": step, "tokens": n, "loss": 0.0}, {"step": step, "eval/accuracy": right}]
  return made_up(path, rows, result=accuracy[-1])


def test_tokens_are_those_sampled_until_an_evaluation(tmp_path):
  run = comparison.read(online(tmp_path / "a", [10, 30], [0.1, 0.2, 0.6]))
  assert run.tokens.tolist() == [0, 10, 40] and run.accuracy.tolist() == [0.1, 0.2, 0.6]
  assert (run.seconds, run.passes) == (60.0, 1.0)


def test_an_offline_run_counts_a_sample_once(tmp_path):
  config = {
    "loop": "offline",
    "offline": {"data": "samples", "prompts": 4},
    "data": {"prompts": 2},
    "sampler": {"group": 3, "tries": 1},
  }
  rows = [{"step": 0, "eval/accuracy": 0.1}]
  # the third is the second epoch
  rows += [{"step": s, "length/mean": 5.0 + s, "loss": 0.0} for s in (1, 2, 3)]
  rows += [{"step": 3, "eval/accuracy": 0.3}]
  run = comparison.read(made_up(tmp_path / "a", rows, config, 0.3))
  assert run.tokens.tolist() == [0, 6 * 6 + 7 * 6]
  config["offline"]["data"] = "pairs"
  with pytest.raises(ValueError, match="offline.data=pairs"):
    comparison.read(made_up(tmp_path / "b", rows, config, 0.3))
  config["offline"]["data"], config["sampler"]["tries"] = "samples", 2
  with pytest.raises(ValueError, match="sampler.tries=2"):  # what was dropped is not counted
    comparison.read(made_up(tmp_path / "c", rows, config, 0.3))


def test_the_mean_of_passes_is_read(tmp_path):
  rows = [{"step": s, "tokens": 1, "loss": 0.0, "inner/passes": p} for s, p in ((1, 4.0), (2, 1.0))]
  assert comparison.read(made_up(tmp_path / "a", rows, result=0.0)).passes == 2.5


def test_what_is_left_of_the_policy_is_read(tmp_path):
  """Reads pass@k after the last step, and the entropy of the last quarter of the steps."""
  rows = [{"step": 0, "eval/accuracy": 0.1, "eval/pass@1": 0.2, "eval/pass@4": 0.5}]
  rows += [{"step": s, "tokens": 1, "loss": 0.0, "entropy": 1.0 / s} for s in range(1, 9)]
  rows += [{"step": 8, "eval/accuracy": 0.3, "eval/pass@1": 0.4, "eval/pass@4": 0.7}]
  config = {"loop": "online", "eval": {"samples": 4}}
  run = comparison.read(made_up(tmp_path / "a/0.1/0", rows, config, 0.3))
  assert (run.pass_at_1, run.pass_at_k) == (0.4, 0.7) and run.entropy == pytest.approx(
    (1 / 7 + 1 / 8) / 2
  )
  (arm,) = comparison.finished_arms(tmp_path, ("a",), (0.1,), (), (0,))
  line = dict(zip([name for name, _ in comparison_page.COLUMNS], comparison_page.cells(arm, 8)))
  assert (line["pass@k"], line["entropy"], line["passes"]) == ("70.0%", "0.134", "1")
  assert line["pass@1"] == "40.0%"
  two = arm._replace(runs=[run, run._replace(pass_at_1=0.5)])
  line = dict(zip([name for name, _ in comparison_page.COLUMNS], comparison_page.cells(two, 8)))
  assert line["pass@1"] == "45.0% ± 7.1"
  without = comparison.read(online(tmp_path / "b", [10], [0.1, 0.2]))
  assert np.isnan(without.pass_at_1) and np.isnan(without.pass_at_k) and np.isnan(without.entropy)
  line = comparison_page.cells(comparison.Arm("b", 0.1, False, [without], 0), 10)
  assert len(line) == len(comparison_page.COLUMNS) and line[6:9] == ["-", "-", "-"]


def test_arms_are_compared_where_the_shortest_ends(tmp_path):
  online(tmp_path / "long/0.1/0", [100, 100], [0.2, 0.4, 0.8])
  online(tmp_path / "long/0.1/1", [200, 200], [0.2, 0.52, 0.8])
  online(tmp_path / "short/0.1/0", [75, 75], [0.2, 0.3, 0.4])
  arms = comparison.finished_arms(tmp_path, ("long", "short"), (0.1,), (), (0, 1))
  assert comparison.budget(arms) == 150
  np.testing.assert_allclose(comparison.accuracies(arms[0], 150), [0.6, 0.44])
  np.testing.assert_allclose(comparison.accuracies(arms[1], 150), [0.4])
  line = dict(
    zip([name for name, _ in comparison_page.COLUMNS], comparison_page.cells(arms[0], 150))
  )
  assert (
    line["accuracy"] == "52.0% ± 11.3"
    and line["min to max"] == "44.0 to 60.0"
    and line["gain"] == "+32.0"
  )
  assert (
    line["tokens"] == "300"
    and line["seconds"] == "60"
    and line["peak MB"] == "-"
    and line["lr"] == "0.1"
  )


def test_the_learning_rate_is_chosen_by_the_tuning_seeds_alone(tmp_path):
  grid, seeds = (0.1, 0.2, 0.3), (100, 101)
  for lr, found in zip(grid, [(0.5, 0.5), (0.9, 0.3), (0.4, 0.4)]):
    for seed, right in zip(seeds, found):
      online(tmp_path / f"a/{lr}/{seed}", [1], [0.2, right])
  online(tmp_path / "a/0.3/0", [1], [0.2, 1.0])  # a shown seed says nothing
  assert comparison.tuning(tmp_path, "a", grid, seeds) == pytest.approx([0.5, 0.6, 0.4])
  assert comparison.best_lr(tmp_path, "a", grid, seeds) == 0.2
  assert comparison.best_lr(tmp_path, "a", grid, (100, 101, 102)) is None
  assert comparison.best_lr(tmp_path, "new", (0.1,), seeds) == 0.1
  (tmp_path / "a/0.2/101/result.json").unlink()
  (tmp_path / "a/0.2/101/diverged.txt").touch()
  assert comparison.best_lr(tmp_path, "a", grid, seeds) == 0.1  # 0.9 and 0 make 0.45
  (tmp_path / "a/0.1/101/result.json").write_text('{"accuracy_after": 0.4}')
  assert comparison.best_lr(tmp_path, "a", grid, seeds) == 0.1  # of two equals the lower


def test_a_run_that_diverged_counts_zero_and_is_not_begun_again(config, workdir):
  config.lrs = (0.001, 1.0)
  assert run_all(config, workdir) and run_all(config, workdir)
  assert calls(workdir)["grpo/1/100"] == 1 and "grpo/0.001/0" in calls(workdir)
  config.lrs, config.seeds = (1.0,), (0,)
  assert run_all(config, workdir)
  (arm,) = comparison.finished_arms(workdir, ("grpo",), (1.0,), (), (0,))
  assert comparison_page.cells(arm, 0.0)[:4] == ["grpo", "1", "1, 1 diverged", "0.0%"]
  compare.draw(config, workdir)


def test_a_page_is_only_drawn_of_runs_with_the_settings_that_it_tells(config, workdir, capsys):
  assert run_all(config, workdir)
  config.prompts += 1
  with pytest.raises(SystemExit):
    compare.draw(config, workdir)
  assert "holds a run with --config.data.prompts=" in capsys.readouterr().err
  assert not (workdir / "compare.html").exists()


def test_runs_of_an_arm_that_are_not_alike_are_told_of(config, workdir):
  assert run_all(config, workdir)
  for seed, settings, code in ((0, 0.2, "a"), (1, 0.3, "b")):
    path = workdir / f"ppo/0.002/{seed}"
    own = {"seed": seed, "learner": {"lr": 0.1 * seed, "clip": settings}, "loop": "online"}
    (path / "config.json").write_text(json.dumps(own))
    (path / "inputs.json").write_text(json.dumps({"code of grpo_jax": code, "test data": code}))
  assert compare.unlike(config, workdir) == [
    "The runs of ppo are not alike: they differ in code of grpo_jax, learner.clip."
  ]


def described(path, settings, inputs):
  path.mkdir(parents=True)
  (path / "config.json").write_text(json.dumps(settings))
  (path / "inputs.json").write_text(json.dumps(inputs))
  return path


def test_what_a_run_reads_from_its_own_first_run_makes_none_unlike(tmp_path):
  runs = [
    described(
      tmp_path / f"a/0.1/{seed}",
      {"init_from": f"runs/all/a/0.1/{seed}/first", "steps": 3},
      {"init_from/model.safetensors": f"sum {seed}", "code": "c"},
    )
    for seed in (0, 1)
  ]
  assert comparison.unlike(runs) == []
  other = described(tmp_path / "a/0.1/2", {"init_from": "elsewhere", "steps": 3}, {"code": "c"})
  assert comparison.unlike([*runs, other]) == ["init_from"]


def test_nor_does_a_reward_model_that_its_first_run_has_made(tmp_path):
  runs = [
    described(
      tmp_path / f"a/0.1/{seed}",
      {"rewards": {"process_models": [["judge", f"runs/a/0.1/{seed}/first", 1.0]]}},
      {"rewards.judge/model.safetensors": f"sum {seed}"},
    )
    for seed in (0, 1)
  ]
  assert comparison.unlike(runs) == []


def test_a_run_in_which_the_code_has_changed_is_unlike_the_others(tmp_path):
  one, two = (
    described(tmp_path / f"a/0.1/{seed}", {}, {"code": "new", "data": "d"}) for seed in (0, 1)
  )
  (two / "inputs-until-20.json").write_text('{"code": "new", "data": "d"}')
  assert comparison.unlike([one, two]) == []
  (two / "inputs-until-30.json").write_text('{"code": "old", "data": "d", "code of gone.py": "x"}')
  assert comparison.unlike([one, two]) == ["code"]
  (two / "inputs-until-30.json").write_text('{"code": "new", "data": "d", "weights": "w"}')
  assert comparison.unlike([one, two]) == ["weights"]


@pytest.mark.parametrize("text", ["{", "[]"])
def test_damaged_inputs_of_a_run_are_told_of(tmp_path, text):
  one, two = (described(tmp_path / f"a/0.1/{seed}", {}, {}) for seed in (0, 1))
  (two / "inputs-until-20.json").write_text(text)
  assert comparison.unlike([one, two]) == ["inputs-until-20.json"]


def test_the_memory_of_a_run_that_was_removed_is_not_counted(config, workdir):
  config.lrs = (0.001,)
  assert run_all(config, workdir)
  lines = [json.loads(line) for line in (workdir / "runs.jsonl").read_text().splitlines()]
  assert [line["begun"] for line in lines] == [False] * 4
  big, resumed = (
    {**lines[0], "peak_memory_mb": m, "begun": b} for m, b in ((9e6, False), (8e6, True))
  )
  rows = [big, *lines, resumed]
  for count, peak in ((5, lines[0]["peak_memory_mb"]), (6, 8e6)):
    (workdir / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
    arms = comparison.finished_arms(workdir, ("grpo",), (0.001,), (100,), (0,))
    assert arms[0].runs[0].memory_mb == peak
