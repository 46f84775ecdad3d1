"""Measures the seconds of a rollout and of a step of TRL's GRPOTrainer on a CPU.

The base workload is a Qwen2-shaped decoder (8 layers, width 512, 8 heads, 4 KV heads, head 64, MLP
1536, vocabulary 8192, tied embeddings), 4 prompts of 128 tokens with G=8 samples of exactly 128
tokens, a KL with beta 0.04, --mu optimiser updates for each rollout, float32.
"""

import json
import os
import resource
import statistics
import tempfile
import time

import workload

# before the libraries: help and a wrong size are answered at once
flags = workload.parse(__doc__, tail=True)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import (  # noqa: E402
  LogitsProcessor,
  LogitsProcessorList,
  PreTrainedTokenizerFast,
  Qwen2Config,
  Qwen2ForCausalLM,
)
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


def lengths(rows, step):
  """Returns long-tailed lengths [rows] with the end token, exponential with mean completion / 4."""
  u = np.random.default_rng(step).random(rows)
  return np.clip(np.ceil(-flags.completion / 4 * np.log1p(-u)), 2, flags.completion).astype(int)


class EndAt(LogitsProcessor):
  """Lets each completion end at its forced length and nowhere before."""

  def __init__(self, ends, prompt):
    self.ends, self.prompt = torch.as_tensor(ends), prompt

  def __call__(self, ids, scores):
    last = ids.shape[1] - self.prompt == self.ends - 1
    scores[:, 2] = -float("inf")
    scores[last] = -float("inf")
    scores[last, 2] = 0.0
    return scores


torch.set_num_threads(len(os.sched_getaffinity(0)))
torch.manual_seed(0)
vocab = {f"t{i}": i for i in range(flags.vocab)}
tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="t0"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
  tokenizer_object=tokenizer, pad_token="t1", eos_token="t2", unk_token="t0", padding_side="left"
)
config = Qwen2Config(
  hidden_size=flags.width,
  intermediate_size=flags.mlp,
  num_hidden_layers=flags.layers,
  num_attention_heads=flags.width // 64,
  num_key_value_heads=flags.width // 128,
  vocab_size=flags.vocab,
  max_position_embeddings=4096,
  tie_word_embeddings=True,
  pad_token_id=1,
  eos_token_id=2,
  bos_token_id=None,
)
folder = tempfile.mkdtemp()
Qwen2ForCausalLM(config).save_pretrained(folder)
tokenizer.save_pretrained(folder)
model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
generator = torch.Generator().manual_seed(0)
prompts = torch.randint(
  3, flags.vocab, (flags.prompts * (flags.steps + 1), flags.prompt_len), generator=generator
)
examples = [{"prompt": " ".join(f"t{i}" for i in prompt)} for prompt in prompts.tolist()]


def reward(completions, **kw):
  return [float(len(c) % 7) for c in completions]


args = GRPOConfig(
  output_dir=tempfile.mkdtemp(),
  per_device_train_batch_size=flags.prompts * flags.group,
  num_generations=flags.group,
  max_completion_length=flags.completion,
  beta=0.04,
  num_iterations=flags.mu,
  max_steps=(flags.steps + 1) * flags.mu,
  learning_rate=1e-6,
  report_to=[],
  save_strategy="no",
  logging_steps=1,
  use_cpu=True,
  bf16=False,
  gradient_checkpointing=False,
  generation_kwargs={} if flags.tail else {"min_new_tokens": flags.completion},
  temperature=1.0,
  seed=0,
  loss_type="grpo",
  disable_tqdm=True,
)
trainer = GRPOTrainer(
  model=model,
  processing_class=tokenizer,
  reward_funcs=reward,
  args=args,
  train_dataset=Dataset.from_list(examples),
)
rollout_seconds, step_seconds = [], []
generate_and_score = trainer._generate_and_score_completions


def timed(*x, **k):
  t = time.perf_counter()
  out = generate_and_score(*x, **k)
  rollout_seconds.append(time.perf_counter() - t)
  return out


trainer._generate_and_score_completions = timed
generate_single_turn = trainer._generate_single_turn
generate_seconds = []


def timed_generate(*x, **k):
  t = time.perf_counter()
  out = generate_single_turn(*x, **k)
  generate_seconds.append(time.perf_counter() - t)
  return out


trainer._generate_single_turn = timed_generate
training_step = trainer.training_step


def timed_step(*x, **k):
  t = time.perf_counter()
  out = training_step(*x, **k)
  step_seconds.append(time.perf_counter() - t)
  return out


trainer.training_step = timed_step
calls, tokens_made = [0], []
if flags.tail:
  plain = trainer.model.generate

  def generate(*x, **k):
    ends = lengths(k["input_ids"].shape[0], calls[0])
    calls[0] += 1
    tokens_made.append(int(ends.sum()))
    return plain(
      *x, logits_processor=LogitsProcessorList([EndAt(ends, k["input_ids"].shape[1])]), **k
    )

  trainer.model.generate = generate
trainer.train()
# A step is a rollout and all updates on it.
step_seconds = [sum(step_seconds[i : i + flags.mu]) for i in range(0, len(step_seconds), flags.mu)]
median = statistics.median
tokens = median(tokens_made[1:]) if flags.tail else flags.prompts * flags.group * flags.completion
print(
  json.dumps(
    dict(
      system="trl",
      generate_s=median(generate_seconds[1:]),
      rollout_and_score_s=median(rollout_seconds[1:]),
      step_s=median(step_seconds[1:]),
      completion_tokens=tokens,
      tok_per_s_generate=tokens / median(generate_seconds[1:]),
      tok_per_s_step=tokens / median(step_seconds[1:]),
      peak_rss_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
      params_m=sum(p.numel() for p in model.parameters()) / 1e6,
    )
  )
)
