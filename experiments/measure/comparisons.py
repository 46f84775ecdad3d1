"""Configures experiments/measure/compare.py: arms, learning rates, seeds and steps.

    python -m experiments.measure.compare --workdir=runs/compare \\
      --config=experiments/measure/comparisons.py

    :quick            two learning rates, two seeds, ten steps: shows in minutes that all works
    :arms=grpo+ppo    only these arms; the whole comparison uses their runs, too
"""

from collections.abc import Iterable

from ml_collections import ConfigDict

from experiments import arguments
from grpo_jax.errors import SettingError

# The objective (what `:objective=` of experiments/arithmetic.py chooses) and the settings that make
# the arm. The KL of PPO is off, as GRPO has none here: between the two there is the critic and what
# comes with it.
ARMS: dict[str, tuple[str, ...]] = {
  "grpo": ("grpo",),  # outcome supervision, one pass, no KL
  "ppo": ("ppo", "objective.beta=0.0"),
  "ppo_group": ("ppo_group", "objective.beta=0.0"),
  "rft": ("rft",),  # online: samples of the live policy
  "rft_offline": ("rft_offline",),  # as many samples, all of the warm start
  "process": ("process",),
  "kl_loss": ("grpo", "objective.beta=0.04"),
  "kl_reward": (
    "grpo",
    "objective.beta=0.04",
    "objective.kl_in_reward=True",
    "objective.kl_estimator=k1",
  ),
  "mu4": ("grpo", "learner.mu=4"),
  # Tokens certain from the start have nowhere to go and count as having reached their bound: 0.13
  # to 0.25 of all.
  "mu4_reached": ("grpo", "learner.mu=4", "learner.stop_reached=0.25"),
  "mu4_surrogate": ("grpo", "learner.mu=4", "learner.stop_surrogate=0.001"),
  "mu4_kl": ("grpo", "learner.mu=4", "learner.stop_kl=0.005"),
  "target_prob": ("target_prob",),  # mu = 4
  "lora": ("grpo", "lora.rank=16"),
  # eight more groups are sampled, and go on under new weights when a step has enough
  "carried": ("grpo", "sampler.carry=8", "objective.mismatch=token"),
  "int8": ("grpo", "sampler.weights_dtype=int8"),  # the sampler alone has rounded weights
  # So few prompts that each comes again and again, all in their turn or less often where all
  # samples were the same.
  "few_prompts": ("grpo", "data.arithmetic.size=128"),
  "redraw": ("grpo", "data.arithmetic.size=128", "data.redraw=0.2"),
}

# A panel of curves for each: its title, and the arms in it.
QUESTIONS = (
  ("GRPO and PPO: group, critic, both", ("grpo", "ppo", "ppo_group")),
  ("RFT online and offline", ("grpo", "rft", "rft_offline")),
  ("Reward at the end and at every step", ("grpo", "process")),
  ("KL in the loss and in the reward", ("grpo", "kl_loss", "kl_reward")),
  (
    "Passes over a rollout, and what ends them",
    ("grpo", "mu4", "mu4_reached", "mu4_surrogate", "mu4_kl"),
  ),
  ("Target probability", ("grpo", "mu4", "target_prob")),
  ("All weights and adapters of rank 16", ("grpo", "lora")),
  ("Groups that an update interrupts", ("grpo", "carried")),
  ("Decoding with weights in eight bits", ("grpo", "int8")),
  ("Few prompts, and fewer turns for those that teach nothing", ("few_prompts", "redraw")),
)


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, arms="", quick=False)
  c = ConfigDict()
  c.base = "experiments/arithmetic.py"
  # (name, objective, setting ...)
  c.arms = tuple((name, *ARMS[name]) for name in choose(args.arms, ARMS))
  c.questions = QUESTIONS
  c.lrs = (1e-5, 3e-5, 1e-4, 3e-4)  # the same for every arm
  # The learning rate of an arm is chosen on one split, by seeds of their own, and the arm is then
  # shown on another.
  c.tune_seeds = (100, 101)
  c.tune_split = "validation"
  c.seeds = (0, 1, 2, 3, 4)
  c.split = "test"
  c.steps = 100
  c.prompts = 32  # in a batch; an offline arm samples steps * prompts of them, once
  c.group = 8  # samples of each
  c.eval_every = 20  # steps
  # Of every run, beside the above. Evaluation is greedy.
  c.settings = (
    "sampler.tries=1",  # every sampled group is learned from, whatever its rewards
    # by updates, it would fall sooner for those that make more of them
    "learner.schedule=constant",
    "eval.samples=0",
    "checkpoint.every=25",
    "checkpoint.keep=1",
    "checkpoint.export=False",
    "log.every=1",  # tokens are counted from the lines of all steps
    "log.writers=()",
    "log.measure_every=0",
    "log.samples_every=0",
  )
  if args.quick:
    c.lrs, c.tune_seeds, c.seeds = (3e-5, 1e-4), (100,), (0, 1)
    c.steps, c.prompts = 10, 8
    c.settings += ("eval.problems=128",)
  return c


def choose(names: str, arms: Iterable[str]) -> list[str]:
  """Returns the arms in `a+b`, all if it is empty."""
  chosen = names.split("+") if names else list(arms)
  for name in chosen:
    if name not in arms:
      raise SettingError(f"arms={names}: no arm {name!r}; choose from {'+'.join(arms)}")
  return list(dict.fromkeys(chosen))
