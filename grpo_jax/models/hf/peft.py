"""Writes adapters (models/lora.py) as a PEFT folder, with its config and its safetensors.

It is opened with `peft.PeftModel.from_pretrained(base, FOLDER)`, and by vLLM with --enable-lora. A
reward model's adapters need `AutoModelForSequenceClassification.from_pretrained(BASE,
num_labels=1)`, whose score they replace.

PEFT's lora_A is [r, in] and its lora_B [out, r], as ours are. Where a tensor of the file holds
several of our weights (Phi-3's qkv_proj), it has one adapter for them: their ranks add up, each has
its own columns of lora_B in its rows, and the rest of lora_B is 0.
"""

import json
import os

import jax
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.io import storage
from grpo_jax.models.hf.config import write_config
from grpo_jax.models.hf.families import FAMILIES
from grpo_jax.models.hf.names import by_tensor, dotted, places
from grpo_jax.models.hf.writing import check_target, on_host, replacing, save_tensors
from grpo_jax.models.lora import A, B, Lora
from grpo_jax.models.shape import DecoderConfig, Params

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."


def save(
  folder: str | os.PathLike,
  config: DecoderConfig,
  lora: Lora,
  params: Params,
  shapes: Params,
  base: str,
) -> None:
  """Writes a folder that PEFT opens; on several hosts each calls it and the first one writes.

  Args:
    folder: replaced as a whole if it holds earlier adapters.
    config: of the decoder.
    lora: of the adapters.
    params: adapters and a reward model's head (`lora.split`), in any shardings.
    shapes: of the base (`Decoder.shapes`).
    base: the folder where PEFT finds the base.
  """
  target = check_target(folder, CONFIG, "adapters")
  values, ranks = _tensors(config, lora, params, shapes)
  with replacing(target, last=CONFIG) as part:
    if part is not None:
      save_tensors(part / WEIGHTS, values)
      settings = _config(config, lora, ranks, str(storage.absolute(base)))
      (part / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")


def _config(config: DecoderConfig, lora: Lora, ranks: dict[str, int], base: str) -> Json:
  """Returns adapter_config.json; `ranks` are those of modules by their names there."""
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
  config: DecoderConfig, lora: Lora, params: Params, shapes: Params
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
  """Returns the tensors of the file, and the rank of each module by its name there."""
  fused = FAMILIES[write_config(config)["model_type"]].fused
  adapters = {dotted(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
  placed, rows = places(shapes, fused), {}
  for name, leaves in by_tensor(shapes, fused).items():
    rows[name] = sum(leaf.shape[1 if "{}" in name else 0] for leaf in leaves)
  modules: dict[str, list[str]] = {}  # the modules with an adapter that each tensor holds
  for path in sorted(path.removesuffix(f".{A}") for path in adapters if path.endswith(f".{A}")):
    modules.setdefault(placed[f"{path}.weight"].name, []).append(path)
  values: dict[str, np.ndarray] = {}
  if config.scores:
    score = on_host(params["score"]["weight"], None, "float32")
    values[f"{_PREFIX}score.weight"] = score
  for name, paths in modules.items():
    module = _PREFIX + name.removesuffix(".weight")
    for i in range(config.layers):
      a = [on_host(adapters[f"{path}.{A}"], i, "float32") for path in paths]
      b = np.zeros((rows[name], lora.rank * len(paths)), np.float32)
      for n, path in enumerate(paths):
        start = placed[f"{path}.weight"].start
        block = on_host(adapters[f"{path}.{B}"], i, "float32")
        b[start : start + len(block), n * lora.rank : (n + 1) * lora.rank] = block
      values[f"{module.format(i)}.lora_A.weight"] = np.concatenate(a)
      values[f"{module.format(i)}.lora_B.weight"] = b
  ranks = {
    name.removesuffix(".weight").rpartition(".")[2]: lora.rank * len(paths)
    for name, paths in modules.items()
  }
  return values, ranks
