"""Configures a comparison of objectives and advantages with one update on each rollout.

    python -m experiments.measure.compare --workdir=runs/on_policy \\
      --config=experiments/measure/on_policy.py

The problems are those of arithmetic.py:hard, where the start has a pass@1 of 7.8% and a pass@8 of
40.6% (docs/results.md): most groups have no right sample or one, and it matters what a rare success
is worth.

    :arms=grpo+maxrl    only these arms; the whole comparison uses their runs, too

What they gave is in docs/results.md, "Hard problems: what a rare success is worth".
"""

from ml_collections import ConfigDict

from experiments import arguments
from experiments.measure import comparisons

# The objective and the settings that make the arm, as in comparisons.py. Rows of presets.py are as
# their papers have them.
ARMS: dict[str, tuple[str, ...]] = {
  "grpo": ("grpo",),
  "dr_grpo": ("dr_grpo",),
  "lite_ppo": ("lite_ppo",),
  "reinforce_pp_baseline": ("reinforce_pp_baseline",),
  "rft": ("rft",),  # right samples alone
  "maxrl": ("maxrl",),
  "pass_at_k": ("pass_at_k",),
  "pkpo": ("pkpo",),
  "opo": ("opo",),
  "otb": ("otb",),
  "top_entropy": ("top_entropy",),
  "entropy_bonus": ("grpo", "objective.entropy_bonus=0.001"),
}

QUESTIONS = (
  ("What a group's rewards are divided by", ("grpo", "dr_grpo", "lite_ppo", "rft")),
  ("More weight where success is rare", ("grpo", "maxrl", "pass_at_k", "pkpo")),
  ("Other baselines", ("grpo", "reinforce_pp_baseline", "opo", "otb")),
  ("Uncertain tokens", ("grpo", "top_entropy", "entropy_bonus")),
)


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, arms="")
  c = comparisons.get_config()
  c.base = "experiments/arithmetic.py:hard"
  c.arms = tuple((name, *ARMS[name]) for name in comparisons.choose(args.arms, ARMS))
  c.questions = QUESTIONS
  c.lrs = (1e-4, 3e-4)
  c.tune_seeds = (100,)
  c.seeds = (0, 1, 2, 3)  # which show a difference of four points
  c.steps, c.eval_every = 60, 20
  c.settings += ("eval.samples=8",)
  return c
