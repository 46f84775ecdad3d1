"""Counts what a compiled program moves between chips, from its text: collectives and their bytes.

Bytes are those of one chip and one run, by the shapes: of the result of an all-gather, of the
operand of an all-reduce, reduce-scatter, all-to-all or collective-permute. They are the bytes of
the whole array that is gathered or summed, not what crosses a link. `Collective.sent` is the
latter, for ring algorithms of n chips: (n - 1) / n of the bytes, twice that for an all-reduce, all
bytes for a permutation.

A collective between slices is two: one inside a slice, and an exchange of each chip's share between
slices.

A collective runs once for each turn of the loops around it. The turns of a loop are what the
compiler noted (`known_trip_count`) or follow from `counter < constant` in its condition. Any other
loop counts as one turn, and `Collective.unknown_loops` names it.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np

from grpo_jax.plan import hlo, trips
from grpo_jax.plan.hlo import Instruction, Program

KINDS = (
  *("all-gather", "all-reduce", "reduce-scatter"),
  *("all-to-all", "collective-permute", "collective-broadcast"),
)
_ALIASES = {"ragged-all-to-all": "all-to-all"}
# Opcodes that run another computation once; `call-start` gives it to a TPU's second processor, for
# sparse work.
_CALLS = ("fusion", "call", "call-start", "async-start")
# The compiler splits a collective between slices: each chip gives its share to the host, which
# exchanges it.
_ACROSS = "_xla_megascale_transfer_type"
# A TPU's reduce-scatter may be a fusion of this name, around an all-reduce and a slice.
_SCATTER_FUSION = "all-reduce-scatter"


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective instruction of a program."""

  kind: str  # of KINDS
  bytes: int  # of one run and one chip; see the module's docstring
  group: int  # the number of chips that take part; 2 for a permutation
  across_slices: bool  # the chips are in several slices
  times: int  # the number of runs: the product of the turns of the loops around it
  unknown_loops: tuple[str, ...]  # the loops whose turns are unknown, which count as one
  op_name: str  # the operation of the traced program that it comes from
  functions: tuple[str, ...]  # the Python functions around that, innermost first; () if unknown

  @property
  def total(self) -> int:
    """Bytes of all its runs."""
    return self.bytes * self.times

  @property
  def sent(self) -> float:
    """Bytes that a chip sends over links in all runs, with ring algorithms."""
    n = self.group
    if self.kind == "collective-permute":
      return float(self.total)
    return self.total * (2 if self.kind == "all-reduce" else 1) * (n - 1) / n


def collectives(text: str, devices: int, slice_of: Sequence[int] = ()) -> list[Collective]:
  """Returns the collectives of a compiled program, in its order.

  Those in groups of one chip, which move nothing, are left out. An asynchronous collective is
  counted where it starts.

  Args:
    text: `compiled.as_text()`.
    devices: the number of devices of the program.
    slice_of: the slice of each device, in the mesh's order; () if there is one slice.

  Raises:
    ValueError: the text is no program, has groups of an unknown form, or has a collective in a
      computation that nothing calls.
  """
  walk = _Walk(hlo.parse(text), slice_of or [0] * devices)
  walk.visit(walk.program.entry, 1, (), set())
  for name in set(walk.program.computations) - walk.visited:
    if lost := [
      i.name for i in walk.program.computations[name].values() if collective_kind(i.opcode)
    ]:
      raise ValueError(
        f"{lost[0]} in {name}: nothing that is known to call a computation calls this one"
      )
  return [collective for collective in walk.collectives if collective.group > 1]


class _Walk:
  """Collects the collectives of a program by visiting its computations as they call each other."""

  def __init__(self, program: Program, slice_of: Sequence[int]):
    self.program, self.slice_of = program, slice_of
    self.collectives: list[Collective] = []
    self.visited: set[str] = set()  # names of computations

  def visit(self, name: str, times: int, unknown: tuple[str, ...], channels: set[str]) -> None:
    """Adds the collectives of a computation that runs `times` times, and of those that it calls.

    A collective that overlaps with work is in several fusions with one channel: where it starts,
    where it continues (perhaps in a loop after that) and where it ends. Only the first one counts.

    Args:
      name: of the computation.
      times: how often it runs.
      unknown: the loops around it whose turns are unknown.
      channels: of collectives in fusions before it.
    """
    channels = set(channels)
    self.visited.add(name)
    for instruction, computation, fused in _instructions(self.program, name, False):
      self.visited.add(computation)
      kind = collective_kind(instruction.opcode)
      if kind == "all-reduce" and _SCATTER_FUSION in computation:
        kind = "reduce-scatter"
      if kind:
        channel = re.search(r"channel_id=(\d+)", instruction.attributes)
        if fused and channel:
          if channel[1] in channels:
            continue
          channels.add(channel[1])
        self.collectives.append(self._collective(instruction, kind, times, unknown))
      elif instruction.opcode == "send" and _ACROSS in instruction.attributes:
        self.collectives.append(self._across_slices(instruction, times, unknown))
      elif instruction.opcode == "while":
        turns = trips.trip_count(self.program, computation, instruction)
        loops = unknown if turns is not None else (*unknown, instruction.name)
        for part in ("body", "condition"):
          called = hlo.called(instruction, part)
          self.visit(called, times * (1 if turns is None else turns), loops, channels)
      elif instruction.opcode == "conditional":
        for branch in _branches(instruction.attributes):
          self.visit(branch, times, (*unknown, instruction.name), channels)

  def _collective(
    self, instruction: Instruction, kind: str, times: int, unknown: tuple[str, ...]
  ) -> Collective:
    groups = _groups(instruction.attributes, len(self.slice_of))
    size = hlo.size(instruction.type)
    parts = hlo.elements(instruction.type)
    if instruction.opcode.endswith("-start") and kind != "all-reduce" and len(parts) > 1:
      size = hlo.size(parts[1])  # (operands, results, and what the hardware keeps)
    if kind == "reduce-scatter" and instruction.opcode.startswith("reduce-scatter"):
      size *= len(groups[0])  # the result is a share of the operand
    op_name = re.search(r'op_name="([^"]*)"', instruction.attributes)
    frame = re.search(r"stack_frame_id=(\d+)", instruction.attributes)
    functions = self.program.stacks.get(int(frame[1]), ()) if frame else ()
    across = any(len({self.slice_of[i] for i in group}) > 1 for group in groups)
    group = max((len(group) for group in groups), default=1)
    name = op_name[1] if op_name else ""
    return Collective(kind, size, group, across, times, unknown, name, functions)

  def _across_slices(
    self, instruction: Instruction, times: int, unknown: tuple[str, ...]
  ) -> Collective:
    """Returns the exchange between slices that starts when a chip sends its share."""
    transfer = hlo.search(rf'{_ACROSS}="(\w+)"', instruction.attributes)
    kind = transfer[1].lower().replace("_", "-")
    name = re.search(r'_xla_host_transfer_rendezvous="([^"]*)"', instruction.attributes)
    size = hlo.size(hlo.elements(instruction.type)[0])
    slices = len(set(self.slice_of))
    return Collective(kind, size, slices, True, times, unknown, name[1] if name else "", ())


def _instructions(
  program: Program, name: str, fused: bool
) -> Iterable[tuple[Instruction, str, bool]]:
  """Yields (instruction, its computation, whether in a fusion), of fusions and calls too."""
  for instruction in program.computations[name].values():
    yield instruction, name, fused
    if instruction.opcode in _CALLS:
      called = re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", instruction.attributes)
      if called and called[1] in program.computations:
        yield from _instructions(program, called[1], fused or instruction.opcode == "fusion")


def _branches(attributes: str) -> list[str]:
  """Returns the computations of a conditional."""
  listed = re.search(r"branch_computations=\{([^}]*)\}", attributes)
  if listed:
    return re.findall(r"%?([\w.\-]+)", listed[1])
  return re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", attributes)


def collective_kind(opcode: str) -> str:
  """Returns the kind of collective that an opcode is or starts; "" for any other opcode."""
  plain = opcode.removesuffix("-start")
  plain = _ALIASES.get(plain, plain)
  return plain if plain in KINDS else ""


def _groups(attributes: str, devices: int) -> tuple[tuple[int, ...], ...]:
  """Returns the groups of chips of a collective, from any of the forms that XLA prints."""
  if pairs := re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes):
    return _numbers(pairs[1])
  match = re.search(r"replica_groups=(.*)", attributes)
  text = match[1] if match else ""
  if not text or text.startswith("{}"):
    return (tuple(range(devices)),)
  if listed := re.match(r"\{((?:\{[\d,]*\},?)+)\}", text):
    return _numbers(listed[1])
  if iota := re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
    shape, dims, order = (_ints(part) for part in iota.groups())
    ids = np.arange(int(np.prod(dims))).reshape(dims)
    return _rows(ids.transpose(order or range(len(dims))).reshape(shape))
  if mesh := re.match(r"mesh\[([^\]]*)\](?:,? ?device_ids=\((.*?)\)(?=[,} ]))? ?\{([^}]*)\}", text):
    return _mesh_groups(*mesh.groups())
  raise ValueError(f"replica groups of an unknown form: {text[:200]}")


def _mesh_groups(axes: str, ids: str | None, over: str) -> tuple[tuple[int, ...], ...]:
  """Returns the groups of `mesh['a'=2,'b'=4] {'b'}`: a group's chips differ along 'b' only.

  A part of an axis is printed as 'b':(2)4: of an axis that is split into parts of 2, of 4 and the
  rest, the part of 4.
  """
  sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", axes)}
  named = re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", over)
  shape, cut = [], []
  for name, n in sizes.items():
    parts = sorted(
      (int(before), int(length)) for axis, before, length in named if axis == name and before
    )
    done = 1
    for before, length in parts:
      shape += [before // done, length]
      cut += [False, True]
      done = before * length
    shape.append(n // done)
    cut.append(not parts and any(axis == name for axis, *_ in named))
  count = int(np.prod(shape))
  order = np.arange(count) if ids is None else np.asarray(_device_ids(ids, count))
  grid = order.reshape(shape)
  kept, moved = [i for i, c in enumerate(cut) if not c], [i for i, c in enumerate(cut) if c]
  members = int(np.prod([shape[i] for i in moved]))
  return _rows(grid.transpose(kept + moved).reshape(-1, members))


def _device_ids(text: str, count: int) -> list[int]:
  """Returns the order of a mesh's chips, from a list or from `[4,2]T(1,0)` (a transposed range)."""
  if iota := re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
    dims, order = _ints(iota[1]), _ints(iota[2])
    return np.arange(count).reshape(dims).transpose(order or range(len(dims))).reshape(-1).tolist()
  return _ints(text)


def _numbers(text: str) -> tuple[tuple[int, ...], ...]:
  return tuple(tuple(_ints(group)) for group in re.findall(r"\{([\d,]*)\}", text))


def _ints(text: str | None) -> list[int]:
  return [int(number) for number in re.findall(r"\d+", text or "")]


def _rows(grid: np.ndarray) -> tuple[tuple[int, ...], ...]:
  return tuple(tuple(row) for row in grid.tolist())


def totals(collectives: Iterable[Collective]) -> dict[str, int]:
  """Returns the bytes of all runs by kind, the largest first."""
  sums: dict[str, int] = {}
  for collective in collectives:
    sums[collective.kind] = sums.get(collective.kind, 0) + collective.total
  return dict(sorted(sums.items(), key=lambda item: -item[1]))
