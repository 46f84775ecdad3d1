"""Adapters of low rank (LoRA, Hu et al. 2021, arXiv 2106.09685): y = W x + (alpha / r) B A x, where
W is not trained.

A stands beside its weight in the tree as "lora_a" [N, r, in], B as "lora_b" [N, out, r]; layers are
stacked as theirs. What is trained is a tree of these leaves alone, and of a head that scores or
values, where there is one:

    split(whole tree)       -> (base, trained)
    join(base, trained)     -> whole tree
    merge(whole tree)       -> the tree of a model without adapters, which decodes and is exported

A fresh B is 0, so that the policy starts as its base, which is also its reference.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

Params = Any

A, B = "lora_a", "lora_b"
MODULES = ("q", "k", "v", "o", "gate", "up", "down")  # that may have an adapter
HEADS = ("score", "value_head")  # trained as a whole


@dataclasses.dataclass(frozen=True)
class Lora:
  """The shape of a model's adapters."""

  rank: int
  alpha: float
  modules: tuple[str, ...]  # of MODULES

  @property
  def scale(self) -> float:
    """What B A is multiplied by."""
    return self.alpha / self.rank

  def rank_of(self, module: str) -> int:
    """Returns the rank of a module's adapter; 0: it has none."""
    return self.rank if module in self.modules else 0


def split(params: Params) -> tuple[Params, Params]:
  """Returns a tree's base, and the part of it that is trained where there are adapters; see `join`."""
  base, trained = {}, {}
  for name, part in params.items():
    if name in (A, B, *HEADS):
      trained[name] = part
    elif isinstance(part, dict):
      inner_base, inner_trained = split(part)
      base[name] = inner_base
      if inner_trained:
        trained[name] = inner_trained
    else:
      base[name] = part
  return base, trained


def join(base: Params | None, params: Params) -> Params:
  """Returns the whole tree of a base and of what is trained over it; `params` itself where that is
  whole already.

  Args:
    base: None where there are no adapters.
    params: of `split`, or a whole tree.
  """
  return params if base is None or "embed" in params else _joined(base, params)


def _joined(a: Params, b: Params) -> Params:
  both = {name: _joined(a[name], b[name]) for name in b if isinstance(a.get(name), dict)}
  return a | b | both


def has_adapters(params: Params) -> bool:
  """Returns whether a tree, whole or not, has adapters."""
  return any(A in part or has_adapters(part) for part in params.values() if isinstance(part, dict))


def merge(lora: Lora | None, params: Params) -> Params:
  """Returns W + (alpha / r) B A in float32 in place of each weight with an adapter; a layer's tree
  or a stack.

  Args:
    lora: of the adapters; None where the tree has none.
    params: a whole tree, or a part of one.
  """
  merged = {
    name: merge(lora, part) if isinstance(part, dict) else part for name, part in params.items()
  }
  if A not in merged:
    return merged
  a, b = merged.pop(A), merged.pop(B)
  change = jnp.matmul(
    b.astype(jnp.float32), a.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST
  )
  return merged | {"weight": merged["weight"].astype(jnp.float32) + lora.scale * change}
