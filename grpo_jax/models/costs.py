"""What a step costs, counted from the shapes: floating-point operations, and bytes that decoding
reads.
"""

import numpy as np

from grpo_jax.models.shape import DecoderConfig


def layer_weights(c: DecoderConfig) -> int:
  """How many numbers the matrices of a layer hold."""
  return c.width * c.head_dim * (2 * c.heads + 2 * c.kv_heads) + 3 * c.width * c.mlp


def flops(shape: DecoderConfig, prompts: np.ndarray, lengths: np.ndarray) -> float:
  """Floating-point operations of generation, and as many of one forward pass of the learner.

  Two for each weight of a matrix and each token, and attention's two products with what a token may
  see. A prompt counts once for its group; the head counts on completion tokens alone. Lengths of
  prompts `[P]`, of completions `[P, G]`.
  """
  c, layer, head = shape, layer_weights(shape), shape.width * shape.vocab
  attend = 2 * c.heads * c.head_dim * c.layers  # multiply-adds for one query and one key
  tokens = float(lengths.sum())
  seen = float((lengths * prompts[:, None] + lengths * (lengths + 1) / 2).sum())
  prefill = float(prompts.sum()) * c.layers * layer + attend * float(
    (prompts * (prompts + 1) / 2).sum()
  )
  everything = prefill + tokens * (c.layers * layer + head) + attend * seen
  return 2 * everything


def decode_bytes(
  shape: DecoderConfig,
  prompts: np.ndarray,
  lengths: np.ndarray,
  steps: int,
  size: int,
  matrix_size: int | None = None,
) -> float:
  """Bytes that `steps` decoding steps must read, at `size` bytes a number, `matrix_size` one of the
  layers' matrices.

  All weights at each step (of the embedding, the head's use of it), a prompt's keys and values once
  for its group, and for each token those of its own completion. Lengths as for `flops`.
  """
  c, layer = shape, layer_weights(shape)
  kv = 2 * c.kv_heads * c.head_dim * c.layers
  matrices = (matrix_size or size) * float(steps * c.layers * layer)
  head = steps * c.width * c.vocab
  return matrices + size * float(
    head + steps * float(prompts.sum()) * kv + (lengths * (lengths + 1) / 2).sum() * kv
  )
