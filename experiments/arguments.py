"""Parses command lines and the arguments of config files, and reports mistakes in one line.

jax is not imported here, so that a mistake is reported at once.
"""

import ast
import contextlib
import difflib
import operator
import os
import re
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

from experiments import config_files
from grpo_jax.config import comments, sections, table
from grpo_jax.errors import GrpoError, SettingError, out_of_memory
from grpo_jax.io import storage

LONGEST = 2000  # characters of a message: a value may be as long as a command line
EXPERIMENT = "Config file of an experiment and its arguments: FILE[:name=value,...]"
# flags of commands that name a folder or file
FOLDERS = ("workdir", "path", "out", "like", "file", "peer", "cache")
_HELP = re.compile(r"--?(h|help|helpshort|helpfull)|-\?")
# A setting given as a flag: --config.learner.lr=1e-6, --noconfig.data.shuffle,
# --config.data.mixture[0]=...
_OVERRIDE = re.compile(r"--?(no)?config\.(?P<name>[^=\[]+)(\[[^=]*)?(=(?P<value>.*))?", re.DOTALL)
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


def parse_arg(arg: str, **defaults: str | int | float | bool | tuple) -> ConfigDict:
  """Parses what follows the colon in `--config=FILE:name=value,name=value`.

      args = parse_arg(arg, model=("tiny", "qwen3_0.6b"), layers=8, chat=False)

  Args:
    arg: what follows the colon. `name` alone means `name=True` for a bool.
    **defaults: every argument with its default, which also determines its type. A tuple is a
      choice, and its first item is the default.
  """
  args = ConfigDict(
    {
      name: default[0] if isinstance(default, tuple) else default
      for name, default in defaults.items()
    }
  )
  seen: set[str] = set()
  for item in filter(None, (part.strip() for part in arg.split(","))):
    name, equals, text = item.partition("=")
    if name not in defaults:
      known = ", ".join(
        f"{n}={'|'.join(map(str, d)) if isinstance(d, tuple) else d}" for n, d in defaults.items()
      )
      raise SettingError(
        f"{name}: this config has no such argument; "
        f"{f'it has: {known}' if known else 'it has none'}; a setting is --config.NAME=VALUE"
      )
    if name in seen:
      raise SettingError(f"{item}: {name} is given twice; give it once")
    seen.add(name)
    default, kind = defaults[name], type(args[name])
    if not equals and kind is not bool:
      raise SettingError(
        f"{name}: a value is missing; write {name}=VALUE, as in {name}={args[name]}"
      )
    try:
      value = _BOOLS[text.lower() if equals else "true"] if kind is bool else kind(text)
    except (KeyError, ValueError):
      raise SettingError(
        f"{name}={text}: expected {_KINDS[kind]}, as in {name}={args[name]}"
      ) from None
    if isinstance(default, tuple) and value not in default:
      raise SettingError(f"{name}={text}: choose from {', '.join(map(str, default))}")
    args[name] = value
  return args.lock()


def define_config(help: str, **options: bool) -> None:
  """Defines --config, which names a config file; `help` describes the file."""
  try:
    config_flags.DEFINE_config_file("config", None, help, **options)
  except flags.Error as error:  # it reads --flagfile at once
    fail(error)
  # so that --help, which shows the flags of the command's own file, has it too
  flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS["config"])


def define_experiment() -> None:
  """Defines --config for the file of an experiment, whose settings `--help` then lists."""
  define_config(EXPERIMENT, lock_config=True)


def parse_flags(argv: list[str], operands: int = 0) -> list[str]:
  """Parses the flags, or ends the program with one line and code 2 if anything is wrong.

  At most `operands` arguments may stand without a flag; they are what follows the program's name in
  the result.

  It is the `flags_parser` of absl's `app.run`. The config file is loaded once more than absl would
  load it, to tell mistakes in it and in names of settings apart from others. It must be given,
  unless the command defines no --config.
  """
  if wanted := [arg for arg in argv[1:] if _HELP.fullmatch(arg)]:
    _show_help(argv[0], wanted[0])
  config = ConfigDict()
  with one_line_errors():
    if "config" in flags.FLAGS:
      path = value_of("config", argv)
      if not path:
        runs = " ".join(arg for arg in argv[1:] if os.path.isdir(arg))
        more = f"; python -m experiments.report {runs} shows what is there" if runs else ""
        fail(f"--config is missing, as in --config=experiments/arithmetic.py{more}")
      config = config_files.load(path)
    rest = _parse(argv, config)
    for name in set(FOLDERS) & set(flags.FLAGS):
      flags.FLAGS[name].value = _expanded(name, flags.FLAGS[name].value)
  if len(rest) > 1 + operands:
    stray = rest[1 + operands]
    folder = next((name for name in ("path", "workdir") if name in flags.FLAGS), "")
    is_folder = folder and os.path.isdir(stray)
    what = f"write --{folder}={stray}" if is_folder else "a setting is written --config.NAME=VALUE"
    fail(f"{stray}: not understood; {what}")
  return rest


def _expanded(flag: str, value: str | list[str] | None) -> str | list[str] | None:
  """Returns the values of a flag with `~` replaced, which shells leave alone behind a `=`."""
  if isinstance(value, list):
    return [storage.expanded(f"--{flag}", path) for path in value]
  return value and storage.expanded(f"--{flag}", value)


def _show_help(program: str, flag: str) -> NoReturn:
  """Prints a command's help, whatever its other arguments are, and ends the program with code 0."""
  try:
    with contextlib.suppress(SystemExit):  # absl ends with code 1
      flags.FLAGS([program, "--help" if flag == "-h" else flag])
    if "config" in flags.FLAGS and flags.FLAGS["config"].help == EXPERIMENT:
      print(f"\n{table.help_text(sections.SECTIONS)}")
    sys.stdout.flush()
  except BrokenPipeError:  # `--help | head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  sys.exit(0)


def _parse(argv: list[str], config: ConfigDict) -> list[str]:
  """Parses the flags, whose settings are those of `config`, and returns the other arguments."""
  names, argv = names_of(config), [_one_line_texts(arg, config) for arg in argv]
  overrides = [match for match in map(_OVERRIDE.fullmatch, argv[1:]) if match]
  for arg in argv[1:]:
    if re.fullmatch(r"--?(no)?config\.(=.*)?", arg, re.DOTALL):
      fail(f"{arg}: the name of a setting is missing, as in --config.steps=3")
  for match in overrides:
    if match["name"] not in names:
      fail(_unknown_setting(match["name"], config, names))
  first = next((arg for arg in argv[1:] if re.match(r"--?(no)?config\b", arg)), "")
  if _OVERRIDE.fullmatch(first):
    fail(f"{first}: stands before --config; write --config=FILE first")
  try:
    return flags.FLAGS(argv)
  except StopIteration:
    fail(f"{argv[-1]}: a value is missing")
  except flags.IllegalFlagValueError as error:
    fail(_wrong_value(error, config, overrides))
  except flags.UnrecognizedFlagError as error:
    fail(_unknown_flag(error, argv, names))
  except SystemExit as error:  # from the config file, which absl loads here
    fail(
      f"--config={value_of('config', argv)}: it ends the program, sys.exit({error.code!r}); "
      "return a config"
    )
  except Exception as error:  # absl, ml_collections and, once more, the config file: anything
    # errors about tuples do not name the setting
    entries = [f"{match[0]}: " for match in overrides if match[3]]
    fail("".join(entries) + (str(error) or type(error).__name__))


def _one_line_texts(arg: str, config: ConfigDict) -> str:
  """Returns a flag with "\\n" for newlines in the texts of a tuple, which Python cannot read."""
  match = _OVERRIDE.fullmatch(arg)
  if not match or not match["value"] or match["name"] not in names_of(config):
    return arg
  section, _, name = match["name"].rpartition(".")
  holder = operator.attrgetter(section)(config) if section else config
  if holder.get_type(name) is not tuple:
    return arg
  readable = _QUOTED.sub(lambda text: text[0].replace("\n", "\\n"), arg)
  value = readable.partition("=")[2].strip()
  if value.startswith(("(", "[")):  # ml_collections makes one text of what it cannot read
    try:
      ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
      fail(f"{arg}: expected {_KINDS[tuple]}")
  return readable


def fail(message: str | Exception, code: int = 2) -> NoReturn:
  """Ends the program with one line on stderr and an exit code, by default that of bad input."""
  # without characters that a terminal obeys
  line = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(str(message).split()))
  print(
    "error:", line if len(line) < LONGEST else f"{line[:LONGEST]} ...", file=sys.stderr, flush=True
  )
  sys.exit(code)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
  """Ends the program with one line at a GrpoError, with its code, and at Ctrl-C, with 130.

  A user's code that calls sys.exit(0) also ends it with one line and code 2, since the program is
  not done, and so does a device whose memory is too small. Other errors keep their traceback.
  """
  try:
    yield
  except GrpoError as error:
    fail(error, error.code)
  except SystemExit as error:
    if error.code:
      raise
    *_, frame = traceback.extract_tb(error.__traceback__)
    fail(
      f"{frame.filename}:{frame.lineno}: calls sys.exit({error.code!r}) before the end; return or "
      "raise an error"
    )
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr, flush=True)
    sys.exit(130)  # as shells report a program that SIGINT ended
  except Exception as error:
    if line := out_of_memory(error):
      fail(line, GrpoError.code)
    raise


def draw_to_files() -> None:
  """Chooses the backend of matplotlib that needs no screen, before it is imported.

  A command in a notebook's cell is told of the notebook's own, which .venv does not have.
  """
  os.environ["MPLBACKEND"] = "agg"


def names_of(config: ConfigDict, prefix: str = "") -> list[str]:
  """Returns the dotted names of all settings and sections."""
  names = []
  for key in config:
    names.append(prefix + key)
    if isinstance(config[key], ConfigDict):
      names += names_of(config[key], f"{prefix}{key}.")
  return names


def nearest(name: str, names: list[str]) -> list[str]:
  """Returns up to three of `names` that a person who typed `name` may have meant.

  Similar ones of the same section come first, then those with the same last part, then similar ones
  anywhere.
  """
  section, _, last = name.rpartition(".")
  siblings = {n.rpartition(".")[2]: n for n in names if n.rpartition(".")[0] == section}
  similar = [siblings[n] for n in difflib.get_close_matches(last, siblings, 3, 0.6)]
  same = [n for n in names if n.split(".")[-1] == last]
  anywhere = difflib.get_close_matches(name, names, 3, 0.85)
  return list(dict.fromkeys([*similar, *same, *anywhere]))[:3]


_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_KINDS = {
  bool: "true or false",
  int: "a whole number",
  float: "a number",
  str: "text",
  tuple: "a tuple, as in '(1, 2)'",
  ConfigDict: "a section; set the names in it",
}


def value_of(flag: str, argv: list[str]) -> str | None:
  """Returns the last value given to `--flag=VALUE` or `--flag VALUE`."""
  value = None
  for i, arg in enumerate(argv[1:], 1):
    if re.match(rf"--?{flag}=", arg):
      value = arg.split("=", 1)[1]
    elif re.fullmatch(rf"--?{flag}", arg) and i + 1 < len(argv):
      value = argv[i + 1]
  return value


def _wrong_value(
  error: flags.IllegalFlagValueError, config: ConfigDict, overrides: list[re.Match]
) -> str:
  """Returns the message for a wrong value: the type of the setting, or what absl says."""
  for match in overrides:  # a flag may be given twice; the value tells which one is wrong
    # None: the value is the next argument
    value = "" if match["value"] is None else f"{match['value']}:"
    if str(error).startswith(f"flag --config.{match['name']}={value}"):
      section, _, last = match["name"].rpartition(".")
      kind = (operator.attrgetter(section)(config) if section else config).get_type(last)
      return f"{match[0]}: expected {_KINDS.get(kind, kind.__name__)}"
  return str(error)


def _unknown_flag(error: flags.UnrecognizedFlagError, argv: list[str], names: list[str]) -> str:
  """Returns the message for an unknown flag, with settings that may be meant, or absl's own."""
  if error.flagname.startswith("noconfig."):
    return f"--{error.flagname}: only a setting that is True or False is switched off so"
  # sections have no value
  names = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
  close = [error.flagname] if error.flagname in names else nearest(error.flagname, names)
  if not close:
    return str(error)
  value = value_of(error.flagname, argv)
  suffix = "" if value is None else f"={value}"
  guesses = " or ".join(f"--config.{name}{suffix}" for name in close)
  return f"--{error.flagname}{suffix}: no such flag; did you mean {guesses}?"


def _unknown_setting(name: str, config: ConfigDict, names: list[str]) -> str:
  """Returns the message for an unknown setting, with similar names or those of its section."""
  section, _, last = name.rpartition(".")
  close = nearest(name, names)
  elsewhere = any(each.endswith(f".{last}") for each in close)
  of_others = any(last in settings for settings in comments.meanings("objectives").values())
  if section == "objective" and "objective" in names and of_others and not elsewhere:
    return (
      f"--config.{name}: {config.objective.name} has no such setting, which other objectives have; "
      f"it has: {', '.join(config.objective)}"
    )
  if close:
    return f"--config.{name}: no such setting; did you mean {' or '.join(close)}?"
  section, holder = "", config
  for key in name.split(".")[:-1]:
    if f"{section}{key}" not in names or not isinstance(holder[key], ConfigDict):
      break
    section, holder = f"{section}{key}.", holder[key]
  hint = (
    "; the config file makes the section of a data set of your own: c.data.NAME = NAME.settings()"
  )
  known = f"{section.rstrip('.') or 'the config'} has: {', '.join(holder)}"
  return f"--config.{name}: no such setting; {known}{hint if section == 'data.' else ''}"
