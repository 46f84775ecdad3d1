"""Forward passes of the learner: of the policy that is trained, and of those that are not.

`with_frozen_logprobs` makes all that an objective's `prepare` reads. Trees that are not trained go
through the rollouts microbatch by microbatch, as an update does, so that they hold no more memory.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import optax

from grpo_jax.config import settings
from grpo_jax.errors import SettingError
from grpo_jax.learning import forward
from grpo_jax.learning.state import CRITIC, MODEL, TrainState, Trees
from grpo_jax.learning.stop_rules import STOP_RULES
from grpo_jax.models import lora
from grpo_jax.models.decoder import Decoder, Params
from grpo_jax.objectives.base import ConfiguredObjective, Needs
from grpo_jax.packing.microbatches import join_microbatches, split_microbatches
from grpo_jax.packing.plan import Packing
from grpo_jax.types import Array, Outputs, Prompts, Rollouts, Scores, TrainBatch

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
  """Everything that stays the same from batch to batch; jitted functions close over it."""

  decoder: Decoder  # in the learner's dtype
  objective: ConfiguredObjective
  tx: optax.GradientTransformation  # of TrainState.params
  cfg: settings.Learner
  temperature: float  # the one that the completions were sampled at
  ref_decoder: Decoder | None = None  # of the reference's tree, if it has another shape
  # set when a function is traced: the tree under adapters (models/lora.py), and the teacher's
  # unembedding (`forward.head`)
  base: Params | None = None
  teacher: Params | None = None

  def __post_init__(self) -> None:
    for rule in STOP_RULES:
      value = getattr(self.cfg, rule)
      if value and not self.objective.has_ratio:
        raise SettingError(
          f"learner.{rule}={value}: {self.objective.name} has no ratio to the old policy; use 0"
        )
      if value and self.cfg.mu == 1:
        raise SettingError(
          f"learner.{rule}={value} with learner.mu=1: it ends passes before mu; use 0, or a larger "
          "mu"
        )

  @property
  def updates(self) -> int:
    """Largest number of optimizer updates from one batch of rollouts."""
    return self.cfg.mu * self.cfg.minibatches

  def over(self, base: Params | None, ref_params: Params | None = None) -> "Setup":
    """Returns the setup over the base of adapters, with the head of the teacher `ref_params`."""
    teacher = None
    if ref_params is not None:
      teacher = forward.head(self.ref_decoder or self.decoder, lora.join(base, ref_params))
    return dataclasses.replace(self, base=base, teacher=teacher)


def microbatches_of_minibatch(cfg: settings.Learner, prompts: int) -> int:
  """Returns the number of microbatches in a minibatch; `cfg` is the `learner` section."""
  return prompts // cfg.microbatch if cfg.microbatch and cfg.microbatch < prompts else 1


def microbatches_of_rollout(cfg: settings.Learner, prompts: int) -> int:
  """Returns the number of microbatches in a batch; `cfg` is the `learner` section."""
  return cfg.minibatches * microbatches_of_minibatch(cfg, prompts // cfg.minibatches)


def outputs(setup: Setup, params: Trees, batch: Rollouts | TrainBatch, packing: Packing) -> Outputs:
  """Returns the predictions of the policy (and critic) in `params` for a batch's completions."""
  completions = (batch.prompts, batch.tokens, batch.lengths, packing)
  params = {name: lora.join(setup.base, tree) for name, tree in params.items()}
  model, teacher = params[MODEL], batch.ref_hidden
  stats = forward.logprobs(
    setup.decoder,
    model if teacher is None else model | {forward.TEACHER: setup.teacher},
    *completions,
    temperature=setup.temperature,
    chunk=setup.cfg.chunk,
    teacher=teacher,
    teacher_decoder=setup.ref_decoder,
    divergence=setup.objective.divergence,
  )
  values = forward.values(setup.decoder, params[CRITIC], *completions) if CRITIC in params else None
  return Outputs(**stats._asdict(), values=values)


def scores(setup: Setup, params: Trees, batch: TrainBatch, packing: Packing) -> Scores:
  """Returns the scores of the reward model in `params` for a batch's completions."""
  model = lora.join(setup.base, params[MODEL])
  completions = (batch.prompts, batch.tokens, batch.lengths, packing)
  return Scores(forward.scores(setup.decoder, model, *completions))


def frozen_outputs(
  setup: Setup, params: Trees, rollouts: Rollouts, packing: Packing, count: int = 0
) -> Outputs:
  """Returns `outputs` of trees that are not trained, in `count` microbatches (0: those of P)."""
  return _frozen(setup, functools.partial(outputs, setup, params), rollouts, packing, count)


def teacher_hidden(
  setup: Setup, params: Params, rollouts: Rollouts, packing: Packing, count: int = 0
) -> Array:
  """Returns the teacher's states that predict each token, `[P, G, L, D]`; see `frozen_outputs`."""
  tree = lora.join(setup.base, params)

  def states(batch: Rollouts, packing: Packing) -> Array:
    completions = (batch.prompts, batch.tokens, batch.lengths, packing)
    return forward.hidden(setup.ref_decoder or setup.decoder, tree, *completions)

  return _frozen(setup, states, rollouts, packing, count)


def _frozen(
  setup: Setup, compute: Callable[..., T], rollouts: Rollouts, packing: Packing, count: int
) -> T:
  """Returns what `compute` returns of the rollouts and packing of each microbatch, joined."""
  count = count or microbatches_of_rollout(setup.cfg, rollouts.tokens.shape[0])
  cut = split_microbatches(setup.decoder.layout, (rollouts, packing), count)
  return jax.lax.stop_gradient(join_microbatches(jax.lax.map(lambda x: compute(*x), cut)))


def asked_of_teacher(rollouts: Rollouts) -> Rollouts:
  """Returns the completions after the teacher's prompts, with only what passes read.

  Prompts of groups are P groups, prompts of completions P G groups of one. A completion without a
  teacher has length 0.
  """
  prompts, length = rollouts.ref_prompts, rollouts.tokens.shape[2]
  assert prompts is not None
  n = prompts.lengths.size
  prompts = Prompts(prompts.tokens.reshape(n, -1), prompts.lengths.reshape(n))
  lengths = rollouts.lengths.reshape(n, -1) * (prompts.lengths > 0)[:, None]
  tokens = rollouts.tokens.reshape(n, -1, length)
  return Rollouts(prompts, tokens, lengths, lengths, sampler_logprobs=None, truncated_logprobs=None)


def with_frozen_logprobs(
  setup: Setup,
  state: TrainState,
  ref_params: Params | None,
  old_params: Params | None,
  rollouts: Rollouts,
  packing: Packing,
  ref_packing: Packing | None = None,
) -> Rollouts:
  """Returns the rollouts with the log-probs and values that the objective needs.

  With `ref_packing` the reference is asked `rollouts.ref_prompts`. The old policy is that of
  `old_params`, or the state before its first update if that is None.
  """
  if setup.objective.trains_reward_model:
    return rollouts
  needs = setup.objective.needs
  shape = rollouts.tokens.shape
  asked = rollouts if ref_packing is None else asked_of_teacher(rollouts)
  count = microbatches_of_rollout(setup.cfg, shape[0])  # also of P G groups of one
  if Needs.REFERENCE in needs:
    of_reference = dataclasses.replace(setup, decoder=setup.ref_decoder or setup.decoder)
    ref = frozen_outputs(of_reference, {MODEL: ref_params}, asked, ref_packing or packing, count)
    rollouts = dataclasses.replace(rollouts, ref_logprobs=ref.logprobs.reshape(shape))
  if setup.updates > 1 or needs & (Needs.OLD_POLICY | Needs.CRITIC) or old_params is not None:
    before = state.params if old_params is None else state.params | {MODEL: old_params}
    old = frozen_outputs(setup, before, rollouts, packing)
    known = {f"old_{name}": x for name, x in vars(old).items() if x is not None}
    rollouts = dataclasses.replace(rollouts, **known)
  if Needs.TEACHER in needs:  # the last: no other pass compares its distributions with it
    hidden = teacher_hidden(setup, ref_params, asked, ref_packing or packing, count)
    rollouts = dataclasses.replace(rollouts, ref_hidden=hidden.reshape(*shape, -1))
  return rollouts
