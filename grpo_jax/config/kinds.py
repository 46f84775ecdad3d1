"""Kinds of settings: which values fit, and what to say of one that does not. ranges.py has the
table of them.

jax is not imported here: a value out of range is answered at once.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from ml_collections import ConfigDict, FrozenConfigDict, config_dict

from grpo_jax.errors import SettingError

LARGEST_WHOLE = 2**31 - 1  # what int32 holds
LARGEST = 3e38  # what float32 holds
LONGEST_NAME = 64  # characters of a name that becomes a part of a metric's


class Row(Protocol):
  """What a setting may be."""

  @property
  def expects(self) -> str:
    """What to say that would work."""
    ...

  def fits(self, value: Any) -> bool:
    """Returns whether the setting may have this value."""
    ...


class Whole(NamedTuple):
  """A whole number from `least` to `most`, or one of `also`."""

  least: int = 0
  most: int = LARGEST_WHOLE
  also: tuple[int, ...] = ()

  @property
  def expects(self) -> str:
    open_ended = f"of at least {self.least}, at most {LARGEST_WHOLE}"
    values = open_ended if self.most == LARGEST_WHOLE else f"from {self.least} to {self.most}"
    return " or ".join([f"a whole number {values}", *map(str, self.also)])

  def fits(self, value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and (self.least <= value <= self.most or value in self.also)


class Number(NamedTuple):
  """A finite number from `least` (above it where `above`) to `most` (below it where `below`), or
  one of `also`.
  """

  least: float = -LARGEST
  most: float = LARGEST
  above: bool = False
  below: bool = False
  also: tuple[float, ...] = ()

  @property
  def expects(self) -> str:
    least = (
      []
      if self.least == -LARGEST
      else [f"{'above' if self.above else 'of at least'} {self.least:g}"]
    )
    most = [] if self.most == LARGEST else [f"{'below' if self.below else 'at most'} {self.most:g}"]
    number = "a finite number" if most else "a finite number (in float32)"
    said = " ".join([number, ", ".join(least + most)]).strip()
    return " or ".join([said, *(f"{value:g}" for value in self.also)])

  def fits(self, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
      return False
    low = value > self.least if self.above else value >= self.least
    return value in self.also or low and (value < self.most if self.below else value <= self.most)


class Choice(NamedTuple):
  """One of some names."""

  names: tuple[str, ...]

  @property
  def expects(self) -> str:
    return ", ".join(self.names[:-1]) + f" or {self.names[-1]}"

  def fits(self, value: Any) -> bool:
    return isinstance(value, str) and value in self.names


class Form(NamedTuple):
  """Whatever `fits`."""

  expects: str
  fits: Callable[[Any], bool]


def is_text(value: Any) -> bool:
  """Returns whether a value is text that can be written as UTF-8 and passed on to C."""
  return (
    isinstance(value, str)
    and "\0" not in value
    and not any("\ud800" <= letter <= "\udfff" for letter in value)
  )


def is_path(value: Any) -> bool:
  """Returns whether a value is text that can be the name of a file or module: no part is longer
  than disks take.
  """
  return (
    is_text(value)
    and len(value.encode()) < 4096
    and all(len(part.encode()) < 256 for part in value.split("/"))
  )


def is_name(value: Any) -> bool:
  """Returns whether a value can be a part of the name of a metric, as in `reward/NAME`."""
  if not is_text(value) or not 0 < len(value) <= LONGEST_NAME:
    return False
  return value.isprintable() and "/" not in value and value == value.strip()


def many(row: Row) -> Form:
  """Returns the row of a tuple of values that each fit `row`."""
  return Form(
    f"a tuple, each {row.expects}",
    lambda x: isinstance(x, tuple | list) and all(row.fits(each) for each in x),
  )


TEXT = Form("text in UTF-8, without NUL", is_text)
NAME = Form(
  f"1 to {LONGEST_NAME} letters, digits or signs that can be printed, without / and without a "
  "blank at either end",
  is_name,
)
PATH = Form("the name of a file, folder or module, or '' where there may be none", is_path)
PLACE = Form(
  "a folder or file of a disk, gs://BUCKET/FOLDER, or '' where there may be none", is_path
)
SWITCH = Form("True or False", lambda value: isinstance(value, bool))

# -- checks


def check(config: Mapping[str, Any], table: Mapping[str, Row], section: str = "") -> None:
  """Refuses settings that are missing or out of range, and numbers and texts anywhere that nothing
  could use.

  Args:
    config: the config, or one of its sections. It may have settings without a row: they are your
      own.
    table: what each setting may be, by its name inside `config`.
    section: the name of `config` with a dot after it, for messages; "" for the whole.

  Raises:
    SettingError: the setting, its value, and what would work.
  """
  for name, row in table.items():
    value = _find(config, name, section)
    if not row.fits(value):
      raise refused(f"{section}{name}", value, row.expects)
  for name, value in _leaves(config, ""):
    if name not in table or isinstance(table[name], Form):
      check_value(f"{section}{name}", value)


def check_value(name: str, value: Any) -> None:
  """Refuses numbers that float32 or int32 do not hold, and text that cannot be written, also inside
  tuples.

  Raises:
    SettingError: the setting, its value, and what would work.
  """
  if isinstance(value, tuple | list):
    for each in value:
      check_value(name, each)
  elif isinstance(value, Mapping):
    for each in (*value, *value.values()):
      check_value(name, each)
  elif isinstance(value, str) and not is_text(value):
    raise refused(name, value, TEXT.expects)
  elif isinstance(value, float) and not abs(value) <= LARGEST:
    raise refused(name, value, "finite numbers, in size at most 3e+38")
  elif isinstance(value, int) and not abs(value) <= LARGEST_WHOLE:
    raise refused(name, value, f"whole numbers in size at most {LARGEST_WHOLE}")


def check_like(given: ConfigDict, defaults: ConfigDict, section: str) -> None:
  """Refuses other names than the defaults' and values of another kind, for sections that are not in
  the table.

  Args:
    given: the section.
    defaults: what the section's file has for it.
    section: its name with a dot after it, for messages.

  Raises:
    SettingError: the setting, its value, and its kind.
  """
  if not isinstance(given, Mapping | ConfigDict | FrozenConfigDict):
    raise refused(
      section.rstrip("."), given, f"a section, ConfigDict(), with {', '.join(defaults)} in it"
    )
  if set(given) != set(defaults):
    lacks, more = (
      ", ".join(sorted(names)) for names in (set(defaults) - set(given), set(given) - set(defaults))
    )
    wrong = f"lacks {lacks}" if lacks else f"has {more}, which its file does not read"
    raise SettingError(
      f"{section.rstrip('.')}: {wrong}; it has {', '.join(defaults) or 'no settings'}"
    )
  for name in defaults:
    default = defaults[name] if defaults[name] is not None else _placeholder(defaults, name)
    if given[name] is None and defaults[name] is None:
      continue
    if default is not None and not _alike(given[name], default):  # None says nothing of the kind
      raise refused(
        f"{section}{name}", given[name], _KINDS.get(type(default), f"a {type(default).__name__}")
      )
    check_value(f"{section}{name}", given[name])


def refused(name: str, value: Any, expects: str) -> SettingError:
  """Returns the error of a setting that has a value which does not fit."""
  return SettingError(f"{name}={shown(value)}: use {expects}")


def shown(value: Any) -> str:
  """Returns a value as a message shows it: its first characters in one line."""
  try:
    return f"{value!r:.80}".replace("\n", " ")
  except ValueError:  # Python writes no integer of thousands of digits
    return "an integer of thousands of digits"


_KINDS = {
  bool: "True or False",
  int: "a whole number",
  float: "a finite number",
  str: TEXT.expects,
  tuple: "a tuple, with a comma after a single entry",
}


def _alike(value: Any, default: Any) -> bool:
  """Returns whether a value is of the default's kind: a whole number is a number, too, and a list a
  tuple.
  """
  if isinstance(default, bool) or isinstance(value, bool):
    return isinstance(default, bool) and isinstance(value, bool)
  kinds: dict[type, Any] = {float: int | float, tuple: tuple | list, list: tuple | list}
  return isinstance(value, kinds.get(type(default), type(default)))


def _placeholder(defaults: ConfigDict, name: str) -> Any:
  """Returns some value of the kind of a default that has none yet."""
  kind = defaults.get_type(name)
  return kind() if kind in _KINDS else None


def _find(config: Any, name: str, section: str) -> Any:
  """Returns the setting of that dotted name.

  Raises:
    SettingError: there is none, or something else stands where its section should be.
  """
  value, seen = config, section
  for part in name.split("."):
    if not isinstance(value, ConfigDict | FrozenConfigDict):
      raise refused(seen.rstrip("."), value, f"a section, ConfigDict(), with the name {part} in it")
    seen += part
    if part not in value:
      raise SettingError(
        f"{seen}: missing; start from experiments.defaults.get_config(), which has every setting, "
        "and change its values"
      )
    value, seen = _value(value, part, seen), f"{seen}."
  return value


def _value(section: Any, name: str, seen: str) -> Any:
  """Returns a setting of a section.

  Raises:
    SettingError: it is a placeholder that must be filled.
  """
  try:
    return section[name]
  except config_dict.RequiredValueError:
    raise SettingError(f"{seen}: has no value; give it one, --config.{seen}=VALUE") from None


def _leaves(section: Any, prefix: str) -> Iterator[tuple[str, Any]]:
  """Yields the dotted name and the value of every setting that is no section."""
  for name in section:
    value = _value(section, name, f"{prefix}{name}")
    if isinstance(value, ConfigDict | FrozenConfigDict):
      yield from _leaves(value, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", value
