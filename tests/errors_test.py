"""The kinds of errors, and what each ends a command with."""

import pickle
import re

import jax
import jax.numpy as jnp
import pytest

import grpo_jax
from experiments import arguments
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
    raise kind("init_from=x: no such folder; my.init_from=x stays; then --config.init_from=DIR")
  assert type(caught.value) is kind
  assert str(caught.value) == "--path=x: no such folder; my.init_from=x stays; then give DIR"


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


GPU = (
  "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 13.35GiB with allocator GPU_0_bfc on "
  "device 0. [tf-allocator-allocation-error=''] [executable_name='jit_sample']"
)
TPU = (
  "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.07G of 15.48G hbm. Exceeded hbm "
  "capacity by 4.59G.\n\nTotal hbm usage >= 20.59G:"
)


@pytest.mark.parametrize(
  "text, said, unsaid",
  [
    (
      GPU,
      r"for the program sample \(Out of memory .* 13.35GiB .* device 0\).*eval\.batch",
      "remat",
    ),
    (
      GPU.replace("jit_sample", "jit_learn"),
      r"for the program learn .*learner\.microbatch",
      "slots",
    ),
    (TPU, r"memory \(Ran out .* capacity by 4.59G\).*sampler\.slots.*learner\.chunk", "Total"),
  ],
)
def test_a_device_without_memory_is_one_line_that_names_what_needs_less(text, said, unsaid, capsys):
  with pytest.raises(SystemExit) as end, arguments.one_line_errors():
    raise jax.errors.JaxRuntimeError(text)
  assert exit_code_and_text(jax.errors.JaxRuntimeError(text)) == (
    2,
    errors.out_of_memory(end.value.__context__),
  )
  line = capsys.readouterr().err
  assert end.value.code == 2 and line.count("\n") == 1 and len(line) < 500
  assert re.search(said, line) and unsaid not in line


def test_jax_names_the_error_of_a_device_without_memory_as_expected(capsys):
  with pytest.raises(SystemExit), arguments.one_line_errors():
    jnp.zeros(1 << 50)
  assert "Out of memory allocating 4503599627370496 bytes" in capsys.readouterr().err
  with pytest.raises(jax.errors.JaxRuntimeError), arguments.one_line_errors():
    raise jax.errors.JaxRuntimeError("INTERNAL: a bug keeps its traceback")
