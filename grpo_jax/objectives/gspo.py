"""GSPO (arXiv 2507.18071): a completion is one action, with one ratio and one clip.

    s = (pi(o) / pi_old(o))^(1/|o|)
    J = mean over completions of min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)

`token_level=True` is GSPO-token (eq. 14): sg(s) pi / sg(pi) for each token. With one advantage for
each completion its value and gradient are the same; process rewards need it, since their tokens
differ in A. The bounds are smaller than GRPO's, because s averages over a completion: the paper's
are 3e-4 and 4e-4. Without `token_level`, weights of tokens (mismatch=token) count by their mean.

Everything before the loss is GRPO's. On completions of one token GSPO is GRPO.

Difference from TRL 1.16: `kl_weighted` multiplies the KL of a token by the token's own ratio, as
GRPO does here; TRL's use_bias_correction_kl takes the ratio of the importance sampling level, which
under GSPO is the sequence's.
"""

import dataclasses

from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.objectives import grpo, shared_settings
from grpo_jax.ops import surrogate
from grpo_jax.types import Array, Metrics, Outputs, TrainBatch


def settings() -> ConfigDict:
  """Returns GRPO's settings with the paper's bounds, and GSPO's own."""
  c = grpo.settings()
  c.clip_low = 3e-4  # the sequence's ratio is clipped to [1 - clip_low, 1 + clip_high]
  c.clip_high = 4e-4
  c.token_level = False  # GSPO-token
  return c


def check(cfg: ConfigDict) -> None:
  """Refuses what GRPO refuses, and to treat tokens apart where all share one ratio."""
  grpo.check(cfg)
  if not cfg.token_level:
    shared_settings.check_one_ratio(cfg, "token_level=True, or ")
  if cfg.top_entropy < 1.0 and not cfg.token_level:
    raise SettingError(
      f"top_entropy={cfg.top_entropy} with token_level=False: a sequence's ratio moves all of its "
      "tokens; use token_level=True"
    )
  if grpo.in_reward(cfg) and not cfg.token_level:
    raise SettingError(
      "kl_in_reward=True with token_level=False: a token has the KL of those that follow it, and a "
      "sequence's ratio gives all of them the mean; use another value of one of the two"
    )


def importance_ratio(logprobs: Array, old: Array, mask: Array, cfg: ConfigDict) -> Array:
  """Returns s of each completion, [P, G, 1]; of each token, [P, G, L], where `cfg.token_level`."""
  ratio_of = surrogate.sequence_token_ratio if cfg.token_level else surrogate.sequence_ratio
  return ratio_of(logprobs, old, mask)


def loss(outputs: Outputs, batch: TrainBatch, cfg: ConfigDict) -> tuple[Array, Metrics]:
  """Returns GRPO's loss with this ratio, and its metrics."""
  return grpo.clipped_loss(importance_ratio, outputs, batch, cfg)


OBJECTIVE = dataclasses.replace(
  grpo.OBJECTIVE,
  loss=loss,
  settings=settings,
  check=check,
  importance_ratio=importance_ratio,
)
