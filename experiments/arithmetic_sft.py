"""SFT on worked solutions, stopped early: it made the warm starts of arithmetic.py.

    python -m experiments.run --config=experiments/arithmetic_sft.py --workdir=runs/arithmetic_sft
    cp runs/arithmetic_sft/export/* experiments/arithmetic_warm_start/

The model then knows the form of an answer and half of the arithmetic. `:steps=1500` trains until
SFT alone gains no more. Hardware: two CPU cores, a few minutes.

    :hard   continues from that warm start with problems of five to eight steps, for
            arithmetic.py:hard; its export belongs into experiments/arithmetic_hard_warm_start/
"""

from ml_collections import ConfigDict

from experiments import arguments, arithmetic
from grpo_jax.setup import defaults

STEPS = 335  # half of the test problems are then solved
HARD_STEPS = 55  # of samples at a temperature of 1, 8% are then right


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, hard=False, steps=0)
  c = defaults.get_config()
  c.loop = "offline"
  c.steps = args.steps or (HARD_STEPS if args.hard else STEPS)
  arithmetic.set_task(c, args.hard)
  c.objective = defaults.objective("sft", c)
  c.objective.aggregation = "token_mean"
  c.data.prompts = 64
  c.sampler.group = 1
  c.sampler.slots = 0
  if args.hard:
    c.init_from = arithmetic.warm_start(hard=False)
  else:
    c.tokenizer = "words"
    c.model.variant = "mini"
  c.learner.lr = 2e-3
  c.learner.warmup = 50
  c.learner.b2 = 0.98
  c.eval.every = 100
  c.log.every = 10
  c.log.measure_every = 0
  return c
