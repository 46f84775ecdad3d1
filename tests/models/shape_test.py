"""The shape of a decoder."""

import dataclasses
import json

import pytest
from small_models import SMALL

from grpo_jax.models.shape import DecoderConfig


@pytest.mark.parametrize("name", SMALL)
def test_a_shape_is_read_back_from_its_json(name):
  shape = SMALL[name]
  read = DecoderConfig.from_json(json.loads(json.dumps(dataclasses.asdict(shape))))
  assert read == shape and hash(read) == hash(shape) and read.family == shape.family


def test_an_unknown_field_is_refused():
  fields = dataclasses.asdict(SMALL["test_qwen3"])
  with pytest.raises(TypeError, match="colour"):
    DecoderConfig.from_json(fields | {"colour": 1})


def test_layers_repeat_the_attention():
  shape = SMALL["test_gemma2"]
  specs = [shape.layer_attention(i) for i in range(2 * len(shape.attention))]
  assert specs == [*shape.attention, *shape.attention] and len(set(specs)) > 1


def test_the_family_takes_no_part_in_comparisons():
  shape = SMALL["test_qwen3"]
  assert dataclasses.replace(shape, family="qwen3") == dataclasses.replace(shape, family="qwen2")
