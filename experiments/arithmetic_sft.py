"""How the warm start of experiments/arithmetic.py was made: SFT from scratch on worked solutions, stopped early.

    python -m experiments.run --config=experiments/arithmetic_sft.py --workdir=runs/arithmetic_sft
    cp runs/arithmetic_sft/export/* experiments/arithmetic_warm_start/

Hardware: two CPU cores, a few minutes. It then has the form of an answer and half of the arithmetic. `:steps=1500`
goes on to where SFT alone ends.
"""

from ml_collections import ConfigDict

from experiments import arguments, defaults


def get_config(arg: str = "") -> ConfigDict:
  """The config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, steps=335)
  c = defaults.get_config()
  c.loop = "offline"
  c.steps = args.steps
  c.tokenizer = "words"
  c.model.variant = "mini"
  c.model.layers = "unroll"
  c.objective = defaults.objective("sft", c)
  c.objective.aggregation = "token_mean"
  c.data.prompts = 64
  c.data.arithmetic.max_number = 40
  c.data.max_prompt_length = 64
  c.sampler.group = 1
  c.sampler.max_length = 56
  c.learner.lr = 2e-3
  c.learner.warmup = 50
  c.learner.b2 = 0.98
  c.eval.every = 100
  c.log.every = 10
  c.log.measure_every = 0
  return c
