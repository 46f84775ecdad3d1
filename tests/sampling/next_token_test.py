"""The noise of tokens."""

import jax
import numpy as np
import tiny

from grpo_jax.sampling import next_token


def test_noise_is_a_function_of_prompt_sample_and_token():
  key = jax.random.key(5)
  noise = next_token.Noise.for_samples(key, np.arange(tiny.P), np.arange(tiny.G))
  n = tiny.P * tiny.G
  got = np.stack([noise.at(np.arange(n), np.full(n, t)) for t in range(tiny.L)], -1)
  np.testing.assert_array_equal(got.reshape(tiny.P, tiny.G, tiny.L), tiny.uniforms(key))
  assert len(np.unique(got)) == got.size
