"""GRPO over turns: a number from 1 to 31 is guessed with `higher` and `lower` for an answer.

    launch/local.sh --config=experiments/guess_tool.py --workdir=runs/guess

A decoder of 0.8 million parameters learns the game by SFT, from games in which any number that is
still possible is guessed, in DIR/first. Then it learns by GRPO from nothing but whether it has
found the number within five guesses: halving what is left finds every one
(environments/guess.py).

Hardware: two CPU cores; 30 to 35 minutes beside other work. Score to expect: greedy play finds
61 to 68% of the 31 numbers after the SFT and 87 to 94% after GRPO, samples 45% and 80% (three
seeds).

    :objective=   a row of presets.py or a file of yours, as in arithmetic.py
    :teacher=     for distill, mopd, gkd and distill_offline: a Hugging Face folder or a run
"""

from ml_collections import ConfigDict

from experiments import arguments, presets, stages
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, objective="grpo", teacher="")
  c, first = both(), both()
  presets.choose(c, args.objective, args.teacher)
  c.steps = 150
  c.data.prompts = 32
  c.sampler.group = 16
  c.rewards.functions = ()
  c.learner.lr = 5e-4
  c.learner.sizes = 4
  c.learner.warmup = 5
  c.eval.every = 25

  presets.choose(first, "sft")
  first.tokenizer = "words"
  first.model.variant = "mini"
  first.steps = 400
  first.data.prompts = 64
  first.learner.lr = 2e-3
  first.learner.warmup = 20
  first.eval.problems = 0  # GRPO begins with an evaluation of what it ends with
  stages.put_first(c, first, "data.hidden_number")
  return c


def both() -> ConfigDict:
  """Returns what the two runs have in common: the model, the games and the evaluation."""
  c = defaults.get_config()
  c.data.name = "hidden_number"
  c.data.max_prompt_length = 24
  c.sampler.max_length = 48
  c.sampler.stop = ("\n",)
  c.environment.name = "guess"
  c.environment.arguments = (("guesses", 5),)
  c.model.layers = "unroll"
  c.learner.b2 = 0.95
  c.eval.problems = 31
  c.eval.samples = 16
  c.eval.reward = "grpo_jax.environments.guess:solved"
  return c
