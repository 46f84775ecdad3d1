import json

import pytest
from ml_collections import ConfigDict

from grpo_jax.data.arithmetic import Arithmetic
from grpo_jax.errors import SettingError
from grpo_jax.loops import imports
from grpo_jax.rewards import length, math
from grpo_jax.types import Completion, Example


def _data(**changes):
  return ConfigDict(
    {
      "name": "arithmetic",
      "path": "",
      "train": "train",
      "test": "test",
      "test_name": "",
      "test_path": "",
      "mixture": (),
      "arithmetic": {"size": 20, "max_number": 50},
      "jsonl": {"question": "question", "answer": "answer", "solution": "", "choices": ""},
    }
    | changes
  )


def _jsonl(path, question):
  path.write_text(json.dumps({"question": question, "answer": "1"}))
  return str(path)


def _rewards(*functions):
  return ConfigDict({"functions": functions})


def test_functions(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text("def short(example, completion):\n  return -len(completion.tokens)\nlimit = 3\n")

  def find(path):
    return imports.function(path, "grpo_jax.rewards", "rewards.functions")

  assert find("math.answer_correct") is math.answer_correct
  assert find("grpo_jax.rewards.length:overlong") is length.overlong
  assert find(f"{file}:short")(Example("", "", "", {}), Completion("", [1, 2], 1, [])) == -2
  for path, message in (
    ("math.answer", "has no function 'answer'"),
    ("math", 'give "module.function"'),
    ("maths.answer_correct", "no module grpo_jax.rewards.maths; grpo_jax.rewards has choice, combine, format"),
    ("no_package.rewards:f", "no module no_package"),
    (f"{file}:limit", "has no function 'limit'"),
    (f"{tmp_path}/other.py:f", "no file"),
  ):
    with pytest.raises(SettingError, match=message) as error:
      find(path)
    assert "rewards.functions" in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_fails_to_import(tmp_path):
  (tmp_path / "bad.py").write_text("1 / 0\n")
  with pytest.raises(SettingError, match="fails to import: ZeroDivisionError"):
    imports.function(f"{tmp_path}/bad.py:f", "grpo_jax.rewards", "rewards.functions")


def test_a_module_that_needs_another(tmp_path, monkeypatch):
  (tmp_path / "needs_it.py").write_text("import not_installed\n")
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(SettingError, match="needs not_installed, which is not installed"):
    imports.function("needs_it:f", "grpo_jax.rewards", "rewards.functions")


def test_rewards():
  cfg = _rewards(
    ("correct", "math.answer_correct", 1),
    ("overlong", "length.overlong", 0.5, {"max_length": 10, "buffer": 4}),
  )
  (name, function, weight), (_, overlong, _) = imports.rewards(cfg)
  assert (name, function, weight) == ("correct", math.answer_correct, 1.0)
  assert overlong(Example("", "", "", {}), Completion("", [0] * 8, 1, [])) == -0.5


@pytest.mark.parametrize(
  "functions",
  [
    (),
    (("a", "math.answer_correct"),),
    (("a", "math.answer_correct", "1"),),
    (("a", "math.answer_correct", 1.0), ("a", "math.well_formed", 1.0)),
    (("a", "length.overlong", 1.0, {"max_len": 10, "buffer": 4}),),
    (("a", "length.overlong", 1.0),),
    (("a", "math.answer_correct", 1.0, {"strict": True}),),
  ],
)
def test_bad_rewards(functions):
  with pytest.raises(SettingError, match="rewards.functions has"):
    imports.rewards(_rewards(*functions))


def test_sources():
  ((source,), weights) = imports.train_sources(_data())
  assert len(source) == 20 and source[3] == Arithmetic("train", max_number=50)[3] and weights == [1.0]
  assert imports.eval_source(_data())[3] == Arithmetic("test", max_number=50)[3]
  with pytest.raises(SettingError, match="data.name = 'arithmetics'.*grpo_jax.data has arithmetic, gsm8k, jsonl"):
    imports.train_sources(_data(name="arithmetics"))
  with pytest.raises(SettingError, match=r"has no function source\(split, path, cfg\)"):
    imports.train_sources(_data(name="loader"))
  with pytest.raises(SettingError, match="data.path = 'x'"):
    imports.train_sources(_data(path="x"))


def test_mixture_and_its_test_set(tmp_path):
  file = _jsonl(tmp_path / "a.jsonl", "a")
  cfg = _data(mixture=(("arithmetic", "", 3.0), ("jsonl", file, 1)))
  sources, weights = imports.train_sources(cfg)
  assert [len(source) for source in sources] == [20, 1] and weights == [3.0, 1.0]
  assert len(imports.eval_source(cfg)) == 20
  with pytest.raises(SettingError, match="data.mixture has"):
    imports.train_sources(_data(mixture=(("arithmetic", 3.0),)))


def test_never_evaluates_on_the_file_it_trains_on(tmp_path):
  file, other = _jsonl(tmp_path / "a.jsonl", "a"), _jsonl(tmp_path / "b.jsonl", "b")
  with pytest.raises(SettingError, match="is the file that is trained on"):
    imports.eval_source(_data(name="jsonl", path=file))
  with pytest.raises(SettingError, match="is the file that is trained on"):
    imports.eval_source(_data(mixture=(("jsonl", file, 1.0),), test_name="jsonl", test_path=file))
  assert imports.eval_source(_data(name="jsonl", path=file, test_path=other))[0].question == "b"
