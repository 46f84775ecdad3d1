"""What is known of a program once it is compiled for a topology; kept in a folder, since that takes
minutes.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib

from grpo_jax.plan.collectives import Collective, collectives

SAY_EVERY = 20  # seconds between lines while the compiler works
_NEEDS = re.compile(r"(?:Used|required for HLO temporaries \()\s*([\d.]+)([KMGT]?)")
_COUNTING = ("facts", "hlo", "trips", "collectives")  # modules that a cached result depends on
_LINES = re.compile(r'(?<=\.py"):\d+:\d+(?: to (?:\d+)?:\d+)?')
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Facts:
  """A compiled program; bytes are of one device."""

  name: str
  compile_s: float
  arguments: int = 0
  outputs: int = 0
  aliased: int = 0  # of the outputs, those that lie where an argument (that is given up) lay
  temporaries: int = 0
  code: int = 0
  needs: int = 0  # where it did not fit: what the compiler says that it would take; 0: it fits
  error: str = ""  # where it did not fit, or its text cannot be had: what the compiler says
  collectives: tuple[Collective, ...] | None = None  # None: its text cannot be had

  @property
  def peak(self) -> int:
    """Bytes that the program holds while it runs, its code included."""
    return self.needs or self.arguments + self.outputs - self.aliased + self.temporaries + self.code


def compiled(
  name: str, lowered: jax.stages.Lowered, slice_of: Sequence[int], where: str, cache: str
) -> Facts:
  """Returns the facts of a program, compiled now or read from the cache.

  Args:
    name: of the program, for messages.
    lowered: the program.
    slice_of: the slice of each device of its mesh.
    where: the topology, in words.
    cache: a folder, made where it is missing; "" for none.
  """
  file = pathlib.Path(cache) / f"{_key(lowered, where)}.json" if cache else None
  if file and file.exists():
    return _read(file)
  with _Ticking(f"compiling the {name} program for {where}"):
    facts = _compile(name, lowered, slice_of)
  if file:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(dataclasses.asdict(facts)))
    beside.replace(file)
  return facts


def _compile(name: str, lowered: jax.stages.Lowered, slice_of: Sequence[int]) -> Facts:
  start = time.perf_counter()
  try:
    program = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    return Facts(
      name, time.perf_counter() - start, needs=_needed(str(error)), error=_first_lines(error)
    )
  seconds, memory = time.perf_counter() - start, program.memory_analysis()
  facts = Facts(
    name,
    seconds,
    memory.argument_size_in_bytes,
    memory.output_size_in_bytes,
    memory.alias_size_in_bytes,
    memory.temp_size_in_bytes,
    memory.generated_code_size_in_bytes,
  )
  try:
    text = program.as_text()
  except jax.errors.JaxRuntimeError as error:  # seen with some programs for v5p
    return dataclasses.replace(facts, error=_first_lines(error))
  return dataclasses.replace(facts, collectives=tuple(collectives(text, len(slice_of), slice_of)))


def _needed(message: str) -> int:
  """Returns the largest number of bytes that a message of the compiler says are used; 1 where it
  says none.
  """
  found = [float(number) * _UNITS[unit] for number, unit in _NEEDS.findall(message)]
  return int(max(found, default=1))


def _first_lines(error: Exception) -> str:
  return " ".join(str(error).split())[:300]


def _key(lowered: jax.stages.Lowered, where: str) -> str:
  """Returns a name that is another one where anything of the program is, or what compiles or counts
  it.

  The functions that the program's operations come from belong to it, the lines that they stand on
  do not.
  """
  import libtpu

  text = _LINES.sub("", lowered.as_text(debug_info=True))
  counting = [
    file.read_text()
    for file in sorted(pathlib.Path(__file__).parent.glob("*.py"))
    if file.stem in _COUNTING
  ]
  parts = (text, *counting, where, jax.__version__, jaxlib.__version__, libtpu.__version__)
  return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _read(file: pathlib.Path) -> Facts:
  fields: dict[str, Any] = json.loads(file.read_text())
  found = fields.pop("collectives")
  if found is not None:
    found = tuple(
      Collective(**each | {name: tuple(each[name]) for name in _TUPLES}) for each in found
    )
  return Facts(**fields, collectives=found)


_TUPLES = ("unknown_loops", "functions")


class _Ticking:
  """Says every now and then, while a block lasts, for how many seconds it has."""

  def __init__(self, what: str):
    self.what, self.done = what, threading.Event()
    self.thread = threading.Thread(target=self._tick, daemon=True)

  def __enter__(self) -> None:
    self.start = time.perf_counter()
    print(f"{self.what} ...", flush=True)
    self.thread.start()

  def __exit__(self, *_: Any) -> None:
    self.done.set()
    self.thread.join()
    print(f"{self.what}: took {time.perf_counter() - self.start:.0f} s", flush=True)

  def _tick(self) -> None:
    while not self.done.wait(SAY_EVERY):
      print(f"{self.what}: {time.perf_counter() - self.start:.0f} s so far", flush=True)
