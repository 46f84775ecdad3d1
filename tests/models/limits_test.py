"""Bounds of a model's sizes."""

import dataclasses
import re

import pytest
from small_models import SMALL

from grpo_jax.errors import DataError
from grpo_jax.models import limits, variants
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.shape import DecoderConfig
from grpo_jax.sandbox import model_folder


def test_every_field_of_a_shape_has_a_bound():
  assert set(limits.DECODER) == {field.name for field in dataclasses.fields(DecoderConfig)}
  assert set(limits.ATTENTION) == {field.name for field in dataclasses.fields(AttentionSpec)}


@pytest.mark.parametrize("name", sorted(variants.VARIANTS | SMALL))
def test_real_sizes_are_within_the_bounds(name):
  shape = (variants.VARIANTS | SMALL)[name]
  fields = dataclasses.asdict(shape)
  scaling = fields["rope_scaling"]
  fields |= {"attention": list(fields["attention"]), "rope_scaling": scaling and list(scaling)}
  model_folder.check("here", "decoder.json", fields, limits.DECODER)
  for spec in fields["attention"]:
    model_folder.check("here", "decoder.json", spec, limits.ATTENTION)
  limits.check_shape("here", "decoder.json", shape.heads, shape.kv_heads, shape.head_dim, scaling)


@pytest.mark.parametrize(
  ("heads", "kv_heads", "head_dim", "scaling", "said"),
  [
    (4, 2, 7, None, "head_dim=7; an even number"),
    (4, 3, 8, None, "4 heads do not divide over 3 key/value heads"),
    (4, 2, 8, (8.0, 4.0, 4.0, 8192), "a rope scaling of [8.0, 4.0, 4.0, 8192]"),
    (4, 2, 8, (8.0, 1.0, 4.0), "a rope scaling of [8.0, 1.0, 4.0]"),
  ],
)
def test_sizes_that_do_not_fit_one_another(heads, kv_heads, head_dim, scaling, said):
  with pytest.raises(DataError, match=f"^init_from=x: config.json.*{re.escape(said)}"):
    limits.check_shape("init_from=x", "config.json", heads, kv_heads, head_dim, scaling)
