"""An outcome reward model for GSM8K, on pairs of a policy's own samples, or on a file of pairs.

    python -m experiments.run --config=experiments/gsm8k_rm.py:model=qwen3_0.6b
        --workdir=runs/gsm8k_rm \\ --config.init_from=FOLDER --config.data.path=$GSM8K_DIR

FOLDER is a Hugging Face folder of a policy, which is sampled from and from which the reward model
starts; with :policy=OTHER the samples are OTHER's (a folder or a run, such as one of
experiments/gsm8k.py, with the same tokenizer). --config.offline.pairs=FILE.jsonl takes pairs of
yours instead: prompt, chosen and rejected on each line; with it, --config.offline.require= asks
nothing of them. Bradley-Terry (InstructGPT, arXiv 2203.02155, eq. 1), one pass over the
pairs, as is usual. Hardware and score: it has not been run on real weights; that it traces is
tested.

    :model=NAME       a row of MODELS in experiments/gsm8k.py, whose weights FOLDER holds
    :policy=FOLDER    whose samples the pairs are
"""

from ml_collections import ConfigDict

from experiments import arguments, gsm8k
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """The config; `arg` is what follows the colon in --config=FILE:arg."""
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
