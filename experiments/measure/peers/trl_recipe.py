"""Trains a Hugging Face folder by TRL's GRPOTrainer on the prompts of experiments/gemma3_270m.py.

    python -m experiments.measure.recipe_prompts --config=experiments/gemma3_270m.py \\
      --config.init_from=MODEL --config.steps=40 --out=prompts.jsonl
    PYTHON experiments/measure/peers/trl_recipe.py --model=runs/gemma3_270m/first/export \\
      --prompts=prompts.jsonl --out=runs/trl

PYTHON is the interpreter of an environment with TRL. Settings that both have are the recipe's:
prompts in the same order, the reward, 8 completions of at most 80 tokens for each of 8 prompts, one
update by AdamW at a rate of 2e-6 after a warm-up of 5, no KL, bfloat16 with parameters in float32.
TRL has no dynamic sampling, so the run beside it is the recipe with --config.sampler.tries=1
(docs/performance.md has both).
OUT/metrics.jsonl gets a line a step, and OUT/export the trained folder. A checkpoint is saved every
5 steps; the same command goes on from the last one.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import time

parser = argparse.ArgumentParser(
  description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--model", required=True, help="folder of the policy to start from")
parser.add_argument("--prompts", required=True, help='lines of {"prompt": ..., "answer": ...}')
parser.add_argument("--out", required=True, help="folder to write")
parser.add_argument("--lr", type=float, default=2e-6)
parser.add_argument("--group", type=int, default=8)
parser.add_argument("--batch", type=int, default=8, help="prompts of a step")
parser.add_argument("--microbatch", type=int, default=8, help="completions learned from at a time")
parser.add_argument("--completion", type=int, default=80, help="longest completion, in tokens")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
flags = parser.parse_args()

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

torch.set_num_threads(len(os.sched_getaffinity(0)))
rows = [json.loads(line) for line in pathlib.Path(flags.prompts).read_text().splitlines()]
steps = len(rows) // flags.batch
out = pathlib.Path(flags.out)
out.mkdir(parents=True, exist_ok=True)
saved = max((int(path.name.split("-")[1]) for path in out.glob("checkpoint-*")), default=0)
log = open(out / "metrics.jsonl", "a+", buffering=1)
log.seek(0)
log.truncate(sum(len(line) for line in log.readlines()[:saved]))  # steps done again
seconds: dict[str, float] = {}


def correct(completions, answer, **kwargs):
  """Returns 1 for each completion whose number after the last `####` is the answer."""
  found = [re.search(r"####\s*([^\n]*)(?!.*####)", text, re.DOTALL) for text in completions]
  return [float(m is not None and m[1].strip() == a) for m, a in zip(found, answer, strict=True)]


def timed(name, function):
  """Returns the function, whose seconds are added to those of a phase."""

  def call(*args, **kwargs):
    start = time.perf_counter()
    result = function(*args, **kwargs)
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
    return result

  return call


class Log(TrainerCallback):
  """Writes a line a step."""

  def on_step_begin(self, args, state, control, **kwargs):
    seconds.clear()
    self.start = time.perf_counter()

  def on_log(self, args, state, control, logs=None, **kwargs):
    if "reward" not in logs:
      return
    line = {
      "step": state.global_step,
      "reward/mean": logs["reward"],
      "length/mean": logs["completions/mean_length"],
      "entropy": logs.get("entropy"),
      "grad_norm": logs["grad_norm"],
      "time/step": time.perf_counter() - self.start,
      **{f"time/{name}": value for name, value in seconds.items()},
      "peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }
    log.write(json.dumps(line) + "\n")
    print(line, flush=True)


config = GRPOConfig(
  output_dir=str(out),
  per_device_train_batch_size=flags.microbatch,
  gradient_accumulation_steps=flags.batch * flags.group // flags.microbatch,
  num_generations=flags.group,
  max_completion_length=flags.completion,
  beta=0.0,
  num_iterations=1,
  max_steps=steps,
  learning_rate=flags.lr,
  lr_scheduler_type="constant_with_warmup",
  warmup_steps=5,
  weight_decay=0.0,
  max_grad_norm=1.0,
  loss_type="grpo",
  shuffle_dataset=False,
  report_to=[],
  save_strategy="steps",
  save_steps=5,
  save_total_limit=1,
  logging_steps=1,
  use_cpu=not torch.cuda.is_available(),
  bf16=flags.dtype == "bfloat16",
  gradient_checkpointing=False,
  temperature=1.0,
  seed=flags.seed,
  disable_tqdm=True,
)
trainer = GRPOTrainer(
  model=AutoModelForCausalLM.from_pretrained(flags.model, dtype=torch.float32),
  processing_class=AutoTokenizer.from_pretrained(flags.model, padding_side="left"),
  reward_funcs=correct,
  args=config,
  train_dataset=Dataset.from_list(rows),
  callbacks=[Log()],
)
trainer._generate_single_turn = timed("generate", trainer._generate_single_turn)
trainer._generate_and_score_completions = timed("rollout", trainer._generate_and_score_completions)
trainer.train(resume_from_checkpoint=saved > 0)
trainer.model.to(torch.bfloat16).save_pretrained(out / "export")
trainer.processing_class.save_pretrained(out / "export")
