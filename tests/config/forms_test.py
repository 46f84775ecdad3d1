"""The forms of settings that are tuples and tables."""

from grpo_jax.config import forms
from grpo_jax.models.lora import MODULES


def test_the_settings_know_all_modules():
  assert forms.LORA_MODULES == MODULES
