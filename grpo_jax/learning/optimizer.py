"""The optimizer: AdamW with a learning rate schedule, and an update that a non-finite number cannot
spoil.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from grpo_jax.learning.state import CRITIC, MODEL, TrainState

Array = jax.Array


def schedule(cfg: Any, total_updates: int) -> Callable[[Array | int], Array]:
  """The learning rate of update `count` (from 0).

  It rises linearly over `cfg.warmup` updates, of which none has rate 0, and then stays (constant),
  or falls to 0 at update `total_updates`, along a line (linear) or half a cosine (cosine;
  Loshchilov & Hutter 2017, eq. 5).

  Only updates that were made count. A run in which `learner.stop_*` ends inner loops early, or in
  which updates are skipped as not finite, makes fewer than `total_updates`, and ends at a rate
  above 0.

  Args:
    cfg: the learner's settings (lr, schedule, warmup).
    total_updates: the most that the whole run can make: steps x mu x minibatches.
  """
  return _scheduled(cfg.lr, cfg, total_updates)


def _scheduled(peak: float, cfg: Any, total_updates: int) -> Callable[[Array | int], Array]:
  falling = max(total_updates - cfg.warmup, 1)

  def rate(count):
    count = jnp.asarray(count, jnp.float32)
    rise = jnp.minimum((count + 1) / (cfg.warmup + 1), 1.0)
    done = jnp.clip((count - cfg.warmup) / falling, 0.0, 1.0)
    fall = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + jnp.cos(jnp.pi * done)) / 2}[
      cfg.schedule
    ]
    return peak * rise * fall

  return rate


def make_optimizer(
  cfg: Any, total_updates: int, critic: bool = False
) -> optax.GradientTransformation:
  """AdamW (Loshchilov & Hutter 2019, algorithm 2) behind a clip by global norm, for {"policy":
  tree}.

  With a critic, the policy and the critic are clipped, each by its own norm, and have their own
  learning rates.

  Args:
    cfg: the learner's settings; `critic_lr` is read only if there is a critic.
    total_updates: updates of the whole run.
    critic: whether the parameters are {"policy": tree, "critic": tree}.
  """
  if not critic:
    return _adamw(cfg, schedule(cfg, total_updates))
  optimizers = {
    MODEL: _adamw(cfg, schedule(cfg, total_updates)),
    CRITIC: _adamw(cfg, _scheduled(cfg.critic_lr, cfg, total_updates)),
  }
  return optax.partition(optimizers, {MODEL: MODEL, CRITIC: CRITIC})


def _adamw(cfg: Any, rate: Callable) -> optax.GradientTransformation:
  return optax.chain(
    optax.stateless(functools.partial(clip, cfg.clip_norm)) if cfg.clip_norm else optax.identity(),
    optax.scale_by_adam(b1=cfg.b1, b2=cfg.b2, eps=cfg.adam_eps),
    optax.add_decayed_weights(cfg.weight_decay, mask=decayed)
    if cfg.weight_decay
    else optax.identity(),
    optax.scale_by_learning_rate(rate),
  )


def clip(most: float, grads: Any, params: Any) -> Any:
  """Returns gradients scaled to a global norm of at most `most` (Pascanu et al. 2013, algorithm 1).

  `optax.clip_by_global_norm` divides every gradient by the norm, and XLA keeps the quotients of all
  beside the gradients; a product with one number is made where it is used.
  """
  del params
  scale = jnp.minimum(1.0, most / optax.tree.norm(grads))
  return jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)


def decayed(params: Any) -> Any:
  """True where weight decay acts: on matrices, not on norms, scales and biases.

  By name, since layers are stacked and the scale of a norm is a matrix [N, D] too.
  """

  def acts(path, _):
    names = jax.tree_util.keystr(path, simple=True, separator=".").split(".")
    return names[-1] not in ("scale", "bias") and not any("norm" in name for name in names)

  return jax.tree_util.tree_map_with_path(acts, params)


def apply_if_finite(
  tx: optax.GradientTransformation, grads: Any, loss: Array, state: TrainState
) -> tuple[TrainState, Array]:
  """One update, or none if the loss or any gradient is not finite.

  A skipped update leaves parameters, moments and the schedule's count as they were, bit for bit,
  and is counted. There is no branch and nothing is read on the host.

  Args:
    tx: the optimizer.
    grads: a tree like state.params.
    loss: [] float32.
    state: before the update.

  Returns:
    The state after it, and [] int32: 1 if it was skipped.
  """
  finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(grads))
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  params, opt_state = jax.tree.map(
    lambda new, old: jnp.where(finite, new, old),
    (params, opt_state),
    (state.params, state.opt_state),
  )
  skipped = 1 - finite.astype(jnp.int32)
  state = TrainState(
    step=state.step + 1 - skipped,
    params=params,
    opt_state=opt_state,
    bad_steps=(state.bad_steps + 1) * skipped,
    skipped=state.skipped + skipped,
  )
  return state, skipped
