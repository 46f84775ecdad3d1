"""What holds for every objective (finite differences, microbatches, masks), and what is each one's
own.
"""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import (
  coefficients,
  distill,
  dpo,
  grpo,
  ppo,
  rft,
  target_prob,
)
from grpo_jax.objectives.base import Needs

ALL = sorted(cases.CASES)


class Frozen:
  """Stands in for `jax.lax.stop_gradient`: remembers the values of a first run and gives them back
  in later ones.
  """

  def __init__(self):
    self.values, self.next = [], None

  def __call__(self, x):
    if self.next is None:
      self.values.append(x)
      return x
    self.next += 1
    return self.values[self.next - 1]


def test_which_groups_teach_nothing():
  """Of four: right and wrong, all right, all wrong, and one completion that was given a reward."""
  rewards = jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])[..., None]
  given = jnp.array([[True, True]] * 3 + [[True, False]])[..., None]
  r = types.SimpleNamespace(tokens=jnp.zeros((4, 2, 1), jnp.int32), rewards=rewards, given=given)
  cfg = types.SimpleNamespace(name="any", threshold=0.5)
  for objective, want in (
    (target_prob, [0, 1, 1, 1]),
    (rft, [0, 0, 1, 0]),
    (ppo, [0] * 4),
    (distill, [0] * 4),
  ):
    groups = objective.OBJECTIVE.flat(r, cfg, None)
    np.testing.assert_array_equal(groups, want, objective.__name__)


@pytest.mark.parametrize("name", ALL)
def test_gradient_is_that_of_finite_differences_with_stopped_values_frozen(name, monkeypatch):
  objective, cfg, batch, out = cases.case(name)
  with jax.enable_x64(True):
    batch, out = jax.tree.map(
      lambda a: a.astype(jnp.float64) if a.dtype == jnp.float32 else a, (batch, out)
    )

    def loss(out):
      return objective.loss(out, batch, cfg)[0]

    slopes = dataclasses.asdict(jax.grad(loss)(out))
    frozen = Frozen()
    monkeypatch.setattr(jax.lax, "stop_gradient", frozen)
    loss(out)

    def along(direction, part):
      ends = []
      for h in (1e-6, -1e-6):
        frozen.next = 0
        point = cases.replace(out, **{part: getattr(out, part) + h * direction})
        ends.append(float(loss(point)))
      return (ends[0] - ends[1]) / 2e-6

    rng = np.random.default_rng(0)
    for part, slope in slopes.items():
      for _ in range(3):
        direction = rng.normal(size=batch.mask.shape)
        np.testing.assert_allclose(
          along(direction, part), jnp.vdot(slope, direction), rtol=1e-6, atol=1e-8, err_msg=part
        )
    assert any(jnp.abs(slope).max() > 1e-3 for slope in slopes.values())


@pytest.mark.parametrize("name", ALL)
def test_slices_add_up_to_the_whole(name):
  """Loss, gradient and metrics of the batch in slices along P are those of the batch at once."""
  objective, cfg, batch, out = cases.case(name)

  @jax.jit
  def run(batch, out):
    return jax.value_and_grad(lambda o: objective.loss(o, batch, cfg), has_aux=True)(out)

  (whole, metrics), slopes = run(batch, out)
  each = [run(*(cases.rows(x, np.array([i])) for x in (batch, out))) for i in range(4)]
  np.testing.assert_allclose(sum(p[0][0] for p in each), whole, rtol=1e-5, atol=1e-6)
  joined = jax.tree.map(lambda *rows: np.concatenate(rows), *(p[1] for p in each))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), joined, slopes)
  for key, (total, count) in metrics.items():
    if key.endswith("_max"):
      np.testing.assert_allclose(max(p[0][1][key][0] for p in each), total, rtol=1e-6)
    else:
      np.testing.assert_allclose(
        sum(p[0][1][key][0] for p in each), total, rtol=1e-4, atol=1e-5, err_msg=key
      )
      np.testing.assert_allclose(sum(p[0][1][key][1] for p in each), count, rtol=1e-5)


@pytest.mark.parametrize("name", [*ALL, *cases.ADVANTAGES])
def test_devices_change_nothing(name):
  """`prepare`, loss and gradient with prompts and samples of a group on four devices are those of
  one.
  """
  objective, cfg, r = cases.given(name)

  @jax.jit
  def run(r, out):
    batch = cases.prepare(r, cfg)
    return jax.value_and_grad(lambda o: objective.loss(o, batch, cfg)[0])(out)

  out = cases.predictions(objective, r)
  one = run(r, out)
  mesh = jax.make_mesh((2, 2), ("prompt", "sample"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("prompt", "sample"))
  four = run(*jax.device_put((cases.replace(r, prompts=None), out), sharding))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), one, four)


@pytest.mark.parametrize("name", ALL)
def test_what_lies_on_padding_does_not_matter(name):
  objective, cfg, batch, out = cases.case(name)

  def spoil(x):
    return jnp.where(batch.mask > 0, x, jnp.nan)

  dirty = jax.tree.map(spoil, out)
  dirty_batch = cases.replace(
    batch,
    old_logprobs=spoil(batch.old_logprobs),
    ref_logprobs=spoil(batch.ref_logprobs),
    sampler_logprobs=None if batch.sampler_logprobs is None else spoil(batch.sampler_logprobs),
  )

  def run(o, b):
    return jax.value_and_grad(lambda o: objective.loss(o, b, cfg), has_aux=True)(o)

  (value, metrics), slope = run(out, batch)
  (dirty_value, dirty_metrics), dirty_slope = run(dirty, dirty_batch)
  np.testing.assert_array_equal(dirty_value, value)
  jax.tree.map(np.testing.assert_array_equal, dirty_slope, slope)
  jax.tree.map(np.testing.assert_array_equal, dirty_metrics, metrics)
  if name != "process_reward_model":
    for each in jax.tree.leaves(slope):
      np.testing.assert_array_equal(jnp.where(batch.mask > 0, 0.0, each), 0.0)


@pytest.mark.parametrize("name", [*ALL, *cases.ADVANTAGES])
def test_rows_that_only_fill_the_batch_change_nothing(name):
  objective, cfg, r = cases.given(name)
  filled = cases.replace(r, lengths=r.lengths.at[3:].set(0), given=r.given.at[3:].set(False))
  short = cases.rows(r, slice(0, 3))
  out = cases.predictions(objective, r)

  @jax.jit
  def run(r, out):
    return jax.value_and_grad(lambda o: objective.loss(o, cases.prepare(r, cfg), cfg)[0])(out)

  (one, slopes), (two, others) = run(filled, out), run(short, cases.rows(out, slice(0, 3)))
  np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)

  def same(filled, short):
    np.testing.assert_allclose(filled[:3], short, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(filled[3:], 0.0)

  jax.tree.map(same, slopes, others)


@pytest.mark.parametrize("name", ALL)
def test_prepare_and_loss_are_traced_without_looking_at_values(name):
  objective, cfg, r = cases.given(name)
  assert not (objective.needs(cfg) and objective.trains_reward_model)
  value, metrics = jax.eval_shape(
    lambda r, o: objective.loss(o, cases.prepare(r, cfg), cfg),
    r,
    cases.predictions(objective, r),
  )
  assert value.shape == () and all(t.shape == c.shape == () for t, c in metrics.values())


def test_the_reference_is_not_asked_for_without_a_kl():
  for beta in (0, 0.0):
    assert grpo.needs(cases.settings(beta=beta)) == Needs.NOTHING
    assert ppo.needs(cases.settings(ppo, beta=beta)) == Needs.CRITIC
    batch = cases.prepare(
      cases.replace(cases.rollouts(), ref_logprobs=None), cases.settings(beta=beta)
    )
    assert np.isfinite(
      grpo.loss(cases.outputs(cases.rollouts()), batch, cases.settings(beta=beta))[0]
    )
  assert grpo.needs(cases.settings(beta=0.1)) == Needs.REFERENCE
  in_reward = grpo.needs(cases.settings(beta=0.1, kl_in_reward=True))
  assert in_reward == Needs.REFERENCE | Needs.OLD_POLICY


NAMED = (
  "aggregation",
  "baseline",
  "scale",
  "kl_estimator",
  "mismatch",
  "keep",
  "keep_by",
  "keep_condition",
  "divergence",
  "moved",
)


@pytest.mark.parametrize("name", NAMED)
def test_an_unknown_name_is_refused_by_every_objective_that_reads_it(name):
  found = 0
  for objective, changes in cases.CASES.values():
    if name in objective.OBJECTIVE.settings():
      found += 1
      with pytest.raises(SettingError, match=f"{name}='typo': use one of "):
        cases.settings(objective, **changes | {name: "typo"})
  assert found


# Of every setting of any objective another value than its default, and what must be so for it to
# count.
OTHER = {
  "advantage": ("opo", {}),
  "advantage_arguments": ((("factor", 2.0),), {"advantage": "objective_cases:times"}),
  "baseline": ("leave_one_out", {"scale": "none"}),
  "scale": ("batch", {}),
  "ddof": (0, {"scale": "group"}),
  "eps": (0.1, {"scale": "group"}),
  "reward_weights": ((1.0, 3.0), {"advantage": "gdpo"}),
  "k_positive": (1.0, {}),
  "k_negative": (1.0, {}),
  "lam_positive": (1.0, {}),
  "lam_negative": (1.0, {}),
  "tau": (0.5, {}),
  "eta": (0.5, {}),
  "tau_positive": (2.0, {}),
  "tau_negative": (2.0, {}),
  "entropy_bonus": (0.1, {}),
  "top_entropy": (0.5, {"token_level": True}),
  "share": (0.5, {"cov_low": 0.0}),
  "cov_low": (-1.0, {"share": 0.5}),
  "cov_high": (0.5, {"share": 0.5, "cov_low": 0.0}),
  "penalty": (3.0, {}),
  "moved": ("kl", {}),
  "bound": (0.02, {}),
  "cap": (1.1, {}),
  "attempts": (2, {"advantage": "pass_at_k"}),
  "beta": (0.2, {}),
  "kl_estimator": ("k2", {"beta": 0.1}),
  "kl_weighted": (True, {"beta": 0.1}),
  "kl_in_reward": (True, {"beta": 0.1, "token_level": True}),
  "kl_past_bound": (False, {"beta": 0.1}),
  "divergence": ("forward", {"beta": 0.1}),
  "jensen_shannon_beta": (0.2, {}),
  "top_k": (2, {}),
  "top_k_of": ("teacher", {"top_k": 2}),
  "ratio_cap": (1.1, {}),
  "clip_low": (0.5, {}),
  "clip_high": (0.01, {}),
  "clip_delta": (1.3, {"clip_high": 0.2}),
  "token_level": (True, {}),
  "gamma": (0.5, {}),
  "lam": (0.5, {}),
  "lam_length": (0.5, {}),
  "critic_lam": (0.5, {}),
  "imitation": (0.1, {}),
  "whiten": (False, {}),
  "group_baseline": (True, {}),
  "value_clip": (0.01, {}),
  "value_coef": (2.0, {}),
  "margin": (0.2, {}),
  "threshold": (0.1, {}),
  "label_smoothing": (0.1, {}),
  "aggregation": ("group_token_mean", {}),
  "max_length": (60, {"aggregation": "constant"}),
  "mask_truncated": (True, {}),
  "mismatch": ("token", {}),
  "mismatch_low": (0.9, {"mismatch": "token"}),
  "mismatch_high": (1.1, {"mismatch": "token"}),
  "keep": ("mean", {"keep_high": 1.0}),
  "keep_by": ("k2", {"keep": "mean", "keep_high": 0.9}),
  "keep_low": (0.9, {"keep": "mean", "keep_high": 2.0}),
  "keep_high": (1.0, {"keep": "mean", "keep_low": 0.1}),
  "keep_condition": ("negative", {"keep": "mean", "keep_high": 1.0}),
  "keep_live": (True, {"keep": "mean", "keep_high": 1.0}),
}


def test_every_setting_has_another_value_here():
  assert OTHER.keys() == {
    setting for objective, _ in cases.CASES.values() for setting in objective.OBJECTIVE.settings()
  }


def test_missing_arrays_are_named():
  r = cases.rollouts()
  with pytest.raises(SettingError, match="rewards"):
    cases.prepare(cases.replace(r, rewards=None), cases.settings())
  with pytest.raises(SettingError, match="old_values"):
    cases.prepare(cases.replace(r, old_values=None), cases.settings(ppo))
  with pytest.raises(SettingError, match="groups of 4 with .*chosen, rejected"):
    cases.prepare(r, cases.settings(dpo))
  with pytest.raises(SettingError, match="components"):
    cases.prepare(cases.replace(r, components=None), cases.settings(advantage="gdpo"))


def test_truncated_completions_are_left_out_of_the_loss_and_not_of_the_baseline():
  r = cases.rollouts()
  kept, all_ = (
    cases.prepare(r, cases.settings(mask_truncated=True)),
    cases.prepare(r, cases.settings()),
  )
  cut = np.asarray(r.lengths == 6)
  assert 0 < cut.mean() < 1
  np.testing.assert_array_equal(kept.mask[cut], 0.0)
  np.testing.assert_array_equal(kept.weights[~cut], all_.weights[~cut])
  np.testing.assert_array_equal(kept.advantages[~cut], all_.advantages[~cut])


def test_what_a_mask_leaves_out_counts_in_the_mean_of_its_group():
  r = cases.rollouts()
  cfg = cases.settings(keep="token", keep_high=1.0)
  batch, plain = cases.prepare(r, cfg), cases.prepare(r, cases.settings())
  out = cases.replace(cases.outputs(r), logprobs=r.old_logprobs)
  found = coefficients.gradient_coefficient(grpo.OBJECTIVE, out, batch, cfg)
  ratio = jnp.exp(r.old_logprobs - r.sampler_logprobs)
  expected = jnp.where(ratio <= 1.0, plain.weights * plain.advantages, 0.0)
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  assert 0 < jnp.mean(expected[plain.mask > 0] == 0) < 1


def test_the_surrogate_of_cispo_is_the_capped_ratio_times_the_advantage():
  """log pi stands in its loss for its gradient; as a value it would fall where a likely token
  becomes likelier.
  """
  objective, cfg, batch, out = cases.case("cispo")
  ratio = jnp.exp(out.logprobs - batch.old_logprobs)
  assert 0 < np.mean(ratio[batch.mask > 0] > 1.2) < 1
  total, count = objective.loss(out, batch, cfg)[1]["surrogate"]
  np.testing.assert_allclose(
    total, jnp.sum(batch.weights * jnp.minimum(ratio, 1.2) * batch.advantages), rtol=1e-5
  )
  np.testing.assert_allclose(count, jnp.sum(batch.weights), rtol=1e-6)


def test_mismatch_metrics_are_reported_without_the_correction():
  objective, cfg, batch, out = cases.case("grpo")
  metrics = objective.loss(out, batch, cfg)[1]
  weight = np.exp(np.asarray(batch.old_logprobs - batch.sampler_logprobs))[
    np.asarray(batch.mask) > 0
  ]
  np.testing.assert_allclose(
    metrics["mismatch"][0] / metrics["mismatch"][1], weight.mean(), rtol=1e-5
  )
  np.testing.assert_allclose(metrics["mismatch_max"][0], weight.max(), rtol=1e-5)


def test_what_no_sampler_made_has_no_mismatch():
  for name in ("sft", "dpo"):
    objective, cfg, batch, out = cases.case(name)
    assert not [k for k in objective.loss(out, batch, cfg)[1] if k.startswith("mismatch")]


@pytest.mark.parametrize(
  "name",
  [
    *("grpo", "gspo", "gmpo", "cispo", "sapo", "kimi", "clip_cov", "kl_cov"),
    *("rpg reverse", "ppo", "target_prob", "distill", "rft"),
  ],
)
def test_every_objective_on_samples_takes_the_mismatch_correction(name):
  objective, _, batch, out = cases.case(name)
  old = out.logprobs if batch.old_logprobs is None else batch.old_logprobs
  batch = cases.replace(batch, sampler_logprobs=old - jnp.log(1.5))
  without_kl = {key: 0.0 for key in ("beta", "penalty") if key in objective.settings()}
  changes = cases.CASES[name][1] | without_kl  # a KL has no weight
  plain, weighted = (
    coefficients.gradient_coefficient(
      objective, out, batch, cases.settings(objective, **changes | {"mismatch": m})
    )
    for m in ("none", "token")
  )
  assert jnp.abs(plain).max() > 0
  np.testing.assert_allclose(weighted, 1.5 * plain, rtol=1e-5)


def test_a_group_s_advantages_are_relative():
  r = cases.rollouts(process=True)
  a = cases.prepare(r, cases.settings(scale="none")).advantages
  shifted = cases.prepare(
    cases.replace(r, rewards=r.rewards + 5.0), cases.settings(scale="none")
  ).advantages
  np.testing.assert_allclose(a, shifted, atol=1e-5)
  first = a[..., 0].sum(1)  # each completion's steps add up in its first token, all of them to 0
  np.testing.assert_allclose(first, 0.0, atol=1e-5)


def test_several_rewards_are_normalised_apart():
  r = cases.rollouts()
  cfg = cases.settings(advantage="gdpo", reward_weights=(1.0, 0.0))
  scaled = cases.replace(r, components=r.components * jnp.array([7.0, 100.0]) + 3.0)
  a, b = cases.prepare(r, cfg).advantages, cases.prepare(scaled, cfg).advantages
  np.testing.assert_allclose(a, b, atol=2e-3)


@pytest.mark.parametrize("name", [n for n in ALL if "live" in cases.CASES[n][0].OBJECTIVE.data])
def test_which_groups_are_flat_is_known_before_any_other_pass(name):
  objective, changes = cases.CASES[name]
  added = ("old_logprobs", "old_entropy", "old_sum_of_squares", "old_values", "ref_logprobs")
  sampled = cases.replace(cases.rollouts(), **dict.fromkeys(added))
  flat = cases.configured(objective, **changes).flat(sampled)
  assert flat.shape == (4,) and flat.dtype == bool
