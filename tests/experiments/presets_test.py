"""Tests that the numbers of the papers are those of the rows and of the objectives' settings."""

import importlib
import operator

import pytest

from experiments import presets
from grpo_jax.errors import SettingError
from grpo_jax.setup import defaults, registry

# Beside what other tests compare with formulas.
NUMBERS = {
  "dapo": {"objective.clip_low": 0.2, "objective.clip_high": 0.28},
  "luspo": {"objective.clip_low": 2e-3, "objective.clip_high": 2.5e-3},
  "gspo": {"objective.clip_low": 3e-4, "objective.clip_high": 4e-4},
  "scale_rl": {"objective.clip_high": 4.0},
  "sapo": {"objective.tau_positive": 1.0, "objective.tau_negative": 1.05},
  "gmpo": {"objective.clip_low": 0.4, "objective.clip_high": 0.4},
  "dppo": {"objective.moved": "tv", "objective.bound": 0.15, "objective.cap": 10.0},
  "vespo": {
    "objective.k_positive": 2.0,
    "objective.lam_positive": 3.0,
    "objective.k_negative": 3.0,
    "objective.lam_negative": 2.0,
  },
  "kl_cov": {"objective.share": 2e-3, "objective.penalty": 1.0},
  "clip_cov": {"objective.share": 2e-4, "objective.cov_low": 1.0, "objective.cov_high": 5.0},
  "tpo": {"objective.eta": 1.0},
  "top_entropy": {"objective.top_entropy": 0.2},
  "vapo": {
    "objective.lam_length": 0.05,
    "objective.critic_lam": 1.0,
    "objective.imitation": 0.1,
    "objective.clip_low": 0.2,
    "objective.clip_high": 0.28,
  },
  "gkd": {"objective.divergence": "jensen_shannon", "objective.jensen_shannon_beta": 0.5},
  "sdft": {"objective.divergence": "reverse", "reference.ema": 0.01},
  "opsd": {
    "objective.divergence": "jensen_shannon",
    "objective.jensen_shannon_beta": 0.5,
    "reference.ema": 0.0,
  },
  "sdpo": {
    "objective.top_k": 100,
    "objective.top_k_of": "student",
    "objective.ratio_cap": 2.0,
    "reference.ema": 0.05,
    "reference.success": 0.5,
  },
  "grpo": {"learner.entropy_step": 1e-4, "learner.entropy_max": 5e-3},
  "reinforce_pp": {"objective.kl_in_reward": True, "objective.kl_estimator": "k1"},
  "reinforce_pp_baseline": {"objective.kl_in_reward": False, "objective.kl_estimator": "k2"},
}

# (how a row adds up its tokens, what it divides advantages by) -> the rows. Other advantages than
# GRPO's do not read the second.
SUMS = {
  ("sequence_mean", "group"): (
    *("grpo", "prefix_credit", "gspo", "gspo_token", "sapo", "gmpo", "rpg", "top_entropy"),
    *("pass_at_k", "reinforce_pp", "reinforce_pp_baseline"),
    *("tis", "tis_sequence", "icepop", "mis", "geometric_mask", "trm", "v32_mask", "vaco"),
  ),
  ("token_mean", "group"): ("cispo", "dppo", "vespo", "clip_cov", "kl_cov"),
  ("token_mean", "batch"): ("lite_ppo",),
  ("group_token_mean", "group"): ("dapo",),
  ("group_token_mean", "advantages"): ("scale_rl",),
  ("constant", "none"): ("dr_grpo", "kimi"),
  ("constant", "group"): ("luspo", "maxrl", "pkpo", "opo", "otb"),
  ("sequence_mean", None): (
    *("ppo", "ppo_group", "rft", "rft_offline", "sft", "distill", "distill_offline", "mopd"),
    *("gkd", "sdft", "opsd"),
  ),
  ("token_mean", None): ("vapo", "sdpo"),
  (None, None): ("target_prob", "tpo", "dpo"),  # whole groups, and pairs
}


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_row_adds_up_its_tokens_as_its_paper(name: str) -> None:
  c = defaults.get_config()
  asked = registry.objective(presets.PRESETS[name][0]).teacher
  presets.choose(c, name, "a folder" if asked else "")
  found = (c.objective.get("aggregation"), c.objective.get("scale"))
  assert [sums for sums, names in SUMS.items() if name in names] == [found]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_row_has_the_numbers_of_its_paper(name: str) -> None:
  c = defaults.get_config()
  teacher = "a folder" if name == "gkd" else ""
  presets.choose(c, name, teacher)
  found = {key: operator.attrgetter(key)(c) for key in NUMBERS[name]}
  assert found == NUMBERS[name]


@pytest.mark.parametrize(
  "file", ["arithmetic", "calculator_tool", "gemma3_270m", "gsm8k", "guess_tool", "reasoning_gym"]
)
@pytest.mark.parametrize(
  ("row", "setting"), [("gkd", "ref_from"), ("distill_offline", "offline.teacher")]
)
def test_every_file_that_takes_a_row_takes_its_teacher(file: str, row: str, setting: str) -> None:
  """Refuses the row without one, and says what works."""
  module = importlib.import_module(f"experiments.{file}")
  c = module.get_config(f"objective={row},teacher=runs/teacher")
  assert operator.attrgetter(setting)(c) == "runs/teacher"
  with pytest.raises(SettingError, match=f"teacher='': {row} .*; use teacher=FOLDER"):
    module.get_config(f"objective={row}")
