"""Checks the recipe for pretrained weights: its two runs, and its control."""

import pytest

from experiments import gemma3_270m, stages
from grpo_jax.data import loader
from grpo_jax.setup.resolve import resolve
from grpo_jax.types import STOPPED, Completion, Example


@pytest.mark.parametrize("arg, rank", [("", 0), ("lora", 16), ("data=gsm8k,shuffled", 0)])
def test_sft_comes_first_and_grpo_starts_from_it(arg, rank, tmp_path):
  c = gemma3_270m.get_config(arg).lock()
  c.init_from, c.seed, c.data.path = "weights", 3, str(tmp_path)
  first, last = (resolve(stage.config) for stage in stages.divide(c, "runs/1"))
  assert (first.objective.name, last.objective.name) == ("sft", "grpo")
  assert (first.init_from, last.init_from) == ("weights", "runs/1/first")
  assert (first.seed, last.seed) == (1003, 3)
  for run in (first, last):
    assert (run.data.path, run.lora.rank) == (str(tmp_path), rank)
  assert first.data.template == last.data.template
  assert first.data.name == last.data.name == ("gsm8k" if "gsm8k" in arg else "arithmetic")


def test_grpo_does_not_begin_with_the_problems_of_the_sft():
  """Keeps a fall of the reward out of a run: a policy solves those of its SFT more often."""
  drawn = []
  for stage in stages.divide(gemma3_270m.get_config(), "runs/1"):
    run = resolve(stage.config)
    batches = loader.Batches(run.open_train(), prompts=640, seed=run.seed)
    drawn.append({example.question for example in next(batches)})
  assert len(drawn[0] & drawn[1]) < 30


def test_grpo_alone_is_the_second_run_of_both():
  both, alone = gemma3_270m.get_config(), gemma3_270m.get_config("sft=false")
  both.init_from = "weights"
  alone.init_from = "runs/1/first"
  first, last = stages.divide(both, "runs/1")
  assert stages.divide(alone, "runs/1") == [last] and last != first


def completion(text: str) -> Completion:
  return Completion(text, range(4), STOPPED, ())


def test_the_control_hands_the_same_scores_to_others():
  texts = [f"#### {answer}" for answer in (7, 7, 1, 2, 7, 3, 4, 5)]
  orders = set()
  for question in map(str, range(20)):
    example = Example(question, "", "7", {})
    scores = gemma3_270m.shuffled(example, [completion(text) for text in texts])
    assert sorted(scores) == [0.0] * 5 + [1.0] * 3
    assert scores == gemma3_270m.shuffled(example, [completion(text) for text in texts])
    orders.add(tuple(scores))
  assert len(orders) > 10
