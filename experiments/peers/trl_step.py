"""TRL's GRPOTrainer on the standard CPU workload: prints seconds per rollout and per whole step.

Base workload: Qwen2-shaped decoder (8 layers, width 512, 8 heads, 4 KV heads, head 64, MLP 1536,
vocabulary 8192, tied embeddings), 4 prompts x G=8 samples, prompt 128 tokens, completion exactly
128 tokens, KL beta 0.04, --mu optimiser updates per rollout, float32.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

ap = argparse.ArgumentParser()
ap.add_argument("--layers", type=int, default=8)
ap.add_argument("--width", type=int, default=512)
ap.add_argument("--mlp", type=int, default=1536)
ap.add_argument("--vocab", type=int, default=8192)
ap.add_argument("--prompts", type=int, default=4)
ap.add_argument("--group", type=int, default=8)
ap.add_argument("--prompt_len", type=int, default=128)
ap.add_argument("--completion", type=int, default=128)
ap.add_argument("--steps", type=int, default=4)
ap.add_argument("--mu", type=int, default=1, help="updates on a rollout")
ap.add_argument(
  "--tail",
  action="store_true",
  help="long-tailed lengths, mean a quarter of --completion: row i of a step ends at lengths()[i]",
)
a = ap.parse_args()


def lengths(rows, step):
  """Forced completion lengths [rows], end token included: exponential of mean completion/4, cut to [2, completion]."""
  u = np.random.default_rng(step).random(rows)
  return np.clip(np.ceil(-a.completion / 4 * np.log1p(-u)), 2, a.completion).astype(int)


class EndAt(LogitsProcessor):
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
vocab = {f"t{i}": i for i in range(a.vocab)}
tok = Tokenizer(models.WordLevel(vocab, unk_token="t0"))
tok.pre_tokenizer = pre_tokenizers.Whitespace()
tok = PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="t1", eos_token="t2", unk_token="t0", padding_side="left")
cfg = Qwen2Config(
  hidden_size=a.width,
  intermediate_size=a.mlp,
  num_hidden_layers=a.layers,
  num_attention_heads=a.width // 64,
  num_key_value_heads=a.width // 128,
  vocab_size=a.vocab,
  max_position_embeddings=4096,
  tie_word_embeddings=True,
  pad_token_id=1,
  eos_token_id=2,
  bos_token_id=None,
)
d = tempfile.mkdtemp()
Qwen2ForCausalLM(cfg).save_pretrained(d)
tok.save_pretrained(d)
model = Qwen2ForCausalLM.from_pretrained(d, dtype=torch.float32)
g = torch.Generator().manual_seed(0)
rows = [
  {"prompt": " ".join(f"t{i}" for i in torch.randint(3, a.vocab, (a.prompt_len,), generator=g).tolist())}
  for _ in range(a.prompts * (a.steps + 1))
]
marks = []


def reward(completions, **kw):
  return [float(len(c) % 7) for c in completions]


args = GRPOConfig(
  output_dir=tempfile.mkdtemp(),
  per_device_train_batch_size=a.prompts * a.group,
  num_generations=a.group,
  max_completion_length=a.completion,
  beta=0.04,
  num_iterations=a.mu,
  max_steps=(a.steps + 1) * a.mu,
  learning_rate=1e-6,
  report_to=[],
  save_strategy="no",
  logging_steps=1,
  use_cpu=True,
  bf16=False,
  gradient_checkpointing=False,
  generation_kwargs={} if a.tail else {"min_new_tokens": a.completion},
  temperature=1.0,
  seed=0,
  loss_type="grpo",
  disable_tqdm=True,
)
tr = GRPOTrainer(
  model=model, processing_class=tok, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows)
)
roll, whole = [], []
gen = tr._generate_and_score_completions


def timed(*x, **k):
  t = time.perf_counter()
  out = gen(*x, **k)
  roll.append(time.perf_counter() - t)
  return out


tr._generate_and_score_completions = timed
raw_gen = tr._generate_single_turn
gens = []


def timed_gen(*x, **k):
  t = time.perf_counter()
  out = raw_gen(*x, **k)
  gens.append(time.perf_counter() - t)
  return out


tr._generate_single_turn = timed_gen
st = tr.training_step


def timed_step(*x, **k):
  t = time.perf_counter()
  out = st(*x, **k)
  whole.append(time.perf_counter() - t)
  return out


tr.training_step = timed_step
calls, made = [0], []
if a.tail:
  plain = tr.model.generate

  def generate(*x, **k):
    ends = lengths(k["input_ids"].shape[0], calls[0])
    calls[0] += 1
    made.append(int(ends.sum()))
    return plain(*x, logits_processor=LogitsProcessorList([EndAt(ends, k["input_ids"].shape[1])]), **k)

  tr.model.generate = generate
tr.train()
whole = [sum(whole[i : i + a.mu]) for i in range(0, len(whole), a.mu)]  # a rollout and all updates on it
med = statistics.median
n = med(made[1:]) if a.tail else a.prompts * a.group * a.completion
print(
  json.dumps(
    dict(
      system="trl",
      generate_s=med(gens[1:]),
      rollout_and_score_s=med(roll[1:]),
      step_s=med(whole[1:]),
      completion_tokens=n,
      tok_per_s_generate=n / med(gens[1:]),
      tok_per_s_step=n / med(whole[1:]),
      peak_rss_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
      params_m=sum(p.numel() for p in model.parameters()) / 1e6,
    )
  )
)
