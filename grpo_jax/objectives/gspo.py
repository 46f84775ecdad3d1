"""GSPO (arXiv 2507.18071): a completion is one action, with one ratio and one clip.

    s = (pi(o) / pi_old(o))^(1/|o|)        J = mean over completions of min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)

`token_level=True` is GSPO-token (eq. 14): sg(s) pi / sg(pi) for each token, which with one advantage a completion has
the same value and gradient, and which process rewards need, since their tokens differ in A. The bounds are of another
size than GRPO's, for s averages over a completion: the paper's are 3e-4 and 4e-4.

Everything before the loss is GRPO's. On completions of one token GSPO is GRPO.
"""

from grpo_jax.objectives import grpo
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch

needs = grpo.needs
prepare = grpo.prepare
DATA = grpo.DATA
READS = grpo.READS | {"token_level"}


def importance_ratio(logprobs: Array, old: Array, mask: Array, cfg) -> Array:
  """s of each completion, [P, G, 1]; by token, [P, G, L], where `cfg.token_level`."""
  ratio_of = surrogate.sequence_token_ratio if cfg.token_level else surrogate.sequence_ratio
  return ratio_of(logprobs, old, mask)


def loss(outputs: Outputs, batch: TrainBatch, cfg) -> tuple[Array, Metrics]:
  """GRPO's, with this ratio."""
  return grpo.clipped_loss(importance_ratio, outputs, batch, cfg)
