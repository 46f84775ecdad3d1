"""Draws the random cases on which tests/objectives/trl_test.py compares the objectives with TRL.

Settings have the names of TRL's GRPOConfig. They and the inputs come from numpy's generator alone,
so that they are the same wherever they are drawn: by make_trl_fixture.py, which stores TRL's
numbers, and by the test.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

PROMPTS, GROUP, LENGTH, REWARDS = 2, 4, 5, 2
SETTINGS, INPUTS = 10, 20  # of each family: 200 cases

Settings = dict[str, Any]
Random = np.random.Generator

DEFAULTS: Settings = dict(
  loss_type="grpo",
  importance_sampling_level="token",
  epsilon=0.2,
  epsilon_high=0.2,
  delta=None,
  beta=0.0,
  use_bias_correction_kl=False,
  scale_rewards="group",
  multi_objective_aggregation="sum_then_normalize",
  reward_weights=(1.0,),
  mask_truncated_completions=False,
  top_entropy_quantile=1.0,
  off_policy_mask_threshold=None,
  use_vllm=False,
  vllm_importance_sampling_correction=False,
  vllm_importance_sampling_mode="sequence_mask",
  vllm_importance_sampling_clip_min=None,
  vllm_importance_sampling_clip_max=3.0,
  sapo_temperature_pos=1.0,
  sapo_temperature_neg=1.05,
  vespo_k_pos=2.0,
  vespo_lambda_pos=3.0,
  vespo_k_neg=3.0,
  vespo_lambda_neg=2.0,
)


# -- settings


def _maybe(rng: Random, value: float) -> float | None:
  return value if rng.random() < 0.5 else None


def _shared(rng: Random) -> Settings:
  """Draws what every loss reads."""
  return dict(
    beta=_maybe(rng, rng.uniform(0.01, 0.3)) or 0.0,
    scale_rewards=str(rng.choice(["group", "batch", "none"])),
    mask_truncated_completions=bool(rng.random() < 0.3),
  )


def _token_clip(loss_type: str) -> Callable[[Random], Settings]:
  def draw(rng: Random) -> Settings:
    high = rng.uniform(0.05, 0.5)
    return _shared(rng) | dict(
      loss_type=loss_type,
      epsilon=rng.uniform(0.05, 0.5),
      epsilon_high=high,
      delta=_maybe(rng, 1 + high + rng.uniform(0.01, 0.5)),
      use_bias_correction_kl=bool(rng.random() < 0.5),
    )

  return draw


def _sequence_clip(*loss_types: str) -> Callable[[Random], Settings]:
  def draw(rng: Random) -> Settings:
    high = rng.uniform(0.01, 0.2)
    return _shared(rng) | dict(
      loss_type=str(rng.choice(loss_types)),
      importance_sampling_level="sequence",
      epsilon=rng.uniform(0.01, 0.2),
      epsilon_high=high,
      delta=_maybe(rng, 1 + high + rng.uniform(0.01, 0.2)),
    )

  return draw


def _cispo(rng: Random) -> Settings:
  bias = bool(rng.random() < 0.5)
  cap = rng.uniform(1.0, 1.6)
  return _shared(rng) | dict(loss_type="cispo", epsilon_high=cap, use_bias_correction_kl=bias)


def _sapo(rng: Random) -> Settings:
  return _shared(rng) | dict(
    loss_type="sapo",
    sapo_temperature_pos=rng.uniform(0.2, 4.0),
    sapo_temperature_neg=rng.uniform(0.2, 4.0),
    use_bias_correction_kl=bool(rng.random() < 0.5),
  )


def _vespo(rng: Random) -> Settings:
  settings = _shared(rng) | dict(loss_type="vespo", beta=0.0)
  settings |= {f"vespo_k_{sign}": rng.uniform(0.5, 4.0) for sign in ("pos", "neg")}
  settings |= {f"vespo_lambda_{sign}": rng.uniform(0.5, 4.0) for sign in ("pos", "neg")}
  if rng.random() < 0.5:  # no weight is as large as this: the whole mismatch is in W
    settings |= dict(use_vllm=True, vllm_importance_sampling_correction=True)
    settings |= dict(vllm_importance_sampling_mode="token_truncate")
    settings |= dict(vllm_importance_sampling_clip_max=1e6)
  return settings


TOKEN_LOSSES = (
  *map(_token_clip, ("grpo", "bnpo", "dapo", "dr_grpo")),
  _cispo,
  _sapo,
)
LOSSES = (*TOKEN_LOSSES, _sequence_clip("grpo", "dapo"), _sequence_clip("luspo"))


def _one_of(losses: tuple, rng: Random) -> Settings:
  return losses[rng.integers(len(losses))](rng)


def _top_entropy(rng: Random) -> Settings:
  settings = _one_of(TOKEN_LOSSES, rng)
  return settings | dict(
    top_entropy_quantile=rng.uniform(0.05, 0.95), mask_truncated_completions=False
  )


def _gdpo(rng: Random) -> Settings:
  weights = tuple(rng.uniform(0.2, 2.0, REWARDS))
  gdpo = dict(multi_objective_aggregation="normalize_then_sum", reward_weights=weights)
  return _one_of(LOSSES, rng) | gdpo


def _mismatch(mode: str) -> Callable[[Random], Settings]:
  def draw(rng: Random) -> Settings:
    low, high = _maybe(rng, rng.uniform(0.5, 0.95)), rng.uniform(1.05, 2.0)
    # our gspo refuses to leave out tokens that still move the ratio
    losses = TOKEN_LOSSES if mode == "token_mask" else LOSSES
    return _one_of(losses, rng) | dict(
      use_vllm=True,
      vllm_importance_sampling_correction=True,
      vllm_importance_sampling_mode=mode,
      vllm_importance_sampling_clip_min=low,
      vllm_importance_sampling_clip_max=high if low is None else _maybe(rng, high),
    )

  return draw


def _off_policy_mask(rng: Random) -> Settings:
  threshold = dict(off_policy_mask_threshold=rng.uniform(0.0, 0.3))
  if rng.random() < 0.3:
    return _mismatch(str(rng.choice(["token_truncate", "sequence_truncate"])))(rng) | threshold
  # without vLLM it is the old policy that the live one is compared with
  return _one_of(LOSSES, rng) | threshold | dict(use_vllm=bool(rng.random() < 0.5))


FAMILIES: dict[str, Callable[[Random], Settings]] = {
  "grpo": _token_clip("grpo"),
  "bnpo": _token_clip("bnpo"),
  "dapo": _token_clip("dapo"),
  "dr_grpo": _token_clip("dr_grpo"),
  "gspo": _sequence_clip("grpo", "bnpo", "dapo", "dr_grpo"),
  "luspo": _sequence_clip("luspo"),
  "cispo": _cispo,
  "sapo": _sapo,
  "vespo": _vespo,
  "gdpo": _gdpo,
  "top_entropy": _top_entropy,
  "off_policy_mask": _off_policy_mask,
  **{
    mode: _mismatch(mode)
    for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
  },
}


def settings(family: str) -> list[Settings]:
  """Returns the settings of a family, in TRL's names; each goes with INPUTS inputs."""
  seed = list(FAMILIES).index(family)
  return [DEFAULTS | FAMILIES[family](np.random.default_rng([seed, i])) for i in range(SETTINGS)]


# -- inputs


def inputs(family: str, setting: int) -> dict[str, np.ndarray]:
  """Returns the arrays of INPUTS cases, stacked: float32, but for `lengths` and `stopped`.

  [N, P * G, L]: logps, old, ref, sampler, entropy; [N, P * G]: lengths, stopped; [N, P * G, 2]:
  rewards, of which `reward_weights` says how many are read. All cases have the same lengths in
  another order, and so the same number of tokens.
  """
  seed = [list(FAMILIES).index(family), setting]
  lengths = np.random.default_rng(seed).integers(1, LENGTH + 1, PROMPTS * GROUP)
  drawn = [_one_input(np.random.default_rng([*seed, i]), lengths) for i in range(INPUTS)]
  return {name: np.stack([case[name] for case in drawn]) for name in drawn[0]}


def _one_input(rng: Random, lengths: np.ndarray) -> dict[str, np.ndarray]:
  shape = (PROMPTS * GROUP, LENGTH)
  old = rng.exponential(0.8, shape)

  def near(spread: float) -> np.ndarray:
    return -np.abs(old + rng.normal(0, spread, shape)).astype(np.float32)

  rewards = rng.uniform(0, 1, (shape[0], REWARDS))
  if rng.random() < 0.5:
    rewards = np.round(rewards)
  return {
    "logps": near(rng.uniform(0.02, 0.6)),
    "old": -old.astype(np.float32),
    "ref": near(0.7),
    "sampler": near(0.2),
    "entropy": rng.exponential(0.5, shape).astype(np.float32),
    "lengths": rng.permutation(lengths),
    "stopped": rng.random(shape[0]) < 0.7,
    "rewards": rewards.astype(np.float32),
  }


def cases(family: str) -> list[tuple[Settings, dict[str, np.ndarray]]]:
  """Returns the settings of a family, each with its inputs."""
  return [(chosen, inputs(family, i)) for i, chosen in enumerate(settings(family))]


def checksum(family: str) -> float:
  """Returns a number that changes with the cases of a family."""
  total = 0.0
  for chosen, arrays in cases(family):
    total += sum(float(x) for x in chosen.values() if isinstance(x, int | float))
    total += sum(float(np.sum(array, dtype=np.float64)) for array in arrays.values())
  return total
