"""Appends lines to the logs of a run with checksums, and reads them.

    DIR/metrics.jsonl   a JSON object on each line, and nothing else: pandas and jq can read it
    DIR/metrics.crc     START LENGTH CRC CHECK for each of those lines

START is the byte at which the line begins, LENGTH its bytes without the newline, CRC the CRC-32 of
them, and CHECK the CRC-32 of the three texts before it. The checksums are in a file of their own,
so that two runs with the same numbers have the same lines, and tables that are read from a log have
no further column.

A line is damaged if its checksum is wrong or missing, or if it is not a JSON object. A line from
before there were checksums, or whose checksum is lost, only has to be JSON. jax is not imported
here.
"""

import bisect
import collections
import contextlib
import errno
import io
import json
import math
import pathlib
import re
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, TypeVar

from grpo_jax.aliases import Json
from grpo_jax.io import storage
from grpo_jax.sandbox import model_folder

AnyPath = TypeVar("AnyPath", pathlib.Path, storage.Path)
_RECORD = re.compile(rb"(\d{1,18}) (\d{1,18}) ([0-9a-f]{8})")


class Content(NamedTuple):
  """Content of a log."""

  objects: list[tuple[int, Json]]  # the whole lines in order, each with its number
  damaged: list[int]  # the numbers of the others, counted from 1
  lines: int  # all of them, except a last one that a kill cut off
  checked: int  # lines with a right checksum
  sums: int  # damaged lines of the file of checksums
  lost: int  # lines that are missing at the end, by their checksums
  recorded: int  # right checksums; there are as many as `checked` if no line is missing


class Log:
  """Appends lines to a log, and their checksums to its second file. Use it in a `with` block."""

  def __init__(self, path: pathlib.Path):
    if path.is_fifo():  # opening it would wait for a reader
      raise FileExistsError(errno.EEXIST, f"{path.name} is a pipe and no file")
    self.file = path.open("ab")
    try:
      self._sums = sums_path(path).open("ab")
    except OSError:
      self.file.close()
      raise
    self._at = self.file.tell()

  def __enter__(self) -> "Log":
    return self

  def __exit__(self, *exception: object) -> None:
    try:
      self.file.close()
    finally:
      self._sums.close()

  def write(self, *texts: str) -> None:
    """Appends lines; they are in the files when it returns, each before its checksum.

    Half of a surrogate pair, which UTF-8 cannot hold, is written as \\udXXX.
    """
    records = []
    for text in texts:
      line = text.encode("utf-8", errors="backslashreplace")
      self.file.write(line + b"\n")
      record = b"%d %d %08x" % (self._at, len(line), zlib.crc32(line))
      records.append(b"%s %08x\n" % (record, zlib.crc32(record)))
      self._at += len(line) + 1
    _add(self.file, b"")
    _add(self._sums, b"".join(records))


def _add(file: BinaryIO, content: bytes) -> None:
  file.write(content)
  file.flush()


def sums_path(path: AnyPath) -> AnyPath:
  """Returns the file with the checksums of a log's lines, on a disk or in a bucket."""
  return path.with_name(sums_name(path.name))


def sums_name(name: str) -> str:
  """Returns the name of the file with the checksums of a log: metrics.crc for metrics.jsonl."""
  return f"{name.removesuffix('.jsonl')}.crc"


def read(path: storage.Path, last: int | None = None, keep: bool = True) -> Content:
  """Reads a log; a missing file has no lines.

  Args:
    path: of the log.
    last: only the lines that begin in the last `last` bytes are read; None: all.
    keep: whether `objects` are wanted. Without them a line with a right checksum is not parsed, so
      that a log of gigabytes takes seconds and little memory.
  """
  sums = _Sums(path)  # read before the log: lines that a run adds meanwhile have no checksum yet
  objects: list[tuple[int, Json]] = []
  damaged, whole, checked = [], 0, 0
  with _opened(path) as file:
    length = file.seek(0, io.SEEK_END)
    lines = list(_split(file, 0 if last is None else length - last))
    for line, is_right in zip(lines, sums.compare(lines)):
      value: Json | None = {} if is_right and not keep else None
      if value is None and is_right is not False:
        file.seek(line.start)
        value = parse(file.read(line.length))
      if value is not None:
        whole += 1
        checked += is_right is True
        objects += [(line.number, value)] if keep else []
      # otherwise it is the last line of a run that still runs, or that was killed
      elif line.is_ended or is_right is False:
        damaged.append(line.number)
  total = whole + len(damaged)
  counts = total, checked, sums.damaged, sums.after(length), len(sums)
  return Content(objects, damaged, *counts)


@contextlib.contextmanager
def _opened(path: storage.Path) -> Iterator[BinaryIO]:
  """Yields a log to read, or an empty file if there is none."""
  if not storage.is_plain(path):
    yield io.BytesIO()
    return
  with storage.reading(path) as local, local.open("rb") as file:
    yield file


def damage(path: storage.Path) -> str:
  """Returns what is damaged in a log, such as "1 line of 8 is damaged (line 3)"; or ""."""
  content = read(path, keep=False)
  return told(content.damaged, content.lines)


def told(damaged: list[int], lines: int, most: int = 5) -> str:
  """Returns in words how many lines are damaged, and which; "" if none is."""
  if not damaged:
    return ""
  which = ", ".join(map(str, damaged[:most])) + (
    f" and {len(damaged) - most} more" if len(damaged) > most else ""
  )
  if len(damaged) == 1:
    return f"1 line of {lines} is damaged (line {which})"
  return f"{len(damaged)} lines of {lines} are damaged (lines {which})"


def parse(line: bytes) -> Json | None:
  """Returns the object of a line; None if it is not one, or nested too deeply.

  A number that does not fit a float64 becomes None, which a run writes for one that is not finite.
  """
  try:
    value = json.loads(
      line.decode("utf-8"), parse_float=_number, parse_int=_integer, parse_constant=lambda _: None
    )
  except (ValueError, RecursionError):
    return None
  if not isinstance(value, dict):
    return None
  # true of nearly every line, and counting costs nothing
  is_shallow = line.count(b"[") + line.count(b"{") <= model_folder.DEPTH
  return value if is_shallow or model_folder.depth(value) <= model_folder.DEPTH else None


def _number(digits: str) -> float | None:
  return value if math.isfinite(value := float(digits)) else None


def _integer(digits: str) -> int | None:
  return int(digits) if len(digits) < 300 else None


class _Line(NamedTuple):
  number: int  # counted from 1, empty lines included
  start: int  # the place of its first byte
  length: int  # without the newline
  crc: int
  is_ended: bool  # by a newline


def _split(file: BinaryIO, first: int) -> Iterator[_Line]:
  """Yields the lines that are not empty and begin at byte `first` or later."""
  start = file.seek(0)
  for number, content in enumerate(file, 1):
    line = content.removesuffix(b"\n")
    if line and start >= first:
      yield _Line(number, start, len(line), zlib.crc32(line), len(line) < len(content))
    start += len(content)


class _Sums:
  """Reads the checksums of a log's lines and compares them."""

  def __init__(self, path: storage.Path):
    file = sums_path(path)
    self.damaged = 0  # checksums
    self._sums: dict[int, tuple[int, int]] = {}  # first byte of a line -> its length and CRC
    for record in file.read_bytes().split(b"\n") if storage.is_plain(file) else ():
      text, _, check = record.rpartition(b" ")
      match = _RECORD.fullmatch(text)
      if match and check == b"%08x" % zlib.crc32(text):
        self._sums[int(match[1])] = (int(match[2]), int(match[3], 16))
      else:
        self.damaged += bool(record)

  def __len__(self) -> int:
    return len(self._sums)

  def after(self, length: int) -> int:
    """Returns the number of lines that began at byte `length` or later."""
    return sum(start >= length for start in self._sums)

  def compare(self, lines: list[_Line]) -> list[bool | None]:
    """Returns for each line whether its checksum is right; None if it should have none.

    A line that has moved, because a person has deleted an earlier one, is right if it has the
    checksum of a line that is missing elsewhere.
    """
    left = collections.Counter(self._sums.values())
    sums = [(line.length, line.crc) for line in lines]
    right = [self._sums.get(line.start) == sum for line, sum in zip(lines, sums)]
    left.subtract(sum for sum, is_right in zip(sums, right) if is_right)
    spans = sorted(self._sums.items())
    states: list[bool | None] = []
    for line, sum, is_right in zip(lines, sums, right):
      if not is_right and left[sum] > 0:
        is_right = True
        left[sum] -= 1
      at = bisect.bisect_right(spans, line.start, key=lambda span: span[0]) - 1
      has_sum = at >= 0 and line.start <= spans[at][0] + spans[at][1][0]
      states.append(True if is_right else False if has_sum else None)
    return states
