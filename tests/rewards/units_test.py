"""Units of answers."""

import pytest

from grpo_jax.rewards import units


@pytest.mark.parametrize(
  "text, amount, unit",
  [
    ("5", "5", ""),
    ("5 cm", "5", "cm"),
    ("5\\text{ centimeters}", "5", "cm"),
    ("5\\text{ square feet}", "5", "ft^2"),
    ("50\\%", "50", "%"),
    ("90\u00b0", "90", "\u00b0"),
    ("12 apples", "12", "apple"),
    ("5\\text{ or more}", "5\\text{ or more}", ""),
    ("4 sinx", "4 sinx", ""),
    ("5xy", "5xy", ""),
  ],
)
def test_an_amount_is_split_from_its_unit(text, amount, unit):
  assert units.split(text) == (amount, unit)
