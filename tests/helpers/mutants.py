"""Puts known bugs into a copy of the code, one at a time, and shows which test catches each.

    python tests/helpers/mutants.py [WORD ...]        only the mutants whose description contains one of the words

Many are bugs that a known system, or text on the subject, has shipped; others are slips that a
change could make. A mutant is a piece of text in one file and what to put in its place; it is
caught if the named tests pass on the code as it is and fail on the mutated copy.
tests/mutants_test.py runs them all, under `slow` and `long`.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
# All that a test can read, so that a test which passes here passes in a copy, too.
COPIED = (
  *("grpo_jax", "experiments", "tests", "docs", "launch"),
  *("pyproject.toml", "setup.py", "constraints.txt", "README.md", "SECURITY.md", "LICENSE"),
)


class Mutant(NamedTuple):
  bug: str
  file: str
  old: str  # occurs exactly once in the file
  new: str
  test: str  # pytest node ids, separated by blanks


OBJECTIVES = "grpo_jax/objectives/"
OPS = "grpo_jax/ops/"

MUTANTS = (
  Mutant(
    "TPO pushes a completion without a reward down, as if it had a reward of 0",
    OBJECTIVES + "tpo.py",
    "real = jnp.any(given, axis=2) & (rollouts.lengths > 0)",
    "real = rollouts.lengths > 0",
    "tests/objectives/tpo_test.py::test_a_completion_without_a_reward_counts_nowhere",
  ),
  Mutant(
    "RFT with a threshold below 0 imitates a completion without a reward",
    OBJECTIVES + "rft.py",
    "jnp.any(given, axis=2) & (adv.totals(rewards, given) > cfg.threshold)",
    "adv.totals(rewards, given) > cfg.threshold",
    "tests/objectives/rft_test.py::"
    "test_a_completion_without_a_reward_is_not_correct_whatever_the_threshold",
  ),
  Mutant(
    "turns of different lengths are compared where the environment wrote",
    OBJECTIVES + "advantages.py",
    "common.by_sampled_token(rollouts, adv.optimal_token, returns, energy, scored)",
    "adv.optimal_token(returns, energy, scored)",
    "tests/objectives/sampled_test.py::test_lengths_are_those_of_sampled_tokens",
  ),
  Mutant(
    "a KL in the reward is compared where an environment wrote",
    OBJECTIVES + "grpo.py",
    "common.by_sampled_token(rollouts, relative, to_come)",
    "relative(to_come)",
    "tests/objectives/sampled_test.py::"
    "test_the_kl_of_the_reward_is_compared_at_the_same_sampled_token",
  ),
  Mutant(
    "a KL in the reward reaches a completion without a reward",
    OBJECTIVES + "grpo.py",
    "kl_return(rollouts, cfg, mask * judged)",
    "kl_return(rollouts, cfg, mask)",
    "tests/objectives/grpo_test.py::"
    "test_a_completion_without_a_reward_has_no_kl_in_it_and_is_no_baseline",
  ),
  Mutant(
    "a critic learns that a completion without a reward is worth 0",
    OBJECTIVES + "ppo.py",
    "common.completion_mask(rollouts, cfg.mask_truncated) * judged[..., None]",
    "common.completion_mask(rollouts, cfg.mask_truncated)",
    "tests/objectives/ppo_test.py::test_no_reward_is_not_a_reward_of_0",
  ),
  Mutant(
    "a share of the tokens is rounded up by float32's own error",
    OPS + "masked.py",
    "share * (1 - 2.5e-7) * jnp.sum(mask > 0)",
    "share * jnp.sum(mask > 0)",
    "tests/ops/masked_test.py::test_largest_counts_what_is_on_the_mask_and_rounds_up",
  ),
  Mutant(
    "the head leaves out the last tokens of a list",
    OPS + "logprobs.py",
    "-(-count // chunk)",
    "count // chunk",
    "tests/ops/logprobs_test.py::test_chunks_after_the_last_token_are_not_computed",
  ),
  Mutant(
    "the head computes what only fills a list",
    "grpo_jax/packing/lists.py",
    "jnp.sum(self.index.place_of_entry < math.prod(self.shape), dtype=jnp.int32)",
    "jnp.int32(self.size)",
    "tests/packing/lists_test.py::test_the_list_holds_what_is_real_in_order",
  ),
  Mutant(
    "a CPU makes the gradients of weights in float32",
    OPS + "precision.py",
    "a[None].transpose(2, 1, 0).reshape(a.shape[::-1])",
    "a.T",
    "tests/ops/precision_test.py::test_a_cpu_multiplies_bfloat16_without_a_detour_over_float32",
  ),
  Mutant(
    "a new default of a setting that nothing reads ends a run for good",
    "grpo_jax/run/workdir.py",
    "(*MAY_CHANGE, *unread, ",
    "(*MAY_CHANGE, ",
    "tests/run/workdir_test.py"
    "::test_a_setting_that_the_run_does_not_read_may_have_another_default_now",
  ),
  # What goes wrong elsewhere.
  Mutant(
    "the stop token is stripped, so that stopping is never trained",
    OBJECTIVES + "common.py",
    "inside = masked.length_mask(rollouts.lengths,",
    "inside = masked.length_mask(rollouts.lengths - 1,",
    "tests/objectives/common_test.py::test_the_stop_token_is_trained_and_counts",
  ),
  Mutant(
    "masks come from `ids != pad`, where pad is the stop token",
    OBJECTIVES + "common.py",
    "inside = masked.length_mask(rollouts.lengths, rollouts.tokens.shape[2])",
    "inside = (rollouts.tokens != 0).astype(jnp.float32)",
    "tests/objectives/common_test.py::test_the_stop_token_is_trained_and_counts",
  ),
  Mutant(
    "the old policy is the initial one instead of the one that sampled",
    OBJECTIVES + "common.py",
    "on_mask(batch.old_logprobs, batch.mask)",
    "on_mask(batch.ref_logprobs, batch.mask)",
    "tests/objectives/grpo_test.py::test_grpo_off_policy_is_the_ratio_inside_the_bounds",
  ),
  Mutant(
    "the clip is written with max where A < 0",
    OPS + "surrogate.py",
    "return jnp.minimum(ratio * advantages, bounded * advantages)",
    "return jnp.where(advantages < 0, jnp.maximum(ratio * advantages, bounded * advantages), "
    "jnp.minimum(ratio * advantages, bounded * advantages))",
    "tests/ops/surrogate_test.py::test_clip_for_both_signs",
  ),
  Mutant(
    "the surrogate is factored as A min(rho, clip(rho))",
    OPS + "surrogate.py",
    "return jnp.minimum(ratio * advantages, bounded * advantages)",
    "return advantages * jnp.minimum(ratio, bounded)",
    "tests/ops/seed_tables_test.py::test_clipped_objective",
  ),
  Mutant(
    "old log-probs are never produced: mu and the clip are dead",
    OBJECTIVES + "common.py",
    "old_logprobs=rollouts.old_logprobs,",
    "old_logprobs=None,",
    "tests/objectives/grpo_test.py::test_grpo_off_policy_is_the_ratio_inside_the_bounds",
  ),
  Mutant(
    "the reference runs although beta is 0",
    OBJECTIVES + "grpo.py",
    "Needs.REFERENCE if cfg.beta else Needs.NOTHING",
    "Needs.REFERENCE",
    "tests/objectives/objectives_test.py::test_the_reference_is_not_asked_for_without_a_kl",
  ),
  Mutant(
    "the loss is averaged over padding, too",
    OPS + "masked.py",
    "return mask / (jnp.maximum(jnp.sum(mask, axis=2, keepdims=True), 1.0) * sequences)",
    "return mask / (mask.shape[2] * sequences)",
    "tests/ops/masked_test.py::test_token_weights",
  ),
  Mutant(
    "a normaliser changes with the microbatch",
    OBJECTIVES + "grpo.py",
    "return jnp.sum(batch.weights * (kl - gain - bonus)), reported",
    "return jnp.sum(batch.mask * (kl - gain - bonus)) / jnp.sum(batch.mask), reported",
    "tests/objectives/objectives_test.py::test_slices_add_up_to_the_whole[token_mean]",
  ),
  Mutant(
    "advantages are whitened in each microbatch",
    OBJECTIVES + "ppo.py",
    "  gain = surrogate.clipped(ratio, batch.advantages,",
    "  gain = surrogate.clipped(ratio, masked.whiten(batch.advantages, batch.mask),",
    "tests/objectives/objectives_test.py::test_slices_add_up_to_the_whole[ppo]",
  ),
  Mutant(
    "length penalties count characters",
    "grpo_jax/rewards/length.py",
    "len(completion.tokens)",
    "len(completion.text)",
    "tests/rewards/length_test.py::test_overlong",
  ),
  Mutant(
    "a reward that says nothing of a completion counts as 0 in its group's mean",
    "grpo_jax/rewards/attempts.py",
    "  if result is None:\n    return []\n",
    "  if result is None:\n    return [(last, 0.0)]\n",
    "tests/rewards/combine_test.py::test_a_completion_without_a_reward_takes_no_part_in_its_group",
  ),
  Mutant(
    "the letter of a choice is found within a text",
    "grpo_jax/rewards/choice.py",
    "_LETTER.fullmatch(text.strip())",
    "_LETTER.match(text.strip())",
    "tests/rewards/choice_test.py::test_a_choice_is_never_found_within_a_text",
  ),
  Mutant(
    "the std of a group of equal rewards blows rounding up",
    OPS + "advantages.py",
    "return jnp.where(given & ~equal[:, None, None], centred, 0.0)",
    "return jnp.where(given, centred, 0.0)",
    "tests/ops/advantages_test.py::test_equal_rewards_give_exactly_zero",
  ),
  Mutant(
    "leave-one-out is divided by a std",
    OPS + "advantages.py",
    """  if baseline == "leave_one_out" and scale != "none":\n""",
    "  if False:\n",
    "tests/ops/advantages_test.py::test_bad_settings_are_refused",
  ),
  # Errors in texts on the subject.
  Mutant(
    "the advantage is V - r",
    OPS + "advantages.py",
    "delta = reward + between + gamma * following - value",
    "delta = value - reward - between - gamma * following",
    "tests/ops/advantages_test.py::test_gae_is_the_written_out_loop",
  ),
  Mutant(
    "GAE lacks lambda",
    OPS + "advantages.py",
    "delta + gamma * lam * advantage",
    "delta + gamma * advantage",
    "tests/ops/advantages_test.py::test_gae_is_the_written_out_loop",
  ),
  Mutant(
    "the tokens of an environment are trained",
    OBJECTIVES + "common.py",
    "return inside if rollouts.sampled is None else inside * rollouts.sampled",
    "return inside",
    "tests/objectives/sampled_test.py::test_given_tokens_are_as_if_they_were_not_there",
  ),
  Mutant(
    "a begun sample lies one column too late in its slot's ring",
    "grpo_jax/sampling/begun.py",
    "token = (jnp.arange(length) - step + rows.lengths[sample]) % length",
    "token = (jnp.arange(length) - step + rows.lengths[sample] - 1) % length",
    "tests/sampling/begun_test.py::test_columns_of_the_ring_are_those_before_the_next_step",
  ),
  Mutant(
    "the first token after what a sample has is drawn from its prompt",
    "grpo_jax/sampling/begun.py",
    "last = jnp.where((begun.lengths > 0)[..., None], last, first[:, None])",
    "last = jnp.broadcast_to(first[:, None], last.shape)",
    "tests/sampling/begun_test.py::test_tokens_that_nobody_sampled_are_read",
  ),
  Mutant(
    "every turn of an episode draws the noise of the first",
    "grpo_jax/sampling/sampler.py",
    "sample_in_parts(setup, logits_of, noise, sample, position)",
    "sample_in_parts(setup, logits_of, noise, sample, jnp.zeros_like(position))",
    "tests/sampling/begun_test.py::test_every_cut_of_a_sample_goes_on_as_the_whole",
  ),
  Mutant(
    "the reward of a later turn counts in full",
    "grpo_jax/loops/collect.py",
    "float(rewards[t]) * discount**k",
    "float(rewards[t])",
    "tests/sampling/episodes_test.py::test_the_reward_of_turn_k_counts_discount_to_the_k_minus_1_times",
  ),
  Mutant(
    "a group is scored when the first of its samples has ended",
    "grpo_jax/loops/reward_workers.py",
    "np.flatnonzero(ended.all(axis=1))",
    "np.flatnonzero(ended.any(axis=1))",
    "tests/loops/reward_workers_test.py::test_a_completion_is_asked_about_when_it_ends_and_a_group_"
    "when_all_have",
  ),
  Mutant(
    "an environment that is asked early gets the whole episode for a turn",
    "grpo_jax/sampling/episodes.py",
    "seen.tokens[p, g][self._before[p, g] : seen.lengths[p, g]]",
    "seen.tokens[p, g][: seen.lengths[p, g]]",
    "tests/sampling/episodes_test.py::test_a_turn_is_answered_while_others_are_sampled",
  ),
  Mutant(
    "a sample that waits for a slot counts as finished",
    "grpo_jax/sampling/decode_loop.py",
    "return slots.stopped | (slots.lengths >= limits) | ~queue.real",
    "return slots.stopped | (slots.lengths >= limits) | (slots.lengths <= 1)",
    "tests/sampling/stream_test.py::test_shards_and_refilled_slots_are_as_in_one_program",
  ),
  Mutant(
    "the noise of a carried group is that of its place",
    "grpo_jax/sampling/sampler.py",
    "    numbers, due = carried\n",
    "    _, due = carried\n",
    "tests/loops/carried_test.py::test_carried_groups_are_those_that_nothing_interrupts",
  ),
  Mutant(
    "a rollout does not wait for groups that are due",
    "grpo_jax/sampling/decode_loop.py",
    " | (queue.due & ~complete).any()",
    "",
    "tests/sampling/begun_test.py::test_a_rollout_waits_for_what_is_due",
  ),
  Mutant(
    "a stop text that an update interrupts is not found",
    "grpo_jax/loops/carried.py",
    "begun = unfinished.with_stop_texts(begun, np.asarray(sample.stop_table))",
    "pass",
    "tests/loops/carried_test.py::test_a_stop_text_may_begin_before_the_update",
  ),
  Mutant(
    "OPO counts the tokens of an environment",
    OBJECTIVES + "common.py",
    "return jnp.sum(sampled_mask(rollouts), axis=2).astype(jnp.int32)",
    "return rollouts.lengths",
    "tests/objectives/sampled_test.py::test_lengths_are_those_of_sampled_tokens",
  ),
  Mutant(
    "GAE steps from a turn's end to the environment's first token",
    OPS + "advantages.py",
    "kept = jax.tree.map(functools.partial(jnp.where, is_step), now, skipped)",
    "kept = now",
    "tests/ops/advantages_test.py::test_gae_takes_the_next_sampled_token_for_the_next_step",
  ),
  Mutant(
    "process supervision sums raw rewards",
    OBJECTIVES + "advantages.py",
    "return adv.returns_to_go(adv.group_relative(*rewards, baseline, scale, ddof, eps))",
    "return adv.returns_to_go(jnp.where(rewards[1], rewards[0], 0.0))",
    "tests/objectives/objectives_test.py::test_a_group_s_advantages_are_relative",
  ),
  # Other slips that a reader could make in these files.
  Mutant(
    "GAE always bootstraps with 0",
    OBJECTIVES + "ppo.py",
    "jnp.where(goes_on, jnp.sum(values * last, axis=2), 0.0)",
    "jnp.zeros_like(jnp.sum(values * last, axis=2))",
    "tests/objectives/ppo_test.py::test_ppo_rewards_returns_and_bootstrap",
  ),
  Mutant(
    "PPO's KL in the reward has the wrong sign",
    OBJECTIVES + "ppo.py",
    "rewards = rewards - cfg.beta * divergences.k1(old, ref)",
    "rewards = rewards + cfg.beta * divergences.k1(old, ref)",
    "tests/objectives/ppo_test.py::test_ppo_rewards_returns_and_bootstrap",
  ),
  Mutant(
    "the scalar is read one token early",
    "grpo_jax/learning/forward.py",
    'heads.score(params["score"], hidden)',
    'heads.score(params["score"], jnp.roll(hidden, 1, axis=2))',
    "tests/learning/forward_test.py::test_another_last_token_is_another_score",
  ),
  Mutant(
    "steps of truncated samples are counted: a step that was cut off gets the reward model's score",
    "grpo_jax/reward_models/rewards.py",
    "if completion.ended == TRUNCATED and values:",
    "if False:",
    "tests/reward_models/rewards_test.py::test_a_step_is_judged_after_its_last_token_and_one_that_was_cut_off_is_wrong",
  ),
  Mutant(
    "steps of truncated samples are counted: a process reward model learns from a step that was "
    "cut off",
    "grpo_jax/loops/groups.py",
    " & ~(last_tokens(r) & (r.ended == TRUNCATED)[..., None])",
    "",
    "tests/loops/teaching_test.py::test_steps_are_labelled_but_for_those_that_were_cut_off_and_where_the_reward_failed",
  ),
  Mutant(
    "a reference that moved passes for an update: a stop loses the steps since the last checkpoint",
    "grpo_jax/loops/run.py",
    "elif any(array.is_deleted() for array in jax.tree.leaves(states)):",
    "elif any(learner.state is not states[name] for name, learner in self.learners.items()):",
    "tests/loops/run_test.py::test_a_stop_in_a_step_saves_where_it_began_unless_an_update_took_the_arrays",
  ),
  Mutant(
    "the reference stays where the first iteration began",
    "grpo_jax/loops/iterative.py",
    "if of_iteration == 0:",
    "if step == 0:",
    "tests/loops/iterative_test.py::test_the_reference_is_the_policy_as_it_was_when_the_iteration_began",
  ),
  Mutant(
    "gdpo's weights leave out the reward model that learns",
    "grpo_jax/setup/experiment.py",
    "return functions + models + learning",
    "return functions + models",
    "tests/loops/iterative_test.py::test_under_gdpo_the_reward_model_that_learns_is_one_of_the_rewards",
  ),
  Mutant(
    "the replay is drawn with replacement",
    "grpo_jax/loops/reward_data/replay.py",
    "len(new.lengths) + rng.permutation(len(pool.lengths) - 1 - len(new.lengths))",
    "len(new.lengths) + rng.integers(0, max(1, len(pool.lengths) - 1 - len(new.lengths)), 99)",
    "tests/loops/reward_data/replay_test.py::test_a_tenth_of_each_batch_is_of_the_past_and_none_comes_twice",
  ),
  Mutant(
    "the unfinished step of a sample that was cut off gets a label",
    "grpo_jax/loops/reward_data/continuations.py",
    "if sample_ends and r.ended[p, g] == STOPPED:",
    "if sample_ends:",
    "tests/loops/reward_data/continuations_test.py::test_labels_of_a_group",
  ),
  Mutant(
    "a continuation that is too long is judged whole",
    "grpo_jax/loops/reward_data/continuations.py",
    "within = min(len(whole), labeller.max_length)",
    "within = len(whole)",
    "tests/loops/reward_data/continuations_test.py::test_a_continuation_that_is_too_long_is_cut_before_it_is_judged",
  ),
  Mutant(
    "PPO's clipped values take the smaller error",
    OBJECTIVES + "ppo.py",
    "error = jnp.maximum(error, (near - returns) ** 2)",
    "error = jnp.minimum(error, (near - returns) ** 2)",
    "tests/objectives/ppo_test.py::test_ppo_value_loss_is_the_larger_of_clipped_and_not",
  ),
  Mutant(
    "k3 of the wrong direction",
    OPS + "divergences.py",
    "d = jnp.minimum(ref_logprobs - logprobs, MAX_LOG_RATIO)",
    "d = jnp.minimum(logprobs - ref_logprobs, MAX_LOG_RATIO)",
    "tests/ops/seed_tables_test.py::test_equation_21",
  ),
  Mutant(
    "k3 is written exp(d) - d - 1 and negative in float32",
    OPS + "divergences.py",
    "return jnp.expm1(d) - d",
    "return jnp.exp(d) - d - 1.0",
    "tests/ops/divergences_test.py::test_k3_is_never_negative_in_float32",
  ),
  Mutant(
    "d is clamped from below as well",
    OPS + "divergences.py",
    "d = jnp.minimum(ref_logprobs - logprobs, MAX_LOG_RATIO)",
    "d = jnp.clip(ref_logprobs - logprobs, -MAX_LOG_RATIO, MAX_LOG_RATIO)",
    "tests/ops/divergences_test.py::test_an_impossible_reference_is_not_clamped_and_an_enormous_one_is_finite",
  ),
  Mutant(
    "the KL's importance weight is detached",
    OBJECTIVES + "grpo.py",
    "weight = surrogate.token_ratio(logprobs, old)",
    "weight = surrogate.token_ratio(old, old)",
    "tests/ops/divergences_test.py::test_in_the_loss",
  ),
  Mutant(
    "the KL in the reward stops at its own token",
    OBJECTIVES + "common.py",
    "return adv.returns_to_go(mask * divergences.kl_estimate(old, ref, estimator))",
    "return mask * divergences.kl_estimate(old, ref, estimator)",
    "tests/ops/divergences_test.py::test_over_two_steps_only_k1_in_the_reward_sees_what_a_token_does_to_the_next",
  ),
  Mutant(
    "GSPO's ratio is a product instead of a mean",
    OPS + "surrogate.py",
    "return exp_clamped(masked.masked_mean(logprobs - old_logprobs, mask, axis=-1, keepdims=True))",
    "return exp_clamped(masked.masked_sum(logprobs - old_logprobs, mask, axis=-1, keepdims=True))",
    "tests/ops/surrogate_test.py::test_sequence_ratio_is_the_geometric_mean_over_the_mask "
    "tests/objectives/trl_test.py::test_value_and_gradient_are_those_of_trl[gspo]",
  ),
  Mutant(
    "CISPO's weight is not detached",
    OPS + "surrogate.py",
    "return jax.lax.stop_gradient(jnp.minimum(ratio, cap)) * advantages * logprobs",
    "return jnp.minimum(ratio, cap) * advantages * logprobs",
    "tests/objectives/cispo_test.py::test_cispo_is_the_capped_ratio",
  ),
  Mutant(
    "DPO prefers the rejected one",
    OBJECTIVES + "dpo.py",
    "preferences.dpo(h[:, 0], h[:, 1],",
    "preferences.dpo(h[:, 1], h[:, 0],",
    "tests/objectives/dpo_test.py::test_dpo",
  ),
  Mutant(
    "DPO forgets the reference",
    OBJECTIVES + "dpo.py",
    'h = jnp.sum(logprobs - common.require(ref, "ref_logprobs", cfg.name), axis=2)',
    "h = jnp.sum(logprobs, axis=2)",
    "tests/objectives/dpo_test.py::test_dpo",
  ),
  Mutant(
    "the mismatch correction weighs the KL, too",
    OBJECTIVES + "grpo.py",
    "return jnp.sum(batch.weights * (kl - gain - bonus)), reported",
    "return jnp.sum(batch.weights * (kl * common.mismatch(logprobs, old, batch, cfg) - gain - bonus)), reported",
    "tests/objectives/grpo_test.py::test_the_mismatch_correction_weighs_the_surrogate_and_not_the_kl",
  ),
  Mutant(
    "the weight of a completion is the geometric mean of its tokens', which is none",
    OPS + "mismatch.py",
    'reduce = masked.masked_mean if level == "geometric" else masked.masked_sum',
    "reduce = masked.masked_mean",
    "tests/ops/mismatch_test.py::test_weight",
  ),
  Mutant(
    "asymmetric bounds are those of the inverse ratio",
    OPS + "mismatch.py",
    "    return surrogate.exp_clamped(log_ratio)\n",
    "    return surrogate.exp_clamped(-log_ratio)\n",
    "tests/ops/mismatch_test.py::test_kept",
  ),
  Mutant(
    "SAPO loses its factor 4 / tau",
    OPS + "surrogate.py",
    "return 4.0 / tau * jax.nn.sigmoid(",
    "return jax.nn.sigmoid(",
    "tests/objectives/sapo_test.py::test_on_policy_it_is_reinforce_and_its_value_is_2_a_over_tau",
  ),
  Mutant(
    "GMPO clips whatever the sign of the advantage",
    OPS + "surrogate.py",
    "log_ratio = jnp.where(advantages > 0, jnp.minimum(log_ratio, high), log_ratio)",
    "log_ratio = jnp.minimum(log_ratio, high)",
    "tests/objectives/gmpo_test.py::test_the_coefficient_is_the_geometric_ratio_on_tokens_that_are_not_clipped",
  ),
  Mutant(
    "DPPO also leaves out tokens that move back",
    OPS + "surrogate.py",
    "((distance > bound) & onwards)",
    "(distance > bound)",
    "tests/objectives/dppo_test.py::test_a_token_that_moves_back_is_never_left_out",
  ),
  Mutant(
    "VESPO's ratio is the geometric mean",
    OPS + "surrogate.py",
    "log_w = masked.masked_sum(log_ratio",
    "log_w = masked.masked_mean(log_ratio",
    "tests/objectives/vespo_test.py::test_the_coefficient_weighs_the_whole_completion",
  ),
  Mutant(
    "Kimi's square is taken token by token, which is another objective",
    OBJECTIVES + "kimi.py",
    "moved = jnp.sum(batch.mask * (logprobs - old), axis=2, keepdims=True)",
    "moved = batch.mask * (logprobs - old)",
    "tests/objectives/kimi_test.py::test_the_coefficient_is_that_of_the_square",
  ),
  Mutant(
    "KL-Cov holds a token at the first update, where it has not moved",
    OBJECTIVES + "kl_cov.py",
    "moved * jnp.sign(moved)",
    "jnp.abs(moved)",
    "tests/objectives/kl_cov_test.py::test_on_policy_it_is_reinforce",
  ),
  Mutant(
    "Clip-Cov draws among all tokens",
    OBJECTIVES + "clip_cov.py",
    "(cov > cfg.cov_low) & (cov < cfg.cov_high)",
    "(cov == cov)",
    "tests/objectives/clip_cov_test.py::test_as_many_tokens_are_drawn_among_those_within_the_bounds",
  ),
  Mutant(
    "padding counts in the quantile of the entropies",
    OPS + "masked.py",
    "jnp.sort(jnp.where(mask > 0, x, -jnp.inf).ravel(), descending=True)",
    "jnp.sort(x.ravel(), descending=True)",
    "tests/ops/masked_test.py::test_largest_counts_what_is_on_the_mask_and_rounds_up",
  ),
  Mutant(
    "the entropy's gradient is that of the sampled log-prob, whose mean is 0",
    OPS + "logprobs.py",
    "dz -= p * (log_p + entropy) * (g_entropy * slope)",
    "dz -= (jnp.where(hit, 1.0 - p, -p)) * (g_entropy * slope)",
    "tests/ops/logprobs_test.py::test_gradient_equals_finite_differences_in_float64",
  ),
  Mutant(
    "CISPO has no log pi, so no gradient, and nobody says so",
    "grpo_jax/setup/constants.py",
    "  if not value.learns:\n    raise SettingError(",
    "  if not value.learns and False:\n    raise SettingError(",
    "tests/setup/constants_test.py::test_a_term_that_trains_nothing_is_refused",
  ),
  Mutant(
    "the optimal token baseline counts a token's own energy alone",
    OPS + "advantages.py",
    "weight = jnp.cumsum(jnp.where(mask > 0, energy, 0.0), axis=2) * mask",
    "weight = jnp.where(mask > 0, energy, 0.0) * mask",
    "tests/ops/advantages_test.py::test_optimal_token_by_hand",
  ),
  Mutant(
    "the longest completion's tail is compared with itself, and learns nothing",
    OPS + "advantages.py",
    "relative = returns - jnp.where(alone, 0.0, baseline)",
    "relative = returns - baseline",
    "tests/objectives/advantages_test.py::test_otb_weighs_by_the_policy_that_sampled",
  ),
  Mutant(
    "TPO's target moves with the policy",
    OBJECTIVES + "tpo.py",
    "p = of_group(jnp.sum(logprobs, axis=2), batch.mask)",
    "p = of_group(jnp.sum(batch.old_logprobs, axis=2), batch.mask)",
    "tests/objectives/tpo_test.py::test_a_group_adds_up_to_0_and_rests_at_its_target",
  ),
  Mutant(
    "MaxRL also pushes down the answers of a group that are all wrong",
    OPS + "pass_at_k.py",
    "return jnp.where(real & (mean > 0), relative, 0.0)",
    "return jnp.where(real, jnp.where(mean > 0, relative, -1.0), 0.0)",
    "tests/ops/pass_at_k_test.py::test_maxrl_by_hand",
  ),
  Mutant(
    "pass@k gives a wrong answer the group's failure, as if it were in no set of k",
    OPS + "pass_at_k.py",
    "jnp.where(right, fail, fail - others_fail)",
    "jnp.where(right, fail, -fail)",
    "tests/ops/pass_at_k_test.py::test_pass_at_k_by_hand",
  ),
  Mutant(
    "PKPO counts an answer among its own others",
    OPS + "pass_at_k.py",
    "_all_wrong(wrong, n - 1, k - 1), 0.0)",
    "_all_wrong(wrong, n, k - 1), 0.0)",
    "tests/ops/pass_at_k_test.py::test_pkpo_is_what_an_answer_adds_to_the_sets_that_it_is_in",
  ),
  Mutant(
    "PKPO draws the others with replacement",
    OPS + "pass_at_k.py",
    "chance *= jnp.maximum(wrong - j, 0.0) / jnp.maximum(n - j, 1.0)",
    "chance *= jnp.maximum(wrong, 0.0) / jnp.maximum(n, 1.0)",
    "tests/ops/pass_at_k_test.py::test_the_expected_update_of_pkpo_is_the_gradient_of_pass_at_k",
  ),
  Mutant(
    "OPO's baseline is the mean",
    OPS + "advantages.py",
    "weight = lengths.astype(jnp.float32)",
    "weight = (lengths > 0).astype(jnp.float32)",
    "tests/objectives/advantages_test.py::test_opo_weighs_the_baseline_by_length",
  ),
  Mutant(
    "VAPO's lambda of the policy is the critic's, too",
    OBJECTIVES + "ppo.py",
    "estimate(cfg.critic_lam) + values",
    "gae + values",
    "tests/objectives/ppo_test.py::test_vapo_has_a_lambda_by_length_and_one_for_the_critic",
  ),
  Mutant(
    "REINFORCE++'s KL is taken off a second time, after it was normalised",
    OBJECTIVES + "grpo.py",
    "if cfg.beta and in_reward(cfg) and cfg.advantage not in WITH_KL:",
    "if cfg.beta and in_reward(cfg):",
    "tests/objectives/advantages_test.py::test_reinforce_pp_normalises_the_kl_with_the_rewards",
  ),
  Mutant(
    "REINFORCE++ counts each completion once in the mean",
    OBJECTIVES + "advantages.py",
    "centred = returns - masked.masked_mean(returns, mask)\n",
    "centred = returns - jnp.mean(returns[..., 0])\n",
    "tests/objectives/advantages_test.py::test_reinforce_pp_counts_every_token_of_the_batch",
  ),
  Mutant(
    "groups are counted as completions / G, although some are filled in part",
    OPS + "masked.py",
    "groups = jnp.maximum(jnp.sum(jnp.any(real, axis=1)).astype(jnp.float32), 1.0)",
    "groups = jnp.maximum(sequences / mask.shape[1], 1.0)",
    "tests/ops/masked_test.py::test_groups_that_are_filled_in_part_count_as_groups",
  ),
  Mutant(
    "truncated completions vanish from the baseline and the denominator",
    OBJECTIVES + "common.py",
    "return masked.token_weights(mask, lengths, cfg.aggregation,",
    "return masked.token_weights(mask, jnp.sum(mask, axis=2), cfg.aggregation,",
    "tests/objectives/objectives_test.py::test_truncated_completions_are_left_out_of_the_loss_and_not_of_the_baseline",
  ),
  Mutant(
    "rows that only fill the batch count as completions",
    OPS + "masked.py",
    "sequences = jnp.maximum(jnp.sum(real).astype(jnp.float32), 1.0)",
    "sequences = jnp.float32(real.size)",
    "tests/objectives/objectives_test.py::test_rows_that_only_fill_the_batch_change_nothing[grpo]",
  ),
  Mutant(
    "NaN on padding reaches the loss",
    OBJECTIVES + "common.py",
    "return jnp.where(mask > 0, x, 0.0)",
    "return x",
    "tests/objectives/objectives_test.py::test_what_lies_on_padding_does_not_matter[grpo]",
  ),
  Mutant(
    "good targets are scaled down below where they started",
    OBJECTIVES + "target_prob.py",
    "jnp.where(good, p + c * (jnp.sqrt(p) - p),",
    "jnp.where(good, c * jnp.sqrt(p),",
    "tests/objectives/target_prob_test.py::test_good_targets_of_a_context_never_add_up_to_more_than_one "
    "tests/objectives/target_prob_test.py::test_targets_where_samples_share_a_context",
  ),
  Mutant(
    "a group of equal totals counts as flat, whatever the advantage makes of its components",
    OBJECTIVES + "common.py",
    "return jnp.all(advantages == 0.0, axis=(1, 2))",
    "return adv.flat(rollouts.rewards, rollouts.given)",
    "tests/loops/collect_test.py::test_under_gdpo_a_group_varies_if_one_of_its_rewards_does",
  ),
  Mutant(
    "what the two-sided clip stops counts as below the lower bound",
    OPS + "surrogate.py",
    "return (ratio < lower) & (advantages < 0), ",
    "return ((ratio < lower) | above_delta) & (advantages < 0), ",
    "tests/objectives/metrics_test.py::test_what_the_two_sided_clip_stops_is_counted_apart",
  ),
  Mutant(
    "arrays of other ranks are repeated as numpy does it",
    OPS + "shapes.py",
    "if len({len(shape) for shape in shapes}) > 1:",
    "if False:",
    "tests/ops/surrogate_test.py::test_shapes_that_do_not_fit_are_refused",
  ),
  Mutant(
    "a setting that the advantage does not read is set in vain",
    "grpo_jax/setup/registry.py",
    "and section[name] != defaults[name]",
    "and False",
    "tests/setup/registry_test.py::test_an_advantage_that_does_not_fit",
  ),
  Mutant(
    "the name of an objective is changed and its settings are another's",
    "grpo_jax/setup/registry.py",
    "if read == has:",
    "if True:",
    "tests/objectives/base_test.py::test_the_section_of_another_objective_is_refused_with_the_way_out",
  ),
  Mutant(
    "a setting out of its range is taken",
    "grpo_jax/config/kinds.py",
    "    if not kind.fits(value):",
    "    if False:",
    "tests/config/bad_settings_test.py::test_a_bad_setting_is_one_line_that_names_it",
  ),
  Mutant(
    "a loop that Python calls does not look at the ranges",
    "grpo_jax/setup/resolve.py",
    "  sections.check(config)\n",
    "",
    "tests/config/bad_settings_test.py::test_the_checks_of_a_loop_hold_the_ranges",
  ),
  # The same, where a model is at work.
  Mutant(
    "the sampler draws with the same key at every call",
    "grpo_jax/sampling/sampler.py",
    "noise = Noise.for_samples(request.key, ",
    "noise = Noise.for_samples(jax.random.key(0), ",
    "tests/sampling/sampler_test.py::test_two_runs_are_bitwise_equal_and_two_steps_are_not",
  ),
  Mutant(
    "the sampler's lengths leave the stop token out",
    "grpo_jax/sampling/decode_loop.py",
    'lengths=slots.lengths.at[sample].set(age, mode="drop")',
    'lengths=slots.lengths.at[sample].set(age - stopped, mode="drop")',
    "tests/sampling/sampler_test.py::test_the_stop_token_is_part_of_the_completion",
  ),
  Mutant(
    "the sampler attends to the padding of prompts",
    "grpo_jax/sampling/kv_cache.py",
    "jnp.arange(width) < prompt_lengths[:, None]",
    "jnp.arange(width) < width + 0 * prompt_lengths[:, None]",
    "tests/sampling/sampler_test.py::test_the_pad_id_does_not_change_what_is_sampled",
  ),
  Mutant(
    "a slot attends to what the sample before it in the slot left",
    "grpo_jax/sampling/kv_cache.py",
    "reach = age\n",
    "reach = age + 1\n",
    "tests/sampling/sampler_test.py::test_slots_do_not_change_what_is_sampled[3]",
  ),
  Mutant(
    "a slot's window is counted from the end of the prompt, not from the token",
    "grpo_jax/sampling/kv_cache.py",
    "(prompt_lengths + age - 1 - spec.window)",
    "(prompt_lengths - spec.window)",
    "tests/sampling/kv_cache_test.py::test_slots_attend_as_written_out",
  ),
  Mutant(
    "a slot's window does not cut its own past",
    "grpo_jax/sampling/kv_cache.py",
    "reach = jnp.minimum(age, spec.window)",
    "reach = age * 1",
    "tests/sampling/kv_cache_test.py::test_slots_attend_as_written_out",
  ),
  Mutant(
    "the sampler caps no logits",
    "grpo_jax/sampling/next_token.py",
    "return decoding.soft_cap(logits, decoder.config.logit_soft_cap)",
    "return logits",
    "tests/sampling/sampler_test.py::test_log_probs_speak_of_capped_logits",
  ),
  Mutant(
    "the sampler leaves a log-prob where a prompt only fills the batch",
    "grpo_jax/sampling/sampler.py",
    "(jnp.where(real, x, 0) for x in (token, logprob, truncated))",
    "(token, logprob, truncated)",
    "tests/loops/sample_metrics_test.py::test_what_was_cut_off_is_not_counted_of_an_empty_prompt",
  ),
  Mutant(
    "the learner attends to the padding of prompts",
    "grpo_jax/models/attention.py",
    "sees_prompt = jnp.arange(lp) < lengths[..., None, None, None]",
    "sees_prompt = jnp.arange(lp) < lp + 0 * lengths[..., None, None, None]",
    "tests/models/decoder_test.py::test_pads_are_never_attended_to",
  ),
  Mutant(
    "the learner's window over a prompt goes by places, as if no prompt were padded",
    "grpo_jax/models/attention.py",
    "within_window(spec, offsets + lengths[..., None, None], jnp.arange(lp))",
    "within_window(spec, offsets + lp, jnp.arange(lp))",
    "tests/models/attention_test.py::test_scores_written_out_are_those_of_each_token_by_itself",
  ),
  Mutant(
    "every layer has the attention of the first",
    "grpo_jax/models/decoder.py",
    "[self.config.layer_attention(i) for i in range(self.config.layers)]",
    "[self.config.layer_attention(0) for i in range(self.config.layers)]",
    "tests/models/decoder_test.py::test_each_layer_has_the_attention_of_its_index",
  ),
  Mutant(
    "the learner's log-probs forget the soft cap of the logits",
    "grpo_jax/learning/forward.py",
    "soft_cap=decoder.config.logit_soft_cap",
    "soft_cap=0.0",
    "tests/learning/forward_test.py::test_log_probs_and_entropies_are_those_of_all_logits_at_once",
  ),
  Mutant(
    "the compiler alone decides what the update moves",
    "grpo_jax/learning/forward.py",
    "if _is_one_shard(layout):",
    "if True:",
    "tests/distributed/moved_bytes_test.py::test_weights_are_gathered_once_a_pass_and_gradients_scattered_once_a_microbatch",
  ),
  Mutant(
    "prompts' tokens are cut over the samples' axis of the mesh",
    "grpo_jax/distributed/sharding.py",
    "  if _is_prompts(node):",
    "  if False:",
    "tests/distributed/sharding_test.py::test_axes_of_a_batch",
  ),
  Mutant(
    "completions of a packed row see each other",
    "grpo_jax/models/attention.py",
    " & (segments[..., :, None] == segments[..., None, :])",
    " & (segments[..., :, None] >= 0)",
    "tests/models/decoder_test.py::test_packed_groups_are_the_rectangles",
  ),
  Mutant(
    "the temperature is in the sampler's log-probs alone",
    "grpo_jax/learning/forward.py",
    "temperature=temperature, chunk=chunk, soft_cap=decoder",
    "temperature=1.0, chunk=chunk, soft_cap=decoder",
    "tests/learning/forward_test.py::test_the_temperature_divides_the_logits",
  ),
  Mutant(
    "what top-p drew passes for draws of the full softmax",
    OPS + "decoding.py",
    "return token, weight - jnp.log(jnp.sum(e, axis=(0, 1))), weight - jnp.log(mass)",
    "return token, *(weight - jnp.log(jnp.sum(e, axis=(0, 1))),) * 2",
    "tests/sampling/sampler_test.py::test_truncated_tokens_are_those_of_naive_generation",
  ),
  Mutant(
    "the learner is given log-probs of what top-p kept for those of the full softmax",
    OPS + "decoding.py",
    "return token, weight - jnp.log(jnp.sum(e, axis=(0, 1))), weight - jnp.log(mass)",
    "return token, weight - jnp.log(mass), weight - jnp.log(mass)",
    "tests/sampling/sampler_test.py::test_truncated_tokens_are_those_of_naive_generation",
  ),
  Mutant(
    "a minibatch is normalised as GRPO's is, whatever the aggregation",
    "grpo_jax/learning/learn.py",
    "weights = setup.objective.weights(batch.mask, batch.lengths)",
    "weights = common.sequence_mean_weights(batch.mask, batch.lengths, None)",
    "tests/learning/update_test.py::test_minibatches_are_updates_of_their_own",
  ),
  Mutant(
    "whitening advantages that are all equal divides rounding by rounding",
    OPS + "masked.py",
    "jnp.where((mask > 0) & varies, (x - mean)",
    "jnp.where(mask > 0, (x - mean)",
    "tests/ops/masked_test.py::test_whiten_leaves_nothing_of_equal_numbers",
  ),
  Mutant(
    "a token's log-prob comes from its own hidden state",
    "grpo_jax/learning/forward.py",
    "before = jnp.concatenate([hidden[:, :, :1], hidden[:, :, :-1]], axis=2)",
    "before = hidden",
    "tests/learning/forward_test.py::test_log_probs_and_entropies_are_those_of_all_logits_at_once",
  ),
  Mutant(
    "several updates have no old policy",
    "grpo_jax/learning/learn.py",
    "if setup.updates == 1 and old_params is None:",
    "if True:",
    "tests/learning/learn_test.py::test_the_inner_loop_is_its_updates_one_by_one",
  ),
  Mutant(
    "each microbatch is averaged by itself",
    "grpo_jax/learning/learn.py",
    "out = outputs(setup, params, batch, packing)",
    "out, batch = outputs(setup, params, batch, packing), reweighted(setup, batch)",
    "tests/learning/learn_test.py::test_microbatches_change_nothing_but_memory",
  ),
  Mutant(
    "microbatches are averaged, each over its own completions",
    "grpo_jax/learning/learn.py",
    "(value, aux), grads = value_and_grad(params, *x)",
    "own = reweighted(setup, x[0])\n"
    "    own = dataclasses.replace(own, weights=own.weights / count)\n"
    "    (value, aux), grads = value_and_grad(params, own, x[1])",
    "tests/learning/update_test.py::test_microbatches_packing_and_the_mesh_change_nothing",
  ),
  Mutant(
    "devices are averaged, each over its own completions",
    "grpo_jax/learning/learn.py",
    "batch = setup.objective.prepare(rollouts)",
    "batch, shards = setup.objective.prepare(rollouts), "
    "setup.decoder.layout.size('prompt')\n"
    "  each = jax.tree.map(lambda x: x.reshape(shards, -1, *x.shape[1:]), batch)\n"
    "  own = jax.vmap(lambda b: reweighted(setup, b).weights / shards)(each)\n"
    "  batch = dataclasses.replace(batch, weights=own.reshape(batch.mask.shape))",
    "tests/learning/update_test.py::test_microbatches_packing_and_the_mesh_change_nothing",
  ),
  Mutant(
    "the random state is not restored: a run that goes on draws its first keys again",
    "grpo_jax/loops/online.py",
    "key = build.key(experiment.seed, build.SAMPLE, step)",
    "key = build.key(experiment.seed, build.SAMPLE, step - run.first)",
    "tests/run/resume_test.py::test_a_signal_saves_and_says_how_to_go_on",
  ),
  Mutant(
    "the position in the data is not restored",
    "grpo_jax/loops/run.py",
    "self.data.set_state(restored.data)",
    "pass",
    "tests/run/resume_test.py::test_a_signal_saves_and_says_how_to_go_on",
  ),
  Mutant(
    "the optimizer's state is not restored",
    "grpo_jax/loops/run.py",
    "learner.state = restored.states[name]",
    "learner.start()\n"
    "        kept = {'params': restored.states[name].params}\n"
    "        learner.state = type(learner.state)(**(vars(learner.state) | kept))",
    "tests/run/resume_test.py::test_a_signal_saves_and_says_how_to_go_on",
  ),
  # What the whole quick suite once did not see.
  Mutant(
    "a process reward model trains every token, those without a label towards 0",
    "grpo_jax/objectives/process_reward_model.py",
    "mask = given.astype(jnp.float32)",
    "mask = common.completion_mask(rollouts, False)",
    "tests/objectives/process_reward_model_test.py::test_a_process_reward_model_learns_from_the_last_tokens_of_steps_alone",
  ),
  Mutant(
    "the targets of PPO's critic come from whitened advantages",
    "grpo_jax/objectives/ppo.py",
    '  extra = {\n    "returns"',
    '  if cfg.whiten:\n    gae = masked.whiten(gae, mask)\n  extra = {\n    "returns"',
    "tests/objectives/ppo_test.py::test_the_targets_of_ppo_s_critic_come_from_advantages_before_they_are_whitened",
  ),
  Mutant(
    "log-probs of offline data are at the sampler's temperature",
    "grpo_jax/loops/offline.py",
    "policy, evaluator = Learner(experiment, model, TEMPERATURE)",
    "policy, evaluator = Learner(experiment, model, experiment.sampler.temperature)",
    "tests/loops/loops_test.py::test_log_probs_are_at_the_sampler_s_temperature_where_the_policy_sampled_and_else_at_1",
  ),
  Mutant(
    "a sample that was cut off is in a pair of an iterative run",
    "grpo_jax/loops/teaching.py",
    "experiment.seed + step, complete=True)",
    "experiment.seed + step)",
    "tests/loops/teaching_test.py::test_a_sample_that_was_cut_off_is_in_no_pair",
  ),
  Mutant(
    "the score of a sample that was cut off counts in the least of its group",
    "grpo_jax/reward_models/rewards.py",
    "least = np.where(judged, scores",
    "least = np.where(lengths > 0, scores",
    "tests/reward_models/rewards_test.py::test_the_score_of_what_was_cut_off_does_not_count_whatever_it_is",
  ),
  Mutant(
    "all batches of prefixes are continued with one noise",
    "grpo_jax/loops/reward_data/continuations.py",
    "jax.random.fold_in(key, start)",
    "key",
    "tests/loops/reward_data/continuations_test.py::test_each_batch_of_prefixes_has_noise_of_its_own",
  ),
  Mutant(
    "sampling, evaluation and continuations share a key",
    "grpo_jax/setup/build.py",
    "INIT, SAMPLE, EVALUATE, CONTINUE, ADAPTERS, CARRY = range(6)",
    "INIT, SAMPLE, EVALUATE, CONTINUE, ADAPTERS, CARRY = 0, 1, 1, 1, 4, 5",
    "tests/loops/loops_test.py::test_keys_of_each_purpose_seed_and_step_differ",
  ),
  Mutant(
    "RFT takes a completion at the threshold for correct",
    "grpo_jax/objectives/rft.py",
    "> cfg.threshold",
    ">= cfg.threshold",
    "tests/objectives/rft_test.py::test_a_completion_at_the_threshold_is_not_correct",
  ),
  Mutant(
    "old_kl, which stop_kl reads, is of the other direction",
    "grpo_jax/objectives/metrics.py",
    "divergences.k3(old, logprobs)",
    "divergences.k3(logprobs, old)",
    "tests/objectives/metrics_test.py::test_kl_metrics_are_of_the_policy_that_sampled",
  ),
  Mutant(
    "mismatch_kl is of the other direction",
    "grpo_jax/objectives/metrics.py",
    "divergences.k3(sampler, old)",
    "divergences.k3(old, sampler)",
    "tests/objectives/metrics_test.py::test_kl_metrics_are_of_the_policy_that_sampled",
  ),
  Mutant(
    "the mean of step_returns counts completions that only fill the group",
    "grpo_jax/objectives/advantages.py",
    "*rewards, rollouts.lengths > 0, scale",
    "*rewards, rollouts.lengths >= 0, scale",
    "tests/objectives/advantages_test.py::test_step_returns_compare_with_the_completions_that_are_there",
  ),
  Mutant(
    "the critic shares the policy's arrays",
    "grpo_jax/setup/parameters.py",
    "copy(model) |",
    "model |",
    "tests/setup/parameters_test.py::test_a_critic_shares_no_array_with_the_policy",
  ),
  Mutant(
    "the replay overlaps the iteration's own steps",
    "grpo_jax/loops/teaching.py",
    "return range(max(0, first - cfg.kept_steps), first)",
    "return range(max(0, first - cfg.kept_steps), last + 1)",
    "tests/loops/teaching_test.py::test_what_is_replayed_is_of_earlier_iterations",
  ),
  Mutant(
    "agreement is measured after the lessons",
    "grpo_jax/loops/teaching.py",
    '  with writer.phase("agreement"):',
    "  for lesson in [*lessons(new, past, batch=cfg.pairs, share=cfg.replay, epochs=cfg.epochs, "
    "seed=(experiment.seed, step))]:\n"
    "    judge.learn(step, lesson.pairs, writer)\n"
    '  with writer.phase("agreement"):',
    "tests/loops/teaching_test.py::test_an_iteration_learns_its_own_samples_and_is_measured_before",
  ),
  Mutant(
    "samples of an iterative run are scored by the reward model that it began with",
    "grpo_jax/loops/iterative.py",
    "current = collector._replace(models=models())",
    "current = collector._replace(models=(began := models() if step == 0 else began))",
    "tests/loops/loops_test.py::test_an_iteration_samples_scores_learns_and_then_teaches",
  ),
  # The same in loops, evaluations, reward data and plans.
  Mutant(
    "the greedy evaluation samples at the run's temperature",
    "grpo_jax/evaluation/evaluator.py",
    'greedy = {"temperature": 0.0, "group": sample_shards}',
    'greedy = {"group": sample_shards}',
    "tests/loops/passed_on_test.py::test_greedy_evaluation_is_greedy_and_the_other_has_samples_of_its_own",
  ),
  Mutant(
    "an evaluation draws sampler.group samples in place of eval.samples",
    "grpo_jax/evaluation/evaluator.py",
    '{"group": experiment.eval.samples})',
    "{})",
    "tests/loops/passed_on_test.py::test_greedy_evaluation_is_greedy_and_the_other_has_samples_of_its_own",
  ),
  Mutant(
    "a process reward model is trained on the held-out groups of its file",
    "grpo_jax/loops/process_reward_model.py",
    "  batches.rollouts = part(solutions, slice(held, None)).rollouts\n  learner",
    "  batches.rollouts = solutions.rollouts\n  learner",
    "tests/loops/passed_on_test.py::test_what_is_held_out_is_not_trained_on",
  ),
  Mutant(
    "a process reward model is trained on the held-out samples",
    "grpo_jax/loops/process_reward_model.py",
    "    batches.rollouts = part(solutions, slice(held, None)).rollouts\n    learn_in_order",
    "    batches.rollouts = solutions.rollouts\n    learn_in_order",
    "tests/loops/passed_on_test.py::test_what_is_held_out_is_not_trained_on",
  ),
  Mutant(
    "a reward model is trained on the held-out pairs",
    "grpo_jax/loops/reward_model.py",
    "part(samples, slice(experiment.offline.held_out, None))",
    "samples",
    "tests/loops/passed_on_test.py::test_what_is_held_out_is_not_trained_on",
  ),
  Mutant(
    "the reward model of an iterative run has the policy's learning rate",
    "grpo_jax/loops/teaching.py",
    'learner = {"lr": cfg.reward_model_lr, ',
    'learner = {"lr": experiment.learner.lr, ',
    "tests/loops/passed_on_test.py::test_the_reward_model_of_an_iterative_run_has_settings_of_its_own",
  ),
  Mutant(
    "the reward model of an iterative run has the policy's batch",
    "grpo_jax/loops/teaching.py",
    '    "data.prompts": cfg.pairs,\n',
    "",
    "tests/loops/passed_on_test.py::test_the_reward_model_of_an_iterative_run_has_settings_of_its_own",
  ),
  Mutant(
    "the reward model of an iterative run has the policy's mu",
    "grpo_jax/loops/teaching.py",
    '"warmup": 0, "mu": 1}',
    '"warmup": 0}',
    "tests/loops/passed_on_test.py::test_the_reward_model_of_an_iterative_run_has_settings_of_its_own",
  ),
  Mutant(
    "kept samples keep the log-probs of the policy that drew them",
    "grpo_jax/loops/offline.py",
    "return common.written(jax.tree.map(lambda x: x[index], self.rollouts))",
    "return jax.tree.map(lambda x: x[index], self.rollouts)",
    "tests/loops/passed_on_test.py::test_kept_samples_come_once_an_epoch_and_without_the_sampler_s_log_probs",
  ),
  Mutant(
    "held-out groups come last where the first ones are taken",
    "grpo_jax/loops/offline.py",
    "return choose(kept, [*held, *rest[: o.prompts]])",
    "return choose(kept, [*rest[: o.prompts], *held])",
    "tests/loops/passed_on_test.py::test_held_out_prompts_are_drawn_first_and_come_in_no_other_group",
  ),
  Mutant(
    "rows of samples have log-probs before and after an update exchanged",
    "grpo_jax/loops/sample_rows.py",
    'row["logprob_before"] = round(float(moved.before[n]), 4)',
    'row["logprob_before"] = round(float(moved.after[n]), 4)',
    "tests/loops/sample_rows_test.py::test_rows_are_whole_groups_and_show_before_and_after",
  ),
  Mutant(
    "a token with a negative advantage is shown the upper clip bound",
    "grpo_jax/loops/sample_rows.py",
    "np.where(advantages < 0, lower, np.nan)",
    "np.where(advantages < 0, upper, np.nan)",
    "tests/loops/sample_rows_test.py::test_the_bound_of_a_ratio_is_that_of_the_sign_of_the_advantage",
  ),
  Mutant(
    "samples are of groups in which nothing was to be learned",
    "grpo_jax/loops/sample_rows.py",
    "np.lexsort((most <= least, ~faulty))",
    "np.lexsort((most > least, ~faulty))",
    "tests/loops/sample_rows_test.py::"
    "test_groups_with_a_fault_are_first_and_then_those_whose_rewards_differ",
  ),
  Mutant(
    "rows of samples show the reward of the last place",
    "grpo_jax/loops/sample_rows.py",
    '"reward": total[p, g],',
    '"reward": r.rewards[p, g, -1],',
    "tests/loops/sample_rows_test.py::test_rows_are_whole_groups_and_show_before_and_after",
  ),
  Mutant(
    "the programs of continuations have no room for what was written",
    "grpo_jax/loops/reward_data/continuations.py",
    "sizes.width + experiment.sampler.max_length",
    "sizes.width",
    "tests/loops/passed_on_test.py::test_continuations_are_made_with_the_settings_of_the_run",
  ),
  Mutant(
    "the reward of continuations has no deadline",
    "grpo_jax/loops/reward_data/continuations.py",
    "experiment.rewards.deadline,\n    LABELS",
    "0.0,\n    LABELS",
    "tests/loops/passed_on_test.py::test_continuations_are_made_with_the_settings_of_the_run",
  ),
  Mutant(
    "a reference that is pinned to a step is read from the run's export",
    "grpo_jax/setup/references.py",
    "  run = run if step is None else source",
    "  run = run",
    "tests/setup/weights_test.py::test_a_reference_of_a_step_is_read_from_the_run_although_it_has_an_export_by_now",
  ),
  Mutant(
    "a teacher is given the policy's adapters",
    "grpo_jax/setup/build.py",
    '"model.variant": "", "lora.rank": 0}',
    '"model.variant": ""}',
    "tests/loops/passed_on_test.py::test_another_model_has_no_adapters_of_this_run",
  ),
  Mutant(
    "updates are measured one step late",
    "grpo_jax/loops/learner.py",
    "step % self.measure_every == 0",
    "(step + 1) % self.measure_every == 0",
    "tests/loops/learner_test.py::test_updates_are_measured_every_so_often_and_their_rate_is_told",
  ),
  Mutant(
    "the learning rate that is logged is the next update's",
    "grpo_jax/loops/learner.py",
    "self.rate(self.state.step - 1)",
    "self.rate(self.state.step)",
    "tests/loops/learner_test.py::test_updates_are_measured_every_so_often_and_their_rate_is_told",
  ),
  Mutant(
    "the schedule counts a rollout's minibatches as one update",
    "grpo_jax/loops/learner.py",
    "experiment.steps * experiment.learner.mu * experiment.learner.minibatches",
    "experiment.steps * experiment.learner.mu",
    "tests/loops/learner_test.py::test_a_schedule_is_of_all_updates_of_a_run",
  ),
  Mutant(
    "a process reward model that learns is asked after the last token alone",
    "grpo_jax/loops/iterative.py",
    "RewardModel(NAME, weight, steps, judge",
    "RewardModel(NAME, weight, False, judge",
    "tests/loops/passed_on_test.py::test_the_model_that_learns_is_asked_as_its_kind_and_after_the_others",
  ),
  Mutant(
    "pairs of each step are chosen by the same seed",
    "grpo_jax/loops/teaching.py",
    "experiment.seed + step, complete=True)",
    "experiment.seed, complete=True)",
    "tests/loops/passed_on_test.py::test_pairs_of_each_step_are_chosen_by_a_seed_of_their_own",
  ),
  Mutant(
    "a process reward model is compared with the labels in place of the rule",
    "grpo_jax/evaluation/step_evaluator.py",
    "step_scores.step_metrics(scores[ruled], rule[ruled])",
    "step_scores.step_metrics(scores[ruled], r.rewards[ruled])",
    "tests/evaluation/step_evaluator_test.py::test_steps_are_compared_with_labels_and_with_the_rewards",
  ),
  Mutant(
    "steps of which the rule says nothing count as disagreement",
    "grpo_jax/evaluation/step_evaluator.py",
    "ruled = r.given & ~np.isnan(rule)",
    "ruled = r.given",
    "tests/evaluation/step_evaluator_test.py::test_steps_are_compared_with_labels_and_with_the_rewards",
  ),
  Mutant(
    "pairs of which one is missing are evaluated",
    "grpo_jax/evaluation/pair_evaluator.py",
    "np.flatnonzero(pairs.lengths.all(axis=1))",
    "np.flatnonzero(pairs.lengths.any(axis=1))",
    "tests/evaluation/pair_evaluator_test.py::test_pairs_of_which_one_is_missing_are_not_evaluated",
  ),
  Mutant(
    "rows that fill the last batch are scored, too",
    "grpo_jax/reward_models/scores.py",
    "return np.concatenate(parts)[:n]",
    "return np.concatenate(parts)",
    "tests/reward_models/scores_test.py::test_scores_of_all_are_as_many_as_were_given",
  ),
  Mutant(
    "a wrong sample of `evaluate` is kept as right",
    "experiments/evaluate.py",
    '"reward": float(judged.right)',
    '"reward": float(not judged.fault)',
    "tests/evaluation/policy_test.py::test_a_wrong_sample_of_an_evaluation_is_kept_with_reward_0",
  ),
  Mutant(
    "data sets of a mixture are shuffled alike",
    "grpo_jax/data/loader.py",
    "_endless(source, seed + i, shuffle)",
    "_endless(source, seed, shuffle)",
    "tests/loops/passed_on_test.py::test_data_sets_of_a_mixture_are_shuffled_apart",
  ),
  Mutant(
    "pass rates that were saved change afterwards",
    "grpo_jax/data/pool.py",
    '"rates": dict(self._rates)',
    '"rates": self._rates',
    "tests/loops/passed_on_test.py::test_pass_rates_that_were_saved_stay_as_they_were",
  ),
  Mutant(
    "prompts that are too long are counted of both kinds of decoding",
    "grpo_jax/evaluation/policy.py",
    '"prompts_too_long": sum(greedy.too_long)',
    '"prompts_too_long": sum(greedy.too_long) + (sum(sampled.too_long) if sampled else 0)',
    "tests/evaluation/policy_test.py::test_a_prompt_that_is_too_long_is_counted_once",
  ),
  Mutant(
    "a text whose end token was cut off has stopped",
    "grpo_jax/loops/reward_data/pairs.py",
    "STOPPED if len(ids) <= longest else TRUNCATED",
    "STOPPED if len(ids) - 1 <= longest else TRUNCATED",
    "tests/loops/reward_data/pairs_test.py::test_a_text_has_stopped_where_its_end_token_fits",
  ),
  Mutant(
    "a plan forgets the copies of prompts in refilled slots",
    "grpo_jax/plan/memory.py",
    "copies = s.slots if s.slots < s.samples else 0",
    "copies = 0",
    "tests/plan/memory_test.py::test_slots_that_are_refilled_have_copies_of_their_prompts",
  ),
  Mutant(
    "a plan forgets the scales of int8 keys and values",
    "grpo_jax/plan/memory.py",
    '+ (4 if dtype == "int8" else 0)',
    "",
    "tests/plan/memory_test.py::test_keys_and_values_of_a_token",
  ),
  Mutant(
    "a policy is taken to have started from the reward model",
    "grpo_jax/setup/weights.py",
    "if learner == REWARD_MODEL else",
    "if learner != REWARD_MODEL else",
    "tests/setup/weights_test.py::test_the_source_of_a_learner_of_a_run",
  ),
  Mutant(
    "a solution of exactly max_length counts as truncated",
    "grpo_jax/loops/reward_data/steps.py",
    "if solution.complete and len(ids) <= longest:",
    "if solution.complete and len(ids) < longest:",
    "tests/loops/reward_data/steps_test.py::test_a_solution_that_just_fits_has_stopped",
  ),
  Mutant(
    "an iterative run teaches and evaluates when an iteration begins",
    "grpo_jax/loops/iterative.py",
    "ends = of_iteration == cfg.steps - 1",
    "ends = of_iteration == 0",
    "tests/loops/loops_test.py::test_an_iteration_samples_scores_learns_and_then_teaches",
  ),
  Mutant(
    "counts of continuations are those of the last batch",
    "grpo_jax/loops/process_reward_model.py",
    "count = continuations.Counts(*(a + b for a, b in zip(count, more)))",
    "count = more",
    "tests/loops/loops_test.py::test_each_batch_that_is_labelled_has_noise_of_its_own",
  ),
  Mutant(
    "all batches of samples are labelled with one noise",
    "grpo_jax/loops/process_reward_model.py",
    "build.key(experiment.seed, build.CONTINUE, start)",
    "build.key(experiment.seed, build.CONTINUE, 0)",
    "tests/loops/loops_test.py::test_each_batch_that_is_labelled_has_noise_of_its_own",
  ),
  Mutant(
    "an evaluation has the noise of sampling",
    "grpo_jax/evaluation/evaluator.py",
    "build.key(self.seed, build.EVALUATE, step)",
    "build.key(self.seed, build.SAMPLE, step)",
    "tests/loops/loops_test.py::test_an_evaluation_has_the_noise_of_its_step_and_purpose",
  ),
  Mutant(
    "the student and the teacher of GKD change places in the mixture",
    "grpo_jax/ops/distillation.py",
    "math.log(beta) + log_t, math.log1p(-beta) + log_s",
    "math.log(beta) + log_s, math.log1p(-beta) + log_t",
    "tests/ops/distillation_test.py::test_value_is_the_definition_and_the_gradient_its_derivative",
  ),
  Mutant(
    "all tokens but the top k are left out",
    "grpo_jax/ops/distillation.py",
    "return total if tail_p is None or tail_q is None else total + _term(tail_p, tail_q)",
    "return total",
    "tests/ops/distillation_test.py::test_value_is_the_definition_and_the_gradient_its_derivative",
  ),
  Mutant(
    "the gradient of a divergence forgets the temperature",
    "grpo_jax/ops/logprobs.py",
    "log_t) * (g_divergence * slope)",
    "log_t) * g_divergence",
    "tests/ops/logprobs_test.py::test_divergence_equals_dense_logits_and_its_gradient",
  ),
  Mutant(
    "a teacher's states are read by the student's unembedding",
    "grpo_jax/learning/forward.py",
    "head = teacher_decoder.unembed(teacher_decoder.whole(params[TEACHER]))",
    "head = decoder.unembed(params)",
    "tests/learning/learn_test.py::test_gkd_moves_by_the_divergence_of_whole_distributions",
  ),
  Mutant(
    "the capped ratio of SDPO has a gradient",
    "grpo_jax/objectives/gkd.py",
    "surrogate.token_ratio(jax.lax.stop_gradient(logprobs), old)",
    "surrogate.token_ratio(logprobs, old)",
    "tests/objectives/gkd_test.py::test_a_token_weighs_its_ratio_up_to_the_cap",
  ),
  Mutant(
    "a teacher with prompts of its own is asked what the policy is",
    "grpo_jax/learning/passes.py",
    "prompts = Prompts(prompts.tokens.reshape(n, -1), prompts.lengths.reshape(n))",
    "prompts = jax.tree.map(lambda x: jax.numpy.repeat(x, n // len(x), 0), rollouts.prompts)",
    "tests/learning/passes_test.py::test_only_completions_with_a_teacher_are_learned_from_each_after_its_own_prompt",
  ),
  Mutant(
    "a mean over a slice passes for a sum",
    "grpo_jax/setup/tracing.py",
    "if np.abs(apart).max() > 1e-3 * np.abs(once).max():",
    "if np.abs(apart).max() < 0:",
    "tests/setup/tracing_test.py::test_a_loss_that_is_no_sum_cannot_be_cut_into_microbatches",
  ),
  Mutant(
    "an example in a docstring passes for a setting",
    "grpo_jax/config/comments.py",
    'DOCSTRING.sub("", file.read_text(encoding="utf-8"))',
    'file.read_text(encoding="utf-8")',
    "tests/config/comments_test.py::test_the_meaning_is_the_comment_behind_a_setting_or_on_the_lines_before_it",
  ),
  Mutant(
    "a group shares a prompt that tells more than the solution",
    "grpo_jax/loops/teacher_prompts.py",
    'if told(setting.prompt) == {"solution"}:',
    'if "solution" in told(setting.prompt):',
    "tests/loops/teacher_prompts_test.py::test_a_prompt_with_more_than_the_solution_is_one_for_each_completion",
  ),
  Mutant(
    "a completion is told its own success",
    "grpo_jax/loops/teacher_prompts.py",
    "right[g] and g != own",
    "right[g]",
    "tests/loops/teacher_prompts_test.py::test_a_success_is_the_first_of_another_sample",
  ),
  Mutant(
    "completions without a teacher are learned from",
    "grpo_jax/objectives/common.py",
    "return mask * (lengths > 0).reshape(len(lengths), -1, 1)",
    "return mask",
    "tests/learning/passes_test.py::test_without_any_teacher_nothing_moves",
  ),
  Mutant(
    "a reference keeps the share that it should go",
    "grpo_jax/loops/reference.py",
    "(1.0 - share) * a + share * b",
    "share * a + (1.0 - share) * b",
    "tests/loops/reference_test.py::test_it_goes_a_share_of_the_way",
  ),
  # Bugs of other systems' newer objectives, by name in docs/papers.md.
  Mutant(
    "the weight of a completion is the sum of its tokens' ratios",
    OPS + "mismatch.py",
    "w = surrogate.exp_clamped(_of_completion(log_ratio, mask, level))",
    "w = surrogate.exp_clamped(_of_completion(log_ratio, mask, level))\n"
    '  if level == "sequence":\n'
    "    w = masked.masked_sum(jnp.exp(log_ratio), mask, axis=-1, keepdims=True)",
    "tests/ops/mismatch_test.py::test_weight",
  ),
  Mutant(
    "the denominator shrinks with what a mask leaves out",
    OBJECTIVES + "grpo.py",
    "gain = gain * common.mismatch(logprobs, old, batch, cfg)",
    "keep = common.mismatch(logprobs, old, batch, cfg)\n"
    "  gain = gain * keep * jnp.sum(batch.mask) / jnp.sum(batch.mask * (keep > 0))",
    "tests/objectives/common_test.py::test_each_row_of_presets_is_what_its_paper_says[icepop]",
  ),
  Mutant(
    "k3 is clamped, so that the KL has no gradient where it is largest",
    OPS + "divergences.py",
    "return jnp.expm1(d) - d",
    "return jnp.clip(jnp.expm1(d) - d, -10.0, 10.0)",
    "tests/ops/divergences_test.py"
    "::test_an_impossible_reference_is_not_clamped_and_an_enormous_one_is_finite",
  ),
  Mutant(
    "DPPO's ratio has no cap",
    OBJECTIVES + "dppo.py",
    "keep * jnp.minimum(ratio, cfg.cap) * batch.advantages",
    "keep * ratio * batch.advantages",
    "tests/objectives/dppo_test.py::test_the_coefficient",
  ),
  Mutant(
    "GMPO ignores the weights of tokens",
    OBJECTIVES + "gmpo.py",
    "gain = ratio * batch.advantages * common.mismatch(logprobs, old, batch, cfg)",
    "gain = ratio * batch.advantages",
    "tests/objectives/objectives_test.py"
    "::test_every_objective_on_samples_takes_the_mismatch_correction[gmpo]",
  ),
  Mutant(
    "GMPO's ratio of a completion has lost its axis of tokens",
    OPS + "surrogate.py",
    "return exp_clamped(masked.masked_mean(log_ratio, mask, axis=-1, keepdims=True))",
    "return exp_clamped(masked.masked_mean(log_ratio, mask, axis=-1))",
    "tests/objectives/gmpo_test.py"
    "::test_the_coefficient_is_the_geometric_ratio_on_tokens_that_are_not_clipped",
  ),
  Mutant(
    "GMPO takes its mean over a microbatch",
    OBJECTIVES + "gmpo.py",
    "return jnp.sum(batch.weights * (kl - gain - bonus)), reported",
    "return jnp.sum(batch.mask * (kl - gain - bonus)) / jnp.sum(batch.mask), reported",
    "tests/objectives/objectives_test.py::test_slices_add_up_to_the_whole[gmpo]",
  ),
  Mutant(
    "VESPO's constants are those of the docstring, not of the code",
    OBJECTIVES + "vespo.py",
    "c.k_positive = 2.0",
    "c.k_positive = 3.0",
    "tests/objectives/vespo_test.py::test_the_coefficient_weighs_the_whole_completion",
  ),
  Mutant(
    "CISPO's loss lacks log pi",
    OBJECTIVES + "cispo.py",
    "surrogate.cispo(logprobs, ratio, batch.advantages, cap) * mismatch",
    "surrogate.cispo(jnp.ones_like(logprobs), ratio, batch.advantages, cap) * mismatch",
    "tests/objectives/cispo_test.py::test_cispo_is_the_capped_ratio",
  ),
  Mutant(
    "CISPO's cap of 5 is read as an offset from 1",
    "experiments/presets.py",
    '"objective.clip_high": 4.0',
    '"objective.clip_high": 5.0',
    "tests/objectives/cispo_test.py::test_scale_rl_has_a_cap_of_5_and_the_std_of_all_advantages",
  ),
  Mutant(
    "LUSPO loses its sum over tokens, and is GSPO with other bounds",
    "experiments/presets.py",
    """      "objective.aggregation": "constant",
      "objective.clip_low": 2e-3,
""",
    """      "objective.clip_low": 2e-3,
""",
    "tests/experiments/presets_test.py::test_a_row_adds_up_its_tokens_as_its_paper[luspo]",
  ),
  Mutant(
    "Muon moves embeddings, too",
    "grpo_jax/learning/optimizer.py",
    'return "muon" if is_matrix and jax.tree_util.DictKey("layers") in path else "adam"',
    'return "muon" if is_matrix else "adam"',
    "tests/learning/optimizer_test.py::"
    "test_a_step_of_muon_is_nearly_orthogonal_in_each_layer_and_adamws_elsewhere",
  ),
  Mutant(
    "weight decay acts on norms, whose stacked scales have two axes",
    "grpo_jax/learning/optimizer.py",
    'return names[-1] not in ("scale", "bias") and not any("norm" in name for name in names)',
    'return names[-1] != "bias"',
    "tests/learning/optimizer_test.py::test_decay_acts_on_matrices_by_name_and_not_by_rank",
  ),
  Mutant(
    "CISPO has a lower bound, too, and goes on pushing tokens that have left",
    OPS + "surrogate.py",
    "return jax.lax.stop_gradient(jnp.minimum(ratio, cap)) * advantages * logprobs",
    "return jax.lax.stop_gradient(jnp.clip(ratio, 0.8, cap)) * advantages * logprobs",
    "tests/objectives/cispo_test.py::test_cispo_is_the_capped_ratio",
  ),
  Mutant(
    "KL-Cov reads the authors' percentage as a fraction",
    OBJECTIVES + "kl_cov.py",
    "batch.mask, cfg.share)",
    "batch.mask, 100 * cfg.share)",
    "tests/objectives/kl_cov_test.py::test_the_tokens_of_the_largest_covariance_are_held",
  ),
  Mutant(
    "KL-Cov chooses its tokens prompt by prompt",
    OBJECTIVES + "kl_cov.py",
    "masked.largest(apart, batch.mask, cfg.share)",
    "jnp.stack([masked.largest(a, m, cfg.share) for a, m in zip(apart, batch.mask)])",
    "tests/objectives/kl_cov_test.py::test_the_tokens_of_the_largest_covariance_are_held",
  ),
  Mutant(
    "tokens of a large entropy are chosen prompt by prompt",
    OBJECTIVES + "grpo.py",
    "advantages = advantages * masked.largest(entropy, mask, cfg.top_entropy)",
    "advantages = advantages * jnp.stack("
    "[masked.largest(e, m, cfg.top_entropy) for e, m in zip(entropy, mask)])",
    "tests/objectives/grpo_test.py::test_only_tokens_of_the_largest_entropy_learn_from_a",
  ),
  Mutant(
    "the weight of the entropy rises at its target, too",
    "grpo_jax/learning/entropy_control.py",
    "change = step if entropy < target else -step",
    "change = step if entropy <= target else -step",
    "tests/learning/entropy_control_test.py"
    "::test_the_weight_rises_below_the_target_and_falls_above_it",
  ),
  Mutant(
    "the std of the batch is that of centred rewards",
    OPS + "advantages.py",
    "masked.masked_std(rewards, kept, None, ddof) + eps",
    "masked.masked_std(centred, kept, None, ddof) + eps",
    "tests/ops/advantages_test.py::test_scales_and_baselines",
  ),
  Mutant(
    "leave-one-out of a single completion is its raw reward",
    OPS + "advantages.py",
    "centre = jnp.where(others_count > 0, others / jnp.maximum(others_count, 1.0), rewards)",
    "centre = others / jnp.maximum(others_count, 1.0)",
    "tests/ops/advantages_test.py::test_leave_one_out_without_any_other_gives_zero",
  ),
  Mutant(
    "Dr.GRPO's constant is the padded width",
    OPS + "masked.py",
    "return mask / (sequences * max_length)",
    "return mask / (sequences * mask.shape[2])",
    "tests/ops/masked_test.py::test_token_weights",
  ),
  Mutant(
    "a mixture of all teacher or all student is no error, and D is 0",
    OPS + "distillation.py",
    "if not 0 < self.beta < 1:",
    "if not 0 <= self.beta <= 1:",
    "tests/ops/distillation_test.py::test_bad_settings_are_named",
  ),
  Mutant(
    "the reverse KL of the top k alone falls where the student leaves them",
    OPS + "distillation.py",
    "return total if tail_p is None or tail_q is None else total + _term(tail_p, tail_q)",
    "return jnp.sum(jnp.where(top, jnp.exp(p) * (p - q), 0.0), axis=-1, keepdims=True)",
    "tests/ops/distillation_test.py::test_value_is_the_definition_and_the_gradient_its_derivative",
  ),
  Mutant(
    "distillation differentiates log pi - log T, whose expected gradient has no teacher",
    OBJECTIVES + "distill.py",
    "return -jnp.sum(batch.weights * gain), reported",
    "return jnp.sum(batch.weights * jax.lax.stop_gradient(ratio) * (logprobs - batch.ref_logprobs)), reported",
    "tests/objectives/distill_test.py::test_distill_is_the_log_ratio_to_the_teacher",
  ),
  Mutant(
    "the mixture of teacher and student is one of their logarithms",
    OPS + "distillation.py",
    "return jnp.logaddexp(math.log(beta) + log_t, math.log1p(-beta) + log_s)",
    "return beta * log_t + (1.0 - beta) * log_s",
    "tests/ops/distillation_test.py::test_value_is_the_definition_and_the_gradient_its_derivative",
  ),
  Mutant(
    "GKD takes its mean over a microbatch",
    OBJECTIVES + "gkd.py",
    "return jnp.sum(batch.weights * weight * apart), reported",
    "return jnp.sum(batch.mask * weight * apart) / jnp.sum(batch.mask), reported",
    "tests/objectives/objectives_test.py::test_slices_add_up_to_the_whole[gkd]",
  ),
  Mutant(
    "DPO's preference lacks beta",
    OPS + "preferences.py",
    "right = bradley_terry(beta * chosen, beta * rejected)",
    "right = bradley_terry(chosen, rejected)",
    "tests/ops/preferences_test.py::test_dpo_value_and_gradient",
  ),
  Mutant(
    "DPO divides a completion's log-ratio by its length",
    OBJECTIVES + "dpo.py",
    'h = jnp.sum(logprobs - common.require(ref, "ref_logprobs", cfg.name), axis=2)',
    'h = jnp.sum(logprobs - common.require(ref, "ref_logprobs", cfg.name), axis=2) / batch.lengths',
    "tests/objectives/dpo_test.py",
  ),
  Mutant(
    "an entropy mask with one ratio for the completion is no error",
    OBJECTIVES + "gspo.py",
    "if cfg.top_entropy < 1.0 and not cfg.token_level:",
    "if False:",
    "tests/objectives/gspo_test.py::test_a_sequence_cannot_leave_out_tokens_by_entropy",
  ),
  # Slips in files that no other mutant touches.
  Mutant(
    "an advantage that reads the old policy does not ask for it",
    OBJECTIVES + "base.py",
    "return needs | Needs.OLD_POLICY if self.advantage_reads_old_policy else needs",
    "return needs",
    "tests/objectives/advantages_test.py::test_the_optimal_token_baseline_asks_for_the_old_policy",
  ),
  Mutant(
    "the coefficient has the sign of the loss",
    OBJECTIVES + "coefficients.py",
    "return -objective.loss(",
    "return objective.loss(",
    "tests/objectives/coefficients_test.py::test_one_update_per_rollout_is_reinforce",
  ),
  Mutant(
    "the teacher's samples are those of the live policy",
    OBJECTIVES + "distill_offline.py",
    'data=("samples",)',
    'data=("live",)',
    "tests/objectives/distill_offline_test.py::test_it_is_sft_on_the_samples_of_a_teacher",
  ),
  Mutant(
    "the reward model learns that the rejected one is better",
    OBJECTIVES + "reward_model.py",
    "bradley_terry(scores[:, 0], scores[:, 1])",
    "bradley_terry(scores[:, 1], scores[:, 0])",
    "tests/objectives/reward_model_test.py::test_reward_model_reads_the_last_token_only",
  ),
  Mutant(
    "a weighted k3 is differentiated as a product, beyond its clamp, too",
    OPS + "divergences.py",
    "return kept(weight * k3(logprobs, ref_logprobs)) + slope * (logprobs - kept(logprobs))",
    "return weight * k3(logprobs, ref_logprobs)",
    "tests/ops/divergences_test.py::test_a_weighted_k3_pulls_towards_the_reference_however_far_it_is",
  ),
  Mutant(
    "RPG's divergence lacks its weight",
    OBJECTIVES + "rpg.py",
    "return divergences.weighted_k3(weight, logprobs, ref)",
    "return divergences.k3(logprobs, ref)",
    "tests/objectives/rpg_test.py::test_rpg",
  ),
  Mutant(
    "SAPO's temperatures change places",
    OBJECTIVES + "sapo.py",
    "jnp.where(batch.advantages > 0, cfg.tau_positive, cfg.tau_negative)",
    "jnp.where(batch.advantages > 0, cfg.tau_negative, cfg.tau_positive)",
    "tests/objectives/sapo_test.py::test_the_coefficient_is_gated_by_sech_squared",
  ),
  Mutant(
    "SFT corrects for a sampler that never wrote its solutions",
    OBJECTIVES + "sft.py",
    "common.train_batch(common.written(rollouts), mask, mask, weights)",
    "common.train_batch(rollouts, mask, mask, weights)",
    "tests/objectives/objectives_test.py::test_what_no_sampler_made_has_no_mismatch",
  ),
  Mutant(
    "a second clip below the first is no error",
    OBJECTIVES + "shared_settings.py",
    "if cfg.clip_delta and cfg.clip_delta <= least:",
    "if False:",
    "tests/objectives/shared_settings_test.py::test_bad_settings_are_refused_before_anything_runs",
  ),
  Mutant(
    "products of float32 are rounded on an accelerator",
    OPS + "precision.py",
    "return jax.lax.Precision.HIGHEST if jnp.dtype(dtype) == jnp.float32 else None",
    "return None",
    "tests/ops/precision_test.py::test_float32_alone_asks_for_it",
  ),
  Mutant(
    "TPO gives a truncated completion that is left out nearly all of the probability",
    OBJECTIVES + "tpo.py",
    "real = jnp.any(mask > 0, axis=2)",
    "real = jnp.ones(scores.shape, bool)",
    "tests/objectives/tpo_test.py::test_a_truncated_completion_that_is_left_out_has_no_share",
  ),
  Mutant(
    "REINFORCE++ counts the KL of tokens that nobody sampled",
    OBJECTIVES + "advantages.py",
    "mask = common.sampled_mask(rollouts)\n    returns = returns",
    "mask = masked.length_mask(rollouts.lengths, rollouts.tokens.shape[2])\n    returns = returns",
    "tests/objectives/sampled_test.py::test_lengths_are_those_of_sampled_tokens",
  ),
  Mutant(
    "VACO leaves out tokens that come back",
    OPS + "mismatch.py",
    "return log_ratio * advantages > 0",
    "return log_ratio * advantages < 0",
    "tests/ops/mismatch_test.py::test_which_tokens_may_be_left_out",
  ),
)


def applied(mutant: Mutant) -> str:
  """Returns the mutated text of its file; where its lines are broken does not matter.

  Raises:
    ValueError: the piece to replace does not occur exactly once.
  """
  text = (ROOT / mutant.file).read_text(encoding="utf-8")
  tokens = re.findall(r"\w+|[^\w\s]", mutant.old)
  piece = r"\s*".join((r",?\s*" if token in ")]}" else "") + re.escape(token) for token in tokens)
  text, times = re.subn(piece, lambda _: mutant.new.strip(), text)
  if times != 1:
    raise ValueError(f"{mutant.file} holds {mutant.old!r} {times} times, not once: {mutant.bug}")
  return text


def copy_to(folder: pathlib.Path) -> None:
  for name in COPIED:
    source = ROOT / name
    if source.is_dir():
      shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    else:
      shutil.copy(source, folder / name)


def run_tests(folder: pathlib.Path, tests: str) -> tuple[int, str]:
  """(pytest's exit code, its output) for the tests of a copy, against the copy's own code."""
  command = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-x",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=",
    *tests.split(),
  ]
  done = subprocess.run(
    command,
    cwd=folder,
    env=os.environ | {"PYTHONPATH": str(folder)},
    text=True,
    capture_output=True,
    timeout=1800,
  )
  return done.returncode, done.stdout + done.stderr


def caught(mutant: Mutant) -> tuple[bool, str]:
  """(whether a named test fails on the mutant, rather than does not start; pytest's last lines)."""
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    copy_to(folder)
    (folder / mutant.file).write_text(applied(mutant), encoding="utf-8")
    code, output = run_tests(folder, mutant.test)
  lines = [
    line for line in output.splitlines() if line.startswith("FAILED")
  ] or output.splitlines()[-3:]
  return code == 1 and "FAILED" in output, "\n".join(lines)


def healthy(mutants: Sequence[Mutant] = MUTANTS) -> tuple[bool, str]:
  """(whether their tests pass on the code as it is, pytest's output): else a failure would prove
  nothing.
  """
  with tempfile.TemporaryDirectory() as folder:
    copy_to(pathlib.Path(folder))
    tests = " ".join(sorted({test for mutant in mutants for test in mutant.test.split()}))
    code, output = run_tests(pathlib.Path(folder), tests)
  return code == 0, output


def main(words: list[str]) -> int:
  chosen = [m for m in MUTANTS if not words or any(word in m.bug for word in words)]
  ok, output = healthy(chosen)
  if not ok:
    print(output)
    return 1
  escaped = 0
  width = max(len(m.bug) for m in chosen)
  for mutant in chosen:
    found, lines = caught(mutant)
    escaped += not found
    print(
      f"{mutant.bug:{width}}  "
      f"{'caught by ' + lines.split(' - ')[0].removeprefix('FAILED ') if found else 'ESCAPED'}"
    )
    if not found:
      print(lines)
  print(f"{len(chosen) - escaped} of {len(chosen)} caught")
  return int(escaped > 0)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
