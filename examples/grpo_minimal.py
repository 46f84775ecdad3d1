"""GRPO in one file: sample, reward, advantage, update, checkpoint, on the library's functions.

    python examples/grpo_minimal.py --steps=60 --folder=runs/minimal

A decoder of 0.8 million parameters, which ships with the code, learns word problems from nothing
but whether its final answer is right. With --steps=40 the share of right completions rises from
about a third to about a half, in 3.5 minutes on two CPU cores with other work. The same command
resumes from the last checkpoint.

Copy this file and change a line of it, or call its functions from a notebook. What it leaves out is
in `grpo_jax/loops/online.py`: microbatches, adapters, several hosts, evaluation, exact resume.

Shape letters: P prompts, G samples of each, L completion tokens, Lp prompt tokens.
"""

import argparse
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

from grpo_jax import (
  Decoder,
  Example,
  Packing,
  Prompts,
  Rollouts,
  Sampler,
  Tokenizer,
  clipped,
  completions,
  create_state,
  group_relative,
  k3,
  load_tokenizer,
  load_weights,
  logprobs,
  make_layout,
  make_sampler,
  read_config,
  returns_to_go,
  token_ratio,
)
from grpo_jax.data import arithmetic
from grpo_jax.learning.optimizer import apply_if_finite
from grpo_jax.ops import masked
from grpo_jax.rewards.math import answer_correct
from grpo_jax.setup import defaults

Array = jax.Array

POLICY = pathlib.Path(__file__).parents[1] / "experiments" / "arithmetic_warm_start"

PROMPTS = 32  # P, in a batch
GROUP = 8  # G, samples of a prompt
LENGTH = 56  # L, the longest completion
PROMPT_LENGTH = 64  # Lp, the longest prompt
UPDATES = 2  # on each batch of rollouts (mu)
CLIP = 0.2  # the ratio of new to old policy counts inside [1 - CLIP, 1 + CLIP]
BETA = 0.001  # weight of the KL to the policy at the start
LEARNING_RATE = 3e-4


class Policy(NamedTuple):
  """Joins a decoder with its parameters and its tokenizer."""

  decoder: Decoder
  params: Any  # the decoder's tree of float32 arrays
  tokenizer: Tokenizer


def load_policy(folder: pathlib.Path) -> Policy:
  """Loads a Hugging Face folder onto the devices of this machine."""
  layout = make_layout(defaults.get_config().mesh)
  decoder = Decoder(read_config(folder), layout)
  return Policy(decoder, load_weights(folder, decoder), load_tokenizer(folder))


def make_policy_sampler(policy: Policy) -> Sampler:
  """Returns the jitted sampler of the policy: (params, prompts, key) -> (rollouts, statistics)."""
  settings = defaults.get_config().sampler
  settings.update({"group": GROUP, "max_length": LENGTH})
  return make_sampler(policy.decoder, settings, policy.tokenizer.eos_ids)


def encode_prompts(examples: Sequence[Example], tokenizer: Tokenizer) -> Prompts:
  """Returns the questions as tokens [P, Lp], padded on the right."""
  ids = [tokenizer.encode(f"{example.question}\n") for example in examples]
  tokens = np.zeros((len(ids), PROMPT_LENGTH), np.int32)
  for row, prompt in zip(tokens, ids):
    row[: len(prompt)] = prompt
  return Prompts(tokens, np.array([len(prompt) for prompt in ids], np.int32))


def score(rollouts: Rollouts, examples: Sequence[Example], tokenizer: Tokenizer) -> np.ndarray:
  """Returns the reward of each completion, [P, G]: 1 where its final answer is right."""
  groups = completions(rollouts, tokenizer)
  rewards = [
    [answer_correct(example, completion) for completion in group]
    for example, group in zip(examples, groups)
  ]
  return np.array(rewards, np.float32)


def with_rewards(rollouts: Rollouts, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns (rewards, given), both [P, G, L]: each total stands on its completion's last token."""
  last = np.arange(LENGTH) == np.asarray(rollouts.lengths)[..., None] - 1
  return np.where(last, totals[..., None], 0.0).astype(np.float32), last


def token_logprobs(decoder: Decoder, params: Any, rollouts: Rollouts) -> Array:
  """Returns log pi of every completion token, [P, G, L].

  `Packing()` computes padding, too, so that all batches have one shape and one compiled program.
  """
  batch = (rollouts.prompts, rollouts.tokens, rollouts.lengths, Packing())
  return logprobs(decoder, params, *batch, temperature=1.0, chunk=1024)[0]


class Batch(NamedTuple):
  """Everything that the loss of a batch of rollouts needs."""

  rollouts: Rollouts
  advantages: Array  # [P, G, L]
  old: Array  # [P, G, L], log-probs of the policy that sampled
  ref: Array  # [P, G, L], log-probs of the policy at the start


def loss(decoder: Decoder, params: Any, batch: Batch) -> Array:
  """Returns -J of DeepSeekMath (arXiv 2402.03300), eq. 3.

  Each completion counts equally, and inside it each token: mean over completions of the mean over
  tokens of min(rho A, clip(rho) A) - beta k3.
  """
  mask = masked.length_mask(batch.rollouts.lengths, LENGTH)
  new = token_logprobs(decoder, params["policy"], batch.rollouts)
  new, old, ref = (jnp.where(mask > 0, x, 0.0) for x in (new, batch.old, batch.ref))
  ratio = token_ratio(new, old)
  gain = clipped(ratio, batch.advantages, 1 - CLIP, 1 + CLIP)
  of_tokens = gain - BETA * k3(new, ref)
  return -jnp.mean(masked.masked_mean(of_tokens, mask, axis=2))


def make_update(decoder: Decoder, optimizer: optax.GradientTransformation) -> Callable:
  """Returns the jitted update: (state, ref_params, rollouts, rewards, given) -> (state, loss)."""

  @functools.partial(jax.jit, donate_argnums=0)
  def update(state, ref_params, rollouts, rewards, given):
    relative = group_relative(rewards, given)  # (r - mean) / std of the group, on the last token
    batch = Batch(
      rollouts,
      returns_to_go(relative),  # on every token up to it
      token_logprobs(decoder, state.params["policy"], rollouts),
      token_logprobs(decoder, ref_params, rollouts),
    )

    def step(state, _):
      value, grads = jax.value_and_grad(functools.partial(loss, decoder))(state.params, batch)
      state, _ = apply_if_finite(optimizer, grads, value, state)
      return state, value

    state, values = jax.lax.scan(step, state, length=UPDATES)
    return state, values[-1]

  return update


def train(steps: int, folder: str, report: Callable[[int, float, float], None]) -> Any:
  """Trains the policy and returns its parameters; resumes from the last checkpoint in `folder`.

  Args:
    steps: how many batches of rollouts to learn from, in all.
    folder: of checkpoints.
    report: called with the step, the mean reward and the loss.
  """
  policy = load_policy(POLICY)
  settings = arithmetic.settings()
  settings.max_number = 40
  problems = arithmetic.source("train", "", settings)
  sampler = make_policy_sampler(policy)
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE, b2=0.95))
  update = make_update(policy.decoder, optimizer)

  state = create_state({"policy": jax.tree.map(jnp.copy, policy.params)}, optimizer)
  with ocp.CheckpointManager(pathlib.Path(folder).absolute()) as checkpoints:
    start = checkpoints.latest_step() or 0
    if start:
      state = checkpoints.restore(start, args=ocp.args.StandardRestore(state))
    for step in range(start, steps):
      rng = np.random.default_rng(step)
      examples = [problems[i] for i in rng.integers(0, len(problems), PROMPTS)]
      prompts = encode_prompts(examples, policy.tokenizer)
      rollouts, _ = sampler(state.params["policy"], prompts, jax.random.key(step))
      rollouts = jax.device_get(rollouts)
      totals = score(rollouts, examples, policy.tokenizer)
      state, value = update(state, policy.params, rollouts, *with_rewards(rollouts, totals))
      report(step + 1, float(totals.mean()), float(value))
      if (step + 1) % 20 == 0 or step + 1 == steps:
        checkpoints.save(step + 1, args=ocp.args.StandardSave(state))
  return state.params["policy"]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--steps", type=int, default=60)
  parser.add_argument("--folder", default="runs/minimal", help="of checkpoints")
  args = parser.parse_args()

  def report(step: int, reward: float, value: float) -> None:
    print(f"step {step}: {reward:.1%} of the completions are right, loss {value:+.4f}", flush=True)

  train(args.steps, args.folder, report)


if __name__ == "__main__":
  main()
