"""The table of Hugging Face families."""

import dataclasses

import pytest

from grpo_jax.models.hf.families import FAMILIES
from grpo_jax.models.shape import DecoderConfig

FIELDS = {field.name: field for field in dataclasses.fields(DecoderConfig)}


@pytest.mark.parametrize("name", FAMILIES)
def test_flags_are_fields_that_differ_from_their_defaults(name):
  flags = FAMILIES[name].flags
  assert set(flags) <= set(FIELDS)
  assert all(value != FIELDS[flag].default for flag, value in flags.items())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_an_architecture_of_a_language_model(name):
  family = FAMILIES[name]
  assert family.architecture.endswith("ForCausalLM")
  assert family.scorer.endswith("ForSequenceClassification") or not family.scorer
  assert "default" in family.scalings and (family.windows is None or family.windows >= 1)


def test_no_two_families_have_one_architecture():
  architectures = [family.architecture for family in FAMILIES.values()]
  assert len(set(architectures)) == len(architectures)
