"""Process-supervised GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.3) on word problems: a
reward for each step.

    python -m experiments.run --config=experiments/arithmetic_process.py --workdir=runs/process

It is experiments/arithmetic.py but for the rewards, and for the advantage: step_returns, since
group_relative leaves steps out until one wrong line is all that it writes (docs/results.md, which
has what `:hard` comes to).

The exact checker says of each step whether it is right.

    :reward_model=FOLDER   a process reward model says it: a run of arithmetic_prm.py, or a Hugging Face folder; what
                           the checker says is logged beside it, as `reward/steps`
    :outcome=true          whether the answer is right counts, too, as much as one step
    :hard                  the problems of arithmetic.py:hard
"""

from ml_collections import ConfigDict

from experiments import arguments, arithmetic


def get_config(arg: str = "") -> ConfigDict:
  """The config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, reward_model="", outcome=False, hard=False)
  c = arithmetic.get_config(f"hard={args.hard},objective=process")
  if args.reward_model:
    c.rewards.functions = (("steps", "steps.steps_correct", 0.0),)
    c.rewards.process_models = (("judge", args.reward_model, 1.0),)
  if args.outcome:
    c.rewards.functions = (*c.rewards.functions, ("correct", "math.answer_correct", 1.0))
  return c
