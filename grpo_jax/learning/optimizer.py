"""Makes AdamW or Muon with its schedule, and skips updates that are not finite."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from grpo_jax.aliases import Tree
from grpo_jax.config import settings
from grpo_jax.learning.state import CRITIC, MODEL, TrainState, Trees
from grpo_jax.types import Array


def schedule(cfg: settings.Learner, total_updates: int) -> Callable[[Array | int], Array]:
  """Returns the learning rate as a function of the updates made so far.

  It rises linearly over `cfg.warmup` updates, of which none has rate 0, and then stays (constant),
  or falls to 0 at update `total_updates`, along a line (linear) or half a cosine (cosine;
  Loshchilov & Hutter 2017, eq. 5). A run makes fewer updates, and ends at a rate above 0, if
  `learner.stop_*` ends inner loops early or updates are skipped.

  Args:
    cfg: the learner's settings (lr, schedule, warmup).
    total_updates: the most that the whole run can make: steps x mu x minibatches.
  """
  return _scheduled(cfg.lr, cfg, total_updates)


def _scheduled(
  peak: float, cfg: settings.Learner, total_updates: int
) -> Callable[[Array | int], Array]:
  falling = max(total_updates - cfg.warmup, 1)

  def rate(count):
    count = jnp.asarray(count, jnp.float32)
    rise = jnp.minimum((count + 1) / (cfg.warmup + 1), 1.0)
    done = jnp.clip((count - cfg.warmup) / falling, 0.0, 1.0)
    falls: dict[str, Array | float] = {
      "constant": 1.0,
      "linear": 1 - done,
      "cosine": (1 + jnp.cos(jnp.pi * done)) / 2,
    }
    return peak * rise * falls[cfg.schedule]

  return rate


def make_optimizer(
  cfg: settings.Learner, total_updates: int, critic: bool = False
) -> optax.GradientTransformation:
  """Returns AdamW (Loshchilov & Hutter 2019, algorithm 2) or Muon, behind a clip by global norm.

  Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon; with the scale of Liu et al. 2025,
  arXiv 2502.16982) moves the matrices of the layers, AdamW the rest. A critic is clipped by its
  own norm and has its own learning rate.

  Args:
    cfg: the learner's settings; `critic_lr` is read only if there is a critic.
    total_updates: as for `schedule`.
    critic: whether `TrainState.params` has one.
  """
  if not critic:
    return _chained(cfg, schedule(cfg, total_updates))
  optimizers = {
    MODEL: _chained(cfg, schedule(cfg, total_updates)),
    CRITIC: _chained(cfg, _scheduled(cfg.critic_lr, cfg, total_updates)),
  }
  return optax.partition(optimizers, {MODEL: MODEL, CRITIC: CRITIC})


def _chained(cfg: settings.Learner, rate: Callable) -> optax.GradientTransformation:
  return optax.chain(
    optax.stateless(functools.partial(clip, cfg.clip_norm)) if cfg.clip_norm else optax.identity(),
    direction(cfg),
    optax.add_decayed_weights(cfg.weight_decay, mask=decayed)
    if cfg.weight_decay
    else optax.identity(),
    optax.scale_by_learning_rate(rate),
  )


def norms(grads: Trees) -> dict[str, Array]:
  """Returns the norm of each tree's gradient, before it is clipped by that norm, by metric."""
  names = {MODEL: "grad_norm", CRITIC: "critic_grad_norm"}
  return {names[name]: optax.tree.norm(tree) for name, tree in grads.items()}


# In place of optax's 1e-8, next to which the gradients of a large model are not large.
TINY = 1e-20


def direction(cfg: settings.Learner) -> optax.GradientTransformation:
  """Returns the optimizer that `cfg.optimizer` names, before weight decay and learning rate."""
  adam = optax.scale_by_adam(b1=cfg.b1, b2=cfg.b2, eps=cfg.adam_eps)
  if cfg.optimizer == "adamw":
    return adam
  orthogonal = optax.contrib.scale_by_muon(
    beta=cfg.b1, eps=TINY, weight_dimension_numbers=_last_two
  )
  muon = optax.chain(_exact(orthogonal), optax.stateless(_as_large_as_adam))
  return optax.partition({"muon": muon, "adam": adam}, _muon_or_adam)


def _exact(tx: optax.GradientTransformation) -> optax.GradientTransformation:
  """Returns the transformation with products that are exact to float32 on every platform."""

  def update(updates: Tree, state: Tree, params: Tree | None = None) -> tuple[Tree, Tree]:
    with jax.default_matmul_precision("highest"):
      return tx.update(updates, state, params)

  return optax.GradientTransformation(tx.init, update)


def _last_two(tree: Tree) -> Tree:
  """Returns the axes of each matrix; those before them are of layers, which move one by one."""
  return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(-1, -2), tree)


def _as_large_as_adam(update: Tree, params: Tree) -> Tree:
  """Returns directions with entries as large as AdamW's (Liu et al. 2025, equation 4)."""
  del params
  return jax.tree.map(lambda x: x * (0.2 * max(x.shape[-2:]) ** 0.5), update)


def _muon_or_adam(params: Tree) -> Tree:
  """Returns "muon" for the matrices of layers and "adam" for all else, embeddings and heads too."""

  def label(path: tuple[object, ...], is_matrix: bool) -> str:
    return "muon" if is_matrix and jax.tree_util.DictKey("layers") in path else "adam"

  return jax.tree_util.tree_map_with_path(label, decayed(params))


def clip(most: float, grads: Trees, params: Trees) -> Trees:
  """Returns gradients scaled to a global norm of at most `most` (Pascanu et al. 2013, algorithm 1).

  `optax.clip_by_global_norm` divides, and XLA then keeps all quotients in addition to the
  gradients; a product with one number is fused into its use.
  """
  del params
  scale = jnp.minimum(1.0, most / optax.tree.norm(grads))
  return jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)


def decayed(params: Trees) -> Tree:
  """Returns where weight decay acts: on matrices, not on norms, scales and biases.

  It goes by name, since layers are stacked and the scale of a norm is a matrix [N, D] too.
  """

  def acts(path, _):
    names = jax.tree_util.keystr(path, simple=True, separator=".").split(".")
    return names[-1] not in ("scale", "bias") and not any("norm" in name for name in names)

  return jax.tree_util.tree_map_with_path(acts, params)


def apply_if_finite(
  tx: optax.GradientTransformation,
  grads: Trees,
  loss: Array,
  state: TrainState,
  taught: Array | bool = True,
) -> tuple[TrainState, Array]:
  """Returns the state after an update, and [] int32: 1 if it was skipped.

  An update is skipped if the loss or a gradient is not finite. It leaves parameters, moments and
  the schedule's count as they were, bit for bit. So does one that nothing was `taught` in, which is
  not counted: momentum and decay would move the weights. There is no branch, and the host reads
  nothing.

  Args:
    tx: the optimizer.
    grads: a tree like state.params.
    loss: [] float32.
    state: before the update.
    taught: [] bool, whether any token counted in the loss.
  """
  finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(grads))
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  params, opt_state = jax.tree.map(
    lambda new, old: jnp.where(finite & taught, new, old),
    (params, opt_state),
    (state.params, state.opt_state),
  )
  skipped = 1 - finite.astype(jnp.int32)
  state = TrainState(
    step=state.step + (finite & taught),
    params=params,
    opt_state=opt_state,
    bad_steps=jnp.where(finite & taught, 0, state.bad_steps + skipped),
    skipped=state.skipped + skipped,
  )
  return state, skipped
