"""The reference or teacher: of the policy's shape, or another model that reads its tokens."""

import dataclasses

import pytest
import tiny_runs

from grpo_jax.errors import GrpoError, SettingError
from grpo_jax.models import variants
from grpo_jax.setup import build, defaults, references
from grpo_jax.setup.resolve import resolve


def experiment(objective="gkd", **changes):
  c = tiny_runs.config({"mesh.fsdp": 8, "data.prompts": 8})
  c.objective = defaults.objective(objective, c)
  c.update_from_flattened_dict(changes)
  return resolve(c)


@pytest.fixture
def teacher(tmp_path):
  """Returns a function that writes the shape and tokenizer of a teacher, and returns its folder."""

  def write(name="teacher", **changes):
    model = build.model(experiment("grpo", **{"model.variant": "test_gemma2"}))
    shape = dataclasses.replace(model.decoder.config, **changes)
    model = model._replace(decoder=dataclasses.replace(model.decoder, config=shape))
    build.describe(model, str(tmp_path / name / "model"))
    return str(tmp_path / name)

  return write


def test_a_teacher_may_have_another_shape(teacher):
  student = build.model(experiment())
  found = references.owner(experiment(ref_from=teacher()), student).decoder
  assert found.config == variants.variant("test_gemma2", vocab=student.tokenizer.vocab_size)
  assert (found.layout, found.dtype) == (student.decoder.layout, student.decoder.dtype)


def test_a_reference_has_the_policys(teacher):
  student = build.model(experiment())
  for e in (experiment(), experiment("grpo", **{"objective.beta": 0.1}, ref_from=teacher())):
    assert references.owner(e, student) is student
  with pytest.raises(SettingError, match="the policy is .*; use the same shape"):
    references.check_source(teacher(), student, "ref_from")


def test_a_teacher_of_another_shape_does_not_move(teacher):
  e = experiment(ref_from=teacher(), **{"reference.ema": 0.5})
  with pytest.raises(SettingError, match="reference.ema=0.5 with ref_from=.*cannot move"):
    references.owner(e, build.model(experiment()))


def test_a_teacher_of_other_tokens_is_refused(teacher):
  student = build.model(experiment())
  e = experiment(ref_from=teacher(vocab=student.tokenizer.vocab_size + 1))
  with pytest.raises(SettingError, match="use a teacher that reads the policy's"):
    references.owner(e, student)


@pytest.mark.parametrize("objective, changes", [("gkd", {}), ("grpo", {"objective.beta": 0.1})])
def test_errors_of_its_folder_name_the_setting_that_gave_it(tmp_path, objective, changes):
  (tmp_path / "config.json").write_text('{"model_type": "bert"}')
  e = experiment(objective, ref_from=str(tmp_path), **changes)
  with pytest.raises(GrpoError, match=f"^ref_from={tmp_path}: .*bert"):
    found = references.owner(e, build.model(experiment()))
    references.check_source(e.ref_from, found, "ref_from")
