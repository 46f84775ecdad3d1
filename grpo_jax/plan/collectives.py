"""What a compiled program moves between chips, counted from its text: collectives, their bytes, and
how often they run.

Bytes are those of one chip and one run, by the shapes: of the result of an all-gather, of the
operand of an all-reduce, reduce-scatter, all-to-all or collective-permute. So they are the bytes of
the whole array that is gathered or summed, not what crosses a link; `Collective.sent` is that, for
the ring algorithms of n chips: (n - 1) / n of the bytes, for an all-reduce twice as much, for a
permutation all of them.

Between slices a collective is two: one inside a slice, and an exchange of each chip's share between
slices.

A collective runs as often as the loops around it turn. A loop's count is what the compiler noted
(`known_trip_count`) or follows from `counter < constant` in its condition. A loop without one
counts as one turn, and `Collective.unknown_loops` names it.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np

from grpo_jax.plan import hlo, trips
from grpo_jax.plan.hlo import Instruction, Program

KINDS = (
  "all-gather",
  "all-reduce",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
  "collective-broadcast",
)
_ALIASES = {"ragged-all-to-all": "all-to-all"}
# What runs another computation once; `call-start` gives it to a TPU's second processor, for sparse
# work.
_CALLS = ("fusion", "call", "call-start", "async-start")
# Between slices the compiler splits a collective: each chip gives its share to the host, which
# exchanges it.
_ACROSS = "_xla_megascale_transfer_type"
# A TPU's reduce-scatter may be a fusion of this name, around an all-reduce and a slice.
_SCATTER_FUSION = "all-reduce-scatter"


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective instruction of a program."""

  kind: str  # of KINDS
  bytes: int  # of one run and one chip; the module's docstring says of what
  group: int  # how many chips take part in one; 2 for a permutation
  across_slices: bool  # whether they are of several slices
  times: int  # that it runs: the product of the turns of the loops around it
  unknown_loops: tuple[str, ...]  # those of the loops whose turns are not known, and count as one
  op_name: str  # where it comes from: the operation of the traced program
  # the Python functions around that, the innermost first; () where the text does not say
  functions: tuple[str, ...]

  @property
  def total(self) -> int:
    """Bytes of all its runs."""
    return self.bytes * self.times

  @property
  def sent(self) -> float:
    """Bytes that a chip sends over links in all runs, by a ring."""
    n = self.group
    if self.kind == "collective-permute":
      return float(self.total)
    return self.total * (2 if self.kind == "all-reduce" else 1) * (n - 1) / n


def collectives(text: str, devices: int, slice_of: Sequence[int] = ()) -> list[Collective]:
  """Returns the collectives of a compiled program, in its order.

  Those among groups of one chip, which move nothing, are left out. An asynchronous one is counted
  where it starts.

  Args:
    text: `compiled.as_text()`.
    devices: how many the program is for.
    slice_of: the slice of each, in the mesh's order; () where there is one slice.

  Raises:
    ValueError: the text is not that of a program, has groups of a form that is not known, or a
      collective that is in no computation that runs.
  """
  program = hlo.parse(text)
  found: list[Collective] = []
  reached = _walk(program, program.entry, 1, (), slice_of or [0] * devices, found)
  for name in set(program.computations) - reached:
    if lost := [i.name for i in program.computations[name].values() if kind_of(i.opcode)]:
      raise ValueError(
        f"{lost[0]} in {name}: nothing that is known to call a computation calls this one"
      )
  return [each for each in found if each.group > 1]


def _walk(
  program: Program,
  name: str,
  times: int,
  unknown: tuple[str, ...],
  slice_of: Sequence[int],
  found: list[Collective],
  begun: frozenset[str] = frozenset(),
) -> set[str]:
  """Adds the collectives of a computation that runs `times` times, and those of what it calls.

  One that overlaps with work is in several fusions, under one channel: where it starts, where it
  goes on (maybe in a loop behind that) and where it ends.

  Args:
    begun: channels of collectives in fusions before it.

  Returns:
    The names of the computations that were looked at.
  """
  seen, reached = set(begun), {name}
  for instruction, computation, fused in _flat(program, name, False):
    reached.add(computation)
    kind = kind_of(instruction.opcode)
    if kind == "all-reduce" and _SCATTER_FUSION in computation:
      kind = "reduce-scatter"
    if kind:
      channel = re.search(r"channel_id=(\d+)", instruction.attributes)
      if fused and channel:
        if channel[1] in seen:
          continue
        seen.add(channel[1])
      found.append(_collective(program, instruction, kind, times, unknown, slice_of))
    elif instruction.opcode == "send" and _ACROSS in instruction.attributes:
      found.append(_across_slices(instruction, times, unknown, len(set(slice_of))))
    elif instruction.opcode == "while":
      turns = trips.trip_count(program, computation, instruction)
      more = unknown if turns is not None else (*unknown, instruction.name)
      for part in ("body", "condition"):
        called = re.search(rf"{part}=%?([\w.\-]+)", instruction.attributes)
        reached |= _walk(
          program,
          called[1],
          times * (1 if turns is None else turns),
          more,
          slice_of,
          found,
          frozenset(seen),
        )
    elif instruction.opcode == "conditional":
      for branch in _branches(instruction.attributes):
        reached |= _walk(
          program, branch, times, (*unknown, instruction.name), slice_of, found, frozenset(seen)
        )
  return reached


def _flat(program: Program, name: str, fused: bool) -> Iterable[tuple[Instruction, str, bool]]:
  """Yields the instructions of a computation and of its fusions and calls, where they stand, and if
  in a fusion.
  """
  for instruction in program.computations[name].values():
    yield instruction, name, fused
    if instruction.opcode in _CALLS:
      called = re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", instruction.attributes)
      if called and called[1] in program.computations:
        yield from _flat(program, called[1], fused or instruction.opcode == "fusion")


def _branches(attributes: str) -> list[str]:
  """Returns the computations of a conditional."""
  listed = re.search(r"branch_computations=\{([^}]*)\}", attributes)
  if listed:
    return re.findall(r"%?([\w.\-]+)", listed[1])
  return re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", attributes)


def kind_of(opcode: str) -> str:
  """Returns the kind of collective that an opcode is or starts; "" where it is none, or ends one."""
  plain = opcode.removesuffix("-start")
  plain = _ALIASES.get(plain, plain)
  return plain if plain in KINDS else ""


def _collective(
  program: Program,
  instruction: Instruction,
  kind: str,
  times: int,
  unknown: tuple[str, ...],
  slice_of: Sequence[int],
) -> Collective:
  groups = _groups(instruction.attributes, len(slice_of))
  size = hlo.size(instruction.type)
  parts = hlo.elements(instruction.type)
  if instruction.opcode.endswith("-start") and kind != "all-reduce" and len(parts) > 1:
    size = hlo.size(parts[1])  # (operands, results, and what the hardware keeps)
  if kind == "reduce-scatter" and instruction.opcode.startswith("reduce-scatter"):
    size *= len(groups[0])  # the result is a share of the operand
  op_name = re.search(r'op_name="([^"]*)"', instruction.attributes)
  frame = re.search(r"stack_frame_id=(\d+)", instruction.attributes)
  functions = program.stacks.get(int(frame[1]), ()) if frame else ()
  across = any(len({slice_of[i] for i in group}) > 1 for group in groups)
  group = max((len(group) for group in groups), default=1)
  return Collective(
    kind, size, group, across, times, unknown, op_name[1] if op_name else "", functions
  )


def _across_slices(
  instruction: Instruction, times: int, unknown: tuple[str, ...], slices: int
) -> Collective:
  """Returns the exchange between slices that a chip begins by sending its share."""
  kind = re.search(rf'{_ACROSS}="(\w+)"', instruction.attributes)[1].lower().replace("_", "-")
  name = re.search(r'_xla_host_transfer_rendezvous="([^"]*)"', instruction.attributes)
  size = hlo.size(hlo.elements(instruction.type)[0])
  return Collective(kind, size, slices, True, times, unknown, name[1] if name else "", ())


# -- which chips


def _groups(attributes: str, devices: int) -> tuple[tuple[int, ...], ...]:
  """Returns the groups of chips of a collective's attributes, in any of the forms that XLA prints.

  Raises:
    ValueError: none of them.
  """
  if pairs := re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes):
    return _numbers(pairs[1])
  found = re.search(r"replica_groups=(.*)", attributes)
  text = found[1] if found else ""
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
  raise ValueError(f"replica groups of a form that is not known: {text[:200]}")


def _mesh_groups(axes: str, ids: str | None, over: str) -> tuple[tuple[int, ...], ...]:
  """Returns the groups of `mesh['a'=2,'b'=4] {'b'}`: chips that differ along the axes named in
  braces alone.

  A part of an axis is printed as 'b':(2)4: of the axis split into a major part of 2, one of 4 and
  the rest, that of 4.
  """
  sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", axes)}
  named = re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", over)
  shape, cut = [], []
  for name, n in sizes.items():
    own = sorted(
      (int(before), int(length)) for axis, before, length in named if axis == name and before
    )
    at = 1
    for before, length in own:
      shape += [before // at, length]
      cut += [False, True]
      at = before * length
    shape.append(n // at)
    cut.append(not own and any(axis == name for axis, *_ in named))
  count = int(np.prod(shape))
  order = np.arange(count) if ids is None else np.asarray(_device_ids(ids, count))
  grid = order.reshape(shape)
  kept, moved = [i for i, c in enumerate(cut) if not c], [i for i, c in enumerate(cut) if c]
  members = int(np.prod([shape[i] for i in moved]))
  return _rows(grid.transpose(kept + moved).reshape(-1, members))


def _device_ids(text: str, count: int) -> list[int]:
  """Returns the order of the chips of a mesh: a list of numbers, or `[4,2]T(1,0)`, the numbers in
  order, transposed.
  """
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


def totals(found: Sequence[Collective]) -> dict[str, int]:
  """Returns bytes of all runs by kind, the largest first."""
  sums: dict[str, int] = {}
  for each in found:
    sums[each.kind] = sums.get(each.kind, 0) + each.total
  return dict(sorted(sums.items(), key=lambda item: -item[1]))
