"""Splits an answer into its amount and its unit, which gets a normal form such as `cm^2`."""

import re

# Commands that set their argument as text.
WRAPPER = (
  r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mathit|mathsf|mbox|operatorname)\s*\*?"
)

_AMOUNT = r"(?P<amount>-?[0-9][0-9.,/]*|-?[0-9]*\s?\\frac\{[^{}]*\}\{[^{}]*\}|.*[0-9A-Za-z)}])"
_TEXT_UNIT = re.compile(
  rf"{_AMOUNT}\s*{WRAPPER}\{{(?P<unit>[A-Za-z ./\u00b0]+(?:\^?[23])?)\}}(?P<power>\^[23])?\.?"
)
# A side of a rate a/b; x/y is algebra.
_RATE = r"(?:cm|mm|km|m|kg|g|mg|ft|in|mi|lbs?|l|ml|h|s|[a-z]{3,})"
_SPACED_RATE = rf"(?:{_RATE}|m?L)"  # without a space, g/L is algebra
_SHORT = (
  r"cm|mm|km|(?<=\s)(?:[mg]|ml|m?L(?!\^))|kg|mg|ft|in|mi|lbs?"
  r"|mph|kmh|kph|min|sec|hrs?|deg|sq [a-z]+|oz|(?<=\s)(?:[ap]\.?m|gal|qt|pt|yrs?)"
  rf"|{_RATE}/{_RATE}|(?<=\s){_SPACED_RATE}/{_SPACED_RATE}"
  rf"|(?:{_SPACED_RATE}|hr) per (?:{_SPACED_RATE}|hr)"
)
# Other words, except for functions.
_LONG = r"(?!(?:arc)?(?:sin|cos|tan|cot|csc|log|exp)[xyzabt]?\b)[A-Za-z]{4}[A-Za-z ]*"
_PLAIN_UNIT = re.compile(
  rf"(?P<amount>-?[0-9][0-9.,:/]*)(?:\s+(?P<long>{_LONG})|\s*(?P<unit>{_SHORT}))(?P<power>\^[23])?\.?"
)
# After a number these words say how much, not of what.
_NO_UNIT = re.compile(
  r"\b(?:or|and|not|more|less|least|most|than|to|half|dozens?|hundreds?|thousands?|[a-z]+illions?)\b"
)
_SCALE = rf"(?:\s*(?:[CF]|{WRAPPER}\{{\s*[CF]\s*\}}))?"  # after the sign of a temperature
_SIGN_UNIT = re.compile(rf"(?P<amount>.*[0-9A-Za-z)}}])\s*(?P<unit>\u00b0{_SCALE}|\\?%)")
_TEMPERATURE = re.compile(r"(?:\u00b0|degrees?) ?(?:[a-z]+\{)? ?(c|f)(?:elsius|ahrenheit)? ?\}?")
_UNITS = {
  **dict.fromkeys(("centimeter", "centimetre"), "cm"),
  **dict.fromkeys(("meter", "metre"), "m"),
  **dict.fromkeys(("kilometer", "kilometre"), "km"),
  **dict.fromkeys(("millimeter", "millimetre"), "mm"),
  **dict.fromkeys(("inche", "inch"), "in"),
  **dict.fromkeys(("foot", "feet"), "ft"),
  **dict.fromkeys(("hour", "hr"), "h"),
  **dict.fromkeys(("second", "sec"), "s"),
  **dict.fromkeys(("dollar", "usd"), "$"),
  **dict.fromkeys(("degree", "deg"), "\u00b0"),
  **dict.fromkeys(("percent", "percentage"), "%"),
  **{"minute": "min", "gram": "g", "kilogram": "kg", "mile": "mi", "yard": "yd"},
  **dict.fromkeys(("liter", "litre"), "l"),
  **dict.fromkeys(("milliliter", "millilitre"), "ml"),
  **{"pound": "lb", "cent": "\u00a2", "a.m": "am", "p.m": "pm"},
  **{"ounce": "oz", "gallon": "gal", "quart": "qt", "pint": "pt"},
  **{"week": "wk", "year": "yr"},
}
_RATES = {"mph": "mi/h", "kmh": "km/h", "kph": "km/h"}


def split(text: str) -> tuple[str, str]:
  """Returns the amount and the unit of an answer; the whole text and "" without a unit."""
  for pattern in (_SIGN_UNIT, _TEXT_UNIT, _PLAIN_UNIT):
    match = pattern.fullmatch(text)
    parts = match.groupdict() if match else {}
    word = parts.get("unit") or parts.get("long") or ""
    if match and not _NO_UNIT.search(word.lower()):
      return match["amount"].strip(), _normal_form(word + (parts.get("power") or ""))
  return text, ""


def agree(one: str, other: str) -> bool:
  """Returns whether two units may be the same: one is missing, or the scale of its degrees."""
  scale_missing = "\u00b0" in (one, other) and one[:1] == other[:1]
  return not one or not other or one == other or scale_missing


def _normal_form(text: str) -> str:
  """Returns a unit in its normal form: `cm^2` for `square centimeters`, `m/s` for a rate."""
  text = re.sub(r"\s+", " ", text.lower().replace("\\", "")).strip(" .")
  if temperature := _TEMPERATURE.fullmatch(text):
    return f"\u00b0{temperature[1]}"
  top, rate, bottom = _RATES.get(text, text).replace(" per ", "/").partition("/")
  if rate:
    return f"{_normal_form(top)}/{_normal_form(bottom)}"
  power = "^3" if text.startswith("cubic ") else ""
  power = "^2" if text.startswith(("square ", "sq ", "sq. ")) else power
  text = re.sub(r" squared$", "^2", re.sub(r"^(?:square|sq\.?|cubic) ", "", text))
  base, _, exponent = text.partition("^")
  base = re.sub(r"(?<=..)s$", "", base.strip())
  if base == "unit":  # of any kind
    return ""
  return _UNITS.get(base, base) + (power or (f"^{exponent}" if exponent else ""))
