"""The order in which slots take samples."""

from types import SimpleNamespace

import numpy as np

from grpo_jax.sampling import decode_loop


def test_the_queue_leaves_out_samples_that_are_done():
  done = np.array([True, False, True, True, False, True])
  queue = SimpleNamespace(real=done, first=SimpleNamespace(done=done))
  after = [int(decode_loop.next_in_queue(queue, np.int32(n))) for n in range(-1, 6)]
  assert after == [1, 1, 4, 4, 4, 6, 6]
