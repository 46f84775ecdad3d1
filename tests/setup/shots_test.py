"""Worked examples before each question."""

import re

import pytest
import small_models  # noqa: F401  adds the variants named test_*
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.setup import build, defaults, shots
from grpo_jax.setup.experiment import make
from grpo_jax.types import Example

TEMPLATE = "Question: {question}\nAnswer: "


def example(question: str, solution: str = "1 + 1 = 2\n#### 2") -> Example:
  return Example(question, solution, "2", {})


def config(count: int) -> ConfigDict:
  c = defaults.get_config()
  c.model.variant, c.tokenizer = "test_qwen3", "bpe"
  c.model.vocab = 300
  c.data.arithmetic.size = 16
  c.data.template, c.data.shots = TEMPLATE, count
  return c


def test_each_example_is_asked_and_answered_as_the_question_is():
  text = shots.before_question([example("How many?", "2"), example("And how few?")], TEMPLATE)
  assert TEMPLATE.format(question=text + "Asked?") == (
    "Question: How many?\nAnswer: 2\n\n"
    "Question: And how few?\nAnswer: 1 + 1 = 2\n#### 2\n\n"
    "Question: Asked?\nAnswer: "
  )
  assert shots.before_question([], TEMPLATE) == ""


def test_the_prompt_of_a_run_has_them():
  experiment = make(config(2))
  model = build.model(experiment)
  first, second = shots.examples(experiment.train_data[0], experiment.data.shots)
  assert model.tokenizer.decode(model.render("Asked?")) == (
    f"Question: {first.question}\nAnswer: {first.solution}\n\n"
    f"Question: {second.question}\nAnswer: {second.solution}\n\n"
    "Question: Asked?\nAnswer: "
  )


def test_a_special_token_in_an_example_stays_text():
  model = build.model(make(config(0)))
  (special, *_) = model.tokenizer.special_tokens
  one = shots.before_question([example(f"Is it {special}?")], TEMPLATE)
  many = model.tokenizer.render(one + "Asked?", TEMPLATE)
  assert special in model.tokenizer.decode(many)
  ids = {i for i in range(300) if model.tokenizer.decode([i], skip_special=False) == special}
  assert ids and not ids & set(many)


def test_a_template_with_special_tokens_is_refused():
  """Those of the examples would be characters, and the text would look right."""
  c = config(2)
  (special, *_) = build.model(make(config(0))).tokenizer.special_tokens
  c.data.template = f"{special}{{question}}\nAnswer: "
  message = re.escape(
    f"data.shots=2 with data.template={c.data.template!r}: {special} is a special"
  )
  with pytest.raises(SettingError, match=message):
    build.model(make(c))
  c.data.shots = 0
  build.model(make(c))


def test_they_are_the_same_for_every_seed_and_are_not_trained_on():
  experiments = [make(config(3)) for _ in range(2)]
  c = config(3)
  c.seed = 1
  experiments.append(make(c))
  shown = [
    [e.question for e in shots.examples(experiment.train_data[0], experiment.data.shots)]
    for experiment in experiments
  ]
  assert shown[0] == shown[1] == shown[2] and len(set(shown[0])) == 3
  (trained,) = experiments[0].open_train()
  (everything,) = make(config(0)).open_train()
  asked, kept = [[e.question for e in data] for data in (everything, trained)]
  assert kept == [question for question in asked if question not in shown[0]]
  assert len(kept) == 13 and [trained[i].question for i in range(13)] == kept
  with pytest.raises(IndexError):
    trained[13]


def test_other_data_sets_of_a_mixture_stay_whole():
  c = config(3)
  c.data.mixture = (("arithmetic", "", 1.0), ("arithmetic", "", 2.0))
  assert [len(data) for data in make(c).open_train()] == [13, 16]


def test_too_many_are_refused():
  with pytest.raises(SettingError, match="data.shots=16: the training data has 16 examples; use a"):
    build.model(make(config(16)))


def test_an_example_without_a_solution_is_refused():
  with pytest.raises(SettingError, match="data.shots=1: .* no solution of 'Why\\?'; use 0"):
    shots.before_question([example("Why?", "")], TEMPLATE)
