"""Settings that several objectives read."""

import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import (
  dpo,
  gmpo,
  grpo,
  gspo,
  ppo,
  reward_model,
  rpg,
  target_prob,
)


@pytest.mark.parametrize(
  "objective, changes, message",
  [
    (grpo, dict(kl_estimator="k4"), "kl_estimator='k4'"),
    (grpo, dict(baseline="leave_one_out"), "scale='group' with baseline='leave_one_out'"),
    (grpo, dict(kl_in_reward=True, kl_weighted=True), "kl_weighted=True with kl_in_reward=True"),
    (grpo, dict(clip_delta=1.1), "clip_delta=1.1"),
    (gspo, dict(clip_delta=1.0), "clip_delta=1.0"),
    (rpg, dict(clip_delta=1.1), "clip_delta=1.1"),
    (ppo, dict(clip_delta=1.1), "clip_delta=1.1"),
    (rpg, dict(divergence="js"), "divergence='js': use one of reverse, "),
    (dpo, dict(beta=0.0), "beta=0.0"),
    (dpo, dict(beta=-0.1), "beta=-0.1"),
    # What an objective does not read is no setting of it.
    (gspo, dict(kl_in_reward=True), "kl_in_reward=True with token_level=False"),
    (gmpo, dict(kl_in_reward=True), "has kl_in_reward, which gmpo does not read"),
    (rpg, dict(kl_in_reward=True), "has kl_in_reward, which rpg does not read"),
    (dpo, dict(beta=0.1, aggregation="token_mean"), "has aggregation, which dpo does not read"),
    (
      target_prob,
      dict(aggregation="token_mean"),
      "has aggregation, which target_prob does not read",
    ),
    (
      reward_model,
      dict(aggregation="token_mean"),
      "has aggregation, which reward_model does not read",
    ),
    (ppo, dict(scale="none", kl_weighted=True), "has kl_weighted, scale, which ppo does not read"),
  ],
)
def test_bad_settings_are_refused_before_anything_runs(objective, changes, message):
  with pytest.raises(SettingError, match=message) as error:
    cases.settings(objective, **changes)
  assert "\n" not in str(error.value)
