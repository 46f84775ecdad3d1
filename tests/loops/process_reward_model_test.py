"""A process reward model is trained: on samples that continuations or rewards label, and on a file."""

import json
import pathlib
import types
from typing import Any

import jax
import numpy as np
import pytest
import small_models  # noqa: F401  adds the variants named test_*
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.loops import groups, offline, process_reward_model
from grpo_jax.rewards import combine
from grpo_jax.setup import build, checks, defaults
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example, Prompts, Rollouts


def even(example: Example, completion: Completion) -> list[tuple[int, float]]:
  """A step is right whose last token is even."""
  return [(end, float(completion.tokens[end] % 2 == 0)) for end in completion.step_ends]


def solved(example: Example, completion: Completion) -> float:
  return float(completion.tokens[-1] % 2 == 0)


def config(**changes: Any) -> ConfigDict:
  c = defaults.get_config()
  c.loop, c.offline.data, c.steps = "process_reward_model", "steps", 3
  c.tokenizer, c.model.variant = "words", "test_qwen3"
  c.data.arithmetic.size, c.data.prompts, c.data.max_prompt_length, c.data.on_long = (
    64,
    4,
    16,
    "cut",
  )
  c.data.steps = "[aeiou]"
  c.offline.prompts, c.offline.held_out = 12, 4
  c.sampler.group, c.sampler.max_length = 4, 8
  c.rewards.functions = (("even", "process_reward_model_test:even", 1.0),)
  c.eval.reward, c.eval.batch = "process_reward_model_test:solved", 8
  c.objective = defaults.objective("process_reward_model", c)
  c.learner.lr, c.log.writers = 1e-2, ()
  c.update_from_flattened_dict(changes)
  return c


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
  make = build.model
  monkeypatch.setattr(
    build, "model", lambda config, scores=False: make(config, jax.devices()[:1], scores)
  )


def lines(folder: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_samples_that_continuations_label(tmp_path, capsys):
  """Drawn once: the same command goes on with the same samples; the rewards are compared with."""
  c = config(**{"offline.continuations": 2, "offline.labels": "soft"})
  process_reward_model.train(resolve(c), str(tmp_path / "a"))
  result = json.loads((tmp_path / "a" / "result.json").read_text())
  assert {
    "step_brier_after",
    "rule_agreement_after",
    "label_agreement_after",
    "step_brier_before",
  } <= set(result)
  assert result["step_brier_before"] != result["step_brier_after"]
  said = capsys.readouterr().out
  assert "steps were labelled by 2 continuations of each of" in said
  with np.load(tmp_path / "a" / "samples.npz") as stored:
    arrays = dict(stored)
  assert set(np.unique(arrays["arr_7"])) <= {0.0, 0.5, 1.0} and len(arrays["arr_7"]) == 16
  stamp = (tmp_path / "a" / "samples.npz").stat().st_mtime_ns
  c.steps = 4
  process_reward_model.train(resolve(c), str(tmp_path / "a"))
  assert (
    tmp_path / "a" / "samples.npz"
  ).stat().st_mtime_ns == stamp and "labelled by" not in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.slow
def test_samples_that_the_rewards_label(tmp_path, capsys):
  process_reward_model.train(resolve(config()), str(tmp_path / "a"))
  result = json.loads((tmp_path / "a" / "result.json").read_text())
  assert "step_accuracy_after" in result and "rule_agreement_after" not in result
  assert all(0 < line["step_loss"] < 2 for line in lines(tmp_path / "a") if "step_loss" in line)
  assert "steps were labelled by the rewards" in capsys.readouterr().out


def test_a_step_that_was_cut_off_and_a_sample_that_failed_have_no_label(monkeypatch):
  given = np.array([[[True, True], [True, True], [True, True]]])
  zeros = np.zeros(given.shape, np.float32)
  ended = np.array([[STOPPED, TRUNCATED, STOPPED]])
  prompts = Prompts(np.ones((1, 1), np.int32), np.ones(1, np.int32))
  r = Rollouts(
    prompts, zeros, np.full((1, 3), 2), ended, zeros, zeros, zeros + 1, given, zeros[..., :1]
  )
  r.rewards[0, 2] = -1.0  # rewards.on_error
  batch = groups.Scored([], r, [combine.Fault(0, 2, "steps", "late")], 0.0)
  monkeypatch.setattr(process_reward_model, "draw_scored", lambda *_: batch)
  writer: Any = types.SimpleNamespace(say=print)
  model: Any = None
  found = process_reward_model.draw_solutions(config(), model, writer, lambda: "")
  assert found is not None
  np.testing.assert_array_equal(
    found.rollouts.given, [[[True, True], [True, False], [False, False]]]
  )


@pytest.mark.slow
def test_rewards_that_are_no_labels_are_refused(tmp_path, monkeypatch):
  """Before a second batch of samples is drawn."""
  drawn, collect = [], offline.collect
  monkeypatch.setattr(offline, "collect", lambda *a: drawn.append(a) or collect(*a))
  c = config(**{"rewards.functions": (("even", "process_reward_model_test:even", 2.0),)})
  with pytest.raises(
    SettingError, match="rewards.functions=.*gave 0 to 2, and labels of steps are from 0 to 1"
  ):
    process_reward_model.train(resolve(c), str(tmp_path / "a"))
  assert len(drawn) == 1


@pytest.mark.slow
def test_a_file(tmp_path, capsys):
  """No prompt of a held-out solution is trained on."""
  signs = ["+", "-"]
  records = [
    {"input": f"q{i % 7} Step 1: a ки", "label": f"q{i % 7} Step 1: a {signs[i % 2]}", "task": ""}
    for i in range(21)
  ]
  (tmp_path / "steps.jsonl").write_text("\n".join(map(json.dumps, records)))
  c = config(
    **{"offline.steps": str(tmp_path / "steps.jsonl"), "sampler.group": 2, "sampler.max_length": 24}
  )
  solutions, _ = process_reward_model.read_solutions(make(c), build.model(make(c), scores=True))
  prompts = [
    tuple(row[:n])
    for row, n in zip(solutions.rollouts.prompts.tokens, solutions.rollouts.prompts.lengths)
  ]
  assert (
    len(set(prompts[:4])) == 4 and not set(prompts[:4]) & set(prompts[4:]) and len(prompts) == 4 + 6
  )
  process_reward_model.train(resolve(c), str(tmp_path / "a"))
  assert "14 solutions with 14 labelled steps" in capsys.readouterr().out
  assert json.loads((tmp_path / "a" / "result.json").read_text())["steps_after"] > 0
  c.offline.held_out = 7
  with pytest.raises(
    SettingError, match="offline.held_out=7: .* has 7 prompts that fit; use at most 6"
  ):
    process_reward_model.train(resolve(c), str(tmp_path / "b"))


@pytest.mark.parametrize(
  "changes, message",
  [
    (
      {"loop": "reward_model"},
      "with loop='reward_model': trains a reward model; use loop='process_reward_model'",
    ),
    (
      {"offline.data": "samples"},
      "'process_reward_model' with .*offline.data='samples': use .*offline.data='steps'",
    ),
    (
      {"offline.data": "samples", "offline.steps": "f"},
      "offline.steps='f' with offline.data='samples'",
    ),
    (
      {"offline.steps": "f", "offline.continuations": 2},
      "offline.continuations=2 with offline.steps='f': .* use 0",
    ),
    (
      {"offline.labels": "soft"},
      "offline.labels='soft' with offline.continuations=0: .* use 'hard', or some",
    ),
  ],
)
def test_settings_that_do_not_go_together(changes, message):
  c = config(**changes)
  with pytest.raises(SettingError, match=message):
    checks.check_steps(make(c))
    checks.check_data(make(c))
