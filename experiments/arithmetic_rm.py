"""Trains an outcome reward model of word problems on samples of a policy.

    python -m experiments.run --config=experiments/arithmetic_rm.py --workdir=runs/arithmetic_rm

The loss is Bradley-Terry on pairs (InstructGPT, arXiv 2203.02155, eq. 1) of a right and a wrong
answer. Both samples of a pair are complete and have the form of an answer, so that the form alone
reveals nothing. DIR/export is a folder for transformers' AutoModelForSequenceClassification.

Hardware: two CPU cores. In one run the model ranked 67.2% of 512 held-out pairs correctly after 900
steps; the policy's own log-prob ranks 71.8% of all pairs correctly. With :start=FOLDER, the process
reward model of experiments/arithmetic_prm.py, it was 94.1% before training and 92.8% at the end
(docs/results.md).

    :hard            samples of the warm start of arithmetic.py:hard
    :policy=FOLDER   a Hugging Face folder or a run that makes the samples, instead of the warm
                     start
    :start=FOLDER    start of the reward model, instead of the warm start
"""

from ml_collections import ConfigDict

from experiments import arguments, arithmetic
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, hard=False, policy="", start="")
  c = defaults.get_config()
  c.loop = "reward_model"
  warm_start = arithmetic.warm_start(args.hard)
  arithmetic.set_task(c, args.hard)
  c.init_from = args.start or warm_start
  c.objective = defaults.objective("reward_model", c)
  c.steps = 900
  c.offline.data = "pairs"
  c.offline.teacher = args.policy or warm_start
  c.offline.require = "math.well_formed"
  c.offline.prompts = 4096
  c.offline.held_out = 512
  c.learner.lr = 1e-3
  c.learner.schedule = "linear"
  c.learner.warmup = 20
  c.learner.b2 = 0.98
  c.eval.every = 150
  c.log.every = 10
  return c
