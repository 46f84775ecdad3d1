"""Iterative GRPO (DeepSeekMath, arXiv 2402.03300, Algorithm 1) on GSM8K, by a reward model that
keeps learning.

    python -m experiments.run
        --config=experiments/gsm8k_iterative.py:model=qwen3_0.6b,reward_model=RM \\
        --workdir=runs/gsm8k_iterative --config.init_from=FOLDER --config.data.path=$GSM8K_DIR

It is experiments/gsm8k.py in five iterations, rewarded by the reward model alone. Whether an answer
is right only labels the pairs that the reward model goes on learning from; it is logged as
`reward/correct`. Hardware and score: it has not been run on real weights; that it traces is tested.

    :model=NAME            as in experiments/gsm8k.py
    :reward_model=FOLDER   to begin with: a run of gsm8k_rm.py, or a Hugging Face folder; left out, it is the policy as
                           it starts, with scores of 0: in the first iteration the reward model
                             alone learns
"""

from ml_collections import ConfigDict

from experiments import arguments, gsm8k


def get_config(arg: str = "") -> ConfigDict:
  """The config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, model=(*gsm8k.MODELS, "tiny"), reward_model="")
  c = gsm8k.get_config(f"model={args.model}")
  c.loop = "iterative"
  c.rewards.functions = (("correct", "math.answer_correct", 0.0),)
  c.iterative.reward_model = args.reward_model
  c.iterative.steps = c.steps // 5
  c.eval.every = 0  # the end of each iteration is evaluated
  return c
