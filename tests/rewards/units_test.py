"""Units of answers."""

import pytest

from grpo_jax.rewards import units


@pytest.mark.parametrize(
  "text, amount, unit",
  [
    ("5", "5", ""),
    ("5 cm", "5", "cm"),
    ("40\u00b0\\text{F}", "40", "\u00b0f"),
    ("40\u00b0 F", "40", "\u00b0f"),
    ("40\\text{ degrees Fahrenheit}", "40", "\u00b0f"),
    ("25\u00b0\\mathrm{ C }", "25", "\u00b0c"),
    ("25 degrees Celsius", "25", "\u00b0c"),
    ("5pm", "5pm", ""),
    ("5\\text{ centimeters}", "5", "cm"),
    ("5\\text{ square feet}", "5", "ft^2"),
    ("50\\%", "50", "%"),
    ("90\u00b0", "90", "\u00b0"),
    ("12 apples", "12", "apple"),
    ("5\\text{ or more}", "5\\text{ or more}", ""),
    ("4 sinx", "4 sinx", ""),
    ("5xy", "5xy", ""),
    ("5L", "5L", ""),
    ("5 mL^2", "5 mL^2", ""),
    ("3g/L", "3g/L", ""),
    ("5 M", "5 M", ""),
    ("5 x per y", "5 x per y", ""),
    ("5x per s", "5x per s", ""),
  ],
)
def test_an_amount_is_split_from_its_unit(text, amount, unit):
  assert units.split(text) == (amount, unit)


@pytest.mark.parametrize(
  "texts",
  [
    (
      "10\\text{ mph}",
      "10\\text{ miles per hour}",
      "10\\text{ miles/hour}",
      "10 mph",
      "10 miles/hour",
    ),
    ("10\\text{ mi/h}", "10 miles per hour", "10\\text{ mi/hr}"),
    ("5\\text{ m/s}", "5\\text{ meters per second}", "5 meters/second", "5 m/s"),
    ("3\\text{ km/s}", "3 km per s", "3 kilometers per s", "3 km per second"),
    ("5 m/s", "5 m per s", "5 m per second", "5m per s", "5\\text{ m per s}"),
    ("6:00 p.m.", "6:00 p.m", "6:00\\text{ p.m.}", "6:00 pm"),
    ("16 oz", "16\\text{ ounces}", "16\\text{ oz.}"),
    ("3\\text{ years}", "3\\text{ yrs}"),
    ("5 L/min", "5 L per min", "5 liters per minute"),
    ("5 m/s^2", "5 m per s^2"),
    ("5 mph", "5 mi per hr"),
    ("5\\text{ m/s}^2", "5\\text{ m/s^2}", "5\\text{ meters per second squared}"),
    ("5\\text{ km/h}", "5\\text{ kmh}", "5 kph", "5 kilometers per hour"),
    ("5\\text{ ml}", "5\\text{ mL}", "5\\text{ milliliters}", "5 millilitres", "5 ml", "5 mL"),
    ("5\\text{ L}", "5 L", "5 liters"),
    ("5\\text{ mL/s}", "5 mL/s", "5 ml/s"),
    ("5\\text{ g/L}", "5 g/L", "5 g/l"),
    ("5\\text{ dollars per hour}", "5\\text{ dollars/hour}"),
  ],
)
def test_units_have_one_form(texts):
  assert len({units.split(text) for text in texts}) == 1


def test_rates_differ_by_either_side():
  rates = [
    "5\\text{ m/s}",
    "5\\text{ m/h}",
    "5\\text{ km/h}",
    "5\\text{ mph}",
    "5 km per min",
    "5\\text{ m}",
    "5 ml",
  ]
  assert len({units.split(text) for text in rates}) == len(rates)
