"""The kinds of errors, and what each ends a command with."""

import pickle

import pytest

import grpo_jax
from grpo_jax import errors
from grpo_jax.distributed.lifeline import exit_code_and_text
from grpo_jax.errors import (
  CheckpointError,
  DataError,
  GrpoError,
  SettingError,
  StorageError,
  TrainingError,
)

CODES = {
  SettingError: 2,
  DataError: 2,
  CheckpointError: 2,
  TrainingError: 2,
  StorageError: 75,
}
KINDS = list(CODES)


def test_the_table_has_every_kind():
  kinds = [value for value in vars(errors).values() if isinstance(value, type)]
  assert {kind for kind in kinds if issubclass(kind, GrpoError)} == {GrpoError, *KINDS}
  assert all(getattr(grpo_jax, kind.__name__) is kind for kind in (GrpoError, *KINDS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_its_exit_code(kind):
  assert kind.code == CODES[kind]
  assert exit_code_and_text(kind("steps=-1: use 1")) == (CODES[kind], "steps=-1: use 1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_told_apart_from_the_others(kind):
  assert [other for other in KINDS if issubclass(kind, other)] == [kind]
  assert issubclass(kind, GrpoError) and issubclass(kind, ValueError)


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_is_renamed_in_errors_of_every_kind(kind):
  with pytest.raises(GrpoError) as caught, errors.said_of("--path"):
    raise kind("init_from=x: no such folder; my.init_from=x stays")
  assert type(caught.value) is kind
  assert str(caught.value) == "--path=x: no such folder; my.init_from=x stays"


def test_an_error_is_said_again_as_another_kind():
  with pytest.raises(CheckpointError, match="^workdir=x: damaged$") as caught:
    with errors.as_kind(CheckpointError):
      raise DataError("workdir=x: damaged")
  assert isinstance(caught.value.__cause__, DataError)
  with pytest.raises(KeyError), errors.as_kind(CheckpointError):
    raise KeyError("x")


class Derived(TrainingError):
  """Another kind, as a user's file may have one."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_found_and_sent_between_hosts(kind):
  assert errors.kind_of(kind("text")) is kind
  assert pickle.loads(pickle.dumps(kind)) is kind


def test_the_kind_of_other_errors():
  assert errors.kind_of(Derived("text")) is TrainingError
  assert errors.kind_of(ValueError("text")) is None
