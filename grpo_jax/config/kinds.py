"""Defines which values a setting may have, and refuses the others with one line.

settings.py has the table of settings. jax is not imported here, so that a bad value is refused at
once.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeGuard

from ml_collections import ConfigDict, FrozenConfigDict, config_dict

from grpo_jax.errors import SettingError

LARGEST_WHOLE = 2**31 - 1  # of int32
LARGEST = 3e38  # of float32
LONGEST_NAME = 64  # characters of a name that becomes a part of a metric's


class Kind(Protocol):
  """Defines the values that a setting may have."""

  @property
  def expects(self) -> str:
    """Says which values would work, for messages."""
    ...

  @property
  def brief(self) -> str:
    """Says the same in a few words, for tables."""
    ...

  def fits(self, value: object) -> bool:
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

  @property
  def brief(self) -> str:
    values = f">= {self.least}" if self.most == LARGEST_WHOLE else f"{self.least} to {self.most}"
    return " or ".join([f"whole {values}", *map(str, self.also)])

  def fits(self, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
      return False
    return self.least <= value <= self.most or value in self.also


class Number(NamedTuple):
  """Accepts finite numbers from `least` to `most` (excluded by `above`, `below`), and `also`."""

  least: float = -LARGEST
  most: float = LARGEST
  above: bool = False
  below: bool = False
  also: tuple[float, ...] = ()

  @property
  def expects(self) -> str:
    least = "" if self.least == -LARGEST else f"{'above' if self.above else 'of at least'} "
    most = "" if self.most == LARGEST else f"{'below' if self.below else 'at most'} "
    limits = [least and f"{least}{self.least:g}", most and f"{most}{self.most:g}"]
    number = "a finite number" if most else "a finite number (in float32)"
    text = f"{number} {', '.join(filter(None, limits))}".strip()
    return " or ".join([text, *(f"{value:g}" for value in self.also)])

  @property
  def brief(self) -> str:
    least = "" if self.least == -LARGEST else f"{'>' if self.above else '>='} {self.least:g}"
    most = "" if self.most == LARGEST else f"{'<' if self.below else '<='} {self.most:g}"
    text = f"number {', '.join(filter(None, [least, most]))}".strip()
    return " or ".join([text, *(f"{value:g}" for value in self.also)])

  def fits(self, value: object) -> bool:
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

  @property
  def brief(self) -> str:
    return ", ".join(self.names)

  def fits(self, value: object) -> bool:
    return isinstance(value, str) and value in self.names


class Form(NamedTuple):
  """Any value that `fits`."""

  expects: str
  fits: Callable[[Any], bool]
  brief: str = ""


def is_text(value: object) -> TypeGuard[str]:
  """Returns whether a value is text that can be written as UTF-8 and passed on to C."""
  return (
    isinstance(value, str)
    and "\0" not in value
    and not any("\ud800" <= letter <= "\udfff" for letter in value)
  )


def is_path(value: object) -> TypeGuard[str]:
  """Returns whether a value is text that disks take as the name of a file, or of a module."""
  return (
    is_text(value)
    and len(value.encode()) < 4096
    and all(len(part.encode()) < 256 for part in value.split("/"))
  )


def is_name(value: object) -> TypeGuard[str]:
  """Returns whether a value can be a part of the name of a metric, as in `reward/NAME`."""
  if not is_text(value) or not 0 < len(value) <= LONGEST_NAME:
    return False
  return value.isprintable() and "/" not in value and value == value.strip()


def many(kind: Kind) -> Form:
  """Returns the kind of a tuple whose values all fit `kind`."""
  return Form(
    f"a tuple, each {kind.expects}",
    lambda value: isinstance(value, tuple | list) and all(map(kind.fits, value)),
    f"tuple of: {kind.brief}",
  )


TEXT = Form("text in UTF-8, without NUL", is_text, "text")
NAME = Form(
  f"1 to {LONGEST_NAME} letters, digits or signs that can be printed, without / and without a "
  "blank at either end",
  is_name,
  "name",
)
PATH = Form("the name of a file, folder or module, or '' where there may be none", is_path, "name")
PLACE = Form(
  "a folder or file of a disk, gs://BUCKET/FOLDER, or '' where there may be none", is_path, "path"
)
SWITCH = Form("True or False", lambda value: isinstance(value, bool), "True, False")


def check(config: Mapping[str, object], table: Mapping[str, Kind], section: str = "") -> None:
  """Refuses settings that are missing or out of range, and values that nothing could use.

  Args:
    config: the config, or one of its sections. Settings that the table lacks are a user's own.
    table: the kind of each setting, by its dotted name inside `config`.
    section: the name of `config` with a dot after it, for messages; "" for the whole.
  """
  for name, kind in table.items():
    value = _lookup(config, name, section)
    if not kind.fits(value):
      raise refused(f"{section}{name}", value, kind.expects)
  for name, value in _leaves(config, ""):
    if name not in table or isinstance(table[name], Form):
      check_value(f"{section}{name}", value)


def check_value(name: str, value: object) -> None:
  """Refuses numbers that float32 or int32 cannot hold, and text that cannot be written."""
  if isinstance(value, tuple | list):
    for item in value:
      check_value(name, item)
  elif isinstance(value, Mapping):
    for item in (*value, *value.values()):
      check_value(name, item)
  elif isinstance(value, str) and not is_text(value):
    raise refused(name, value, TEXT.expects)
  elif isinstance(value, float) and not abs(value) <= LARGEST:
    raise refused(name, value, "finite numbers, in size at most 3e+38")
  elif isinstance(value, int) and not abs(value) <= LARGEST_WHOLE:
    raise refused(name, value, f"whole numbers in size at most {LARGEST_WHOLE}")


def check_like(values: object, defaults: ConfigDict, section: str) -> None:
  """Refuses a section whose names or types differ from its defaults.

  It is for the sections of objectives and data sets, which are not in the table of settings.

  Args:
    values: the section.
    defaults: the section as its own file has it.
    section: its name with a dot after it, for messages.
  """
  title = section.rstrip(".")
  if not isinstance(values, Mapping | ConfigDict | FrozenConfigDict):
    raise refused(title, values, f"a section, ConfigDict(), with {', '.join(defaults)} in it")
  if missing := ", ".join(sorted(set(defaults) - set(values))):
    wrong = f"lacks {missing}"
  elif extra := ", ".join(sorted(set(values) - set(defaults))):
    wrong = f"has {extra}, which its file does not read"
  else:
    wrong = ""
  if wrong:
    raise SettingError(f"{title}: {wrong}; it has {', '.join(defaults) or 'no settings'}")
  for name in defaults:
    default = defaults[name] if defaults[name] is not None else _placeholder(defaults, name)
    if values[name] is None and defaults[name] is None:
      continue
    # a default of None says nothing about the type
    if default is not None and not _alike(values[name], default):
      expects = _TYPES.get(type(default), f"a {type(default).__name__}")
      raise refused(f"{section}{name}", values[name], expects)
    check_value(f"{section}{name}", values[name])


def refused(name: str, value: object, expects: str) -> SettingError:
  """Returns the error of a setting whose value does not fit."""
  return SettingError(f"{name}={shown(value)}: use {expects}")


def shown(value: object) -> str:
  """Returns a value as a message shows it: its first characters in one line."""
  try:
    return f"{value!r:.80}".replace("\n", " ")
  except ValueError:  # Python writes no integer of thousands of digits
    return "an integer of thousands of digits"


_TYPES = {
  bool: "True or False",
  int: "a whole number",
  float: "a finite number",
  str: TEXT.expects,
  tuple: "a tuple, with a comma after a single entry",
}


def _alike(value: object, default: object) -> bool:
  """Returns whether a value has the default's type; integers pass as floats, lists as tuples."""
  if isinstance(default, bool) or isinstance(value, bool):
    return isinstance(default, bool) and isinstance(value, bool)
  if isinstance(default, float):
    return isinstance(value, int | float)
  return isinstance(value, tuple | list if isinstance(default, tuple | list) else type(default))


def _placeholder(defaults: ConfigDict, name: str) -> object:
  """Returns some value of the type of a default that has no value yet."""
  kind = defaults.get_type(name)
  return kind() if kind in _TYPES else None


def _lookup(config: object, name: str, section: str) -> object:
  """Returns the setting of that dotted name, or raises a SettingError if there is none."""
  value, path = config, section
  for part in name.split("."):
    if not isinstance(value, ConfigDict | FrozenConfigDict):
      raise refused(path.rstrip("."), value, f"a section, ConfigDict(), with the name {part} in it")
    path += part
    if part not in value:
      raise SettingError(
        f"{path}: missing; start from grpo_jax.setup.defaults.get_config(), which has every "
        "setting, and change its values"
      )
    value, path = _read(value, part, path), f"{path}."
  return value


def _read(section: Mapping[str, object], name: str, path: str) -> object:
  """Returns a setting of a section, or raises a SettingError if it still needs a value."""
  try:
    return section[name]
  except config_dict.RequiredValueError:
    raise SettingError(f"{path}: has no value; give it one, --config.{path}=VALUE") from None


def _leaves(section: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
  """Yields the dotted name and the value of every setting that is not a section."""
  for name in section:
    value = _read(section, name, f"{prefix}{name}")
    if isinstance(value, ConfigDict | FrozenConfigDict):
      yield from _leaves(value, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", value


def tuples(value: Any) -> Any:
  """Returns a value with tuples for lists, as a config has them and JSON has not."""
  return tuple(map(tuples, value)) if isinstance(value, list | tuple) else value
