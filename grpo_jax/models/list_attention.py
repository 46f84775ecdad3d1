"""Attention of lists of tokens: splits a list into prompts and rows, attends, and joins it again.

Each function is a layer's `attend` once what is the same in all layers is bound.
"""

from grpo_jax.distributed.sharding import Layout
from grpo_jax.models.attention import AttentionSpec, by_kv_head, causal_attention, group_attention
from grpo_jax.packing.lists import GroupLists, TokenList
from grpo_jax.packing.rows import Rows
from grpo_jax.types import Array, Prompts


def attend_prompts(
  layout: Layout,
  kv_heads: int,
  tokens: TokenList,
  spec: AttentionSpec,
  q: Array,
  k: Array,
  v: Array,
) -> tuple[Array, tuple[Array, Array]]:
  """Returns attention of prompts alone, in a list like q, and their keys and values."""
  q_PxLpxKxMxd = tokens.from_list(by_kv_head(q, kv_heads))
  k_PxLpxKxd, v_PxLpxKxd = tokens.from_list(k), tokens.from_list(v)
  out = causal_attention(layout, spec, q_PxLpxKxMxd, k_PxLpxKxd, v_PxLpxKxd)
  return tokens.to_list(out), (k_PxLpxKxd, v_PxLpxKxd)


def attend_groups(
  layout: Layout,
  kv_heads: int,
  lists: GroupLists,
  prompts: Prompts,
  rows: Rows,
  spec: AttentionSpec,
  q: Array,
  k: Array,
  v: Array,
) -> tuple[Array, None]:
  """Returns attention of prompts and of the rows of their groups, in a list like q."""
  # [P, Lp, K, M, d], [P, R, T, K, M, d]
  q_prompt, q_rows = lists.split(by_kv_head(q, kv_heads))
  (k_prompt, k_rows), (v_prompt, v_rows) = lists.split(k), lists.split(v)
  prompt_out = causal_attention(layout, spec, q_prompt, k_prompt, v_prompt)
  lengths, segments, offsets = prompts.lengths, rows.segments, rows.offsets
  row_out = group_attention(
    layout, spec, q_rows, k_rows, v_rows, k_prompt, v_prompt, lengths, segments, offsets
  )
  return lists.join(prompt_out, row_out), None


def attend_groups_keeping(
  layout: Layout,
  kv_heads: int,
  lists: GroupLists,
  prompts: Prompts,
  rows: Rows,
  spec: AttentionSpec,
  q: Array,
  k: Array,
  v: Array,
) -> tuple[Array, tuple[tuple[Array, Array], tuple[Array, Array]]]:
  """Returns `attend_groups`, and keys and values of prompts `[P, Lp, K, d]` and rows.

  Those of rows are `[P, R, T, K, d]`.
  """
  out, _ = attend_groups(layout, kv_heads, lists, prompts, rows, spec, q, k, v)
  return out, (lists.split(k), lists.split(v))
