"""Finds how often a loop of a compiled program turns, from its text."""

import re
from collections.abc import Callable

from grpo_jax.plan import hlo
from grpo_jax.plan.hlo import Instruction, Program

# Opcodes that pass a counter on unchanged.
_TRANSPARENT = ("copy", "bitcast", "convert", "reshape", "copy-done", "copy-start")

Computation = dict[str, Instruction]


def trip_count(program: Program, caller: str, loop: Instruction) -> int | None:
  """Returns how often a `while` in the computation `caller` turns; None if its text cannot tell."""
  if noted := re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes):
    return int(noted[1])
  condition = program.computations[hlo.called(loop, "condition")]
  compare = hlo.root(condition)
  less = compare.opcode == "compare" and "direction=LT" in compare.attributes
  if not less or len(compare.operands) != 2:
    return None
  bound = _constant(condition, compare.operands[1])
  counter = condition.get(compare.operands[0])
  if bound is None or counter is None or counter.opcode != "get-tuple-element":
    return None
  index = int(hlo.search(r"index=(\d+)", counter.attributes)[1])
  first = _first_value(program, caller, loop, index)
  step = _step(program, loop, index)
  if first is None or not step or step < 0:
    return None
  return max(0, -(-(bound - first) // step))


def _constant(computation: Computation, name: str) -> int | None:
  """Returns the whole number of a constant, through copies; None for anything else."""
  instruction = _source(computation, name)
  if instruction is None or instruction.opcode != "constant":
    return None
  number = re.fullmatch(r"-?\d+", instruction.operands[0])
  return int(number[0]) if number else None


def _source(computation: Computation, name: str) -> Instruction | None:
  """Returns the instruction that computes the value of `name`, through copies."""
  instruction = computation.get(name)
  while instruction is not None and instruction.opcode in _TRANSPARENT:
    instruction = computation.get(instruction.operands[0])
  return instruction


def _first_value(program: Program, caller: str, loop: Instruction, index: int) -> int | None:
  """Returns the start of a loop's counter if it is a constant."""
  state = _source(program.computations[caller], loop.operands[0])
  if state is None or state.opcode != "tuple":
    return None
  return _constant(program.computations[caller], state.operands[index])


def _step(program: Program, loop: Instruction, index: int) -> int | None:
  """Returns the constant that each turn adds to the loop's counter."""
  body = program.computations[hlo.called(loop, "body")]
  result = _source(body, hlo.root(body).name)
  if result is None or result.opcode != "tuple":
    return None
  return _added(program, body, result.operands[index], lambda name: _is_counter(body, name, index))


def _added(
  program: Program, computation: Computation, name: str, is_counter: Callable[[str], bool]
) -> int | None:
  """Returns the constant that an instruction or its fusion adds to the counter, or None."""
  instruction = _source(computation, name)
  if instruction is None:
    return None
  if instruction.opcode == "add":
    for one, other in (instruction.operands, instruction.operands[::-1]):
      if is_counter(one) and (step := _constant(computation, other)) is not None:
        return step
  if instruction.opcode == "fusion":
    fused = program.computations[hlo.called(instruction, "calls")]
    operands = instruction.operands

    def is_parameter(inner: str) -> bool:
      source = _source(fused, inner)
      if source is None or source.opcode != "parameter":
        return False
      return is_counter(operands[int(source.operands[0])])

    return _added(program, fused, hlo.root(fused).name, is_parameter)
  return None


def _is_counter(body: Computation, name: str, index: int) -> bool:
  """Returns whether an instruction is element `index` of the loop's state."""
  source = _source(body, name)
  if source is None or source.opcode != "get-tuple-element":
    return False
  return f"index={index}" in source.attributes and body[source.operands[0]].opcode == "parameter"
