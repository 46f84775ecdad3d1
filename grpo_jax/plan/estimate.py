"""How long a step may take: counted operations and bytes against a chip's published peaks. An
estimate, no measurement.

What it assumes stands in ASSUMPTIONS, which the page prints.
"""

import heapq
from typing import NamedTuple

import numpy as np

from grpo_jax.models import costs
from grpo_jax.models.decoder import DecoderConfig
from grpo_jax.objectives.base import Needs
from grpo_jax.plan import memory
from grpo_jax.plan.chips import Chip
from grpo_jax.plan.collectives import Collective
from grpo_jax.plan.facts import Facts
from grpo_jax.plan.programs import Lengths, Workload

OF_PEAK = 0.5  # of the peak FLOP/s that matrix products reach
OF_HBM = 0.8  # of the bandwidth of HBM that reading reaches
HOP_SECONDS = 1e-6  # of a collective of a few bytes, for each chip around the ring
LOGIT_PASSES = 4  # that sampling a token makes over its float32 logits

ASSUMPTIONS = (
  f"Matrix products reach {OF_PEAK:.0%} of the bfloat16 peak, reads {OF_HBM:.0%} of the bandwidth "
  "of HBM.",
  "A collective is a ring over one axis of the torus, in both directions: it has two links. A "
  "collective across slices "
  f"has the data-centre network. Each takes {HOP_SECONDS * 1e6:g} microsecond more for every chip "
  "of its group.",
  "Learning: a gradient costs twice a forward pass; model.remat=block adds a forward pass of the "
  "layers, and the "
  "head's logits are always computed twice. Padding is computed.",
  "Decoding: each step reads the weights, the slots' keys and values (with refills the whole ring "
  "of "
  f"sampler.max_length columns) and {LOGIT_PASSES} times the logits.",
  "Nothing is counted for rewards, the host, transfers to it, evaluation and checkpoints.",
)


class Estimate(NamedTuple):
  """Seconds of one step, of one chip unless it says otherwise."""

  # of one forward pass of all devices, as experiments/measure/benchmark.py counts it
  forward_flops: float
  learn_flops: float  # of all passes of the update, padding included, of all devices
  learn_compute_s: float
  learn_link_s: float | None  # None: the program's collectives are not known
  decode_steps: int
  decode_bytes: float  # that a device reads in one decoding step
  prefill_s: float
  decode_s: float
  sample_link_s: float | None
  tokens: int  # of completions

  @property
  def learn_s(self) -> tuple[float, float]:
    """Seconds of the update where all communication hides behind arithmetic, and where none does."""
    link = self.learn_link_s or 0.0
    return max(self.learn_compute_s, link), self.learn_compute_s + link

  @property
  def sample_s(self) -> tuple[float, float]:
    """The same of the sampler."""
    own, link = self.prefill_s + self.decode_s, self.sample_link_s or 0.0
    return max(own, link), own + link

  @property
  def step_s(self) -> tuple[float, float]:
    """The same of the whole step."""
    return self.learn_s[0] + self.sample_s[0], self.learn_s[1] + self.sample_s[1]


def estimate(
  workload: Workload,
  lengths: Lengths,
  padding: float,
  chip: Chip,
  learn: Facts,
  weights: Facts,
  sample: Facts,
) -> Estimate:
  """Returns the estimate of a step with completions of those lengths.

  Args:
    workload: what runs.
    lengths: of the prompts and completions.
    padding: the share of padding in what the learner computes for completions.
    chip: on which.
    learn, weights, sample: the compiled programs.
  """
  shape, devices = workload.decoder.config, workload.decoder.layout.mesh.size
  rate, hbm = chip.flops / chip.devices * OF_PEAK, chip.hbm_rate / chip.devices * OF_HBM
  forward = costs.flops(shape, lengths.prompts, lengths.completions)
  learn_flops = update_flops(workload, lengths) / (1 - padding)
  none = np.zeros_like(lengths.completions)
  prefill = costs.flops(shape, lengths.prompts, none) / devices / rate
  steps, read = decode_steps(workload, lengths), step_bytes(workload, lengths)
  operations = step_flops(workload, lengths)
  turns = steps / len(memory.decode_setup(workload).blocks)  # of each loop over a block of the ring
  passes = workload.config.learner.mu  # of the inner loop, which rules may end before
  sampling_link_s = None
  if weights.collectives is not None and sample.collectives is not None:
    both = (*weights.collectives, *sample.collectives)
    sampling_link_s = sum(link_seconds(each, chip, turns) for each in both)
  return Estimate(
    forward,
    learn_flops,
    learn_flops / devices / rate,
    None
    if learn.collectives is None
    else sum(link_seconds(each, chip, passes) for each in learn.collectives),
    steps,
    read,
    prefill,
    steps * max(read / hbm, operations / rate),
    sampling_link_s,
    int(lengths.completions.sum()),
  )


def update_flops(workload: Workload, lengths: Lengths) -> float:
  """Returns the operations of an update of all devices, padding left out."""
  config, needs, shape = workload.config, workload.learner.needs, workload.decoder.config
  one = costs.flops(shape, lengths.prompts, lengths.completions)
  head = 2.0 * shape.width * shape.vocab * float(lengths.completions.sum())
  ref = Needs.REFERENCE in needs
  frozen = bool(
    config.learner.mu * config.learner.minibatches > 1 or needs & (Needs.OLD_POLICY | Needs.CRITIC)
  )
  again = head + (one - head if config.model.remat == "block" else 0.0)
  trees = (
    2 if Needs.CRITIC in needs else 1
  )  # a critic has no head to speak of, which is not taken off
  return ref * one + trees * (frozen * one + config.learner.mu * (3 * one + again))


def link_seconds(each: Collective, chip: Chip, turns: float) -> float:
  """Returns the seconds of all runs of a collective; loops whose turns are not known turn `turns`
  times in all.
  """
  runs = turns if each.unknown_loops else 1.0
  rate = chip.network_rate if each.across_slices else 2 * chip.link_rate
  return runs * (each.sent / (rate / chip.devices) + each.times * each.group * HOP_SECONDS)


def decode_steps(workload: Workload, lengths: Lengths) -> int:
  """Returns how many steps the decoding loop of the slowest shard makes; a completion's first token
  needs none.
  """
  s, layout = memory.slots_of(workload), workload.sample.layout
  shards = (layout.size("prompt"), s.prompts, layout.size("sample"), -1)
  queues = lengths.completions.reshape(shards).swapaxes(1, 2).reshape(-1, s.samples)
  return max(_makespan(queue - 1, s.slots) for queue in np.unique(queues, axis=0))


def _makespan(work: np.ndarray, slots: int) -> int:
  """Returns when the last of the tasks ends that so many slots take in their order."""
  free = [0] * slots
  for n in work:
    heapq.heappush(free, heapq.heappop(free) + int(n))
  return max(free)


def step_bytes(workload: Workload, lengths: Lengths) -> float:
  """Returns the bytes that one device reads in a decoding step, of weights, keys and values, and
  logits.
  """
  config, s, shape = workload.config, memory.slots_of(workload), workload.decoder.config
  weights = memory.decode_weight_bytes(workload)
  if not shape.tied:  # a token reads one row of the embedding
    weights -= weights_of_embedding(workload)
  blocks = len(memory.decode_setup(workload).blocks)
  refills = s.slots < s.samples
  ring = config.sampler.max_length * (1.0 if refills else (blocks + 1) / (2 * blocks))
  prompts = (s.slots if refills else s.prompts) * config.data.max_prompt_length
  return weights + (prompts + s.slots * ring) * s.kv + LOGIT_PASSES * 4 * s.slots * shape.vocab


def weights_of_embedding(workload: Workload) -> int:
  """Returns the bytes that one device has of the embedding while it decodes."""
  shape, layout = workload.decoder.config, memory.decode_setup(workload).decoder.layout
  return shape.width * shape.vocab * _bytes(workload) // layout.shards("vocab", shape.vocab)


def _bytes(workload: Workload) -> int:
  return 2 if workload.config.sampler.dtype == "bfloat16" else 4


def step_flops(workload: Workload, lengths: Lengths) -> float:
  """Returns the operations of one device in a decoding step."""
  s, shape = memory.slots_of(workload), workload.decoder.config
  tensor = memory.decode_setup(workload).decoder.layout.size("mlp")
  seen = float(lengths.prompts.mean()) + workload.config.sampler.max_length
  attend = 4.0 * shape.heads * shape.head_dim * shape.layers * seen
  return s.slots * (2.0 * weights_used(shape) + attend) / tensor


def weights_used(shape: DecoderConfig) -> int:
  """Returns how many numbers the matrices have that every token goes through."""
  return shape.layers * costs.layer_weights(shape) + shape.width * shape.vocab
