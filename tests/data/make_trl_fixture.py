"""Stores TRL's losses and gradients on random cases, for tests/objectives/trl_test.py.

    python tests/data/make_trl_fixture.py tests/data/trl.npz      (with trl 1.16 and torch installed)

GRPOTrainer's own `_generate_and_score_completions` (advantages, weights for the sampler's mismatch,
denominators) and `_compute_loss` run, in float64, on an object that holds only what they read. Its
model, sampler and reward are stand-ins that return the arrays of a case. The log-probs of the model
are a leaf tensor, from which the gradient is read.
"""

import sys
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import trl_cases

PAD, WORD, STOP = 0, 1, 2  # token ids


def trainer(case: dict[str, np.ndarray], settings: trl_cases.Settings):
  """Returns a GRPOTrainer around one case, and the log-probs [P * G, L] that its loss reads."""
  import torch
  from trl import GRPOTrainer

  arrays = {
    name: torch.tensor(case[name], dtype=torch.float64)
    for name in ("logps", "old", "ref", "entropy", "rewards")
  }
  logps = arrays["logps"].requires_grad_()
  rewards = len(settings["reward_weights"])
  model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
  ref_model = SimpleNamespace()

  def generate(prompts):
    ids = [
      [WORD] * (length - 1) + [STOP if stopped else WORD]
      for length, stopped in zip(case["lengths"], case["stopped"])
    ]
    sampled = None
    if settings["use_vllm"]:
      sampled = [x[:length].tolist() for x, length in zip(case["sampler"], case["lengths"])]
    return [[WORD]] * len(ids), ids, None, [""] * len(ids), sampled, {}, None, None

  def forward(of, ids, mask, width, *args, compute_entropy=False, **kwargs):
    if of is ref_model:
      return arrays["ref"][:, :width], None, None
    if compute_entropy:
      return logps[:, :width], arrays["entropy"][:, :width], None
    return arrays["old"][:, :width], None, None

  shell = object.__new__(GRPOTrainer)
  shell.__dict__.update(
    {k: v for k, v in settings.items() if k not in ("epsilon", "delta")},
    args=SimpleNamespace(
      **settings,
      steps_per_generation=1,
      gradient_accumulation_steps=1,
      per_device_train_batch_size=trl_cases.PROMPTS * trl_cases.GROUP,
      gradient_checkpointing_kwargs=None,
      report_to=[],
    ),
    epsilon_low=settings["epsilon"],
    reward_weights=torch.tensor(settings["reward_weights"]),
    reward_funcs=[None] * rewards,
    reward_func_names=[f"reward {i}" for i in range(rewards)],
    num_generations=trl_cases.GROUP,
    num_iterations=2,  # so that old log-probs are computed
    max_completion_length=trl_cases.LENGTH,
    current_gradient_accumulation_steps=1,
    model=model,
    ref_model=ref_model,
    accelerator=SimpleNamespace(
      device="cpu",
      process_index=0,
      num_processes=1,
      is_main_process=True,
      sync_gradients=True,
      gather=lambda x: x,
      gather_for_metrics=lambda x: x,
      pad_across_processes=lambda x, **kwargs: x,
      reduce=lambda x, reduction: x,
    ),
    eos_token_ids=[STOP],
    _tokenizer=SimpleNamespace(pad_token_id=PAD),
    pad_to_multiple_of=None,
    environment_factories=None,
    environments=None,
    tools=None,
    aux_loss_enabled=False,
    log_multimodal=False,
    _entropy_bonus_enabled=False,
    _pending_extra_logs={},
    _pending_metrics={},
    _logs=defaultdict(list, rewards=defaultdict(list)),
    _metrics={"train": defaultdict(list)},
    _generate=generate,
    _calculate_rewards=lambda *args: arrays["rewards"][:, :rewards],
    _get_per_token_logps_and_entropies=forward,
  )
  return shell, logps


def run_trl(case: dict[str, np.ndarray], settings: trl_cases.Settings) -> tuple[float, np.ndarray]:
  """Returns the loss of one case and its gradient in the log-probs [P * G, L], by TRL's code."""
  shell, logps = trainer(case, settings)
  inputs = shell._generate_and_score_completions([{"prompt": ""} for _ in case["lengths"]])
  loss = shell._compute_loss(shell.model, inputs)
  loss.backward()
  return loss.item(), logps.grad.numpy()


def make_family(family: str) -> dict[str, np.ndarray]:
  """Returns the losses [S, N] and gradients [S, N, P * G, L] of a family, and its checksum."""
  import torch

  default = torch.get_default_dtype()
  torch.set_default_dtype(torch.float64)
  try:
    results = [
      [
        run_trl({name: array[i] for name, array in arrays.items()}, settings)
        for i in range(trl_cases.INPUTS)
      ]
      for settings, arrays in trl_cases.cases(family)
    ]
  finally:
    torch.set_default_dtype(default)
  return {
    f"{family}/checksum": np.float64(trl_cases.checksum(family)),
    f"{family}/loss": np.float32([[loss for loss, _ in row] for row in results]),
    f"{family}/gradient": np.float32([[slope for _, slope in row] for row in results]),
  }


def make() -> dict[str, np.ndarray]:
  """Returns the arrays of all families."""
  arrays: dict[str, np.ndarray] = {}
  for family in trl_cases.FAMILIES:
    arrays |= make_family(family)
  assert all(np.isfinite(array).all() for array in arrays.values())
  return arrays


if __name__ == "__main__":
  np.savez_compressed(sys.argv[1], **make())
