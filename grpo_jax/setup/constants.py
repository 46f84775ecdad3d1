"""Refuses a loss with a term that has no gradient, before a run starts.

Only `outputs` have a gradient; the batch's arrays are numbers. A KL of `batch.old_logprobs` to
`batch.ref_logprobs`, say, moves the loss and trains nothing, whatever its weight, and a run does
not show it. So the sums that a loss is made of are followed back through its traced equations, as
far as it is a sum: each term must depend on the outputs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

from grpo_jax.errors import SettingError
from grpo_jax.setup import calls
from grpo_jax.types import Outputs, Scores, TrainBatch

SUMS = ("add", "sub", "add_any")
LINEAR = ("neg", "reduce_sum", "convert_element_type", "reshape", "broadcast_in_dim", "squeeze")


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
  """Holds what is known of a value of the traced loss."""

  made_by: str = ""  # the primitive; "" for arguments and constants
  parts: tuple["Value", ...] = ()  # what it was made of
  reads: frozenset[str] = frozenset()  # the arguments that it depends on, such as batch.weights
  learns: bool = False  # whether it has a gradient


def check(
  shown: str, loss: Callable, outputs: Outputs | Scores, batch: TrainBatch, settings: Any
) -> None:
  """Refuses a loss without a gradient, or with a term without one.

  Args:
    shown: the setting that names the objective, for the message.
    loss: of the objective.
    outputs, batch, settings: what it is called with; shapes in place of arrays.
  """
  traced = jax.make_jaxpr(lambda *x: loss(*x, settings)[0])(outputs, batch)
  arguments = [
    Value(reads=frozenset({f"{name}{jax.tree_util.keystr(path)}"}), learns=name == "outputs")
    for name, tree in (("outputs", outputs), ("batch", batch))
    for path, _ in jax.tree_util.tree_leaves_with_path(tree)
  ]
  (value,) = _run(traced.jaxpr, traced.consts, arguments)
  place = f"{shown}: loss ({calls.place(loss)})"
  if not value.learns:
    raise SettingError(
      f"{place} has no gradient: it should depend on outputs.logprobs or another of the outputs, "
      "not only inside jax.lax.stop_gradient"
    )
  for term in _terms(value):
    if not term.learns and term.reads and term.made_by != "stop_gradient":
      raise SettingError(
        f"{place} adds a term of {' and '.join(sorted(term.reads))} alone, which has no gradient "
        "and trains nothing; use outputs.logprobs for the policy that is trained, or put the term "
        "in jax.lax.stop_gradient if it is only to be reported"
      )


def _run(jaxpr: core.Jaxpr, consts: list, arguments: list[Value]) -> list[Value]:
  """Returns the results of a jaxpr as Values."""
  known: dict[core.Var, Value] = dict(zip(jaxpr.invars, arguments))
  known |= {var: Value() for var, _ in zip(jaxpr.constvars, consts)}

  def read(x: core.Var | core.Literal) -> Value:
    return Value() if isinstance(x, core.Literal) else known[x]

  for equation in jaxpr.eqns:
    name = equation.primitive.name
    parts = tuple(map(read, equation.invars))
    if name in ("jit", "pjit"):
      inner = equation.params["jaxpr"]
      results = _run(inner.jaxpr, inner.consts, list(parts))
    else:
      reads = frozenset().union(*(part.reads for part in parts))
      learns = name != "stop_gradient" and any(part.learns for part in parts)
      results = [Value(name, parts, reads, learns)] * len(equation.outvars)
    known |= dict(zip(equation.outvars, results))
  return [read(x) for x in jaxpr.outvars]


def _terms(value: Value) -> list[Value]:
  """Returns the terms of a value, as far as it is a sum, without factors that say nothing new.

  A factor is left out if the other one alone has a gradient, or alone reads an argument.
  """
  parts = value.parts
  if value.made_by in SUMS + LINEAR:
    return [term for part in parts for term in _terms(part)]
  if value.made_by in ("mul", "div"):
    says = [part for part in parts if part.learns] or [part for part in parts if part.reads]
    if len(says) == 1 and (value.made_by == "mul" or says[0] is parts[0]):
      return _terms(says[0])
  return [value]
