"""Sums collectives by the part of a step that they belong to, known by its Python functions."""

from collections.abc import Iterable

from grpo_jax.plan.collectives import Collective

# (Python function around an operation, part of the program); the first that fits counts.
_PARTS = (
  ("token_stats", "head"),
  ("decode_params", "weights for decoding"),
  ("decode_step", "decoding step"),
  ("Decoder.whole", "embedding, head and final norm"),
  ("Decoder.embed", "embedding"),
  ("Decoder.prefill", "prefill"),
  ("Decoder.block", "layers"),
  ("Decoder._layer", "layers"),
  ("apply_if_finite", "optimizer"),
  ("split_microbatches", "cutting the batch"),
)


def part(collective: Collective) -> str:
  """Returns the part of the model and the pass, such as "head, backward pass"."""
  functions = collective.functions
  if not functions and not collective.op_name:
    return "without a name: the compiler's own"  # such as a result that moves to its sharding
  title = next(
    (title for function, title in _PARTS if any(function in name for name in functions)), "the rest"
  )
  return f"{title}{_pass(collective)}"


def _pass(collective: Collective) -> str:
  operation = collective.op_name
  if any("frozen_outputs" in name for name in collective.functions):
    return ", pass without a gradient"  # of the reference or the old policy
  if "rematted_computation" in operation:
    return ", recomputed for the backward pass"
  if "transpose(" in operation:
    return ", backward pass"
  return ", forward pass" if "jvp(" in operation else ""


def by_part(collectives: Iterable[Collective]) -> dict[tuple[str, str], int]:
  """Returns the bytes of all runs by (part, kind), the largest first."""
  sums: dict[tuple[str, str], int] = {}
  for collective in collectives:
    key = (part(collective), collective.kind)
    sums[key] = sums.get(key, 0) + collective.total
  return dict(sorted(sums.items(), key=lambda item: -item[1]))


def details(collectives: Iterable[Collective]) -> list[str]:
  """Returns a line for each group of equal collectives: their number, runs and bytes."""
  collectives = list(collectives)
  rows: dict[tuple[str, str, int, int, int], int] = {}
  for c in collectives:
    key = (part(c), c.kind, c.bytes, c.times, c.group)
    rows[key] = rows.get(key, 0) + 1
  ordered = sorted(rows.items(), key=lambda row: -row[1] * row[0][2] * row[0][3])
  lines = ["        GB  instructions x runs x bytes, kind (chips): part"]
  for (title, kind, size, times, group), n in ordered:
    lines.append(
      f"{n * size * times / 1e9:10.3f}  {n} x {times} x {size:,}, {kind} ({group}): {title}"
    )
  if unknown := unknown_loops(collectives):
    lines.append(f"loops whose turns are not known count as one turn: {', '.join(unknown)}")
  return lines


def unknown_loops(collectives: Iterable[Collective]) -> list[str]:
  """Returns the names of the loops around collectives whose turns are unknown."""
  return sorted({name for collective in collectives for name in collective.unknown_loops})
