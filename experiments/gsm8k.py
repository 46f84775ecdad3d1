"""GRPO on GSM8K (arXiv 2110.14168) in the setting of DeepSeekMath (arXiv 2402.03300, 4.2).

    python -m experiments.run --config=experiments/gsm8k.py:model=qwen3_0.6b --workdir=runs/gsm8k \\
      --config.init_from=FOLDER

FOLDER is a Hugging Face folder, for example from `hf download Qwen/Qwen3-0.6B --local-dir FOLDER`.
The data is downloaded once by tensorflow-datasets, or read from train.jsonl and test.jsonl in
--config.data.path=GSM8K_DIR.

    :model=NAME       a row of MODELS below, whose weights FOLDER holds; or tiny: a small model and
                      tokenizer from scratch, to see the whole pipeline on real data on a CPU; or
                      base: any weights without a chat template, which go on with a text
    :objective=NAME   a row of experiments/presets.py, or your own objective, FILE.py
    :teacher=FOLDER   for distill, mopd, gkd and distill_offline: a Hugging Face folder or a run
    :deepseekmath     the paper's sizes: 64 samples of 1024 tokens, batches of 1024; its learning
                      rate of 1e-6, its one update and, with objective=grpo, its beta of 0.04 are
                      the defaults of this file

Hardware, by the TPU's own compiler: a model of 0.6B parameters fits eight v5e chips (v5e:2x4) with
the defaults. 7B with deepseekmath fits v5e:16x16 with --config.mesh.group=4 --config.mesh.tensor=4
--config.learner.microbatch=16, and v5p-64 (32 chips, v5p:4x4x2) with --config.mesh.group=2
--config.learner.microbatch=16. docs/plans/ has the pages, tests/plan/pod_plan_test.py compiles the
first again, and `python -m launch.plan` tells the same of other shapes and slices. The score
depends on the weights; it is printed before and after.
"""

from typing import Any

from ml_collections import ConfigDict

from experiments import arguments, presets
from grpo_jax.setup import defaults

# Names on the Hugging Face hub, and prompts whose activations are held at a time.
MODELS = {
  "qwen3_0.6b": ("Qwen/Qwen3-0.6B", 8),
  "qwen3_1.7b": ("Qwen/Qwen3-1.7B", 8),
  "qwen2.5_0.5b": ("Qwen/Qwen2.5-0.5B-Instruct", 8),
  "qwen2.5_1.5b": ("Qwen/Qwen2.5-1.5B-Instruct", 8),
  "llama3.2_1b": ("meta-llama/Llama-3.2-1B-Instruct", 8),
}


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(
    arg, model=(*MODELS, "tiny", "base"), objective="grpo", teacher="", deepseekmath=False
  )
  c = defaults.get_config()
  c.steps = 500
  c.data.name = "gsm8k"
  c.data.chat = True
  c.data.template = (
    "{question}\nReason step by step, and end with a line `#### ` and the number alone."
  )
  c.data.prompts = 32
  c.data.max_prompt_length = 256
  c.sampler.group = 16
  c.sampler.max_length = 512
  c.sampler.slots = 256
  c.sampler.dtype = c.sampler.cache_dtype = "bfloat16"
  c.rewards.functions = (
    ("correct", "math.answer_correct", 1.0),
    ("format", "math.well_formed", 0.1),
  )
  c.learner.lr = 1e-6
  c.learner.warmup = 10
  c.model.dtype = "bfloat16"
  c.model.remat = "block"
  c.eval.every = 100
  c.eval.problems = 1319
  c.eval.samples = 4
  if args.deepseekmath:
    c.sampler.group = 64
    c.sampler.max_length = 1024
    c.data.prompts = 16  # batch 1024
    c.sampler.slots = 0  # on so many chips each has few samples: all at once
  if args.model == "tiny":
    tiny(c)
  elif args.model == "base":
    base(c)
  else:
    c.model.hub, c.learner.microbatch = MODELS[args.model]
  presets.choose(c, args.objective, args.teacher)
  c.update_from_flattened_dict(changes(c).get(args.objective, {}))
  return c


def changes(c: ConfigDict) -> dict[str, dict[str, Any]]:
  """Returns what this task changes of rows of presets.py: the paper's KL, DAPO's length reward."""
  longest = c.sampler.max_length
  overlong = ("overlong", "length.overlong", 1.0, {"max_length": longest, "buffer": longest // 5})
  return {
    "grpo": {"objective.beta": 0.04},
    "dapo": {"rewards.functions": (*c.rewards.functions, overlong)},
  }


def base(c: ConfigDict) -> None:
  """Asks weights that follow no chat template, and stops them before a question of their own."""
  c.model.hub, c.learner.microbatch = "google/gemma-3-270m", 8
  c.data.chat = False
  c.data.template = "Question: {question}\nAnswer, step by step, with the number after ####:\n"
  c.sampler.stop = ("\n\nQuestion:",)


def tiny(c: ConfigDict) -> None:
  """Chooses a model and a tokenizer from scratch that fit a CPU and solve hardly any problem."""
  c.steps = 12
  c.tokenizer = "bpe"
  c.model.variant = "tiny"
  c.model.vocab = 2048
  c.model.dtype = c.sampler.dtype = c.sampler.cache_dtype = "float32"
  c.model.remat = "none"
  c.data.chat = False
  c.data.template = "{question}\n"
  c.data.prompts = 4
  c.sampler.group = 8
  c.sampler.max_length = 96
  c.sampler.slots = 0
  c.learner.microbatch = 0
  c.eval.every = 0
  c.eval.problems = 32
  c.eval.batch = 32
  c.log.samples_every = 5
