"""Tunix's GRPOLearner (vanilla rollout engine) on the standard CPU base workload (see trl_step.py).

Needs google-tunix and einops. Completions are forced to full
length by giving the sampler an end token that is never drawn.
"""

import argparse
import json
import os
import resource
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import grain
import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.qwen3 import model as qwen3
from tunix.rl import rl_cluster as rlc
from tunix.rl.grpo import grpo_learner as gl
from tunix.rl.rollout import base_rollout

ap = argparse.ArgumentParser()
for n, d in dict(
  layers=8, width=512, mlp=1536, vocab=8192, prompts=4, group=8, prompt_len=128, completion=128, steps=4, mu=1
).items():
  ap.add_argument(f"--{n}", type=int, default=d)
a = ap.parse_args()


class Tok:
  def encode(self, t, **k):
    return [int(x) for x in t.split()]

  def decode(self, ids, **k):
    return " ".join(str(int(i)) for i in ids)

  def bos_id(self):
    return 1

  def eos_id(self):
    return a.vocab + 5  # never sampled: every completion runs to full length

  def pad_id(self):
    return 0


cfg = qwen3.ModelConfig(
  num_layers=a.layers,
  vocab_size=a.vocab,
  embed_dim=a.width,
  hidden_dim=a.mlp,
  num_heads=a.width // 64,
  head_dim=64,
  num_kv_heads=a.width // 128,
  rope_theta=10000,
  norm_eps=1e-6,
  use_tied_embedding=True,
)
mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
with mesh:
  actor, ref = qwen3.Qwen3(cfg, rngs=nnx.Rngs(0)), qwen3.Qwen3(cfg, rngs=nnx.Rngs(0))
cc = rlc.ClusterConfig(
  role_to_mesh={rlc.Role.ACTOR: mesh, rlc.Role.REFERENCE: mesh, rlc.Role.ROLLOUT: mesh},
  rollout_engine="vanilla",
  offload_to_cpu=False,
  training_config=rlc.RLTrainingConfig(
    actor_optimizer=optax.adamw(1e-6), eval_every_n_steps=10**6, max_steps=(a.steps + 1) * a.mu
  ),
  rollout_config=base_rollout.RolloutConfig(
    max_tokens_to_generate=a.completion,
    max_prompt_length=a.prompt_len,
    kv_cache_size=a.prompt_len + a.completion + 8,
    temperature=1.0,
    top_p=1.0,
    top_k=None,
    return_logprobs=True,
  ),
)
cluster = rlc.RLCluster(actor=actor, reference=ref, tokenizer=Tok(), cluster_config=cc)
rng = np.random.default_rng(0)


class Src(grain.sources.RandomAccessDataSource if hasattr(grain, "sources") else object):
  def __len__(self):
    return 1000

  def __getitem__(self, i):
    return " ".join(map(str, np.random.default_rng(i).integers(3, a.vocab, a.prompt_len - 2)))


ds = grain.MapDataset.source(Src()).batch(a.prompts).map(lambda x: {"prompts": x})
lens, marks, gens = [], [], []


def reward(prompts, completions, **kw):
  lens.extend(len(c.split()) for c in completions)
  return [float(rng.integers(7)) for _ in completions]


ac = gl.GRPOConfig(num_generations=a.group, num_iterations=a.mu, beta=0.04, epsilon=0.2, kl_loss_mode="low_var_kl")
learner = gl.GRPOLearner(rl_cluster=cluster, algo_config=ac, reward_fns=reward)
orig = learner._generate_and_compute_advantage


def wrap(*x, **k):
  marks.append(time.perf_counter())
  out = orig(*x, **k)
  jax.block_until_ready(out.advantages)
  return out


learner._generate_and_compute_advantage = wrap
og = cluster.generate


def gen(*x, **k):
  t = time.perf_counter()
  out = og(*x, **k)
  jax.block_until_ready(out.tokens)
  gens.append(time.perf_counter() - t)
  return out


cluster.generate = gen
learner.train(ds)
marks.append(time.perf_counter())
steps = np.diff(marks)
med = statistics.median
n = a.prompts * a.group * a.completion
print(
  json.dumps(
    dict(
      system="tunix",
      generate_s=med(gens[1:]),
      step_s=med(steps[1:]),
      completion_tokens=n,
      mean_len=float(np.mean(lens)),
      tok_per_s_generate=n / med(gens[1:]),
      tok_per_s_step=n / med(list(steps[1:])),
      peak_rss_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
      steps=list(map(float, steps)),
    )
  )
)
