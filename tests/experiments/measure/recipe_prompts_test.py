"""Compares the prompts that a peer trains on with those of the run, in its order."""

import json

import pytest
from absl import flags

from experiments import arithmetic
from experiments.measure import recipe_prompts
from grpo_jax.errors import SettingError
from grpo_jax.setup import build
from grpo_jax.setup.experiment import make


def test_they_are_what_the_run_samples_for():
  c = arithmetic.get_config()
  c.steps, c.data.prompts, c.data.shots = 3, 4, 1
  experiment = make(c)
  model = build.model(experiment)
  batches = build.batches(experiment, model)
  expected = [example for _ in range(3) for example in next(batches)]
  found = [json.loads(line) for line in recipe_prompts.lines(experiment)]
  assert [line["answer"] for line in found] == [example.answer for example in expected]
  for line, example in zip(found, expected, strict=True):
    assert model.tokenizer.encode(line["prompt"]) == model.render(example.question)


def test_a_file_that_is_there_is_refused_before_anything_is_read(tmp_path, monkeypatch, capsys):
  there = tmp_path / "prompts.jsonl"
  there.write_text("mine")
  monkeypatch.setattr(flags, "FLAGS", type("Values", (), {"config": None, "out": str(there)}))
  with pytest.raises(SystemExit):
    recipe_prompts.main([])
  assert f"--out='{there}': is there already; remove it" in capsys.readouterr().err
  assert there.read_text() == "mine"


@pytest.mark.parametrize(("name", "value"), [("data.redraw", 0.2), ("sampler.carry", 8)])
def test_an_order_that_samples_decide_is_refused(name, value):
  c = arithmetic.get_config()
  c.update_from_flattened_dict({name: value})
  with pytest.raises(SettingError, match=f"{name}={value}: the order of the prompts follows from"):
    next(recipe_prompts.lines(make(c)))


def test_chats_are_refused():
  c = arithmetic.get_config()
  c.data.chat = True
  with pytest.raises(SettingError, match="data.chat=True: the prompts are written as plain text"):
    next(recipe_prompts.lines(make(c)))
