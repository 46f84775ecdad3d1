"""Parts of a program by their names."""

import pytest
from collectives_test import BY_HAND

from grpo_jax.plan import collectives, parts


@pytest.fixture(scope="module")
def by_hand():
  return collectives.collectives(BY_HAND, 8, [0] * 4 + [1] * 4)


def test_parts_are_named_by_functions_and_passes(by_hand):
  assert by_hand[0].functions == ("token_stats", "frozen_outputs", "<module>")
  assert parts.part(by_hand[0]) == "head, pass without a gradient"
  assert parts.part(by_hand[2]) == "without a name: the compiler's own"
  total = sum(each.total for each in by_hand)
  assert sum(parts.by_part(by_hand).values()) == total == sum(collectives.totals(by_hand).values())
  assert "3 x 256" in "\n".join(parts.details(by_hand))
