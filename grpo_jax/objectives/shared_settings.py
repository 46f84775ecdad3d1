"""Settings that several objectives read, each with its default, and their checks.

An objective joins the groups that it reads and adds its own:

    def settings():
      c = shared_settings.join(shared_settings.advantage(), shared_settings.clipped())
      c.temperature = 1.0  # what it does
      return c
"""

from collections.abc import Collection

from ml_collections import ConfigDict, config_dict

from grpo_jax.errors import SettingError
from grpo_jax.ops import advantages, masked
from grpo_jax.ops import mismatch as mismatches

# advantages that differ from token to token
OF_TOKENS = ("otb", "prefix_credit", "step_returns")
# of a reward, where sums stay finite in float32, or of one data set of a mixture over another
LARGEST_WEIGHT = 1e6


def join(*groups: ConfigDict) -> ConfigDict:
  """Returns one section with the settings of all groups."""
  c = ConfigDict()
  for group in groups:
    c.update(group)
  return c


# -- groups of settings


def advantage() -> ConfigDict:
  """Returns the settings of advantages.py; one that the named function lacks cannot be changed."""
  c = ConfigDict()
  c.advantage = "group_relative"  # a function of objectives/advantages.py, or one of yours
  c.advantage_arguments = ()  # keyword arguments of one of yours: (("name", value), ...)
  # what a reward is compared with: the group's mean, or leave_one_out (the others' mean)
  c.baseline = "mean"
  # what the difference is divided by: the std of the rewards of the group, of those of the batch,
  # or of all advantages of the batch, or nothing: group, batch, advantages, none
  c.scale = "group"
  c.ddof = 1  # of the std in scale: 1 divides by n - 1, 0 by n
  c.eps = 1e-4  # added to the std in scale
  c.attempts = 4  # pass_at_k, pkpo: k of pass@k
  c.reward_weights = ()  # gdpo: of each reward after it is normalised; empty: equal
  return c


def aggregation() -> ConfigDict:
  """Returns the settings of `common.weights`."""
  c = ConfigDict()
  # sequence_mean (GRPO), token_mean, group_token_mean (DAPO), constant (Dr.GRPO), prompt_sum; see
  # ops/masked.py
  c.aggregation = "sequence_mean"
  # of a completion, for "constant"; tied to sampler.max_length
  c.max_length = config_dict.placeholder(int)
  return c


def truncation() -> ConfigDict:
  """Returns the setting of `common.completion_mask`."""
  c = ConfigDict()
  c.mask_truncated = False  # leave truncated completions out of the loss
  return c


def mismatch() -> ConfigDict:
  """Returns the settings of `common.mismatch`; ops/mismatch.py has the papers and formulas."""
  c = ConfigDict()
  # importance weight pi_old / pi_sampler: none, token, sequence (the product), geometric (its mean)
  c.mismatch = "none"
  c.mismatch_low = 0.0  # the least weight
  c.mismatch_high = 2.0  # the largest weight; 0: no bound
  # leaves out what is not within [keep_low, keep_high]: all (keeps everything), tokens by token, or
  # completions by sequence, geometric, max or mean (of their tokens)
  c.keep = "all"
  # what is compared: ratio (pi_old / pi_sampler), tv (|ratio - 1|), k2 or k3 (of the log-ratio)
  c.keep_by = "ratio"
  c.keep_low = 0.0  # the least value that is kept
  c.keep_high = 0.0  # the largest value that is kept; 0: no bound
  # which tokens outside the bounds are left out: always, negative (those with A < 0), onwards
  # (those that A moves further from the sampler)
  c.keep_condition = "always"
  c.keep_live = False  # compare the policy as it is now in place of pi_old
  return c


def sampled() -> ConfigDict:
  """Returns the settings of a mean over completions that a policy sampled."""
  return join(truncation(), aggregation(), mismatch())


def clipped() -> ConfigDict:
  """Returns the settings of a clipped surrogate with a KL to the reference."""
  c = sampled()
  c.beta = 0.0  # weight of the KL; 0: no reference is held or run
  c.clip_low = 0.2  # the ratio is clipped to [1 - clip_low, 1 + clip_high]
  c.clip_high = 0.2  # the ratio is clipped to at most 1 + clip_high
  c.clip_delta = 0.0  # two-sided clip: upper bound of the ratio where A < 0; 0: off
  return c


def entropy() -> ConfigDict:
  """Returns the setting of `common.entropy_bonus`."""
  c = ConfigDict()
  c.entropy_bonus = 0.0  # weight of the policy's entropy, which is added to what is maximised
  return c


def policy_gradient() -> ConfigDict:
  """Returns the settings of `common.prepare`: the advantage, and a mean over completions."""
  return join(advantage(), truncation(), aggregation())


# -- checks


def check(cfg: ConfigDict) -> None:
  """Refuses bad values in each of the groups above that the section has."""
  if "advantage" in cfg:
    _check_advantage(cfg)
  if "aggregation" in cfg:
    _check_aggregation(cfg)
  if "mismatch" in cfg:
    _check_mismatch(cfg)
  if "clip_low" in cfg:
    _check_clip(cfg)
  if "entropy_bonus" in cfg:
    check_at_least(cfg, 0, "entropy_bonus")


def check_choice(cfg: ConfigDict, setting: str, choices: Collection[str | int]) -> None:
  """Refuses a setting whose value is none of `choices`."""
  if cfg[setting] not in choices:
    raise SettingError(f"{setting}={cfg[setting]!r}: use one of {', '.join(map(str, choices))}")


def check_keep_condition(cfg: ConfigDict, *choices: str) -> None:
  """Refuses to leave tokens out by advantages that the objective does not have."""
  if cfg.keep != "all":
    check_choice(cfg, "keep_condition", choices)


def check_one_ratio(cfg: ConfigDict, way_out: str = "") -> None:
  """Refuses to treat tokens of a completion apart, where all of them have one ratio.

  Args:
    cfg: the section.
    way_out: what else would do, as in "token_level=True, or ".
  """
  why = f"a completion's ratio moves all of its tokens alike; use {way_out}"
  if cfg.keep == "token":
    raise SettingError(f"keep='token': {why}sequence, geometric, max or mean")
  if cfg.keep != "all" and cfg.keep_condition == "onwards":
    raise SettingError(f"keep_condition='onwards': {why}always or negative")
  if cfg.advantage in OF_TOKENS:
    raise SettingError(
      f"advantage={cfg.advantage!r} is of single tokens: {why}another advantage or objective"
    )


def check_at_least(cfg: ConfigDict, least: float, *settings: str) -> None:
  """Refuses numbers below `least`."""
  for setting in settings:
    if not cfg[setting] >= least:
      raise SettingError(f"{setting}={cfg[setting]!r}: use a finite number of at least {least:g}")


def check_between(cfg: ConfigDict, least: float, most: float, *settings: str) -> None:
  """Refuses numbers below `least` or above `most`."""
  for setting in settings:
    if not least <= cfg[setting] <= most:
      raise SettingError(f"{setting}={cfg[setting]!r}: use a number from {least:g} to {most:g}")


def _check_advantage(cfg: ConfigDict) -> None:
  check_choice(cfg, "baseline", advantages.BASELINES)
  check_choice(cfg, "scale", advantages.SCALES)
  check_choice(cfg, "ddof", (0, 1))
  check_at_least(cfg, 0, "eps")
  check_at_least(cfg, 1, "attempts")
  weights = cfg.reward_weights
  if not all(isinstance(w, int | float) and not isinstance(w, bool) for w in weights):
    raise SettingError(f"reward_weights={weights!r}: use a tuple of numbers, as in (1.0, 0.5)")
  if weights and not 0 < max(map(abs, weights)) <= LARGEST_WEIGHT:
    raise SettingError(
      f"reward_weights={weights!r}: use numbers from {-LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}, "
      "at least one of them not 0"
    )
  if cfg.baseline == "leave_one_out" and cfg.scale != "none":
    raise SettingError(f"scale={cfg.scale!r} with baseline='leave_one_out': use scale='none'")


def _check_aggregation(cfg: ConfigDict) -> None:
  check_choice(cfg, "aggregation", masked.AGGREGATIONS)
  if cfg.aggregation == "constant" and not cfg.max_length:
    raise SettingError(
      f"max_length={cfg.max_length!r} with aggregation='constant': it divides by the length; make "
      "the section by defaults.objective(name, c), which ties it to sampler.max_length"
    )


def _check_mismatch(cfg: ConfigDict) -> None:
  check_choice(cfg, "mismatch", mismatches.WEIGHTS)
  check_choice(cfg, "keep", mismatches.LEVELS)
  check_choice(cfg, "keep_by", mismatches.STATISTICS)
  check_choice(cfg, "keep_condition", mismatches.CONDITIONS)
  for name in ("mismatch", "keep"):
    check_at_least(cfg, 0, f"{name}_low", f"{name}_high")
    low, high = cfg[f"{name}_low"], cfg[f"{name}_high"]
    if high and low > high:
      raise SettingError(
        f"{name}_low={low} with {name}_high={high}: use no more than {name}_high, or 0 for that"
      )
  if cfg.keep != "all" and not (cfg.keep_low or cfg.keep_high):
    raise SettingError(
      f"keep={cfg.keep!r} with keep_low=0 and keep_high=0: leaves nothing out; use bounds, such as "
      "keep_low=0.5 and keep_high=2.0, or keep='all'"
    )


def _check_clip(cfg: ConfigDict) -> None:
  check_at_least(cfg, 0, "clip_low", "clip_high")
  if "clip_delta" not in cfg:
    return
  check_at_least(cfg, 0, "clip_delta")
  least = 1.0 + cfg.clip_high
  if cfg.clip_delta and cfg.clip_delta <= least:
    raise SettingError(
      f"clip_delta={cfg.clip_delta}: use 0 (off) or more than 1 + clip_high = {least}"
    )
