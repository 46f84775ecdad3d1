"""Iterative GRPO (DeepSeekMath, arXiv 2402.03300, Algorithm 1) on word problems.

    python -m experiments.run --config=experiments/arithmetic_iterative.py --workdir=runs/iterative

Only a reward model rewards the policy, and it keeps learning. It is trained first, in DIR/first, as
experiments/arithmetic_rm.py says. Whether an answer is right only labels the pairs that it learns
from, and is logged as `reward/correct` besides `reward/reward_model`. The policy is evaluated at
the end of each iteration.

    :reward_model=FOLDER   start of the reward model, in place of the first run: a run of
                           arithmetic_rm.py or a Hugging Face folder
    :hard                  the problems of arithmetic.py:hard, and its learning rate
"""

from ml_collections import ConfigDict

from experiments import arguments, arithmetic, arithmetic_rm, stages


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, reward_model="", hard=False)
  c = arithmetic.get_config(f"hard={args.hard}")
  c.loop = "iterative"
  c.steps = 200
  c.rewards.functions = (("correct", "math.answer_correct", 0.0),)
  c.objective.beta = 0.02  # the reference moves up to the policy at each iteration
  c.learner.lr = min(c.learner.lr, 2e-4)
  c.learner.schedule = "constant"
  c.iterative.reward_model = args.reward_model or stages.RUN
  c.iterative.steps = 40
  c.iterative.reward_model_lr = 1e-4
  c.eval.every = 0  # the end of each iteration is evaluated
  if not args.reward_model:
    stages.put_first(c, arithmetic_rm.get_config(f"hard={args.hard}"), "data.arithmetic")
  return c
