"""Operations and bytes of a step."""

import dataclasses

import numpy as np

from grpo_jax.models import costs
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.decoder import DecoderConfig


def test_flops_of_a_decoder_that_fits_on_a_hand():
  shape = DecoderConfig(vocab=5, width=2, layers=3, heads=2, kv_heads=1, head_dim=4, mlp=7)
  # A layer: q and o 2 * 2 * 8, k and v 2 * 2 * 4, the MLP 3 * 2 * 7 multiply-adds a token; the head
  # 2 * 5.
  layer, head = 32 + 16 + 42, 10
  # Each of 2 heads' scores and mixture: 4 multiply-adds a key and head, twice, in 3 layers.
  key = 2 * 2 * 4 * 3
  lengths = np.array([[1, 2]])  # one prompt of 3 tokens: its keys are seen 1 + 2 + 3 times
  seen = (3 + 1) + (3 + 1) + (3 + 2)
  expected = 2 * (3 * 3 * layer + 6 * key + 3 * (3 * layer + head) + seen * key)
  assert costs.flops(shape, np.array([3]), lengths) == expected


def test_a_window_limits_the_keys_that_are_counted():
  windows = AttentionSpec(window=2), AttentionSpec()
  shape = DecoderConfig(
    vocab=5, width=2, layers=3, heads=2, kv_heads=1, head_dim=4, mlp=7, attention=windows
  )
  # layers 0 and 2 see 1 + 2 + 2 + 2 keys at four positions, layer 1 sees 1 + 2 + 3 + 4
  assert costs.seen(shape, np.array([4, 1])).tolist() == [7 + 10 + 7, 3]
  whole = dataclasses.replace(shape, attention=(AttentionSpec(),))
  prompts, lengths = np.array([3]), np.array([[1, 2]])
  less = costs.flops(whole, prompts, lengths) - costs.flops(shape, prompts, lengths)
  # each in 2 layers: one key less in the prompt, two less for the first token of each completion,
  # three less for the second token of the longer one
  assert less == 2 * (2 * 2 * 4) * 2 * (1 + 2 + 2 + 3)


def test_flops_do_not_overflow():
  shape = DecoderConfig(vocab=5, width=1024, layers=28, heads=16, kv_heads=8, head_dim=64, mlp=3072)

  def of(dtype):
    return costs.flops(shape, np.array([512], dtype), np.array([[64]], dtype))

  assert of(np.int32) == of(np.float64) > 2**31


def test_bytes_that_decoding_reads():
  shape = DecoderConfig(vocab=5, width=2, layers=3, heads=2, kv_heads=1, head_dim=4, mlp=7)
  weights, kv = 3 * (32 + 16 + 42) + 10, 3 * 2 * 4
  # own keys: 1, then 1 + 2; those of the prompt's 3 tokens at each of 2 steps
  lengths = np.array([[1, 2]])
  assert costs.decode_bytes(shape, np.array([3]), lengths, steps=2, size=2) == 2 * (
    2 * weights + 2 * 3 * kv + 4 * kv
  )
  found = costs.decode_bytes(shape, np.array([3]), lengths, steps=2, size=2, matrix_size=1)
  assert found == 2 * (weights - 10) + 2 * (2 * 10 + 2 * 3 * kv + 4 * kv)
  # 4 prompts of 1 to 5 tokens in two slots, keys and values of 1.5 bytes
  prompts = np.array([1, 5, 4, 2])
  lengths = np.full((4, 1), 2)
  found = costs.decode_bytes(shape, prompts, lengths, steps=4, size=2, cache_size=1.5, slots=2)
  assert found == 2 * 4 * weights + 1.5 * kv * (4 * 2 * 3 + 4 * 3)
