"""An outcome reward model of word problems, from samples of the warm start of
experiments/arithmetic.py.

    python -m experiments.run --config=experiments/arithmetic_rm.py --workdir=runs/arithmetic_rm

The policy's samples are told apart by whether their answer is right; both of a pair are complete
and have the form of an answer, so that the form alone tells nothing. Bradley-Terry on the pairs
(InstructGPT, arXiv 2203.02155, eq. 1).
Measured once: 67.2% of 512 held-out pairs after 900 steps (the policy's own log-prob tells 71.8% of
all pairs). With :start=FOLDER, the process reward model of experiments/arithmetic_prm.py, it told
94.1% before it had learned anything, and 92.8% at the end (docs/results.md).
Hardware: two CPU cores. DIR/export is a folder for transformers'
AutoModelForSequenceClassification.

    :hard            samples of the warm start of arithmetic.py:hard
    :policy=FOLDER   a Hugging Face folder or a run whose samples they are, in place of the warm start
    :start=FOLDER    what the reward model starts from, in place of the warm start
"""

from ml_collections import ConfigDict

from experiments import arguments, arithmetic
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """The config; `arg` is what follows the colon in --config=FILE:arg."""
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
