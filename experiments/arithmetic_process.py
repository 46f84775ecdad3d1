"""Process-supervised GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.3) on word problems.

    python -m experiments.run --config=experiments/arithmetic_process.py --workdir=runs/process

It is experiments/arithmetic.py with a reward for each step, by the exact checker of steps, and with
the advantage step_returns: under group_relative the policy leaves out steps until it writes nothing
but one wrong line. docs/results.md explains this and has the result of `:hard`.

    :reward_model=FOLDER   a process reward model scores the steps: a run of arithmetic_prm.py or a
                           Hugging Face folder; the checker's verdict is logged as `reward/steps`
    :outcome=true          a right answer counts as well, as much as one step
    :hard                  the problems of arithmetic.py:hard
"""

from ml_collections import ConfigDict

from experiments import arguments, arithmetic


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, reward_model="", outcome=False, hard=False)
  c = arithmetic.get_config(f"hard={args.hard},objective=process")
  if args.reward_model:
    c.rewards.functions = (("steps", "steps.steps_correct", 0.0),)
    c.rewards.process_models = (("judge", args.reward_model, 1.0),)
  if args.outcome:
    c.rewards.functions = (*c.rewards.functions, ("correct", "math.answer_correct", 1.0))
  return c
