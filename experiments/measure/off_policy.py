"""Configures a comparison of objectives where the policy that learns is no longer the sampler.

    python -m experiments.measure.compare --workdir=runs/off_policy \\
      --config=experiments/measure/off_policy.py

With one update on each rollout most objectives are REINFORCE with another weight. What sets them
apart is how they treat samples of a policy that has moved since. So every arm makes 16 updates on a
rollout here: two passes in eight minibatches of two prompts.

    :updates=8          one pass
    :arms=grpo+cispo    only these arms; the whole comparison uses their runs, too

What they gave is in docs/results.md, "Sixteen updates on a rollout" and after it.
"""

from ml_collections import ConfigDict

from experiments import arguments
from experiments.measure import comparisons
from grpo_jax.errors import SettingError

MINIBATCHES = 8
ROUNDED = (
  "sampler.dtype=bfloat16",
  "sampler.weights_dtype=int8",
  "sampler.cache_dtype=int8",
)

# The objective and the settings that make the arm, as in comparisons.py. Rows of presets.py are as
# their papers have them but for learner.mu, which is the same for all.
ARMS: dict[str, tuple[str, ...]] = {
  "grpo": ("grpo",),  # clipped to 0.8 to 1.2
  "clip_higher": ("grpo", "objective.clip_high=0.28"),  # DAPO's bound alone
  "unclipped": ("grpo", "objective.clip_low=0.999999", "objective.clip_high=1e6"),
  "gspo": ("gspo",),
  "gmpo": ("gmpo",),
  "cispo": ("cispo",),
  "scale_rl": ("scale_rl",),
  "sapo": ("sapo",),
  "dppo": ("dppo",),
  "vespo": ("vespo",),
  "kimi": ("kimi",),
  "tpo": ("tpo",),
  "target_prob": ("target_prob",),
  "kl_loss": ("grpo", "objective.beta=0.01"),
  "rpg": ("rpg",),  # has that weight, too; without a KL it is grpo
  "kl_cov": ("kl_cov",),
  "v32_mask": ("v32_mask",),
  # A sampler that rounds as much as it can, and what corrects for it.
  "rounded": ("grpo", *ROUNDED),
  "rounded_tis": ("tis", *ROUNDED),
  "rounded_mis": ("mis", *ROUNDED),
  "rounded_icepop": ("icepop", *ROUNDED),
}

QUESTIONS = (
  ("Clips of the ratio", ("grpo", "clip_higher", "unclipped", "gspo", "gmpo")),
  ("Capped and gated weights", ("grpo", "cispo", "scale_rl", "sapo", "vespo")),
  ("Other ways to stay near", ("grpo", "dppo", "kimi", "kl_cov", "v32_mask")),
  ("Targets", ("grpo", "tpo", "target_prob")),
  ("A KL in the loss, and with its own gradient", ("grpo", "kl_loss", "rpg")),
  (
    "A sampler that rounds",
    ("grpo", "rounded", "rounded_tis", "rounded_mis", "rounded_icepop"),
  ),
)


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, arms="", updates=2 * MINIBATCHES)
  if args.updates < MINIBATCHES or args.updates % MINIBATCHES:
    raise SettingError(f"updates={args.updates}: use a multiple of {MINIBATCHES}")
  same = (f"learner.minibatches={MINIBATCHES}", f"learner.mu={args.updates // MINIBATCHES}")
  c = comparisons.get_config()
  c.arms = tuple((name, *ARMS[name], *same) for name in comparisons.choose(args.arms, ARMS))
  c.questions = QUESTIONS
  c.lrs = (3e-5, 1e-4)
  c.tune_seeds = (100,)
  c.steps, c.prompts, c.eval_every = 24, 16, 12
  c.settings += ("eval.samples=8",)
  return c
