"""Compiles a program for a topology, which takes minutes, and caches the facts about it."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import threading
import time
from collections.abc import Sequence

import jax
import jaxlib

from grpo_jax.aliases import Json
from grpo_jax.errors import no_memory
from grpo_jax.plan.collectives import Collective, collectives

SAY_EVERY = 20  # seconds between lines while the compiler works
_NEEDS = re.compile(r"(?:Used|required for HLO temporaries \()\s*([\d.]+)([KMGT]?)")
_COUNTING = ("facts", "hlo", "trips", "collectives")  # modules that make the facts
_LINES = re.compile(r'(?<=\.py"):\d+:\d+(?: to (?:\d+)?:\d+)?')
_OPTIONS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")  # of the compiler, in the environment
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Facts:
  """Facts about a compiled program; bytes are of one device."""

  name: str
  compile_s: float
  arguments: int = 0
  outputs: int = 0
  aliased: int = 0  # outputs that take the place of a donated argument
  temporaries: int = 0
  code: int = 0
  needs: int = 0  # what the program would take according to the compiler; 0: it fits
  error: str = ""  # the message of the compiler if the program does not fit or has no text
  collectives: tuple[Collective, ...] | None = None  # None: the program has no text

  @property
  def peak(self) -> int:
    """Bytes that the program and its code take while it runs."""
    return self.needs or self.arguments + self.outputs - self.aliased + self.temporaries + self.code


def compiled(
  name: str, lowered: jax.stages.Lowered, slice_of: Sequence[int], where: str, cache: str
) -> Facts:
  """Returns the facts of a program, compiled now or read from the cache.

  Args:
    name: of the program, for messages.
    lowered: the program.
    slice_of: the slice of each device of its mesh.
    where: the topology, for messages and for the name in the cache.
    cache: a folder, created if it does not exist; "" for none.
  """
  file = pathlib.Path(cache) / f"{_key(lowered, where)}.json" if cache else None
  if file and file.exists():
    return _read(file)
  with _Ticking(f"compiling the {name} program for {where}"):
    facts = _compile(name, lowered, slice_of)
  if file:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(dataclasses.asdict(facts)))
    temporary.replace(file)
  return facts


def _compile(name: str, lowered: jax.stages.Lowered, slice_of: Sequence[int]) -> Facts:
  start = time.perf_counter()
  try:
    program = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if not no_memory(error):
      raise
    return Facts(
      name, time.perf_counter() - start, needs=_needed(str(error)), error=_first_lines(error)
    )
  seconds, memory = time.perf_counter() - start, program.memory_analysis()
  assert memory, "the compiler reports no memory"
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
    text = program.as_text() or ""
  except jax.errors.JaxRuntimeError as error:  # happens with some programs for v5p
    return dataclasses.replace(facts, error=_first_lines(error))
  return dataclasses.replace(facts, collectives=tuple(collectives(text, len(slice_of), slice_of)))


def _needed(message: str) -> int:
  """Returns the largest number of used bytes in a message of the compiler; 1 if it has none."""
  sizes = [float(number) * _UNITS[unit] for number, unit in _NEEDS.findall(message)]
  return int(max(sizes, default=1))


def _first_lines(error: Exception) -> str:
  return " ".join(str(error).split())[:300]


def _key(lowered: jax.stages.Lowered, where: str) -> str:
  """Returns a digest of the program, of its compiler with its options and of the code that counts.

  It covers the functions that operations come from, but not their line numbers.
  """
  import libtpu

  text = _LINES.sub("", lowered.as_text(debug_info=True))
  counting = [
    file.read_text()
    for file in sorted(pathlib.Path(__file__).parent.glob("*.py"))
    if file.stem in _COUNTING
  ]
  options = [os.environ.get(name, "") for name in _OPTIONS]
  versions = (jax.__version__, jaxlib.__version__, libtpu.__version__)
  parts = (text, *counting, where, *versions, *options)
  return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _read(file: pathlib.Path) -> Facts:
  fields: Json = json.loads(file.read_text())
  rows = fields.pop("collectives")
  if rows is not None:
    rows = tuple(Collective(**row | {name: tuple(row[name]) for name in _TUPLES}) for row in rows)
  return Facts(**fields, collectives=rows)


_TUPLES = ("unknown_loops", "functions")


class _Ticking:
  """Prints the elapsed seconds at intervals while a block runs."""

  def __init__(self, task: str):
    self.task, self.done = task, threading.Event()
    self.thread = threading.Thread(target=self._tick, daemon=True)

  def __enter__(self) -> None:
    self.start = time.perf_counter()
    print(f"{self.task} ...", flush=True)
    self.thread.start()

  def __exit__(self, *_: object) -> None:
    self.done.set()
    self.thread.join()
    print(f"{self.task}: took {time.perf_counter() - self.start:.0f} s", flush=True)

  def _tick(self) -> None:
    while not self.done.wait(SAY_EVERY):
      print(f"{self.task}: {time.perf_counter() - self.start:.0f} s so far", flush=True)
