"""How the warm start of experiments/arithmetic.py was made: SFT from scratch, stopped early.

    python -m experiments.run --config=experiments/arithmetic_sft.py --workdir=runs/arithmetic_sft
"""

from ml_collections import ConfigDict

from experiments import arguments, defaults


def get_config(arg: str = "") -> ConfigDict:
  args = arguments.parse_arg(arg, steps=600)
  c = defaults.get_config()
  c.loop = "offline"
  c.steps = args.steps
  c.tokenizer = "words"
  c.model.variant = "mini"
  c.objective.name = "sft"
  c.objective.aggregation = "token_mean"
  c.data.prompts = 64
  c.sampler.group = 1
  c.learner.lr = 2e-3
  c.learner.schedule = "constant"
  c.learner.warmup = 50
  c.learner.b2 = 0.98
  c.eval.every = 100
  c.eval.problems = 512
  c.log.every = 10
  c.log.report_every = 0
  return c
