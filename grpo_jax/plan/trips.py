"""How often a loop of a compiled program turns, as far as its text says."""

import re
from collections.abc import Callable

from grpo_jax.plan import hlo
from grpo_jax.plan.hlo import Instruction, Program

# What a counter goes through unchanged on its way through a program.
_TRANSPARENT = ("copy", "bitcast", "convert", "reshape", "copy-done", "copy-start")


def trip_count(program: Program, caller: str, loop: Instruction) -> int | None:
  """Returns how often a `while` turns, or None where that is not known before it runs.

  Args:
    program: of which it is.
    caller: the computation that it stands in.
    loop: the instruction.
  """
  if noted := re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes):
    return int(noted[1])
  condition = program.computations[re.search(r"condition=%?([\w.\-]+)", loop.attributes)[1]]
  compare, bound = hlo.root(condition), None
  if (
    compare.opcode == "compare"
    and "direction=LT" in compare.attributes
    and len(compare.operands) == 2
  ):
    bound = _constant(condition, compare.operands[1])
  counter = condition.get(compare.operands[0]) if bound is not None else None
  if counter is None or counter.opcode != "get-tuple-element":
    return None
  index = int(re.search(r"index=(\d+)", counter.attributes)[1])
  first = _first_value(program, caller, loop, index)
  step = _step(program, loop, index)
  if first is None or not step or step < 0:
    return None
  return max(0, -(-(bound - first) // step))


def _constant(computation: dict[str, Instruction], name: str) -> int | None:
  """Returns the whole number that an instruction is, through copies; None where it is no constant."""
  instruction = _source(computation, name)
  if instruction is None or instruction.opcode != "constant":
    return None
  number = re.fullmatch(r"-?\d+", instruction.operands[0])
  return int(number[0]) if number else None


def _source(computation: dict[str, Instruction], name: str) -> Instruction | None:
  """Returns the instruction whose value that of `name` is, through copies."""
  instruction = computation.get(name)
  while instruction is not None and instruction.opcode in _TRANSPARENT:
    instruction = computation.get(instruction.operands[0])
  return instruction


def _first_value(program: Program, caller: str, loop: Instruction, index: int) -> int | None:
  """Returns what a loop's counter starts from, where it is a constant."""
  given = _source(program.computations[caller], loop.operands[0])
  if given is None or given.opcode != "tuple":
    return None
  return _constant(program.computations[caller], given.operands[index])


def _step(program: Program, loop: Instruction, index: int) -> int | None:
  """Returns what is added to a loop's counter at each turn."""
  body = program.computations[re.search(r"body=%?([\w.\-]+)", loop.attributes)[1]]
  result = _source(body, hlo.root(body).name)
  if result is None or result.opcode != "tuple":
    return None
  return _added(program, body, result.operands[index], lambda name: _is_counter(body, name, index))


def _added(
  program: Program,
  computation: dict[str, Instruction],
  name: str,
  is_counter: Callable[[str], bool],
) -> int | None:
  """Returns the constant that an instruction adds to the counter, looking into a fusion; None where
  it does not.
  """
  instruction = _source(computation, name)
  if instruction is None:
    return None
  if instruction.opcode == "add":
    for one, other in (instruction.operands, instruction.operands[::-1]):
      if is_counter(one) and (step := _constant(computation, other)) is not None:
        return step
  if instruction.opcode == "fusion":
    fused = program.computations[re.search(r"calls=%?([\w.\-]+)", instruction.attributes)[1]]
    given = dict(enumerate(instruction.operands))

    def is_parameter(inner: str) -> bool:
      source = _source(fused, inner)
      return (
        bool(source) and source.opcode == "parameter" and is_counter(given[int(source.operands[0])])
      )

    return _added(program, fused, hlo.root(fused).name, is_parameter)
  return None


def _is_counter(body: dict[str, Instruction], name: str, index: int) -> bool:
  """Returns whether an instruction is the loop's own value of that index."""
  source = _source(body, name)
  if (
    source is None
    or source.opcode != "get-tuple-element"
    or f"index={index}" not in source.attributes
  ):
    return False
  return body[source.operands[0]].opcode == "parameter"
