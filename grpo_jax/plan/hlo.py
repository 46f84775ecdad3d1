"""Reads the text of a compiled program (`compiled.as_text()`) into computations and instructions.

Only what counting needs is read: names, opcodes, types, operands, and the attributes as text.
"""

import dataclasses
import math
import re
from typing import NamedTuple

# Bits of an element, by XLA's name of the type; tokens and opaque values have none.
_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"(\w+)\[([\d,<= ]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*-> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_COMMENT = re.compile(r"/\*.*?\*/")
_TABLE_LINE = re.compile(r'^(\d+) (?:"(.*)"|\{(.*)\})$')


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation."""

  name: str
  opcode: str
  type: str  # of the result, with layouts, as printed
  operands: tuple[str, ...]  # names; for a constant or a parameter, the text in its parentheses
  attributes: str  # the text after the operands
  root: bool


class Program(NamedTuple):
  """A compiled program."""

  entry: str
  computations: dict[str, dict[str, Instruction]]  # name -> its instructions by name, in order
  stacks: dict[int, tuple[str, ...]]  # stack_frame_id -> names of Python functions, innermost first


def parse(text: str) -> Program:
  """Returns the program that the text describes; ValueError if it has no entry computation."""
  computations: dict[str, dict[str, Instruction]] = {}
  entry = ""
  current: dict[str, Instruction] | None = None
  for line in text.splitlines():
    if current is None:
      if header := _HEADER.match(line):
        current = computations.setdefault(header[2], {})
        entry = header[2] if header[1] else entry
    # not "}}": a kernel's metadata may span several lines
    elif line == "}" or line.startswith("}, "):
      current = None
    elif match := _INSTRUCTION.match(line):
      instruction = _instruction(match[2], bool(match[1]), line[match.end() :])
      current[instruction.name] = instruction
  if not entry:
    raise ValueError("the text of the compiled program has no ENTRY computation")
  return Program(entry, computations, _stacks(text))


def root(computation: dict[str, Instruction]) -> Instruction:
  """Returns the instruction whose value the computation returns."""
  return next((i for i in computation.values() if i.root), [*computation.values()][-1])


def search(pattern: str, text: str) -> re.Match[str]:
  """Returns the first match of a pattern that XLA always prints; ValueError if it did not."""
  if match := re.search(pattern, text):
    return match
  raise ValueError(f"the text of the compiled program has no {pattern} in: {text[:200]}")


def called(instruction: Instruction, role: str) -> str:
  """Returns the name of the computation that an instruction calls as `role`, such as "body"."""
  return search(rf"{role}=%?([\w.\-]+)", instruction.attributes)[1]


def _instruction(name: str, is_root: bool, rest: str) -> Instruction:
  """Returns the instruction of `TYPE opcode(operands), attributes`."""
  rest = _COMMENT.sub("", rest)
  end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
  kind, rest = rest[:end], rest[end:].lstrip()
  start = rest.index("(")
  end = _closing(rest, start)
  inside = rest[start + 1 : end]
  operands = tuple(re.findall(r"%([\w.\-]+)", inside)) or ((inside,) if inside else ())
  return Instruction(name, rest[:start], kind, operands, rest[end + 1 :], is_root)


def _closing(text: str, start: int) -> int:
  """Returns the position of the parenthesis that closes the one at `start`."""
  depth = 0
  for match in re.compile(r"[()]").finditer(text, start):
    depth += 1 if match[0] == "(" else -1
    if depth == 0:
      return match.start()
  raise ValueError(f"an instruction whose parentheses do not close: {text[:200]}")


def elements(type_: str) -> list[str]:
  """Returns the types of a tuple's elements, which may be tuples; for an array, its own type."""
  if not type_.startswith("("):
    return [type_]
  parts, depth, start = [], 0, 1
  for i, c in enumerate(type_):
    depth += (c in "([{") - (c in ")]}")
    if (c == "," and depth == 1) or (c == ")" and depth == 0):
      parts.append(type_[start:i].strip())
      start = i + 1
  return [part for part in parts if part]


def size(type_: str) -> int:
  """Returns the bytes of a type by its shape, without the padding of its layout."""
  return sum(_array_bits(*match.groups()) for match in _ARRAY.finditer(type_)) // 8


def _array_bits(dtype: str, dims: str) -> int:
  digits = re.search(r"\d+", dtype)
  bits = _BITS[dtype] if dtype in _BITS else int(digits[0]) if digits else 0
  return bits * math.prod(int(d.replace("<=", "")) for d in dims.split(",") if d.strip())


def _stacks(text: str) -> dict[int, tuple[str, ...]]:
  """Returns the Python functions of each stack frame, innermost first; {} without tables."""
  names = {i: name for i, name, _ in _table(text, "FunctionNames")}
  functions = {
    i: names.get(_field(row, "function_name_id"), "") for i, _, row in _table(text, "FileLocations")
  }
  frames = {
    i: (functions.get(_field(row, "file_location_id"), ""), _field(row, "parent_frame_id") - 1)
    for i, _, row in _table(text, "StackFrames")
  }  # a parent is printed one higher than its number; a frame without one names itself
  stacks = {}
  for i in frames:
    chain: list[str] = []
    frame = i
    while frame in frames and len(chain) <= len(frames):
      name, parent = frames[frame]
      chain.append(name)
      frame = parent if parent != frame else -1
    stacks[i] = tuple(chain)
  return stacks


def _table(text: str, title: str) -> list[tuple[int, str, str]]:
  """Returns the rows (number, quoted text, fields in braces) of a table before the computations."""
  table = re.search(rf"^{title}\n(.*?)\n\n", text, re.DOTALL | re.MULTILINE)
  rows = [_TABLE_LINE.match(line) for line in table[1].splitlines()] if table else []
  return [(int(row[1]), row[2] or "", row[3] or "") for row in rows if row]


def _field(row: str, name: str) -> int:
  match = re.search(rf"{name}=(\d+)", row)
  return int(match[1]) if match else 0
