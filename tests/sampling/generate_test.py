"""Completions for examples, by a sampler that repeats what it is given."""

import jax
import numpy as np
import tiny

from grpo_jax.sampling import generate
from grpo_jax.types import STOPPED, Example, Rollouts


class Letters:
  """A tokenizer whose token i is the i-th letter."""

  def decode(self, ids):
    return "".join(chr(96 + i) for i in ids)

  def step_ends(self, tokens):
    return []

  def before_stop(self, text):
    return None

  def tokens_before_stop(self, ids):
    return None


def sample(params, prompts, key, ends, prompt_size):
  """Two completions of each prompt: its first token, and the stop token."""
  first, lengths = np.asarray(prompts.tokens)[:, 0], np.asarray(prompts.lengths)
  tokens = np.zeros((len(first), 2, 4), np.int32)
  tokens[:, :, 0] = first[:, None]
  n = np.repeat(np.where(lengths, 2, 0)[:, None], 2, 1).astype(np.int32)
  zeros = np.zeros(tokens.shape, np.float32)
  stopped = np.full(n.shape, STOPPED, np.int32)
  out = Rollouts(prompts, *map(jax.numpy.asarray, (tokens, n, stopped, zeros, zeros)))
  return out, {"tokens": 3}


sample.layout = tiny.layout()


def test_prompts_that_are_too_long_or_missing_only_fill_the_batch():
  generator = generate.Generator(
    sample=sample,
    sizes=tiny.sizes(),
    tokenizer=Letters(),
    render=lambda question: [ord(c) - 96 for c in question],
    max_prompt_length=3,
  )
  examples = [Example(question, "", "", {}) for question in ("abc", "abcd", "b")]
  key = jax.random.key(0)
  sampled, statistics, faults = generate.generate(generator, {}, [*examples, None], key)
  assert not faults  # there is no environment
  assert statistics["prompts_too_long"] == 1 and statistics["tokens"] == 3
  assert sampled.prompts.lengths.tolist() == [3, 0, 1, 0]
  texts = [[c and c.text for c in row] for row in generate.completions(generator, sampled)]
  assert texts[0] == ["a", "a"] and texts[2] == ["b", "b"]
