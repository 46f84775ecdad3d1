"""Lists objectives as the literature has them, for `:objective=NAME` of arithmetic.py and gsm8k.py.

A row is a module of grpo_jax/objectives and what it changes of the defaults. Learning rates, KL
weights that suit one model, and rewards are up to each experiment.
"""

import difflib
import math
from typing import Any

from ml_collections import ConfigDict

from grpo_jax.errors import GrpoError, SettingError
from grpo_jax.setup import defaults, registry

# name -> (module of grpo_jax/objectives, {setting: value})
Table = dict[str, tuple[str, dict[str, Any]]]

SAMPLES = {
  "loop": "offline",
  "offline.data": "samples",
  "sampler.tries": 1,
}  # all of them, whatever their rewards


# what the teachers of self-distillation are told
TOLD = "{question}\n\nA worked solution:\n{solution}\n\nAnswer with a solution of your own."


def kept(level: str, low: float, high: float) -> dict[str, Any]:
  """Returns the settings that learn from what is within the bounds; 0: no bound above."""
  return {
    "objective.keep": level,
    "objective.keep_low": float(low),
    "objective.keep_high": float(high),
  }


PRESETS: Table = {
  "grpo": ("grpo", {}),  # DeepSeekMath, arXiv 2402.03300, and no KL
  "dr_grpo": (
    "grpo",
    {"objective.aggregation": "constant", "objective.scale": "none"},
  ),  # 2503.20783
  # 2503.14476; with the reward length.overlong, which has to know the longest completion. Its bound
  # acts with several updates on a rollout (learner.mu, learner.minibatches): in one, nothing clips.
  "dapo": (
    "grpo",
    {"objective.aggregation": "group_token_mean", "objective.clip_high": 0.28, "sampler.tries": 3},
  ),
  "prefix_credit": ("grpo", {"objective.advantage": "prefix_credit"}),
  "gspo": (
    "gspo",
    {"learner.minibatches": 2},
  ),  # 2507.18071; without several updates a rollout it clips nothing
  "gspo_token": ("gspo", {"objective.token_level": True, "learner.minibatches": 2}),
  "cispo": ("cispo", {"learner.mu": 4}),  # MiniMax-M1, 2506.13585
  "rpg": ("rpg", {"objective.beta": 0.01, "learner.mu": 4}),  # 2505.17508
  "ppo": ("ppo", {"objective.beta": 0.001}),  # 1707.06347, with the KL in the rewards
  "ppo_group": ("ppo", {"objective.beta": 0.001, "objective.group_baseline": True}),
  # 2504.05118
  "vapo": (
    "ppo",
    {
      "objective.lam_length": 0.05,
      "objective.critic_lam": 1.0,
      "objective.imitation": 0.1,
      "objective.clip_high": 0.28,
      "objective.aggregation": "token_mean",
    },
  ),
  "target_prob": ("target_prob", {"learner.mu": 4}),
  "sapo": ("sapo", {"learner.mu": 4}),  # 2511.20347
  "gmpo": ("gmpo", {"learner.mu": 4}),  # 2507.20673
  "dppo": ("dppo", {"learner.mu": 4}),  # 2602.04879
  "vespo": ("vespo", {"learner.mu": 4}),  # 2602.10693
  "kimi": ("kimi", {"learner.mu": 4}),  # Kimi k1.5, 2501.12599
  "clip_cov": ("clip_cov", {"learner.mu": 4}),  # 2505.22617
  "kl_cov": ("kl_cov", {"learner.mu": 4}),  # 2505.22617, its share for a model of 7B parameters
  "top_entropy": ("grpo", {"objective.top_entropy": 0.2}),  # 2506.01939
  "tpo": ("tpo", {"learner.mu": 4}),  # 2604.06159
  # 2602.05261: GSPO's gain times |o|, up to a constant
  "luspo": (
    "gspo",
    {
      "objective.aggregation": "constant",
      "objective.clip_low": 2e-3,
      "objective.clip_high": 2.5e-3,
      "learner.minibatches": 2,
    },
  ),
  # ScaleRL, 2510.13786
  "scale_rl": (
    "cispo",
    {
      "objective.clip_high": 4.0,
      "objective.aggregation": "group_token_mean",
      "objective.scale": "advantages",
      "learner.mu": 4,
    },
  ),
  # other advantages: grpo_jax/objectives/advantages.py
  # 2602.02710; with a sum over tokens, under which its expected update is what the paper says
  "maxrl": ("grpo", {"objective.advantage": "maxrl", "objective.aggregation": "constant"}),
  "pass_at_k": ("grpo", {"objective.advantage": "pass_at_k"}),  # 2508.10751
  # 2505.15201; likewise
  "pkpo": ("grpo", {"objective.advantage": "pkpo", "objective.aggregation": "constant"}),
  # baselines that are optimal where the gradient of a completion is a sum over its tokens
  "opo": (
    "grpo",
    {"objective.advantage": "opo", "objective.aggregation": "constant"},
  ),  # 2505.23585
  "otb": (
    "grpo",
    {"objective.advantage": "otb", "objective.aggregation": "constant"},
  ),  # 2602.07078
  # 2501.03262; with objective.beta the one takes k1 off the reward, the other has k2 in the loss
  "reinforce_pp": (
    "grpo",
    {
      "objective.advantage": "reinforce_pp",
      "objective.kl_in_reward": True,
      "objective.kl_estimator": "k1",
    },
  ),
  "reinforce_pp_baseline": (
    "grpo",
    {"objective.advantage": "reinforce_pp_baseline", "objective.kl_estimator": "k2"},
  ),
  "lite_ppo": (
    "grpo",
    {"objective.scale": "batch", "objective.aggregation": "token_mean"},
  ),  # 2508.08221
  # GRPO with weights or masks for a sampler that differs from the policy: grpo_jax/ops/mismatch.py
  "tis": ("grpo", {"objective.mismatch": "token"}),
  "tis_sequence": ("grpo", {"objective.mismatch": "sequence"}),
  # 2510.18855
  "icepop": (
    "grpo",
    {"objective.mismatch": "token", "objective.mismatch_high": 0.0, **kept("token", 0.5, 5.0)},
  ),
  "mis": (
    "grpo",
    {"objective.mismatch": "sequence", "objective.mismatch_high": 0.0, **kept("sequence", 0, 3.0)},
  ),
  "geometric_mask": ("grpo", kept("geometric", 0.999, 1.001)),
  "trm": ("grpo", {"objective.keep_by": "k3", **kept("mean", 0, 0.001)}),  # 2512.23075
  # DeepSeek-V3.2, 2512.02556, which gives no delta: 0.5 is TRL's
  "v32_mask": (
    "grpo",
    {
      "objective.keep_live": True,
      "objective.keep_condition": "negative",
      **kept("geometric", math.exp(-0.5), 0),
    },
  ),
  # 2603.01365, by completion; its bound was not found, and at 2 the mask acts on few completions
  "vaco": (
    "grpo",
    {
      "objective.mismatch": "token",
      "objective.keep_by": "tv",
      "objective.keep_condition": "onwards",
      **kept("mean", 0, 2.0),
    },
  ),
  "rft": ("rft", {}),  # 2308.01825, online: samples of the live policy
  "rft_offline": ("rft", SAMPLES),
  "sft": ("sft", {"loop": "offline", "offline.data": "solutions", "sampler.group": 1}),
  "dpo": ("dpo", {"loop": "offline", "offline.data": "pairs"}),  # 2305.18290
  "distill": ("distill", {"sampler.tries": 1}),  # on-policy; no reward is asked
  # MOPD, 2601.02780: IcePop's bounds
  "mopd": (
    "distill",
    {
      "sampler.tries": 1,
      "objective.mismatch": "token",
      "objective.mismatch_high": 0.0,
      **kept("token", 0.5, 5.0),
    },
  ),
  # 2306.13649, on the student's own samples
  "gkd": ("gkd", {"sampler.tries": 1}),
  # self-distillation: the policy, or what it was, is told more (grpo_jax/loops/teacher_prompts.py)
  # 2601.19897; its share of 0.01 is what several programs that follow it use
  "sdft": (
    "gkd",
    {
      "sampler.tries": 1,
      "objective.divergence": "reverse",
      "reference.ema": 0.01,
      "reference.prompt": TOLD,
    },
  ),
  "opsd": ("gkd", {"sampler.tries": 1, "reference.prompt": TOLD}),  # 2601.18734
  # 2601.20802, without feedback
  "sdpo": (
    "gkd",
    {
      "sampler.tries": 1,
      "objective.top_k": 100,
      "objective.ratio_cap": 2.0,
      "objective.aggregation": "token_mean",
      "reference.ema": 0.05,
      "reference.prompt": "{question}\n\nA right answer:\n{success}\n\nAnswer the question.",
    },
  ),
  "distill_offline": ("distill_offline", SAMPLES),
}


def choose(c: ConfigDict, name: str, teacher: str = "", table: Table = PRESETS) -> None:
  """Gives the config the objective section of a row, and what else the row changes.

  Args:
    c: changed in place.
    name: a row of the table, a module of grpo_jax/objectives, or one of yours: "package.module" or
      "path/file.py".
    teacher: a Hugging Face folder or a run, for the rows that learn from another model.
    table: to choose from.
  """
  module, changes = table.get(name, (name, {}))
  try:
    registry.objective(module)
  except GrpoError as error:
    if name in table or "." in name:
      raise
    close = difflib.get_close_matches(name.lower(), table, 1)
    meant = f"did you mean {close[0]}? Or " if close else ""
    raise SettingError(
      f"objective={name}: {meant}choose from {', '.join(table)}, or give a file of yours, FILE.py"
    ) from error
  c.objective = defaults.objective(module, c)
  c.update_from_flattened_dict(changes)
  setting = registry.objective(module).teacher
  if setting and not teacher and not (setting == "ref_from" and c.reference.prompt):
    raise SettingError(f"teacher='': {name} learns from another model; use teacher=FOLDER")
  if teacher and not setting:
    raise SettingError(f"teacher={teacher}: {name} learns from no other model; leave it out")
  if setting:
    c.update_from_flattened_dict({setting: teacher})
