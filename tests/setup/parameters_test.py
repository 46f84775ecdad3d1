"""Parameter trees that a run starts from."""

import jax
import numpy as np
import tiny

from grpo_jax.models.decoder import Decoder
from grpo_jax.setup import parameters


def test_a_critic_shares_no_array_with_the_policy():
  """An update frees what it is given, each tree by itself."""
  decoder: Decoder = tiny.decoder()
  policy = {"layer": {"weight": jax.numpy.ones(3)}}
  made = parameters.params(decoder, policy, critic=True)
  assert made["policy"] is policy and set(made["critic"]) == {"layer", "value_head"}
  policy["layer"]["weight"].delete()
  np.testing.assert_array_equal(made["critic"]["layer"]["weight"], np.ones(3))
  assert set(parameters.params(decoder, policy, critic=False)) == {"policy"}
