"""Adapters (lora.py) as a folder of PEFT: adapter_config.json and adapter_model.safetensors.

Opened with `peft.PeftModel.from_pretrained(base, FOLDER)`, and by vLLM with --enable-lora. Those of
a reward model stand on `AutoModelForSequenceClassification.from_pretrained(BASE, num_labels=1)`,
whose score they replace.

PEFT's lora_A is [r, in] and its lora_B [out, r], as ours are. Where a file holds several of our
weights in one (Phi-3's qkv_proj), so it does of their adapters: ranks add up, the rows of each have
their own columns of lora_B, and the others there are 0.
"""

import json
import os
from typing import Any

import jax
import numpy as np

from grpo_jax.io import storage
from grpo_jax.models.hf import tensors
from grpo_jax.models.hf.config import write_config
from grpo_jax.models.hf.families import FAMILIES
from grpo_jax.models.hf.names import by_tensor, dotted, places
from grpo_jax.models.hf.writing import check_target, replacing, save_tensors
from grpo_jax.models.lora import A, B, Lora
from grpo_jax.models.shape import DecoderConfig

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."


def save(
  folder: str | os.PathLike, config: DecoderConfig, lora: Lora, params: Any, shapes: Any, base: str
) -> None:
  """Writes a folder that PEFT opens; on several hosts each calls it and the first one writes.

  Args:
    folder: replaced as a whole if it holds earlier adapters; complete or absent at any moment but a
      rename.
    config: of the decoder.
    lora: of the adapters.
    params: adapters and, of a reward model, its head (`lora.split`), in any shardings.
    shapes: of the base (`Decoder.shapes`).
    base: the folder of the base, where PEFT is to look for it.

  Raises:
    SettingError: the folder holds something else, or the disk does not take the files.
  """
  target = check_target(folder, CONFIG, "adapters")
  found, ranks = _tensors(config, lora, params, shapes)
  with replacing(target, last=CONFIG) as part:
    if part is not None:
      save_tensors(part / WEIGHTS, found)
      (part / CONFIG).write_text(
        json.dumps(_config(config, lora, ranks, str(storage.absolute(base))), indent=2) + "\n"
      )


def _config(config: DecoderConfig, lora: Lora, ranks: dict[str, int], base: str) -> dict[str, Any]:
  """Returns adapter_config.json; `ranks`: of each module by its name there."""
  other = {name: rank for name, rank in ranks.items() if rank != lora.rank}
  return {
    "peft_type": "LORA",
    "task_type": "SEQ_CLS" if config.scores else "CAUSAL_LM",
    "base_model_name_or_path": base,
    "inference_mode": True,
    "r": lora.rank,
    "lora_alpha": lora.alpha,
    "lora_dropout": 0.0,
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "target_modules": sorted(ranks),
    "rank_pattern": other,
    "alpha_pattern": {name: lora.scale * rank for name, rank in other.items()},
    "modules_to_save": ["score"] if config.scores else None,
  }


def _tensors(
  config: DecoderConfig, lora: Lora, params: Any, shapes: Any
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
  """Returns the tensors of the file, and the rank of each module by its name there."""
  fused = FAMILIES[write_config(config)["model_type"]].fused
  adapters = {dotted(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
  place, rows = places(shapes, fused), {}
  for name, leaves in by_tensor(shapes, fused).items():
    rows[name] = sum(leaf.shape[1 if "{}" in name else 0] for leaf in leaves)
  of_tensor: dict[str, list[str]] = {}  # the modules with an adapter that each tensor holds
  for path in sorted(path.removesuffix(f".{A}") for path in adapters if path.endswith(f".{A}")):
    of_tensor.setdefault(place[f"{path}.weight"].name, []).append(path)
  found = (
    {f"{_PREFIX}score.weight": tensors.on_host(params["score"]["weight"], None, "float32")}
    if config.scores
    else {}
  )
  for name, modules in of_tensor.items():
    rank, module = lora.rank * len(modules), _PREFIX + name.removesuffix(".weight")
    for i in range(config.layers):
      b = np.zeros((rows[name], rank), np.float32)
      for n, path in enumerate(modules):
        start = place[f"{path}.weight"].start
        own = tensors.on_host(adapters[f"{path}.{B}"], i, "float32")
        b[start : start + len(own), n * lora.rank : (n + 1) * lora.rank] = own
      a = [tensors.on_host(adapters[f"{path}.{A}"], i, "float32") for path in modules]
      found[f"{module.format(i)}.lora_A.weight"], found[f"{module.format(i)}.lora_B.weight"] = (
        np.concatenate(a),
        b,
      )
  ranks = {
    name.removesuffix(".weight").rpartition(".")[2]: lora.rank * len(each)
    for name, each in of_tensor.items()
  }
  return found, ranks
