"""GRPO and its relatives in JAX: the names that a notebook starts from.

    from grpo_jax import Decoder, Rollouts, group_relative, make_sampler

`examples/grpo_minimal.py` puts them together. Each name is imported when it is first used, so that
`import grpo_jax` alone imports no jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from grpo_jax.distributed.sharding import Layout as Layout
  from grpo_jax.distributed.sharding import make_layout as make_layout
  from grpo_jax.errors import CheckpointError as CheckpointError
  from grpo_jax.errors import DataError as DataError
  from grpo_jax.errors import GrpoError as GrpoError
  from grpo_jax.errors import SettingError as SettingError
  from grpo_jax.errors import StorageError as StorageError
  from grpo_jax.errors import TrainingError as TrainingError
  from grpo_jax.learning.forward import logprobs as logprobs
  from grpo_jax.learning.learn import make_learn as make_learn
  from grpo_jax.learning.optimizer import make_optimizer as make_optimizer
  from grpo_jax.learning.passes import Setup as Setup
  from grpo_jax.learning.state import create as create_state  # noqa: F401
  from grpo_jax.models.decoder import Decoder as Decoder
  from grpo_jax.models.hf.config import read_config as read_config
  from grpo_jax.models.hf.tensors import load as load_weights  # noqa: F401
  from grpo_jax.models.hf.tensors import save as save_weights  # noqa: F401
  from grpo_jax.models.shape import DecoderConfig as DecoderConfig
  from grpo_jax.ops.advantages import group_relative as group_relative
  from grpo_jax.ops.advantages import returns_to_go as returns_to_go
  from grpo_jax.ops.divergences import k3 as k3
  from grpo_jax.ops.surrogate import clipped as clipped
  from grpo_jax.ops.surrogate import token_ratio as token_ratio
  from grpo_jax.packing.plan import Packing as Packing
  from grpo_jax.packing.plan import pack as pack
  from grpo_jax.sampling.rollouts import completions as completions
  from grpo_jax.sampling.sampler import Sampler as Sampler
  from grpo_jax.sampling.sampler import make_sampler as make_sampler
  from grpo_jax.setup.resolve import resolve as resolve
  from grpo_jax.tokenizer.reading import load as load_tokenizer  # noqa: F401
  from grpo_jax.tokenizer.tokenizer import Tokenizer as Tokenizer
  from grpo_jax.types import Completion as Completion
  from grpo_jax.types import Example as Example
  from grpo_jax.types import Prompts as Prompts
  from grpo_jax.types import Rollouts as Rollouts

_MODULES = {
  "CheckpointError": "errors",
  "Completion": "types",
  "DataError": "errors",
  "Decoder": "models.decoder",
  "DecoderConfig": "models.shape",
  "Example": "types",
  "GrpoError": "errors",
  "Layout": "distributed.sharding",
  "Packing": "packing.plan",
  "Prompts": "types",
  "Rollouts": "types",
  "Sampler": "sampling.sampler",
  "SettingError": "errors",
  "Setup": "learning.passes",
  "StorageError": "errors",
  "Tokenizer": "tokenizer.tokenizer",
  "TrainingError": "errors",
  "clipped": "ops.surrogate",
  "completions": "sampling.rollouts",
  "create_state": "learning.state",
  "group_relative": "ops.advantages",
  "k3": "ops.divergences",
  "load_tokenizer": "tokenizer.reading",
  "load_weights": "models.hf.tensors",
  "logprobs": "learning.forward",
  "make_layout": "distributed.sharding",
  "make_learn": "learning.learn",
  "make_optimizer": "learning.optimizer",
  "make_sampler": "sampling.sampler",
  "pack": "packing.plan",
  "read_config": "models.hf.config",
  "resolve": "setup.resolve",
  "returns_to_go": "ops.advantages",
  "save_weights": "models.hf.tensors",
  "token_ratio": "ops.surrogate",
}
_RENAMED = {
  "create_state": "create",
  "load_tokenizer": "load",
  "load_weights": "load",
  "save_weights": "save",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f"module 'grpo_jax' has no attribute {name!r}")
  return getattr(importlib.import_module(f"grpo_jax.{_MODULES[name]}"), _RENAMED.get(name, name))


def __dir__() -> list[str]:
  return sorted([*globals(), *_MODULES])
