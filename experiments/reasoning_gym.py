"""GRPO on any task of reasoning-gym (arXiv 2505.24760), scored by the task's own scorer.

    pip install -e '.[gym]' -c constraints.txt
    python -m experiments.run --config=experiments/reasoning_gym.py:stage=sft --workdir=runs/gym_sft
    python -m experiments.run --workdir=runs/gym \\
      --config=experiments/reasoning_gym.py:init_from=runs/gym_sft/export

The first run teaches a model of a million parameters the form of an answer and some of the answers;
the second learns from scores alone. Without `init_from` it starts from nothing, which only shows
that everything runs. Hardware: two CPU cores.

    :task=NAME     a task of reasoning-gym
    :level=N       level of its curriculum, from 0; -1: its own defaults. For a curriculum, start
                   each level from the export of the one before
    :stage=NAME    grpo, or sft on the tasks' own answers
"""

from ml_collections import ConfigDict

from experiments import arguments
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, task="chain_sum", level=0, stage=("grpo", "sft"), init_from="")
  c = defaults.get_config()
  c.init_from = args.init_from
  if not args.init_from:
    c.tokenizer = "bpe"
    c.model.variant = "mini"
    c.model.vocab = 512
  c.model.layers = "unroll"
  c.data.name = "reasoning_gym"
  c.data.reasoning_gym.task = args.task
  c.data.reasoning_gym.level = args.level
  c.data.max_prompt_length = 128
  c.rewards.functions = (("solved", "reasoning_gym.solved", 1.0),)
  c.eval.reward = "reasoning_gym.solved"
  c.eval.problems = 256
  c.sampler.max_length = 32
  c.learner.b2 = 0.95
  if args.stage == "sft":
    c.loop = "offline"
    c.objective = defaults.objective("sft", c)
    c.objective.aggregation = "token_mean"
    c.steps = 300
    c.data.prompts = 64
    c.sampler.group = 1
    c.learner.lr = 2e-3
    c.learner.warmup = 20
  else:
    c.steps = 100
    c.sampler.tries = 2
    c.learner.lr = 3e-4
    c.learner.warmup = 5
  return c
