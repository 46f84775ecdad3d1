"""Sizes that no memory holds are refused from their product, before weights or data are read."""

import time

import bad_settings_test
import jax
import jax.numpy as jnp
import pytest

from experiments import arithmetic, arithmetic_iterative, arithmetic_prm, arithmetic_rm, gsm8k
from grpo_jax.errors import SettingError
from grpo_jax.setup import room
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve

HUGE = 2 * 10**9
ALL = "all hosts and devices have 24.0 GB of memory; use a smaller "
ONE = "this host has 24.0 GB of memory; use a smaller "


@pytest.fixture(autouse=True)
def laptop(monkeypatch):
  monkeypatch.setattr(room, "host_bytes", lambda: 24 * 10**9)
  monkeypatch.setattr(room, "device_bytes", lambda: 0)


@pytest.mark.parametrize(
  "name, value, objective, says",
  [
    ("data.prompts", HUGE, "grpo", f"x sampler.group=8 x sampler.max_length=56: tokens and log-probs of a batch take 10.8 TB, 12 bytes each, and {ALL}data.prompts"),  # noqa: E501
    ("sampler.group", 10**7, "grpo", f"data.prompts=32 x sampler.group=10000000 x sampler.max_length=56: tokens and log-probs of a batch take 215.0 GB, 12 bytes each, and {ALL}sampler.group"),  # noqa: E501
    ("sampler.max_length", HUGE, "grpo", f"take 6.1 TB, 12 bytes each, and {ALL}sampler.max_length"),
    ("sampler.max_length", HUGE, "sft", "data.prompts=32 x sampler.max_length=2000000000: tokens"),
    ("data.max_prompt_length", HUGE, "grpo", f"prompts of a batch take 256.0 GB, 4 bytes each, and {ONE}data.max_"),
    ("eval.batch", HUGE, "grpo", f"prompts of an evaluation take 512.0 GB, 4 bytes each, and {ONE}eval.batch"),
    ("eval.samples", HUGE, "grpo", "eval.batch=256 x eval.samples=2000000000 x sampler.max_length=56: tokens and"),
    ("offline.prompts", HUGE, "rft", ""),
    ("offline.prompts", HUGE, "dpo", f"the samples that are kept take 1.9 TB, 17 bytes each, and {ONE}offline.prompts"),
    ("data.prompts", HUGE, "dpo", "data.prompts=2000000000 x sampler.max_length=56: tokens and log-probs"),
  ],
)  # fmt: skip
def test_a_size_that_cannot_be(name, value, objective, says):
  config = bad_settings_test.changed(name, value, objective)
  if not says:
    resolve(config)  # an online run draws no samples once and for all
    return
  start = time.process_time()
  with pytest.raises(SettingError) as error:
    resolve(config)
  assert f"{name}={value}" in str(error.value) and says in str(error.value), error.value
  assert time.process_time() - start < 2


@pytest.mark.parametrize(
  "module, name", [(arithmetic_iterative, "iterative.pairs"), (arithmetic_rm, "offline.held_out")]
)
def test_a_size_of_another_loop(module, name):
  config = module.get_config("reward_model=x" if module is arithmetic_iterative else "")
  config.update_from_flattened_dict({name: HUGE})
  with pytest.raises(
    SettingError, match=f"{name}=2000000000 x sampler.max_length=.*use a smaller {name}"
  ):
    resolve(config)


def test_the_experiments_fit_a_laptop():
  for module in (arithmetic, arithmetic_prm, arithmetic_rm, gsm8k):
    room.check_sizes(make(module.get_config()))


def test_a_model_that_no_memory_holds():
  room.check_state({"w": jax.ShapeDtypeStruct((6 * 10**9,), jnp.float32)})
  with pytest.raises(
    SettingError, match="moments take 24.4 GB, and all hosts and devices have 24.0 GB of memory"
  ):
    room.check_state({"w": jax.ShapeDtypeStruct((61 * 10**8,), jnp.float32), "b": jnp.zeros(3)})


def test_the_memory_of_this_machine(monkeypatch):
  monkeypatch.undo()
  assert 10**9 < room.host_bytes() < 10**15 and room.device_bytes() == 0
  assert [room.shown(n) for n in (0, 10**6, 24 * 10**9, 6 * 10**15)] == [
    "0.0 MB",
    "1.0 MB",
    "24.0 GB",
    "6,000.0 TB",
  ]
