"""Iterative GRPO (DeepSeekMath, arXiv 2402.03300, Algorithm 1) on GSM8K.

    python -m experiments.run --workdir=runs/gsm8k_iterative \\
      --config=experiments/gsm8k_iterative.py:model=qwen3_0.6b,reward_model=RM \\
      --config.init_from=FOLDER --config.data.path=$GSM8K_DIR

It is experiments/gsm8k.py in five iterations (six with tiny), rewarded only by a reward model that
keeps learning. Whether an answer is right only labels the pairs that it learns from, and is logged
as `reward/correct`. It has not been run on real weights; a test traces it.

    :model=NAME            a row of MODELS in experiments/gsm8k.py, or tiny
    :reward_model=FOLDER   start of the reward model: a run of gsm8k_rm.py or a Hugging Face folder.
                           Without it the reward model starts from the policy, with scores of 0, and
                           learns alone in the first iteration
"""

from ml_collections import ConfigDict

from experiments import arguments, gsm8k


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, model=(*gsm8k.MODELS, "tiny"), reward_model="")
  c = gsm8k.get_config(f"model={args.model}")
  c.loop = "iterative"
  c.rewards.functions = (("correct", "math.answer_correct", 0.0),)
  c.iterative.reward_model = args.reward_model
  c.iterative.steps = c.steps // 5
  c.eval.every = 0  # the end of each iteration is evaluated
  return c
