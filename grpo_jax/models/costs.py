"""Costs of a step, counted from shapes: floating-point operations and bytes that decoding reads."""

import numpy as np

from grpo_jax.models.shape import DecoderConfig


def layer_weights(c: DecoderConfig) -> int:
  """Returns the number of weights in the matrices of a layer."""
  return c.width * c.head_dim * (2 * c.heads + 2 * c.kv_heads) + 3 * c.width * c.mlp


def flops(shape: DecoderConfig, prompts: np.ndarray, lengths: np.ndarray) -> float:
  """Returns the floating-point operations of generation, or of one forward pass of the learner.

  Each token costs two for each weight of a matrix, and attention's two products with the tokens
  that it sees. A prompt counts once for its group, the head on completion tokens only.

  Args:
    shape: of the decoder.
    prompts: lengths of prompts, `[P]`.
    lengths: lengths of completions, `[P, G]`.
  """
  c, layer, head = shape, layer_weights(shape), shape.width * shape.vocab
  attend = 2 * c.heads * c.head_dim * c.layers  # multiply-adds for one query and one key
  tokens = float(lengths.sum())
  seen = float((lengths * prompts[:, None] + lengths * (lengths + 1) / 2).sum())
  prompt_seen = float((prompts * (prompts + 1) / 2).sum())
  prefill = float(prompts.sum()) * c.layers * layer + attend * prompt_seen
  return 2 * (prefill + tokens * (c.layers * layer + head) + attend * seen)


def decode_bytes(
  shape: DecoderConfig,
  prompts: np.ndarray,
  lengths: np.ndarray,
  steps: int,
  size: int,
  matrix_size: int | None = None,
) -> float:
  """Returns the bytes that `steps` decoding steps must read.

  Each step reads all weights (the embedding as the head alone), the keys and values of a prompt
  once for its group, and each completion's own.

  Args:
    shape: of the decoder.
    prompts: lengths of prompts, `[P]`.
    lengths: lengths of completions, `[P, G]`.
    steps: number of decoding steps.
    size: bytes of a number.
    matrix_size: bytes of a number of the layers' matrices; None: `size`.
  """
  c, layer = shape, layer_weights(shape)
  kv = 2 * c.kv_heads * c.head_dim * c.layers
  matrices = (matrix_size or size) * float(steps * c.layers * layer)
  head = steps * c.width * c.vocab
  return matrices + size * float(
    head + steps * float(prompts.sum()) * kv + (lengths * (lengths + 1) / 2).sum() * kv
  )
