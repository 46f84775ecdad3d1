"""Named sizes."""

import pytest
from hf_test import parameters

from experiments import gsm8k
from grpo_jax.errors import SettingError
from grpo_jax.models import variants
from grpo_jax.models.variants import VARIANTS, variant


def test_parameter_counts():
  """Those that the published models report."""
  counts = {
    "qwen3_0.6b": 596_049_920,
    "qwen3_1.7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen2.5_0.5b": 494_032_768,
    "qwen2.5_1.5b": 1_543_714_304,
    "qwen2.5_7b": 7_615_616_512,
    "llama3.2_1b": 1_235_814_400,
    "llama3.2_3b": 3_212_749_824,
    "mistral_7b": 7_248_023_552,
    "gemma2_2b": 2_614_341_888,
    "gemma3_1b": 999_885_952,
    "olmo2_1b": 1_484_916_736,
    "smollm2_135m": 134_515_008,
    "smollm3_3b": 3_075_098_624,
    "phi3_mini": 3_821_079_552,
  }
  assert {name: parameters(VARIANTS[name]) for name in counts} == counts
  with pytest.raises(SettingError, match="model.variant='gpt'"):
    variant("gpt")
  assert variant("tiny", vocab=7).vocab == 7


def test_every_name_on_the_hub_has_a_row_and_every_model_of_gsm8k_a_name():
  assert set(variants.HUB.values()) <= set(variants.VARIANTS)
  assert all(hub in variants.HUB for hub, _ in gsm8k.MODELS.values())
