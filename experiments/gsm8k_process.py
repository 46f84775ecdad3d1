"""Process-supervised GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.3) on GSM8K.

    python -m experiments.run --workdir=runs/gsm8k_process \\
      --config=experiments/gsm8k_process.py:model=qwen3_0.6b,reward_model=PRM \\
      --config.init_from=FOLDER --config.data.path=$GSM8K_DIR

It is experiments/gsm8k.py with the scores of a process reward model for each step, which is a line,
and the advantage step_returns (docs/results.md says why). PRM is a run with
loop=process_reward_model, or a Hugging Face folder, with the policy's tokenizer. Whether the answer
is right is logged as `reward/correct`. It has not been run on real weights; a test traces it.

    :model=NAME            as in experiments/gsm8k.py
    :reward_model=FOLDER   the process reward model
    :outcome=true          a right answer counts as well, as much as one step
"""

from ml_collections import ConfigDict

from experiments import arguments, gsm8k
from grpo_jax.errors import SettingError


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(arg, model=(*gsm8k.MODELS, "tiny"), reward_model="", outcome=False)
  if not args.reward_model:
    raise SettingError(
      "reward_model='': nothing else tells right steps of GSM8K from wrong ones; use "
      "--config=experiments/gsm8k_process.py:reward_model=FOLDER, a run with "
      "loop=process_reward_model or a Hugging Face folder"
    )
  c = gsm8k.get_config(f"model={args.model}")
  c.rewards.functions = (("correct", "math.answer_correct", float(args.outcome)),)
  c.rewards.process_models = (("judge", args.reward_model, 1.0),)
  c.objective.advantage = "step_returns"
  return c
