"""GRPO with a calculator: word problems with numbers too large for the model's head.

    launch/local.sh --config=experiments/calculator_tool.py --workdir=runs/calculator

A decoder of 0.8 million parameters learns by SFT, in DIR/first, how such problems are worked out
and how the calculator is called: `<<calc: 37 * 48>>`. Then it learns by GRPO from nothing but
whether its final answer is right. A call ends a turn, and environments/calculator.py answers it.

Hardware: two CPU cores; 15 to 20 minutes beside other work. Score to expect: greedy accuracy
75 to 93% after the SFT and 84 to 96% after GRPO, samples 60 to 81% and 80 to 93% (three seeds).

    :without      the same problems and runs without the calculator: next to none is solved
    :objective=   a row of presets.py or a file of yours, as in arithmetic.py
    :teacher=     for distill, mopd, gkd and distill_offline: a Hugging Face folder or a run
"""

from ml_collections import ConfigDict

from experiments import arguments, presets, stages
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, without=False, objective="grpo", teacher="")
  c, first = both(args.without), both(args.without)
  presets.choose(c, args.objective, args.teacher)
  c.steps = 100
  c.data.prompts = 32
  c.sampler.group = 8
  c.sampler.slots = 64
  c.learner.lr = 5e-4
  c.learner.sizes = 4
  c.learner.warmup = 5
  c.eval.every = 25

  presets.choose(first, "sft")
  first.tokenizer = "words"
  first.model.variant = "mini"
  first.steps = 450
  first.data.prompts = 64
  first.learner.lr = 2e-3
  first.learner.warmup = 50
  first.eval.problems = 0  # GRPO begins with an evaluation of what it ends with
  stages.put_first(c, first, "data.arithmetic")
  return c


def both(without: bool) -> ConfigDict:
  """Returns what the two runs have in common: the model, the problems and the evaluation."""
  c = defaults.get_config()
  c.data.max_prompt_length = 48
  c.data.arithmetic.max_number = 9999
  c.data.arithmetic.max_factor = 99
  c.data.arithmetic.max_steps = 2
  c.sampler.max_length = 64
  if not without:
    c.data.arithmetic.calls = True
    c.sampler.stop = (">>",)
    c.environment.name = "calculator"
    c.environment.turns = 4
  c.model.layers = "unroll"
  c.learner.b2 = 0.95
  c.eval.problems = 256
  return c
