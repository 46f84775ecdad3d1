"""GRPO (DeepSeekMath, arXiv 2402.03300) on word problems, from a warm start that ships with the code.

    python -m experiments.run --config=experiments/arithmetic.py --workdir=runs/arithmetic

A decoder of 0.8 million parameters, trained by SFT and stopped early (experiments/arithmetic_sft.py), learns by GRPO
from nothing but whether its final answer is right. Hardware: two CPU cores, about ten minutes.

    :objective=NAME   any module of grpo_jax/objectives that trains online (grpo, gspo, ppo, target_prob ...)
"""

import pathlib

from ml_collections import ConfigDict

from experiments import arguments, defaults

WARM_START = pathlib.Path(__file__).parent / "arithmetic_warm_start"


def get_config(arg: str = "") -> ConfigDict:
  args = arguments.parse_arg(arg, objective="grpo")
  c = defaults.get_config()
  c.init_from = str(WARM_START)
  c.model.layers = "unroll"
  c.steps = 200
  c.objective.name = args.objective
  c.data.prompts = 32
  c.data.max_prompt_length = 64
  c.sampler.group = 8
  c.sampler.max_length = 72
  c.learner.lr = 3e-4
  c.learner.schedule = "linear"
  c.learner.warmup = 5
  c.learner.b2 = 0.95
  c.eval.every = 50
  return c
