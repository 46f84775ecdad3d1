"""Trains a process reward model (Math-Shepherd, arXiv 2312.08935) on word problems.

    python -m experiments.run --config=experiments/arithmetic_prm.py --workdir=runs/arithmetic_prm

The decoder of 0.8 million parameters from which experiments/arithmetic.py starts learns to tell
right steps of its own samples from wrong ones; it makes about as many of each. A step counts as
right if one of eight continuations reaches the right answer. On held-out prompts,
`eval/step_accuracy` compares the model with such labels, `eval/rule_accuracy` with the exact
checker of steps, and `eval/label_agreement` the labels with the checker.

Hardware: two CPU cores. With :labels=rule,start=FOLDER, where FOLDER is a policy that solves these
problems (experiments/arithmetic_sft.py), the balanced accuracy on 3487 held-out steps, 55% of them
wrong, was 75% after 200 steps, 90% after 800 and 95.2% at the end, and the area under the curve was
0.985. docs/results.md has other runs.

    :hard            samples of the warm start of arithmetic.py:hard
    :labels=rule     the exact checker labels the steps, without continuations
    :start=FOLDER    start of the reward model, instead of the warm start
"""

from ml_collections import ConfigDict

from experiments import arguments, arithmetic
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, hard=False, labels=("continuations", "rule"), start="")
  c = defaults.get_config()
  c.loop = "process_reward_model"
  warm_start = arithmetic.warm_start(args.hard)
  arithmetic.set_task(c, args.hard)
  c.init_from = args.start or warm_start
  c.objective = defaults.objective("process_reward_model", c)
  c.objective.aggregation = "token_mean"
  c.rewards.functions = (("steps", "steps.steps_correct", 1.0),)
  c.offline.data = "steps"
  c.offline.teacher = warm_start
  c.offline.held_out = 128
  c.offline.continuations = 8 if args.labels == "continuations" else 0
  c.learner.lr = 5e-4
  c.learner.minibatches = 2
  c.learner.sizes = 2
  c.learner.schedule = "linear"
  c.learner.b2 = 0.95
  c.eval.batch = 64
  c.log.every = 10
  if args.labels == "rule":
    c.steps, c.offline.prompts, c.learner.warmup, c.eval.every = 1600, 8192, 50, 200
  else:  # a label is eight samples more
    c.steps, c.offline.prompts, c.learner.warmup, c.eval.every = 220, 2048, 10, 50
  return c
