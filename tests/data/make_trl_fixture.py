"""Losses and gradients of TRL's GRPOTrainer on random tensors, for tests/objectives/trl_test.py.

    python tests/data/make_trl_fixture.py tests/data/trl.npz      (with trl 1.16 and torch installed)

The trainer's own `_compute_loss` runs on an object that holds only the settings it reads, over a
stand-in for the model that returns the given log-probs as a leaf tensor, so that the gradient with
respect to them can be read off. Its advantages come from TRL's rule, written out in `advantages`:
it is part of a long method that cannot be called alone.
"""

import json
import math
import sys
from collections import defaultdict
from types import SimpleNamespace

import numpy as np

GROUP, PROMPTS, LENGTH = 4, 3, 7

# name -> what differs from TRL's defaults. eps: epsilon, epsilon_high.
BASE = dict(
  loss_type="grpo",
  level="token",
  low=0.2,
  high=0.2,
  delta=None,
  beta=0.0,
  bias=False,
  scale="group",
  is_cap=0.0,
)
CASES = {
  "grpo": {},
  "grpo_kl": dict(beta=0.04),
  "grpo_kl_weighted": dict(beta=0.04, bias=True),
  "grpo_clip_higher": dict(high=0.28),
  "grpo_delta": dict(delta=1.25),
  "grpo_batch": dict(scale="batch"),
  "grpo_none": dict(scale="none"),
  "grpo_mismatch": dict(is_cap=1.2, beta=0.04),
  "bnpo": dict(loss_type="bnpo", beta=0.04),
  "dr_grpo": dict(loss_type="dr_grpo", scale="none"),
  "dapo": dict(loss_type="dapo", high=0.28, beta=0.04),
  "dapo_delta": dict(loss_type="dapo", delta=1.3),
  "gspo": dict(level="sequence", low=0.1, high=0.1),
  "gspo_kl": dict(level="sequence", low=0.1, high=0.1, beta=0.04),
  "gspo_dapo": dict(level="sequence", loss_type="dapo", low=0.1, high=0.15),
  "cispo": dict(loss_type="cispo", high=1.1),
  "cispo_kl": dict(loss_type="cispo", high=1.1, beta=0.04),
}


def random_inputs(seed=0):
  """Float32 arrays [P * G, L], [P * G]: logps, old, ref, sampler, mask (uneven lengths), rewards."""
  rng = np.random.default_rng(seed)
  shape = (PROMPTS * GROUP, LENGTH)
  old = -rng.exponential(0.8, shape)
  lengths = rng.integers(1, LENGTH + 1, shape[0])
  return {
    "logps": (old + rng.normal(0, 0.25, shape)).astype(np.float32),
    "old": old.astype(np.float32),
    "ref": (old + rng.normal(0, 0.7, shape)).astype(np.float32),
    "sampler": (old + rng.normal(0, 0.2, shape)).astype(np.float32),
    "mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.float32),
    "rewards": rng.choice([0.0, 0.1, 0.5, 1.0], shape[0]).astype(np.float32),
  }


def advantages(rewards, scale):
  """GRPOTrainer._generate_and_score_completions, "sum_then_normalize"."""
  import torch
  from trl.trainer.utils import nanstd

  grouped = torch.tensor(rewards).view(-1, GROUP)
  centred = grouped - torch.nanmean(grouped, dim=1, keepdim=True)
  if scale == "none":
    return centred.flatten()
  std = nanstd(grouped, dim=1, keepdim=True) if scale == "group" else nanstd(grouped.flatten())
  return (centred / (std + 1e-4)).flatten()


def run_trl(arrays, case):
  """(loss, gradient [P * G, L], advantages [P * G]) of one case, from TRL's own code."""
  import torch
  from trl import GRPOTrainer

  logps = torch.tensor(arrays["logps"], requires_grad=True)
  mask = torch.tensor(arrays["mask"])
  a = advantages(arrays["rewards"], case["scale"])
  accelerator = SimpleNamespace(
    num_processes=1,
    gather=lambda x: x,
    gather_for_metrics=lambda x: x,
    reduce=lambda x, reduction: x,
    sync_gradients=True,
  )
  trainer = object.__new__(GRPOTrainer)
  trainer.__dict__.update(
    top_entropy_quantile=1.0,
    aux_loss_enabled=False,
    off_policy_mask_threshold=None,
    importance_sampling_level=case["level"],
    beta=case["beta"],
    args=SimpleNamespace(
      use_bias_correction_kl=case["bias"], delta=case["delta"], steps_per_generation=1
    ),
    loss_type=case["loss_type"],
    epsilon_low=case["low"],
    epsilon_high=case["high"],
    use_vllm=bool(case["is_cap"]),
    vllm_importance_sampling_correction=bool(case["is_cap"]),
    max_completion_length=LENGTH,
    current_gradient_accumulation_steps=1,
    accelerator=accelerator,
    model=SimpleNamespace(training=True),
    _entropy_bonus_enabled=False,
    _metrics={"train": defaultdict(list)},
  )
  trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: (
    logps,
    torch.zeros_like(logps),
    None,
  )
  ids = torch.zeros(mask.shape, dtype=torch.long)
  inputs = {
    "prompt_ids": ids[:, :1],
    "prompt_mask": ids[:, :1] + 1,
    "completion_ids": ids,
    "completion_mask": mask.long(),
    "advantages": a,
    "old_per_token_logps": torch.tensor(arrays["old"]),
    "ref_per_token_logps": torch.tensor(arrays["ref"]),
    "num_items_in_batch": mask.sum(),
  }
  if case["is_cap"]:  # "token_truncate", as _generate_and_score_completions computes it
    difference = (torch.tensor(arrays["old"]) - torch.tensor(arrays["sampler"])) * mask
    inputs["importance_sampling_ratio"] = torch.clamp(
      torch.exp(difference), min=None, max=case["is_cap"]
    )
  loss = trainer._compute_loss(trainer.model, inputs)
  loss.backward()
  return loss.item(), logps.grad.numpy(), a.numpy()


def make():
  """name -> array: the inputs, and for each case its loss, gradient and advantages; `settings` as
  JSON.
  """
  arrays = random_inputs()
  out = {f"input/{k}": v for k, v in arrays.items()}
  cases = {name: BASE | changes for name, changes in CASES.items()}
  out["settings"] = np.array(json.dumps(cases))
  for name, case in cases.items():
    loss, gradient, a = run_trl(arrays, case)
    assert math.isfinite(loss)
    out[f"{name}/loss"], out[f"{name}/gradient"], out[f"{name}/advantages"] = (
      np.float32(loss),
      gradient,
      a,
    )
  return out


if __name__ == "__main__":
  np.savez_compressed(sys.argv[1], **make())
