"""Measures Tunix's GRPOLearner (vanilla rollout engine) on the workload of trl_step.py.

It needs google-tunix and einops. Completions are forced to full length by an end token that the
sampler never draws.
"""

import json
import os
import resource
import statistics
import time

import workload

flags = workload.parse(__doc__)  # before the libraries: help and a wrong size are answered at once

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import grain  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.models.qwen3 import model as qwen3  # noqa: E402
from tunix.rl import rl_cluster as rlc  # noqa: E402
from tunix.rl.grpo import grpo_learner as gl  # noqa: E402
from tunix.rl.rollout import base_rollout  # noqa: E402


class Tokens:
  """A tokenizer of texts that are numbers with spaces between."""

  def encode(self, t, **k):
    return [int(x) for x in t.split()]

  def decode(self, ids, **k):
    return " ".join(str(int(i)) for i in ids)

  def bos_id(self):
    return 1

  def eos_id(self):
    return flags.vocab + 5  # never sampled: every completion runs to full length

  def pad_id(self):
    return 0


config = qwen3.ModelConfig(
  num_layers=flags.layers,
  vocab_size=flags.vocab,
  embed_dim=flags.width,
  hidden_dim=flags.mlp,
  num_heads=flags.width // 64,
  head_dim=64,
  num_kv_heads=flags.width // 128,
  rope_theta=10000,
  norm_eps=1e-6,
  use_tied_embedding=True,
)
mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
with mesh:
  actor, ref = qwen3.Qwen3(config, rngs=nnx.Rngs(0)), qwen3.Qwen3(config, rngs=nnx.Rngs(0))
cluster_config = rlc.ClusterConfig(
  role_to_mesh={rlc.Role.ACTOR: mesh, rlc.Role.REFERENCE: mesh, rlc.Role.ROLLOUT: mesh},
  rollout_engine="vanilla",
  offload_to_cpu=False,
  training_config=rlc.RLTrainingConfig(
    actor_optimizer=optax.adamw(1e-6),
    eval_every_n_steps=10**6,
    max_steps=(flags.steps + 1) * flags.mu,
  ),
  rollout_config=base_rollout.RolloutConfig(
    max_tokens_to_generate=flags.completion,
    max_prompt_length=flags.prompt_len,
    kv_cache_size=flags.prompt_len + flags.completion + 8,
    temperature=1.0,
    top_p=1.0,
    top_k=None,
    return_logprobs=True,
  ),
)
cluster = rlc.RLCluster(
  actor=actor, reference=ref, tokenizer=Tokens(), cluster_config=cluster_config
)
rng = np.random.default_rng(0)


class Prompts(grain.sources.RandomAccessDataSource if hasattr(grain, "sources") else object):
  """Random prompts."""

  def __len__(self):
    return 1000

  def __getitem__(self, i):
    return " ".join(
      map(str, np.random.default_rng(i).integers(3, flags.vocab, flags.prompt_len - 2))
    )


dataset = grain.MapDataset.source(Prompts()).batch(flags.prompts).map(lambda x: {"prompts": x})
lengths, starts, generate_seconds = [], [], []


def reward(prompts, completions, **kw):
  lengths.extend(len(c.split()) for c in completions)
  return [float(rng.integers(7)) for _ in completions]


grpo_config = gl.GRPOConfig(
  num_generations=flags.group,
  num_iterations=flags.mu,
  beta=0.04,
  epsilon=0.2,
  kl_loss_mode="low_var_kl",
)
learner = gl.GRPOLearner(rl_cluster=cluster, algo_config=grpo_config, reward_fns=reward)
generate_and_compute_advantage = learner._generate_and_compute_advantage


def noted(*x, **k):
  starts.append(time.perf_counter())
  out = generate_and_compute_advantage(*x, **k)
  jax.block_until_ready(out.advantages)
  return out


learner._generate_and_compute_advantage = noted
generate = cluster.generate


def timed_generate(*x, **k):
  t = time.perf_counter()
  out = generate(*x, **k)
  jax.block_until_ready(out.tokens)
  generate_seconds.append(time.perf_counter() - t)
  return out


cluster.generate = timed_generate
learner.train(dataset)
starts.append(time.perf_counter())
steps = np.diff(starts)
median = statistics.median
n = flags.prompts * flags.group * flags.completion
print(
  json.dumps(
    dict(
      system="tunix",
      generate_s=median(generate_seconds[1:]),
      step_s=median(steps[1:]),
      completion_tokens=n,
      mean_len=float(np.mean(lengths)),
      tok_per_s_generate=n / median(generate_seconds[1:]),
      tok_per_s_step=n / median(list(steps[1:])),
      peak_rss_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
      steps=list(map(float, steps)),
    )
  )
)
