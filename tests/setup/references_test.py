"""The reference or teacher: of the policy's shape, or another model that reads its tokens."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
import tiny_runs

from grpo_jax.errors import CheckpointError, GrpoError, SettingError
from grpo_jax.models import variants
from grpo_jax.models.hf import tensors
from grpo_jax.setup import build, defaults, parameters, references
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


def test_a_model_of_the_same_shape_and_other_tokens_is_refused(teacher, tmp_path):
  e = experiment("grpo", **{"model.variant": "test_gemma2"})
  same, folder = build.model(e), teacher()
  with pytest.raises(CheckpointError, match="no complete checkpoint"):  # of weights, there are none
    references.check(e, folder, same, "ref_from")
  references.check_tokens(e, folder, same, "ref_from")
  tiny_runs.swap_words(tmp_path / "teacher")
  with pytest.raises(SettingError, match=f"^ref_from='{folder}': its tokenizer reads a text as"):
    references.check_tokens(e, folder, same, "ref_from")
  references.check_tokens(e, folder, same._replace(tokenizer=None), "ref_from")  # a plan's
  own = experiment("grpo", **{"init_from": folder, "model.variant": "", "tokenizer": "words"})
  references.check_tokens(own, folder, same, "ref_from")  # its tokens are what `tokenizer` says
  (tmp_path / "teacher" / "model" / "tokenizer.json").write_text("{}")
  references.check_tokens(e, folder, same, "ref_from")  # nothing to compare with


@pytest.mark.parametrize("objective, changes", [("gkd", {}), ("grpo", {"objective.beta": 0.1})])
def test_errors_of_its_folder_name_the_setting_that_gave_it(tmp_path, objective, changes):
  (tmp_path / "config.json").write_text('{"model_type": "bert"}')
  e = experiment(objective, ref_from=str(tmp_path), **changes)
  with pytest.raises(GrpoError, match=f"^ref_from={tmp_path}: .*bert"):
    found = references.owner(e, build.model(experiment()))
    references.check_source(e.ref_from, found, "ref_from")


@pytest.fixture
def written(tmp_path):
  """Returns a function that writes small weights in a dtype, and returns their folder and model."""

  def write(dtype, **changes):
    model = build.model(experiment("grpo", **{"objective.beta": 0.1} | changes))
    folder = str(tmp_path / dtype)
    params = jax.jit(model.decoder.init)(jax.random.key(0))
    tensors.save(folder, model.decoder.config, params, dtype=dtype)
    return folder, model

  return write


def dtypes(tree):
  return {str(x.dtype) for x in jax.tree.leaves(tree)}


@pytest.mark.parametrize(
  ("of_folder", "computed", "held"),
  [
    ("bfloat16", "bfloat16", "bfloat16"),
    ("bfloat16", "float32", "float32"),  # each pass would convert it
    ("float32", "bfloat16", "float32"),
  ],
)
def test_a_reference_is_held_in_the_dtype_of_its_folder(written, of_folder, computed, held):
  folder, model = written(of_folder, **{"model.dtype": computed})
  e = experiment("grpo", ref_from=folder, **{"objective.beta": 0.1})
  tree, pin = references.pinned_reference(e, model, {})
  assert dtypes(tree) == {held} == {pin["dtype"]}
  whole = references.reference(folder, model, "ref_from")
  assert dtypes(whole) == {"float32"}
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.astype("float32"), b), tree, whole)


def test_a_resumed_run_holds_its_reference_as_it_began(written):
  """Takes float32 for a pin without a dtype, from before it was saved."""
  folder, model = written("bfloat16", **{"model.dtype": "bfloat16"})
  e = experiment("grpo", ref_from=folder, **{"objective.beta": 0.1})
  tree, pin = references.pinned_reference(e, model, {})
  assert references.pinned_reference(e, model, pin)[1] == pin
  assert references.pinned_reference(e, model, {"base": "of adapters"})[1] == pin
  whole = references.reference(folder, model, "ref_from")
  older = {"step": None, "fingerprint": parameters.check_fingerprint(whole, None, "", "")}
  again, kept = references.pinned_reference(e, model, older)
  assert dtypes(again) == {"float32"} == {kept["dtype"]}
  with pytest.raises(CheckpointError, match="does not hold the parameters that this run began"):
    references.pinned_reference(e, model, pin | {"dtype": "float32"})


@pytest.mark.parametrize("variant", ["test_qwen3", "test_gemma3"])
def test_log_probs_computed_in_bfloat16_are_the_same_from_either_dtype(variant):
  """Norms with an offset of 1 and scaled embeddings are rounded at the same places."""
  given, compute = tiny.rollouts(variant=variant), tiny.logprobs(variant, dtype="bfloat16")
  held = jax.tree.map(lambda x: x.astype("bfloat16"), tiny.params(variant))
  whole = jax.tree.map(lambda x: x.astype("float32"), held)
  of_held, of_whole = (
    compute(params, given.prompts, given.tokens, given.lengths, tiny.packing(given))
    for params in (held, whole)
  )
  jax.tree.map(np.testing.assert_array_equal, of_held, of_whole)
