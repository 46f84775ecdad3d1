"""Makes the adapters of a run, and checks that the base under them is what it was.

A learner with adapters (models/lora.py) trains and saves them alone. The base under them is not
trained; it is read again from the folder of `init_from`.
"""

import dataclasses

import jax

from grpo_jax.aliases import Json, Tree
from grpo_jax.config import settings
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.lora import Lora, split
from grpo_jax.run import provenance
from grpo_jax.setup import parameters


def make_lora(cfg: settings.Lora) -> Lora | None:
  """Returns the shape of the adapters that the `lora` section describes, if it has any."""
  return Lora(cfg.rank, cfg.alpha, tuple(cfg.modules)) if cfg.rank else None


def base_dtype(cfg: settings.Lora, folder: str) -> str:
  """Returns the dtype of the base of adapters.

  Args:
    cfg: the `lora` section.
    folder: a Hugging Face folder; "" for a model that is not there yet, which is taken to be
      bfloat16, as hubs have it.
  """
  if cfg.base_dtype != "same":
    return cfg.base_dtype
  return provenance.weights_dtype(folder) if folder else "bfloat16"


def fresh_adapters(decoder: Decoder, with_heads: Tree, key: jax.Array) -> Tree:
  """Returns sharded adapters that change nothing yet, with the starting heads in float32.

  Args:
    decoder: the policy's or the reward model's.
    with_heads: the heads to start from, as `lora.split` returns them; {} for a policy.
    key: random key of the adapters.
  """
  plain = dataclasses.replace(decoder, config=dataclasses.replace(decoder.config, scores=False))
  shardings = split(plain.shardings())[1]
  adapters = jax.jit(lambda key: split(plain.init(key))[1], out_shardings=shardings)(key)
  return adapters | jax.tree.map(lambda x: x.astype("float32"), with_heads)


def abstract_base(decoder: Decoder, dtype: str) -> Tree:
  """Returns the base of adapters as sharded ShapeDtypeStructs, or None without adapters."""
  if decoder.lora is None:
    return None
  return split(parameters.abstract(decoder.base, dtype))[0]


def check_base(base: Tree, pin: Json, source: str) -> Json:
  """Refuses a base that is not the one which the adapters were trained over, and returns its pin.

  Args:
    base: the tree.
    pin: what this function returned when the run began; {} at that time.
    source: the folder or run that the base was read from.
  """
  use = "this run's adapters were trained over"
  known = pin.get("base")
  return {"base": parameters.check_fingerprint(base, known, f"init_from={source!r}", use)}
