"""Which part of a step a collective belongs to, by the Python functions around it, and sums over
parts.
"""

from collections.abc import Sequence

from grpo_jax.plan.collectives import Collective

# A Python function of the project around an operation, and what part of the program it is; the
# first that fits.
_PARTS = (
  ("logprobs_and_entropy", "head"),
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
  """Returns where in the model a collective comes from, and in which pass: "head, backward pass"
  and the like.
  """
  functions = collective.functions
  if not functions and not collective.op_name:
    return "without a name: the compiler's own"  # as where a result is laid out as it was asked for
  of = next(
    (name for function, name in _PARTS if any(function in each for each in functions)), "the rest"
  )
  return f"{of}{_pass(collective)}"


def _pass(collective: Collective) -> str:
  functions, op = collective.functions, collective.op_name
  if any("frozen_outputs" in each for each in functions):
    return ", pass without a gradient"  # of the reference or the old policy
  if "rematted_computation" in op:
    return ", recomputed for the backward pass"
  if "transpose(" in op:
    return ", backward pass"
  return ", forward pass" if "jvp(" in op else ""


def by_part(found: Sequence[Collective]) -> dict[tuple[str, str], int]:
  """Returns bytes of all runs by (part, kind), the largest first."""
  sums: dict[tuple[str, str], int] = {}
  for each in found:
    key = (part(each), each.kind)
    sums[key] = sums.get(key, 0) + each.total
  return dict(sorted(sums.items(), key=lambda item: -item[1]))


def details(found: Sequence[Collective]) -> list[str]:
  """Returns a line for each group of alike collectives: how many instructions run how often, with
  how many bytes.
  """
  rows: dict[tuple, int] = {}
  for each in found:
    key = (part(each), each.kind, each.bytes, each.times, each.group)
    rows[key] = rows.get(key, 0) + 1
  ordered = sorted(rows.items(), key=lambda row: -row[1] * row[0][2] * row[0][3])
  lines = ["        GB  instructions x runs x bytes, kind (chips): part"]
  for (of, kind, size, times, group), n in ordered:
    lines.append(
      f"{n * size * times / 1e9:10.3f}  {n} x {times} x {size:,}, {kind} ({group}): {of}"
    )
  if unknown := unknown_loops(found):
    lines.append(f"loops whose turns are not known count as one turn: {', '.join(unknown)}")
  return lines


def unknown_loops(found: Sequence[Collective]) -> list[str]:
  """Returns the names of the loops around collectives whose turns are not known."""
  return sorted({name for each in found for name in each.unknown_loops})
