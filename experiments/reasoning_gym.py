"""GRPO on any task of reasoning-gym (arXiv 2505.24760), scored by the task's own scorer.

    pip install -e '.[gym]' -c constraints.txt
    python -m experiments.run --config=experiments/reasoning_gym.py --workdir=runs/gym

A first run, in DIR/first, teaches a model of a million parameters the form of an answer and some of
the answers by SFT; the second learns from scores alone. Hardware: two CPU cores.

    :task=NAME     a task of reasoning-gym
    :level=N       level of its curriculum, from 0; -1: its own defaults
    :start=DIR     GRPO from that run or folder, and no SFT: for a curriculum, start each level from
                   the run of the one before
    :objective=    a row of presets.py or a file of yours, as in arithmetic.py
    :teacher=DIR   for distill, mopd, gkd and distill_offline: a Hugging Face folder or a run
"""

from ml_collections import ConfigDict

from experiments import arguments, presets, stages
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, task="chain_sum", level=0, start="", objective="grpo", teacher="")
  c = task(args)
  c.steps = 100
  c.sampler.tries = 2
  c.learner.lr = 3e-4
  c.learner.warmup = 5
  presets.choose(c, args.objective, args.teacher)
  if args.start:
    c.init_from = args.start
  else:
    stages.put_first(c, sft(args), "data.reasoning_gym")
  return c


def task(args: ConfigDict) -> ConfigDict:
  """Returns what both runs have in common."""
  c = defaults.get_config()
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
  return c


def sft(args: ConfigDict) -> ConfigDict:
  """Returns the config of the first run: a fresh model learns the tasks' own answers."""
  c = task(args)
  presets.choose(c, "sft")
  c.objective.aggregation = "token_mean"
  c.tokenizer = "bpe"
  c.model.variant = "mini"
  c.model.vocab = 512
  c.steps = 300
  c.data.prompts = 64
  c.learner.lr = 2e-3
  c.learner.warmup = 20
  return c
