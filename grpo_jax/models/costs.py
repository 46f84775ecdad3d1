"""Costs of a step, counted from shapes: floating-point operations and bytes that decoding reads."""

import numpy as np

from grpo_jax.models.shape import DecoderConfig


def layer_weights(c: DecoderConfig) -> int:
  """Returns the number of weights in the matrices of a layer."""
  return c.width * c.head_dim * (2 * c.heads + 2 * c.kv_heads) + 3 * c.width * c.mlp


def flops(shape: DecoderConfig, prompts: np.ndarray, lengths: np.ndarray) -> float:
  """Returns the floating-point operations of generation, or of one forward pass of the learner.

  Each token costs two for each weight of a matrix, and attention's two products with the tokens
  that it sees in each layer's window. A prompt counts once for its group, the head on completion
  tokens only.

  Args:
    shape: of the decoder.
    prompts: lengths of prompts, `[P]`.
    lengths: lengths of completions, `[P, G]`.
  """
  c, layer, head = shape, layer_weights(shape), shape.width * shape.vocab
  attend = 2 * c.heads * c.head_dim  # multiply-adds for one query and one key
  tokens = float(lengths.sum())
  before = seen(c, prompts)
  own = float((seen(c, prompts[:, None] + lengths) - before[:, None]).sum())
  prefill = float(prompts.sum()) * c.layers * layer + attend * float(before.sum())
  return 2 * (prefill + tokens * (c.layers * layer + head) + attend * own)


def seen(shape: DecoderConfig, lengths: np.ndarray) -> np.ndarray:
  """Returns how many keys the tokens of texts of these lengths see, summed over layers."""
  n, total = np.asarray(lengths, np.float64), np.zeros(np.shape(lengths))
  for i in range(shape.layers):
    window = shape.layer_attention(i).window or np.inf
    within = np.minimum(n, window)
    total += within * (within + 1) / 2 + (n - within) * within
  return total


def decode_bytes(
  shape: DecoderConfig,
  prompts: np.ndarray,
  lengths: np.ndarray,
  steps: int,
  size: int,
  matrix_size: int | None = None,
  cache_size: float | None = None,
  slots: int = 0,
) -> float:
  """Returns the bytes that `steps` decoding steps must read.

  Each step reads all weights (the embedding as the head alone), the keys and values of a prompt
  once for its group, but no more prompts than slots, and each completion's own. Windows are not
  counted.

  Args:
    shape: of the decoder.
    prompts: lengths of prompts, `[P]`.
    lengths: lengths of completions, `[P, G]`.
    steps: number of decoding steps.
    size: bytes of a number.
    matrix_size: bytes of a number of the layers' matrices; None: `size`.
    cache_size: bytes of a number of the keys and values; None: `size`.
    slots: completions decoded at a time; 0: all.
  """
  c, layer = shape, layer_weights(shape)
  kv = 2 * c.kv_heads * c.head_dim * c.layers
  matrices = (matrix_size or size) * float(steps * c.layers * layer)
  head = steps * c.width * c.vocab
  of_prompts = steps * float(prompts.mean()) * min(len(prompts), slots or len(prompts))
  own = float((lengths * (lengths + 1) / 2).sum())
  return matrices + size * head + (cache_size or size) * kv * (of_prompts + own)
