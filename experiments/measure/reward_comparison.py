"""Configures a comparison of rewards on hard problems: outcomes, steps and reward models.

    python -m experiments.measure.compare --workdir=runs/rewards \\
      --config=experiments/measure/reward_comparison.py:orm=runs/hard_rm,prm=runs/hard_prm

`orm` and `prm` are runs of arithmetic_rm.py:hard and arithmetic_prm.py:hard, or Hugging Face
folders. Every arm starts from the warm start of arithmetic.py:hard, and only what its row names
scores its samples.

    :arms=outcome+steps   only these arms
    :epochs=4             passes of the reward model over the samples of an iteration, in the arms
                          iterative and iterative_prm
    :rate=1e-3            learning rate of the reward model there
"""

from ml_collections import ConfigDict

from experiments import arguments
from experiments.measure import comparisons
from grpo_jax.errors import SettingError

QUESTIONS = (
  ("Sparse and dense: outcomes, steps, a process reward model", ("outcome", "steps", "prm")),
  ("Checked and learned: outcomes, an outcome reward model", ("outcome", "orm")),
  ("One fixed reward model, and one that goes on learning", ("fixed", "iterative")),
  ("The same of a process reward model", ("fixed_prm", "iterative_prm")),
)

# An arm's reward model, by its argument.
NEEDS = {
  "prm": "prm",
  "fixed_prm": "prm",
  "iterative_prm": "prm",
  "orm": "orm",
  "fixed": "orm",
  "iterative": "orm",
}
# Logged, and no reward.
NOTHING = "rewards.functions=(('correct', 'math.answer_correct', 0.0),)"
NOTHING_OF_STEPS = (
  "rewards.functions=(('correct', 'math.answer_correct', 0.0), ('steps', 'steps.steps_correct', "
  "0.0))"
)


def arms(orm: str, prm: str, epochs: int, rate: float) -> dict[str, tuple[str, ...]]:
  """Returns the objective of each arm and the settings that make it."""
  by_orm = ("grpo", NOTHING, f"rewards.outcome_models=(('reward_model', {orm!r}, 1.0),)")
  by_steps = "objective.advantage=step_returns"
  by_prm = ("grpo", NOTHING, f"rewards.process_models=(('prm', {prm!r}, 1.0),)", by_steps)
  # DeepSeekMath's Algorithm 1 has a KL to the reference. Fixed: that of the start, and one reward
  # model to the end.
  held = "objective.beta=0.02"
  learning = (
    "loop=iterative",
    "iterative.steps=10",
    f"iterative.reward_model_lr={rate}",
    f"iterative.epochs={epochs}",
  )
  from_orm, from_prm = f"iterative.reward_model={orm}", f"iterative.reward_model={prm}"
  return {
    "outcome": ("grpo",),
    "steps": ("process",),
    "prm": by_prm,
    "orm": by_orm,
    "fixed": (*by_orm, held),
    "iterative": ("grpo", NOTHING, held, *learning, from_orm),
    "fixed_prm": (*by_prm, held),
    "iterative_prm": (
      "grpo",
      NOTHING_OF_STEPS,
      by_steps,
      held,
      *learning,
      from_prm,
      "iterative.labels=steps",
    ),
  }


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, arms="", orm="", prm="", epochs=1, rate=1e-4)
  table = arms(args.orm, args.prm, args.epochs, args.rate)
  chosen = comparisons.choose(args.arms, table)
  for arm in chosen:
    if arm in NEEDS and not args[NEEDS[arm]]:
      raise SettingError(
        f"{NEEDS[arm]}='': the arm {arm} needs a reward model; write :{NEEDS[arm]}=FOLDER"
      )
  c = comparisons.get_config()
  c.base = "experiments/arithmetic.py:hard"
  c.arms = tuple((name, *table[name]) for name in chosen)
  c.questions = QUESTIONS
  c.lrs = (1e-4,)
  c.seeds = (0, 1, 2)
  c.steps, c.prompts, c.eval_every = 40, 8, 20
  c.settings += ("eval.problems=256", "learner.sizes=2")
  return c
