"""Each rule that ends the passes, on both sides of its limit; learn_test.py has them at work."""

import jax.numpy as jnp
import pytest

from grpo_jax.config import sections
from grpo_jax.learning.stop_rules import RAN_ALL, STOP_RULES

MEAN = {"surrogate": 0.5, "at_bound": 0.25, "past_bound": 0.125, "old_kl": 0.01}


@pytest.mark.parametrize(
  "rule, limit, best, ends",
  [
    ("stop_surrogate", 0.25, 0.5, True),
    ("stop_surrogate", 0.25, 0.25, False),  # improved by the limit
    ("stop_surrogate", 0.25, -jnp.inf, False),  # the first pass
    ("stop_reached", 0.375, 0.0, True),
    ("stop_reached", 0.4, 0.0, False),
    ("stop_kl", 0.005, 0.0, True),
    ("stop_kl", 0.01, 0.0, False),
  ],
)
def test_a_rule_on_both_sides_of_its_limit(rule, limit, best, ends):
  mean = {name: jnp.float32(MEAN[name]) for name in STOP_RULES[rule].reads}
  assert bool(STOP_RULES[rule].ends(mean, limit, jnp.float32(best))) == ends


def test_each_rule_has_a_setting_and_a_code_of_its_own():
  assert {f"learner.{name}" for name in STOP_RULES} <= set(sections.SETTINGS)
  codes = [rule.code for rule in STOP_RULES.values()]
  assert len({RAN_ALL, *codes}) == len(codes) + 1
