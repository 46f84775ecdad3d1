"""Attention of lists of tokens."""

import jax
import numpy as np
import tiny

from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.list_attention import attend_groups, attend_groups_keeping, attend_prompts
from grpo_jax.packing import lists, plan, rows
from grpo_jax.types import Prompts

K, M, D = 2, 2, 4


def test_keys_and_values_of_prompts_and_rows_are_kept():
  """The same attention, with what the lists hold: prompts as `attend_prompts` has them."""
  r = tiny.rollouts()
  packing = plan.pack(r, tiny.layout())
  in_rows = rows.completions_to_rows(r.tokens, r.lengths, packing)
  prompts = Prompts(jax.numpy.asarray(r.prompts.tokens), jax.numpy.asarray(r.prompts.lengths))
  both = lists.group_lists(prompts, in_rows, packing)
  rng = np.random.default_rng(0)
  n = both.prompts.size + both.rows.size
  q = rng.normal(size=(n, K * M, D)).astype(np.float32)
  k, v = rng.normal(size=(2, n, K, D)).astype(np.float32)
  how = tiny.layout(), K
  plain, nothing = attend_groups(*how, both, prompts, in_rows, AttentionSpec(), q, k, v)
  out, kept = attend_groups_keeping(*how, both, prompts, in_rows, AttentionSpec(), q, k, v)
  assert nothing is None
  np.testing.assert_array_equal(out, plain)
  for x, (of_prompts, of_rows) in zip((k, v), kept):
    np.testing.assert_array_equal(both.join(of_prompts, of_rows), both.join(*both.split(x)))
    real = np.asarray(in_rows.segments) >= 0
    assert np.asarray(of_rows)[real].all() and not np.asarray(of_rows)[~real].any()

  part = slice(0, both.prompts.size)
  alone, (keys, _) = attend_prompts(*how, both.prompts, AttentionSpec(), q[part], k[part], v[part])
  np.testing.assert_allclose(alone, plain[part], atol=1e-6)
  np.testing.assert_array_equal(keys, kept[0][0])
