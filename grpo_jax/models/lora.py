"""LoRA adapters (Hu et al. 2021, arXiv 2106.09685): y = W x + (alpha / r) B A x with W frozen.

A is stored beside its weight as "lora_a" [N, r, in], B as "lora_b" [N, out, r], stacked like the
layers. The trained tree holds only these leaves and, if there is one, the head for scores or
values:

    split(whole tree)       -> (base, trained)
    join(base, trained)     -> whole tree
    merge(whole tree)       -> the tree of a model without adapters, which decodes and is exported

A fresh B is 0, so that the policy starts as its base, which is also its reference.
"""

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.models.shape import Params

A, B = "lora_a", "lora_b"
MODULES = ("q", "k", "v", "o", "gate", "up", "down")  # projections that may have an adapter
HEADS = ("score", "value_head")  # trained in full


@dataclasses.dataclass(frozen=True)
class Lora:
  """Describes a model's adapters."""

  rank: int
  alpha: float
  modules: tuple[str, ...]  # of MODULES

  @property
  def scale(self) -> float:
    """Factor of B A."""
    return self.alpha / self.rank

  def adapter_rank(self, module: str) -> int:
    """Returns the rank of a module's adapter; 0: it has none."""
    return self.rank if module in self.modules else 0


def split(params: Params) -> tuple[Params, Params]:
  """Returns the base of a tree and the part of it that is trained; see `join`."""
  base: dict[str, Params] = {}
  trained: dict[str, Params] = {}
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
  """Returns the whole tree; `params` itself if it is whole or there is no base."""
  return params if base is None or "embed" in params else _joined(base, params)


def _joined(a: Params, b: Params) -> Params:
  nested = {name: _joined(a[name], b[name]) for name in b if isinstance(a.get(name), dict)}
  return a | b | nested


def has_adapters(params: Params) -> bool:
  """Returns whether a tree, or a part of one, has adapters."""
  return any(A in part or has_adapters(part) for part in params.values() if isinstance(part, dict))


def merge(lora: Lora | None, params: Params) -> Params:
  """Returns a tree, or a part of one, with each adapter merged into its weight in float32."""
  merged: dict[str, Params] = {
    name: merge(lora, part) if isinstance(part, dict) else part for name, part in params.items()
  }
  if lora is None or A not in merged:
    return merged
  a, b = merged.pop(A), merged.pop(B)
  change = jnp.matmul(
    b.astype(jnp.float32), a.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST
  )
  return merged | {"weight": merged["weight"].astype(jnp.float32) + lora.scale * change}
