"""Runs whose completions are episodes of several turns, in this process and in others."""

import json
import pathlib

import numpy as np
import pytest
import resume_test
import tiny_runs
from tiny_episodes import EPISODES

from grpo_jax.io import storage
from grpo_jax.loops import offline, online
from grpo_jax.setup import defaults
from grpo_jax.setup.resolve import resolve


def lines_of(folder: pathlib.Path, name: str) -> list[dict]:
  return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.slow
def test_a_run_learns_from_episodes(tmp_path):
  """Rewards of turns, faults and turns are logged; what was read is told from what was sampled."""
  config = tiny_runs.config(EPISODES | {"log.measure_every": 2})
  online.train(resolve(config), str(tmp_path))
  steps = [line for line in lines_of(tmp_path, "metrics.jsonl") if "reward/environment" in line]
  assert len(steps) == 4
  for line in steps:
    assert 1 <= line["turns/mean"] <= 3 and 0 < line["turns/read_share"] < 1
    assert np.isfinite(line["loss"]) and line["mismatch_max"] < 1.001
    assert line["length/max"] <= 20 and ("moved_nats" in line) == (line["step"] % 2 == 1)
  assert sum(line["reward_faults"] for line in steps) > 0
  rows = lines_of(tmp_path, "samples.jsonl")
  some = [row for row in rows if len(row["turn_rewards"]) > 1]
  assert some and all(len(row["sampled"]) == len(row["tokens"]) for row in rows)
  assert any("a tool that is broken" in row.get("faults", "") for row in rows)
  for row in some:
    given = [token for token, own in zip(row["tokens"], row["sampled"]) if not own]
    assert row["answer"][0] in "".join(given)
  evaluations = [line for line in lines_of(tmp_path, "metrics.jsonl") if "eval/accuracy" in line]
  assert evaluations and "eval/pass@2" in evaluations[0]


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_environment_that_gives_no_reward_is_told_where_nothing_else_does(
  ends, tmp_path, capsys
):
  """Tells so if all episodes reach a limit, too, where they have the reward 0."""
  mine = tmp_path / "mine.py"
  mine.write_text(
    "from grpo_jax.types import Turn\n\n\ndef step(state, completion):\n  return Turn(state, '1')\n"
  )
  name = "calculator" if ends else str(mine)
  changes = {"environment.name": name, "environment.arguments": (), "steps": 1}
  changes |= {"eval.problems": 0, "sampler.max_length": 8}
  online.train(resolve(tiny_runs.config(EPISODES | changes)), str(tmp_path / "none"))
  told = "the environment gave none of the 32 episodes of a step a reward"
  assert capsys.readouterr().out.count(told) == 1
  changes["rewards.functions"] = (("parity", tiny_runs.PARITY, 0.0),)  # is only logged
  online.train(resolve(tiny_runs.config(EPISODES | changes)), str(tmp_path / "logged"))
  assert capsys.readouterr().out.count(told) == 1
  changes["rewards.functions"] = (("parity", tiny_runs.PARITY, 1.0),)
  online.train(resolve(tiny_runs.config(EPISODES | changes)), str(tmp_path / "other"))
  assert "the environment gave none" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("phase, count", [("sample", 3), ("score", 3), ("learn", 4)])
def test_a_run_that_is_killed_within_an_episode_ends_as_if_it_had_not_been(tmp_path, phase, count):
  runs = resume_test.Runs(tmp_path, tiny_runs.source(EPISODES))
  runs.finish("whole")
  runs.struck("killed", phase, count, seconds=0.05)
  runs.finish("killed")
  runs.assert_as_if_not_struck("killed", runs.numbers("whole"))


@pytest.mark.slow
def test_samples_of_episodes_are_kept_with_what_the_environment_wrote(tmp_path, monkeypatch):
  changes = {"loop": "offline", "offline.data": "samples", "offline.prompts": 8, "steps": 1}
  changes |= {"eval.problems": 0, "learner.schedule": "constant", "sampler.tries": 1}
  config = tiny_runs.config(EPISODES | changes)
  config.objective = defaults.objective("rft", config)
  offline.train(resolve(config), str(tmp_path))
  path = storage.place(str(tmp_path / "samples.npz"))
  kept, error = offline.read_samples(path, None, offline.template(episodes=True))
  assert not error
  inside = np.arange(kept.tokens.shape[2]) < kept.lengths[..., None]
  assert 0 < (inside & ~kept.sampled).sum() < inside.sum()
  monkeypatch.setattr(offline, "draw_samples", lambda *_: pytest.fail("drawn again"))
  config.steps = 2
  offline.train(resolve(config), str(tmp_path))
  assert not list(tmp_path.glob("*.damaged"))
  without, error = offline.read_samples(path, None, offline.template())
  assert without is None and error == "it holds 11 arrays, and those of this run are 10"
