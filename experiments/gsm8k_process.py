"""Process-supervised GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.3) on GSM8K.

    python -m experiments.run --workdir=runs/gsm8k_process \\
      --config=experiments/gsm8k_process.py:model=qwen3_0.6b \\
      --config.init_from=FOLDER --config.data.path=$GSM8K_DIR

It is experiments/gsm8k.py with the scores of a process reward model for each step, which is a line,
and the advantage step_returns (docs/results.md says why). The reward model is trained first, in
DIR/first, on steps of the policy's own samples, labelled by whether a continuation reaches the
right answer (Math-Shepherd, arXiv 2312.08935). Whether the answer is right is logged as
`reward/correct`. It has not been run on real weights; a test traces it.

    :model=NAME            a row of MODELS in experiments/gsm8k.py, or tiny
    :reward_model=FOLDER   the process reward model, in place of the first run: a run with
                           loop=process_reward_model, or a Hugging Face folder, with the policy's
                           tokenizer
    :outcome=true          a right answer counts as well, as much as one step
"""

from ml_collections import ConfigDict

from experiments import arguments, gsm8k, stages
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, model=(*gsm8k.MODELS, "tiny"), reward_model="", outcome=False)
  c = gsm8k.get_config(f"model={args.model}")
  c.rewards.functions = (("correct", "math.answer_correct", float(args.outcome)),)
  c.rewards.process_models = (("judge", args.reward_model or stages.RUN, 1.0),)
  c.objective.advantage = "step_returns"
  if not args.reward_model:
    stages.put_first(c, judge(args.model), "data.path")
  return c


def judge(model: str) -> ConfigDict:
  """Returns the config of the first run, which trains the process reward model."""
  c = gsm8k.get_config(f"model={model}")
  c.loop = "process_reward_model"
  c.objective = defaults.objective("process_reward_model", c)
  c.objective.aggregation = "token_mean"
  c.rewards.functions = (("correct", "math.answer_correct", 1.0),)
  c.sampler.group = 4
  c.offline.data = "steps"
  c.offline.continuations = 8
  c.offline.prompts = 16 if model == "tiny" else 2048
  c.offline.held_out = 4 if model == "tiny" else 128
  c.data.prompts = 4 if model == "tiny" else 32
  c.steps = 4 if model == "tiny" else 128
  c.learner.lr = 1e-5
  c.learner.schedule = "cosine"
  c.learner.warmup = 2 if model == "tiny" else 8
  c.eval.every = 0 if model == "tiny" else 32
  return c
