"""Estimates the time of a step from counted operations and bytes and a chip's published peaks.

ASSUMPTIONS, which the page prints, lists what it assumes. Nothing is measured.
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
from grpo_jax.plan.programs import Lengths, Padding, Workload

OF_PEAK = 0.5  # the share of the peak FLOP/s that matrix products reach
OF_HBM = 0.8  # the share of the bandwidth of HBM that reading reaches
HOP_SECONDS = 1e-6  # latency of a collective for each chip of the ring
LOGIT_PASSES = 4  # over the float32 logits to sample a token

ASSUMPTIONS = (
  f"Matrix products reach {OF_PEAK:.0%} of the bfloat16 peak, reads {OF_HBM:.0%} of the bandwidth "
  "of HBM.",
  "A collective is a ring over one axis of the torus, in both directions: it has two links. A "
  "collective across slices has the data-centre network. Each takes "
  f"{HOP_SECONDS * 1e6:g} microsecond more for every chip of its group.",
  "Learning: a gradient costs twice a forward pass, with adapters once; model.remat=block adds a "
  "forward pass of the layers, and the head's logits are always computed twice. Padding "
  "is computed. Each shard of mesh.group computes all its prompts, as it does while sampling.",
  "Decoding: each step reads the weights, the slots' keys and values (with refills the whole ring "
  f"of sampler.max_length columns) and {LOGIT_PASSES} times the logits.",
  "With sampler.tries a step draws once at least and that often at most.",
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
  decode_bytes: float  # read by a device in one decoding step
  prefill_s: float
  decode_s: float
  sample_link_s: float | None
  tokens: int  # of completions
  draws: int  # at most, in a step

  @property
  def learn_s(self) -> tuple[float, float]:
    """Seconds of the update if all communication hides behind arithmetic, and if none does."""
    link = self.learn_link_s or 0.0
    return max(self.learn_compute_s, link), self.learn_compute_s + link

  @property
  def sample_s(self) -> tuple[float, float]:
    """Seconds of drawing once, likewise."""
    device, link = self.prefill_s + self.decode_s, self.sample_link_s or 0.0
    return max(device, link), device + link

  @property
  def step_s(self) -> tuple[float, float]:
    """Seconds of the whole step, likewise, with one draw and with as many as it may take."""
    return self.learn_s[0] + self.sample_s[0], self.learn_s[1] + self.draws * self.sample_s[1]


def estimate(
  workload: Workload,
  lengths: Lengths,
  padding: Padding,
  chip: Chip,
  learn: Facts,
  weights: Facts,
  sample: Facts,
) -> Estimate:
  """Returns the estimate of a step.

  Args:
    workload: the run.
    lengths: of the prompts and completions.
    padding: in what is computed.
    chip: on which the run is.
    learn, weights, sample: the compiled programs.
  """
  shape, devices = workload.decoder.config, workload.decoder.layout.mesh.size
  rate, hbm = chip.flops / chip.devices * OF_PEAK, chip.hbm_rate / chip.devices * OF_HBM
  forward = costs.flops(shape, lengths.prompts, lengths.completions)
  learn_flops = update_flops(workload, lengths, padding)
  prefill = workload.sample.layout.size("sample") * prompt_flops(shape, lengths) / devices / rate
  prefill /= 1 - padding.prefill
  steps, read = decode_steps(workload, lengths), step_bytes(workload, lengths)
  operations = step_flops(workload, lengths)
  turns = steps / len(memory.decode_setup(workload).blocks)  # of each loop over a block of the ring
  passes = workload.experiment.learner.mu  # of the inner loop, which may end early
  sampling_link_s = None
  if weights.collectives is not None and sample.collectives is not None:
    both = (*weights.collectives, *sample.collectives)
    sampling_link_s = sum(link_seconds(collective, chip, turns) for collective in both)
  learn_link_s = None
  if learn.collectives is not None:
    learn_link_s = sum(link_seconds(collective, chip, passes) for collective in learn.collectives)
  return Estimate(
    forward_flops=forward,
    learn_flops=learn_flops,
    learn_compute_s=learn_flops / devices / rate,
    learn_link_s=learn_link_s,
    decode_steps=steps,
    decode_bytes=read,
    prefill_s=prefill,
    decode_s=steps * max(read / hbm, operations / rate),
    sample_link_s=sampling_link_s,
    tokens=int(lengths.completions.sum()),
    draws=workload.experiment.sampler.tries,
  )


def prompt_flops(shape: DecoderConfig, lengths: Lengths) -> float:
  """Returns the operations of a forward pass of each prompt once."""
  return costs.flops(shape, lengths.prompts, np.zeros_like(lengths.completions))


def pass_flops(
  workload: Workload, shape: DecoderConfig, lengths: Lengths, padding: Padding
) -> float:
  """Returns the operations of a forward pass of a model of this shape in the learner."""
  times = workload.decoder.layout.size("sample")  # each shard of samples has all its prompts
  prompts = prompt_flops(shape, lengths)
  own = costs.flops(shape, *lengths) - prompts
  return times * prompts / (1 - padding.prompts) + own / (1 - padding.completions)


def head_flops(shape: DecoderConfig, lengths: Lengths, padding: Padding) -> float:
  """Returns the operations of the logits of each token of completions."""
  tokens = float(lengths.completions.sum()) / (1 - padding.completions)
  return 2.0 * shape.width * shape.vocab * tokens


def update_flops(workload: Workload, lengths: Lengths, padding: Padding) -> float:
  """Returns the operations of an update on all devices, padding included."""
  experiment, needs, shape = workload.experiment, workload.learner.needs, workload.decoder.config
  teacher = workload.learner.teacher.decoder.config  # may have a shape of its own
  one, asked = (pass_flops(workload, of, lengths, padding) for of in (shape, teacher))
  head, logits = (head_flops(of, lengths, padding) for of in (shape, teacher))
  ref = asked if Needs.REFERENCE in needs else 0.0
  if Needs.TEACHER in needs:  # its logits are computed with the policy's, twice
    ref += asked - logits + experiment.learner.mu * 2 * logits
  frozen = bool(
    experiment.learner.mu * experiment.learner.minibatches > 1
    or needs & (Needs.OLD_POLICY | Needs.CRITIC)
  )
  remade = head + (one - head if experiment.model.remat == "block" else 0.0)
  # a critic counts as a policy, although its head is small
  trees = 2 if Needs.CRITIC in needs else 1
  passes = 2 if experiment.lora.rank else 3  # adapters need no gradient of the weights
  return ref + trees * (frozen * one + experiment.learner.mu * (passes * one + remade))


def link_seconds(collective: Collective, chip: Chip, turns: float) -> float:
  """Returns the seconds of all runs of a collective, given the turns of its unknown loops."""
  runs = turns if collective.unknown_loops else 1.0
  rate = chip.network_rate if collective.across_slices else 2 * chip.link_rate
  latency = collective.times * collective.group * HOP_SECONDS
  return runs * (collective.sent / (rate / chip.devices) + latency)


def decode_steps(workload: Workload, lengths: Lengths) -> int:
  """Returns the decoding steps of the slowest shard; a completion's first token needs none."""
  s, layout = memory.shard_slots(workload), workload.sample.layout
  prompts, samples = layout.size("prompt"), layout.size("sample")
  p, g = lengths.completions.shape
  by_shard = lengths.completions.reshape(prompts, p // prompts, samples, g // samples)
  queues = by_shard.swapaxes(1, 2).reshape(prompts * samples, -1)
  return max(_makespan(queue - 1, s.slots) for queue in np.unique(queues, axis=0))


def _makespan(work: np.ndarray, slots: int) -> int:
  """Returns when the last task ends if `slots` slots take the tasks in order."""
  free = [0] * slots
  for n in work:
    heapq.heappush(free, heapq.heappop(free) + int(n))
  return max(free)


def step_bytes(workload: Workload, lengths: Lengths) -> float:
  """Returns the bytes of weights, keys, values and logits that a device reads in a step."""
  experiment, s, shape = workload.experiment, memory.shard_slots(workload), workload.decoder.config
  weights = memory.decode_weight_bytes(workload)
  if not shape.tied:  # a token reads one row of the embedding
    weights -= weights_of_embedding(workload)
  blocks = len(memory.decode_setup(workload).blocks)
  refills = s.slots < s.samples
  ring = experiment.sampler.max_length * (1.0 if refills else (blocks + 1) / (2 * blocks))
  prompts = (s.slots if refills else s.prompts) * experiment.data.max_prompt_length
  return weights + (prompts + s.slots * ring) * s.kv + LOGIT_PASSES * 4 * s.slots * shape.vocab


def weights_of_embedding(workload: Workload) -> int:
  """Returns the bytes of the embedding on one device while decoding."""
  shape, layout = workload.decoder.config, memory.decode_setup(workload).decoder.layout
  return shape.width * shape.vocab * _bytes(workload) // layout.shards("vocab", shape.vocab)


def _bytes(workload: Workload) -> int:
  return 2 if workload.experiment.sampler.dtype == "bfloat16" else 4


def step_flops(workload: Workload, lengths: Lengths) -> float:
  """Returns the operations of one device in a decoding step."""
  s, shape = memory.shard_slots(workload), workload.decoder.config
  tensor = memory.decode_setup(workload).decoder.layout.size("mlp")
  seen = float(lengths.prompts.mean()) + workload.experiment.sampler.max_length
  attend = 4.0 * shape.heads * shape.head_dim * shape.layers * seen
  return s.slots * (2.0 * weights_used(shape) + attend) / tensor


def weights_used(shape: DecoderConfig) -> int:
  """Returns the number of weights in the matrices that every token passes through."""
  return shape.layers * costs.layer_weights(shape) + shape.width * shape.vocab
