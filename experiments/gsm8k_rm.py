"""Trains an outcome reward model for GSM8K on pairs of a policy's samples or of a file.

    python -m experiments.run --workdir=runs/gsm8k_rm \\
      --config=experiments/gsm8k_rm.py:model=qwen3_0.6b \\
      --config.init_from=FOLDER --config.data.path=$GSM8K_DIR

FOLDER is the Hugging Face folder of a policy, from which the reward model starts and which makes
the samples, unless :policy=OTHER names another folder or run with the same tokenizer, such as a run
of experiments/gsm8k.py. --config.offline.pairs=FILE.jsonl takes your own pairs instead (prompt,
chosen and rejected on each line); it needs --config.offline.require= besides, since only samples
can be required to be right, and a --config.offline.held_out below the number of its prompts.
The loss is Bradley-Terry (InstructGPT, arXiv 2203.02155, eq. 1), in the usual single pass over the
pairs. It has not been run on real weights; a test traces it.

    :model=NAME       a row of MODELS in experiments/gsm8k.py, whose weights FOLDER holds
    :policy=FOLDER    folder or run that makes the samples
"""

from ml_collections import ConfigDict

from experiments import arguments, gsm8k
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, model=tuple(gsm8k.MODELS), policy="")
  c = gsm8k.get_config(f"model={args.model}")
  c.loop = "reward_model"
  c.objective = defaults.objective("reward_model", c)
  c.rewards.functions = (("correct", "math.answer_correct", 1.0),)
  c.offline.data = "pairs"
  c.offline.teacher = args.policy
  c.offline.require = "math.well_formed"
  c.offline.prompts = 4096
  c.offline.held_out = 512
  c.data.prompts = 64
  c.steps = 64
  c.learner.lr = 1e-5
  c.learner.schedule = "cosine"
  c.learner.warmup = 4
  c.eval.every = 16
  c.eval.batch = 64
  return c
