"""Answers calls of a calculator: `<<calc: 37 * 48>>` gets 1776, and the policy goes on after it.

    c.environment.name = "calculator"
    c.sampler.stop = (">>",)          # a call ends the turn

The expression may have numbers, + - * /, brackets and blanks. The result is exact, but a fraction
that is no decimal number of at most LONGEST digits is rounded. Any other turn ends the episode; one
that the end token ends may lack the `>>`.
The environment gives no reward: rewards.functions judge the whole completion, results included.
"""

import ast
import decimal
import operator
import re
from collections.abc import Callable
from fractions import Fraction

from grpo_jax.aliases import Json
from grpo_jax.types import STOPPED, Completion, Turn

CALL = re.compile(r"<<calc:([^<>]*)$")  # the stop text is cut from a turn
ARITHMETIC = re.compile(r"[0-9.+*/() -]*")  # characters of an expression
LONGEST = 12  # digits of a number; larger results are an error, so that nothing takes long
MOST = 100  # characters of an expression
WRONG = "error"

_OPERATIONS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
  ast.Add: operator.add,
  ast.Sub: operator.sub,
  ast.Mult: operator.mul,
  ast.Div: operator.truediv,
}


def step(state: Json, completion: Completion) -> Turn:
  """Returns the result of the call that ended the turn; without one the episode is over."""
  call = CALL.search(completion.text)
  if completion.ended != STOPPED or call is None:
    return Turn(state)
  return Turn(state, result(call[1]))


def result(expression: str) -> str:
  """Returns the value of an expression as text, or WRONG."""
  try:
    if len(expression) > MOST:
      raise ValueError(f"more than {MOST} characters")
    if not ARITHMETIC.fullmatch(expression):
      raise ValueError("not arithmetic")
    text = expression.strip()
    return shown(value(ast.parse(text, mode="eval").body, text))
  except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
    return WRONG


def value(node: ast.AST, text: str) -> Fraction:
  """Returns the exact value of a parsed expression; nothing of it is executed.

  Args:
    node: the expression, or a part of it.
    text: it was parsed from, which has all digits of a number.
  """
  if isinstance(node, ast.Constant) and type(node.value) in (int, float):
    number = Fraction(text[node.col_offset : node.end_col_offset])
  elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    number = -value(node.operand, text)
  elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
    number = _OPERATIONS[type(node.op)](value(node.left, text), value(node.right, text))
  else:
    raise ValueError("not arithmetic")
  if abs(number) >= 10**LONGEST:
    raise ValueError("too large")
  return number


def shown(number: Fraction) -> str:
  """Returns a number in digits: whole, or a decimal of at most LONGEST significant digits."""
  if number.denominator == 1:
    return str(number.numerator)
  with decimal.localcontext(prec=LONGEST):
    rounded = decimal.Decimal(number.numerator) / number.denominator
  digits = f"{rounded:f}"
  return digits.rstrip("0").rstrip(".") if "." in digits else digits
