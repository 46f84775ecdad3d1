"""What is known of a program."""

import dataclasses
import json
import sys

import pytest
from passed_on_test import stub
from plans import made

from grpo_jax.plan import facts
from grpo_jax.plan.chips import GIB
from grpo_jax.plan.collectives import Collective


def test_what_the_compiler_says_of_too_large_a_program():
  said = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 16.60G of 15.75G hbm. "
    "Exceeded by 869.42M."
  )
  assert facts._needed(said) == int(16.6 * GIB)
  assert (
    facts._needed("the total memory required for HLO temporaries (800.00G) exceeds") == 800 * GIB
  )


def test_facts_are_read_back_as_they_were_written(tmp_path):
  known = Collective("all-gather", 10, 4, False, 3, ("while",), "op", ("f", "g"))
  before = dataclasses.replace(made("learn"), collectives=(known,))
  (tmp_path / "x.json").write_text(json.dumps(dataclasses.asdict(before)))
  assert facts._read(tmp_path / "x.json") == before


@pytest.mark.parametrize("name", ["LIBTPU_INIT_ARGS", "XLA_FLAGS"])
def test_facts_of_a_compiler_with_other_options_are_others(name, monkeypatch):
  monkeypatch.setitem(sys.modules, "libtpu", stub(__version__="1"))
  program = stub(as_text=lambda debug_info: "text")
  monkeypatch.delenv(name, raising=False)
  before = facts._key(program, "v5e:2x2")
  assert facts._key(program, "v5e:2x2") == before
  monkeypatch.setenv(name, "--xla_tpu_scoped_vmem_limit_kib=65536")
  assert facts._key(program, "v5e:2x2") != before
