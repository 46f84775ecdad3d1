"""Writes the page of a plan in Markdown: memory, what moves between chips, time, programs, cost."""

from collections.abc import Sequence
from typing import NamedTuple

import jax

from grpo_jax.plan import estimate as estimates
from grpo_jax.plan import memory, parts, programs
from grpo_jax.plan.chips import GIB, Chip
from grpo_jax.plan.collectives import Collective, totals
from grpo_jax.plan.estimate import Estimate
from grpo_jax.plan.facts import Facts
from grpo_jax.plan.memory import Parts
from grpo_jax.plan.programs import Lengths, Padding, Workload

SMALL = 0.005  # share of a program's bytes; smaller parts share one row


class Plan(NamedTuple):
  """A plan: the contents of its page."""

  command: str
  topology: str
  slices: int
  chip: Chip
  workload: Workload
  lengths: Lengths
  padding: Padding
  learn: Facts
  weights: Facts  # of the program that prepares them for decoding
  sample: Facts
  learn_memory: Parts
  weights_memory: Parts
  sample_memory: Parts
  estimate: Estimate
  programs: str  # a sentence about the number of programs
  price: float  # of a chip for an hour; 0: unknown
  note: str = ""  # below the estimate

  @property
  def devices(self) -> int:
    """Number of devices of the whole mesh."""
    return self.workload.decoder.layout.mesh.size

  @property
  def chips(self) -> int:
    """Number of chips of the whole mesh."""
    return self.devices // self.chip.devices

  @property
  def most(self) -> int:
    """Bytes on a device of the program that takes the most."""
    return max(self.learn_memory.total, self.weights_memory.total, self.sample_memory.total)

  @property
  def fits(self) -> bool:
    """Whether all programs fit the memory of a device."""
    needs = self.learn.needs or self.weights.needs or self.sample.needs
    return not needs and self.most <= self.chip.usable


def text(plan: Plan) -> str:
  """Returns the whole page."""
  sections = (_title, _memory, _movement, _time, _programs, _assumptions)
  return "\n".join("\n".join(section(plan)) + "\n" for section in sections)


def _title(plan: Plan) -> list[str]:
  c, shape = plan.workload.experiment, plan.workload.decoder.config
  mesh = " ".join(f"{axis}={n}" for axis, n in plan.workload.decoder.layout.mesh.shape.items())
  where = f"{plan.slices} slices of {plan.topology}" if plan.slices > 1 else plan.topology
  weights = sum(x.size for x in jax.tree.leaves(plan.workload.decoder.shapes()))
  lengths = plan.lengths
  return [
    f"# Plan: {programs.model_name(c)} on {where}",
    "",
    f"    {plan.command}",
    "",
    f"{weights / 1e9:.2f}e9 parameters ({shape.layers} layers of {shape.width}, vocabulary "
    f"{shape.vocab:,}) on {plan.chips} chips, mesh {mesh}. A step: {c.data.prompts} prompts of "
    f"{lengths.prompts.max()} tokens, {c.sampler.group} completions each, of "
    f"{lengths.completions.mean():.0f} tokens in the mean and at most {c.sampler.max_length}; "
    f"{c.learner.mu * c.learner.minibatches} update(s), objective {c.objective.name}, "
    f"learner.microbatch={c.learner.microbatch}, learner.chunk={c.learner.chunk}, "
    f"model.remat={c.model.remat}, sampler.slots={c.sampler.slots}.",
    "",
    "Compiled by the TPU's own compiler, with no chip attached. Bytes and fits are the compiler's "
    "and exact; times are estimates, no measurement.",
  ]


def _memory(plan: Plan) -> list[str]:
  device = "device (half a chip)" if plan.chip.devices == 2 else "chip"
  lines = [
    f"## Memory of a {device}, GiB",
    "",
    f"The compiler lets programs have {plan.chip.usable / GIB:.2f} GiB.",
    "",
  ]
  for name, memory_parts in (
    ("learning", plan.learn_memory),
    ("weights are made ready", plan.weights_memory),
    ("sampling", plan.sample_memory),
  ):
    lines += [f"| while {name} | GiB |", "|---|---:|"]
    lines += [f"| {row} | {size / GIB:.3f} |" for row, size in memory_parts.rows]
    lines += [f"| **in all** | **{memory_parts.total / GIB:.3f}** |", ""]
  return lines + [_verdict(plan)]


def _verdict(plan: Plan) -> str:
  if plan.fits:
    return f"**It fits**, with {(plan.chip.usable - plan.most) / GIB:.2f} GiB to spare."
  advice = []
  if plan.learn.needs or plan.learn_memory.total > plan.chip.usable:
    advice += advice_for_learning(plan.workload)
  both = max(plan.weights_memory.total, plan.sample_memory.total)
  if plan.weights.needs or plan.sample.needs or both > plan.chip.usable:
    advice += advice_for_sampling(plan.workload)
  failed = [facts for facts in (plan.learn, plan.weights, plan.sample) if facts.needs]
  errors = "".join(f" The compiler: `{facts.error}`" for facts in failed)
  return f"**It does not fit.** What would help: {'; '.join(dict.fromkeys(advice))}.{errors}"


def advice_for_learning(workload: Workload) -> list[str]:
  """Returns settings that lower the learner's memory."""
  c, layout = workload.experiment, workload.decoder.layout
  advice = []
  at_once = c.learner.microbatch or c.data.prompts // c.learner.minibatches
  if at_once > layout.size("prompt"):
    advice.append(f"a lower learner.microbatch ({at_once} now, at least {layout.size('prompt')})")
  if c.model.remat != "block":
    advice.append(f"model.remat=block ({c.model.remat} now)")
  if c.learner.chunk > 256:
    advice.append(f"a lower learner.chunk ({c.learner.chunk} now)")
  if layout.size("sample") < c.sampler.group:
    advice.append(f"a larger mesh.group ({layout.mesh.shape['group']} now)")
  return [*advice, f"a larger mesh.tensor ({layout.mesh.shape['tensor']} now)", "more chips"]


def advice_for_sampling(workload: Workload) -> list[str]:
  """Returns settings that lower the sampler's memory, the largest part first."""
  c, s = workload.experiment, memory.shard_slots(workload)
  tensor = workload.sample.layout.mesh.shape["tensor"]
  weights, cache = memory.decode_weight_bytes(workload), memory.cache_bytes(workload)
  split = [f"weights for decoding over more chips (sampler.tensor={2 * tensor}, {tensor} now)"]
  fewer = [f"fewer sampler.slots ({s.slots} a shard now)"]
  if c.sampler.cache_dtype != "int8":
    fewer.append(f"sampler.cache_dtype=int8 ({c.sampler.cache_dtype} now)")
  if c.sampler.dtype == "float32":
    split.append("sampler.dtype=bfloat16")
  if c.sampler.weights_dtype != "int8":
    split.append("sampler.weights_dtype=int8")
  return split + fewer if weights > cache else fewer + split


def _movement(plan: Plan) -> list[str]:
  lines = ["## What moves between chips, GB a chip and step", ""]
  lines += [
    "Bytes of the arrays that are gathered or summed; what a ring sends over links is in the last "
    "column.",
    "",
  ]
  for name, facts in (
    ("update", plan.learn),
    ("weights for decoding", plan.weights),
    ("rollout", plan.sample),
  ):
    if facts.collectives is None:
      lines += [f"The {name}: not known, {facts.error or 'it was not compiled'}", ""]
      continue
    lines += _movement_table(name, facts.collectives)
  return lines


def _movement_table(name: str, collectives: Sequence[Collective]) -> list[str]:
  whole = sum(collective.total for collective in collectives)
  kinds = ", ".join(
    f"{kind} {total / 1e9:.2f}"
    for kind, total in totals(collectives).items()
    if total >= SMALL * whole
  )
  network = sum(collective.total for collective in collectives if collective.across_slices)
  lines = [f"{name.capitalize()}: **{whole / 1e9:.2f} GB** ({kinds or 'nothing'})."]
  if network:
    lines.append(f"Of these {network / 1e9:.3f} GB cross slices.")
  lines += ["", f"| {name}: part | kind | GB | share | sent |", "|---|---|---:|---:|---:|"]
  rest, rest_sent = 0, 0.0
  for (title, kind), total in parts.by_part(collectives).items():
    sent = sum(c.sent for c in collectives if (parts.part(c), c.kind) == (title, kind))
    if total < SMALL * whole:
      rest, rest_sent = rest + total, rest_sent + sent
    else:
      lines.append(
        f"| {title} | {kind} | {total / 1e9:.3f} | {total / whole:.1%} | {sent / 1e9:.3f} |"
      )
  if rest:
    lines.append(
      f"| smaller ones | | {rest / 1e9:.3f} | {rest / whole:.1%} | {rest_sent / 1e9:.3f} |"
    )
  if unknown := parts.unknown_loops(collectives):
    lines += [
      "",
      f"Loops whose turns depend on lengths count as one turn here: {', '.join(unknown)}.",
    ]
  return [*lines, ""]


def _time(plan: Plan) -> list[str]:
  e = plan.estimate

  def shown(seconds: tuple[float, float]) -> str:
    return f"{seconds[0]:.2f} to {seconds[1]:.2f} s"

  low, high = e.step_s
  once = ", one draw" if e.draws > 1 else ""
  link = "not known" if e.learn_link_s is None else f"{e.learn_link_s:.2f} s"
  peak = plan.chip.flops * plan.chips
  lines = [
    "## Time of a step: an estimate",
    "",
    "From: all communication hides behind arithmetic. To: none does"
    + (f", and each step draws {e.draws} times (sampler.tries)." if e.draws > 1 else "."),
    "",
    "| | |",
    "|---|---|",
    f"| one forward pass, counted as the benchmark counts | {e.forward_flops / 1e15:.3f} PFLOP |",
    f"| the update, all passes; padding {plan.padding.completions:.1%} of completions, "
    f"{plan.padding.prompts:.1%} of prompts | "
    f"{e.learn_flops / 1e15:.3f} PFLOP; {e.learn_flops / peak:.2f} s at the chips' peak |",
    f"| learning: arithmetic, links | {e.learn_compute_s:.2f} s, {link} |",
    f"| **learning** | **{shown(e.learn_s)}**, {e.tokens / e.learn_s[1]:,.0f} to "
    f"{e.tokens / e.learn_s[0]:,.0f} tokens/s |",
    f"| decoding: steps, bytes read in one | {e.decode_steps:,}, {e.decode_bytes / 1e9:.2f} GB: "
    f"{e.decode_s / max(e.decode_steps, 1) * 1e3:.2f} ms each |",
    f"| prefill | {e.prefill_s:.2f} s |",
    f"| **sampling{once}** | **{shown(e.sample_s)}**, {e.tokens / e.sample_s[1]:,.0f} to "
    f"{e.tokens / e.sample_s[0]:,.0f} tokens/s |",
    f"| **step** | **{shown(e.step_s)}**, {e.tokens / high:,.0f} to {e.tokens / low:,.0f} tokens/s "
    "|",
  ]
  steps = plan.workload.experiment.steps
  hours = (low * steps * plan.chips / 3600, high * steps * plan.chips / 3600)
  lines.append(f"| {steps} steps | {hours[0]:,.0f} to {hours[1]:,.0f} chip-hours |")
  if plan.price:
    money = (hours[0] * plan.price, hours[1] * plan.price)
    lines.append(f"| at {plan.price:g} a chip-hour | {money[0]:,.0f} to {money[1]:,.0f} |")
  return [*lines, "", plan.note] if plan.note else lines


def _programs(plan: Plan) -> list[str]:
  seconds = plan.learn.compile_s, plan.weights.compile_s + plan.sample.compile_s
  took = f"The update took {seconds[0]:.0f} s, the sampler {seconds[1]:.0f} s"
  return [
    "## Programs",
    "",
    f"{plan.programs} {took} to compile on the machine that made this page.",
  ]


def _assumptions(plan: Plan) -> list[str]:
  c = plan.chip
  return [
    "## Assumptions",
    "",
    *(f"- {assumption}" for assumption in estimates.ASSUMPTIONS),
    f"- Published, a chip: {c.flops / 1e12:.0f} TFLOP/s in bfloat16, {c.hbm / GIB:.0f} GiB of HBM "
    f"at {c.hbm_rate / 1e9:.0f} GB/s, {c.links} links of {c.link_rate / 1e9:.0f} GB/s each way, "
    f"{c.network_rate / 1e9:.1f} GB/s to other slices (sources: grpo_jax/plan/chips.py).",
  ]
