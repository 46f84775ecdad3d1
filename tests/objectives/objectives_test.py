"""What holds for every objective (finite differences, microbatches, masks), and what is each one's
own.
"""

import functools
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import advantages as named
from grpo_jax.objectives import (
  base,
  cispo,
  coefficients,
  common,
  distill,
  dpo,
  grpo,
  gspo,
  ppo,
  process_reward_model,
  reward_model,
  rft,
  rpg,
  target_prob,
)
from grpo_jax.objectives.base import Needs
from grpo_jax.ops import advantages, masked
from grpo_jax.setup import registry
from grpo_jax.types import STOPPED, TRUNCATED, Outputs

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

    def loss(lp, values):
      return objective.loss(cases.with_parts(out, lp, values), batch, cfg)[0]

    slopes = jax.grad(loss, (0, 1))(*cases.parts(out))
    frozen = Frozen()
    monkeypatch.setattr(jax.lax, "stop_gradient", frozen)
    loss(*cases.parts(out))

    def along(direction, which):
      ends = []
      for h in (1e-6, -1e-6):
        frozen.next = 0
        point = [*cases.parts(out)]
        point[which] = point[which] + h * direction
        ends.append(float(loss(*point)))
      return (ends[0] - ends[1]) / 2e-6

    rng = np.random.default_rng(0)
    for which in (0, 1):
      for _ in range(3):
        direction = rng.normal(size=batch.mask.shape)
        np.testing.assert_allclose(
          along(direction, which), jnp.vdot(slopes[which], direction), rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("name", ALL)
def test_slices_add_up_to_the_whole(name):
  """Loss, gradient and metrics of the batch in slices along P are those of the batch at once."""
  objective, cfg, batch, out = cases.case(name)

  @jax.jit
  def run(batch, out):
    def of(lp, values):
      return objective.loss(cases.with_parts(out, lp, values), batch, cfg)

    return jax.value_and_grad(of, (0, 1), has_aux=True)(*cases.parts(out))

  (whole, metrics), slopes = run(batch, out)
  each = [run(*(cases.rows(x, np.array([i])) for x in (batch, out))) for i in range(4)]
  np.testing.assert_allclose(sum(p[0][0] for p in each), whole, rtol=1e-5, atol=1e-6)
  for k in (0, 1):
    np.testing.assert_allclose(
      np.concatenate([p[1][k] for p in each]), slopes[k], rtol=1e-5, atol=1e-8
    )
  for key, (total, count) in metrics.items():
    if key.endswith("_max"):
      np.testing.assert_allclose(max(p[0][1][key][0] for p in each), total, rtol=1e-6)
    else:
      np.testing.assert_allclose(
        sum(p[0][1][key][0] for p in each), total, rtol=1e-4, atol=1e-5, err_msg=key
      )
      np.testing.assert_allclose(sum(p[0][1][key][1] for p in each), count, rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_devices_change_nothing(name):
  """`prepare`, loss and gradient with prompts and samples of a group on four devices are those of
  one.
  """
  objective, cfg, r = cases.given(name)

  @jax.jit
  def run(r, out):
    batch = cases.prepare(r, cfg)

    def of(lp, values):
      return objective.loss(cases.with_parts(out, lp, values), batch, cfg)[0]

    return jax.value_and_grad(of, (0, 1))(*cases.parts(out))

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
    return jax.value_and_grad(
      lambda lp, values: objective.loss(cases.with_parts(o, lp, values), b, cfg), has_aux=True
    )(*cases.parts(o))

  (value, metrics), slope = run(out, batch)
  (dirty_value, dirty_metrics), dirty_slope = run(dirty, dirty_batch)
  np.testing.assert_array_equal(dirty_value, value)
  np.testing.assert_array_equal(dirty_slope, slope)
  jax.tree.map(np.testing.assert_array_equal, dirty_metrics, metrics)
  if name != "process_reward_model":
    np.testing.assert_array_equal(jnp.where(batch.mask > 0, 0.0, slope), 0.0)


@pytest.mark.parametrize("name", ALL)
def test_rows_that_only_fill_the_batch_change_nothing(name):
  objective, cfg, r = cases.given(name)
  filled = cases.replace(r, lengths=r.lengths.at[3:].set(0), given=r.given.at[3:].set(False))
  short = cases.rows(r, slice(0, 3))
  out = cases.predictions(objective, r)
  loss = jax.jit(lambda r, o: objective.loss(o, cases.prepare(r, cfg), cfg)[0])
  one, two = loss(filled, out), loss(short, cases.rows(out, slice(0, 3)))
  np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


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


NAMED = (
  "aggregation",
  "baseline",
  "scale",
  "kl_estimator",
  "mismatch",
  "mismatch_level",
  "divergence",
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
  "advantage": ("prefix_credit", {}),
  "baseline": ("leave_one_out", {"scale": "none"}),
  "scale": ("batch", {}),
  "ddof": (0, {}),
  "eps": (0.1, {}),
  "reward_weights": ((1.0, 3.0), {"advantage": "gdpo"}),
  "beta": (0.2, {}),
  "kl_estimator": ("k2", {"beta": 0.1}),
  "kl_weighted": (True, {"beta": 0.1}),
  "kl_in_reward": (True, {"beta": 0.1}),
  "kl_past_bound": (False, {"beta": 0.1}),
  "divergence": ("forward", {"beta": 0.1}),
  "clip_low": (0.5, {}),
  "clip_high": (0.01, {}),
  "clip_delta": (1.21, {}),
  "token_level": (True, {}),
  "gamma": (0.5, {}),
  "lam": (0.5, {}),
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
  "mismatch": ("truncate", {}),
  "mismatch_level": ("sequence", {"mismatch": "truncate"}),
  "mismatch_cap": (1.1, {"mismatch": "truncate"}),
}
EACH = (
  *(
    "grpo process",
    "gspo",
    "cispo",
    "rpg reverse",
    "ppo",
    "target_prob",
    "sft",
    "rft",
    "dpo",
    "distill",
  ),
  *("distill_offline", "reward_model", "process_reward_model"),
)


@pytest.mark.parametrize("name", EACH)
def test_an_objective_reads_every_setting_that_it_has(name):
  """Each changes the loss or its gradient, so none can be set in vain."""
  objective, _, _ = cases.given(name)
  r = cases.rollouts(process=name not in cases.PAIRS, G=2 if name in cases.PAIRS else 4)

  @functools.cache
  def found(**changes):
    cfg = cases.settings(objective, **changes)
    batch = cases.prepare(r, cfg)
    value, slope = jax.value_and_grad(lambda out: objective.loss(out, batch, cfg)[0])(
      cases.scores(r) if objective.trains_reward_model else cases.outputs(r, spread=1.0)
    )
    return np.concatenate([jnp.ravel(x) for x in (value, *cases.parts(slope))])

  for setting in objective.settings():
    other, base = OTHER[setting]
    assert not np.array_equal(found(**base | {setting: other}), found(**base)), setting


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


def test_targets_of_a_context_that_a_left_out_completion_shares():
  """Both tokens of one context are good; the second was also sampled by a truncated completion,
  which is left out.
  """
  r = cases.rollouts(P=1, G=3, L=1)
  p = jnp.array([0.5, 0.4, 0.4]).reshape(1, 3, 1)
  r = cases.replace(
    r,
    tokens=jnp.array([1, 2, 2]).reshape(1, 3, 1),
    lengths=jnp.ones((1, 3), int),
    ended=jnp.array([[STOPPED, STOPPED, TRUNCATED]]),
    rewards=jnp.array([1.0, 1.0, 0.0]).reshape(1, 3, 1),
    given=jnp.ones((1, 3, 1), bool),
    old_logprobs=jnp.log(p),
  )
  batch = cases.prepare(r, cases.settings(target_prob, mask_truncated=True))
  c = 0.1 / (np.sqrt(0.5) - 0.5 + np.sqrt(0.4) - 0.4)
  want = [1 + c * (np.sqrt(q) / q - 1) for q in (0.5, 0.4)]
  np.testing.assert_allclose(batch.extra["upper"][0, :2, 0], want, rtol=1e-5)
  np.testing.assert_array_equal(batch.advantages[0, :, 0], [1, 1, 0])


def test_a_sequence_is_not_at_its_bound_because_its_tokens_are_certain():
  """Three of four tokens cannot become likelier; the completion, which is what GSPO clips, can."""
  r = cases.rollouts(P=1, G=1, L=4)
  old = jnp.log(jnp.array([0.9995, 0.9992, 0.9999, 0.3])).reshape(1, 1, 4)
  r = cases.replace(r, lengths=jnp.full((1, 1), 4), old_logprobs=old)
  out = cases.replace(cases.outputs(r), logprobs=old)
  for objective, at in ((grpo, 0.75), (gspo, 0.0)):
    cfg = cases.settings(objective, clip_low=0.2, clip_high=0.2)
    batch = cases.replace(cases.prepare(r, cfg), advantages=jnp.ones((1, 1, 4)))
    total, count = objective.loss(out, batch, cfg)[1]["at_bound"]
    assert total / count == pytest.approx(at)


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


def test_the_stop_token_is_trained_and_counts():
  r = cases.rollouts()
  batch = cases.prepare(r, cases.settings())
  np.testing.assert_array_equal(batch.mask.sum(2), r.lengths)
  last = common.last_token(r.lengths, 6)
  np.testing.assert_array_equal(batch.mask[last], 1.0)
  assert np.all(np.asarray(batch.advantages[last]) != 0)


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


def test_cispo_has_a_cap_and_no_lower_bound():
  _, cfg, batch, _ = cases.case("cispo")
  assert cispo.bounds(batch, cfg) == (0.0, 1.2)


@pytest.mark.parametrize(
  "name", ["grpo", "gspo", "cispo", "rpg reverse", "ppo", "target_prob", "distill", "rft"]
)
def test_every_objective_on_samples_takes_the_mismatch_correction(name):
  objective, _, batch, out = cases.case(name)
  old = out.logprobs if batch.old_logprobs is None else batch.old_logprobs
  batch = cases.replace(batch, sampler_logprobs=old - jnp.log(1.5))
  changes = cases.CASES[name][1] | ({"beta": 0.0} if "beta" in objective.settings() else {})
  plain, weighted = (
    coefficients.gradient_coefficient(
      objective, out, batch, cases.settings(objective, **changes | {"mismatch": m})
    )
    for m in ("none", "truncate")
  )
  assert jnp.abs(plain).max() > 0
  np.testing.assert_allclose(weighted, 1.5 * plain, rtol=1e-5)


def test_the_mismatch_correction_weighs_the_surrogate_and_not_the_kl():
  _, _, batch, out = cases.case("grpo")
  batch = cases.replace(batch, sampler_logprobs=batch.old_logprobs - jnp.log(1.5))
  on, off = cases.settings(mismatch="truncate"), cases.settings()
  plain, weighted = (grpo.loss(out, batch, c)[0] for c in (off, on))
  np.testing.assert_allclose(weighted, 1.5 * plain, rtol=1e-5)
  plain_kl, weighted_kl = (
    grpo.loss(
      out,
      cases.replace(batch, advantages=0 * batch.advantages),
      cases.settings(beta=1.0, mismatch=m),
    )[0]
    for m in ("none", "truncate")
  )
  np.testing.assert_allclose(plain_kl, weighted_kl, rtol=1e-6)


def test_gspo_token_has_the_value_and_gradient_of_gspo_for_one_advantage_a_completion():
  _, _, batch, out = cases.case("gspo")
  a, b = (
    jax.value_and_grad(
      lambda lp, cfg=cfg: gspo.loss(cases.replace(out, logprobs=lp), batch, cfg)[0]
    )(out.logprobs)
    for cfg in (
      cases.settings(gspo, token_level=t, clip_low=0.2, clip_high=0.2) for t in (False, True)
    )
  )
  np.testing.assert_allclose(a[0], b[0], rtol=1e-6)
  np.testing.assert_allclose(a[1], b[1], rtol=1e-4, atol=1e-7)


def test_dpo_is_the_written_out_loop():
  _, _, batch, out = cases.case("dpo")
  loss, metrics = dpo.loss(out, batch, cases.settings(dpo, beta=0.3))
  total = 0.0
  for pair in range(4):
    h = [0.0, 0.0]
    for side in range(2):
      for t in range(int(batch.lengths[pair, side])):
        h[side] += float(out.logprobs[pair, side, t]) - float(batch.ref_logprobs[pair, side, t])
    total -= np.log(1 / (1 + np.exp(-0.3 * (h[0] - h[1]))))
  np.testing.assert_allclose(loss, total / 4, rtol=1e-5)
  assert metrics["pair_accuracy"][1] == 4.0


def test_ppo_rewards_returns_and_bootstrap():
  """One completion cut off and one that stopped, by a written-out loop."""
  r = cases.rollouts(P=1, G=2, L=6, seed=3)
  r = cases.replace(r, lengths=jnp.array([[6, 3]]), ended=jnp.array([[0, 1]]))
  r = cases.replace(r, given=common.last_token(r.lengths, 6))
  cfg = cases.settings(ppo, beta=0.2, gamma=0.9, lam=0.8, whiten=False)
  batch = cases.prepare(r, cfg)
  for g, n, cut in ((0, 6, True), (1, 3, False)):
    v = np.asarray(r.old_values[0, g], np.float64)
    reward = -0.2 * np.asarray(r.old_logprobs - r.ref_logprobs, np.float64)[0, g]
    reward[n - 1] += float(r.rewards[0, g, n - 1])
    following = [*v[1:n], v[n - 1] if cut else 0.0]
    a = 0.0
    for t in reversed(range(n)):
      a = reward[t] + 0.9 * following[t] - v[t] + 0.9 * 0.8 * a
      np.testing.assert_allclose(batch.advantages[0, g, t], a, rtol=1e-5)
      np.testing.assert_allclose(batch.extra["returns"][0, g, t], a + v[t], rtol=1e-5, atol=1e-6)


def test_the_targets_of_ppo_s_critic_come_from_advantages_before_they_are_whitened():
  r = cases.rollouts()
  whitened, plain = (
    cases.prepare(r, cases.settings(ppo, whiten=whiten)) for whiten in (True, False)
  )
  np.testing.assert_array_equal(whitened.extra["returns"], plain.extra["returns"])
  mean, std = (
    np.mean(plain.advantages[plain.mask > 0]),
    np.std(plain.advantages[plain.mask > 0], ddof=1),
  )
  np.testing.assert_allclose(
    whitened.advantages, (plain.advantages - mean) / std * plain.mask, atol=1e-5
  )


def test_a_process_reward_model_learns_from_the_last_tokens_of_steps_alone():
  """Sum over labelled steps of the cross-entropy of sigma(value) with the label, over |steps| N."""
  r = cases.rollouts(process=True)
  out = cases.scores(r)
  cfg = cases.settings(process_reward_model)
  batch = cases.prepare(r, cfg)
  np.testing.assert_array_equal(batch.mask, r.given)
  p, y = 1 / (1 + np.exp(-np.asarray(out.scores, np.float64))), np.asarray(r.rewards, np.float64)
  entropy = -(y * np.log(p) + (1 - y) * np.log(1 - p))
  want = np.mean(np.mean(entropy, axis=2, where=np.asarray(r.given)))
  np.testing.assert_allclose(process_reward_model.loss(out, batch, cfg)[0], want, rtol=1e-5)


def test_a_completion_at_the_threshold_is_not_correct():
  r = cases.rollouts(P=1, G=3)
  r = cases.replace(r, rewards=jnp.zeros((1, 3, 6)).at[0, :, 0].set(jnp.array([0.25, 0.5, 0.75])))
  r = cases.replace(r, given=jnp.zeros((1, 3, 6), bool).at[:, :, 0].set(True))
  cfg = cases.settings(rft, threshold=0.5)
  np.testing.assert_array_equal(cases.prepare(r, cfg).advantages[0, :, 0], [0.0, 0.0, 1.0])
  lower = cases.replace(r, rewards=r.rewards * 2 / 3)
  assert not rft.flat(r, cfg, None)[0] and rft.flat(lower, cfg, None)[0]


def test_kl_metrics_are_of_the_policy_that_sampled():
  """E over samples of q of expm1(d) - d, d = log p - log q, is KL(q || p): q = pi_old against pi,
  the sampler against
  pi_old."""
  old, new, sampler = (jnp.log(jnp.array([p])) for p in (0.5, 0.25, 0.8))
  batch = cases.one_token_batch(old, jnp.ones(1), jnp.ones(1), old=old)
  batch = cases.replace(batch, sampler_logprobs=sampler[:, None, None])
  out = Outputs(new[:, None, None], jnp.zeros((1, 1, 1)))
  found = grpo.loss(out, batch, cases.settings(grpo))[1]
  np.testing.assert_allclose(found["old_kl"][0], 0.5 - 1 - np.log(0.5), rtol=1e-5)
  np.testing.assert_allclose(found["mismatch_kl"][0], 0.625 - 1 - np.log(0.625), rtol=1e-5)


def test_step_returns_compare_with_the_completions_that_are_there():
  """Rewards 1 and 0 of two completions: the mean is 1/2, whatever lies in the rows that only fill
  the group.
  """
  r = cases.rollouts(P=1, G=4)
  lengths = jnp.array([[2, 2, 0, 0]])
  last = common.last_token(lengths, 6)
  r = cases.replace(
    r, lengths=lengths, given=last, rewards=last * jnp.array([1.0, 0.0, 9.0, 9.0])[:, None]
  )
  found = named.step_returns(r, scale="none", ddof=1, eps=1e-4)
  np.testing.assert_allclose(found[0, :, 0], [0.5, -0.5, 0.0, 0.0])


def test_ppo_value_loss_is_the_larger_of_clipped_and_not():
  values, old, returns = jnp.array([1.0, 0.1, -1.0]), jnp.zeros(3), jnp.array([2.0, 2.0, 0.0])
  np.testing.assert_allclose(
    ppo.value_loss(values, old, returns, 0.2), [1.62, 1.805, 0.5], rtol=1e-6
  )
  np.testing.assert_allclose(
    ppo.value_loss(values, old, returns, 0.0), [0.5, 1.805, 0.5], rtol=1e-6
  )


def test_ppo_with_group_baseline_takes_the_mean_off_the_score_only():
  r = cases.rollouts()
  cfg = cases.settings(ppo, group_baseline=True)
  rewards = ppo.token_rewards(r, cfg)
  scores = advantages.totals(r.rewards, r.given)
  np.testing.assert_allclose(rewards.sum(2), scores - scores.mean(1, keepdims=True), atol=1e-6)


def test_targets_where_samples_share_a_context():
  """Three good tokens and a bad one after one prefix, each of probability 1/4: footnote 3 of the
  seed.
  """
  tokens = jnp.arange(4)[None, :, None]
  lengths, p = jnp.ones((1, 4), int), jnp.full((1, 4, 1), 0.25)
  signs = jnp.array([1.0, 1.0, 1.0, -1.0])[None, :, None]
  net, target = target_prob.targets(tokens, lengths, signs, p)
  np.testing.assert_array_equal(net, signs)
  np.testing.assert_allclose(target[0, 3, 0], 1 / 16)
  np.testing.assert_allclose(target[0, :3, 0], (1 - 1 / 16) / 3, rtol=1e-6)
  assert np.all(np.asarray(target[0, :3, 0]) > 0.25)


def test_targets_take_the_net_sign_and_count_a_token_once():
  tokens = jnp.array([[[5, 1], [5, 2], [5, 2], [6, 1]]])
  lengths = jnp.full((1, 4), 2)
  signs = jnp.array([[[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]]])
  p = jnp.array([[[0.6, 0.2], [0.6, 0.5], [0.6, 0.5], [0.2, 0.3]]])
  net, target = target_prob.targets(tokens, lengths, signs, p)
  np.testing.assert_array_equal(net[0], [[1, 1], [1, 0], [1, 0], [-1, -1]])
  # After the prompt: 5 is good (sqrt .6 = .775 fits beside .2^2), 6 is bad. After 5: 1 is good, 2
  # is undecided.
  np.testing.assert_allclose(target[0, :, 0], [0.6**0.5] * 3 + [0.04], rtol=1e-6)
  np.testing.assert_allclose(target[0, :, 1], [0.2**0.5, 0.5, 0.5, 0.09], rtol=1e-6)


def test_targets_of_one_sample_a_context_are_root_and_square():
  r = cases.rollouts(G=1)
  p = jnp.exp(r.old_logprobs)
  signs = jnp.where(jnp.arange(6) % 2 == 0, 1.0, -1.0) * masked.length_mask(r.lengths, 6)
  _, target = target_prob.targets(r.tokens, r.lengths, signs, p)
  np.testing.assert_allclose(
    target, jnp.where(signs > 0, jnp.sqrt(p), jnp.where(signs < 0, p**2, p)), rtol=1e-5
  )


def test_good_targets_of_a_context_never_add_up_to_more_than_one():
  rng = np.random.default_rng(0)
  p = rng.dirichlet(np.ones(8), size=20)[:, :, None]
  signs = rng.choice([-1.0, 0.0, 1.0], size=(20, 8, 1))
  tokens = np.broadcast_to(np.arange(8)[None, :, None], p.shape)
  net, target = map(
    np.asarray, target_prob.targets(*map(jnp.asarray, (tokens, np.ones((20, 8), int), signs, p)))
  )
  good, bad = (target * (net > 0)).sum(1), (target * (net < 0)).sum(1)
  assert np.all(good <= 1 - bad + 1e-5)
  assert np.all(target[net > 0] >= p[net > 0] - 1e-6) and np.all(target[net < 0] <= p[net < 0])


def test_reward_model_reads_the_last_token_only():
  _, _, batch, out = cases.case("reward_model")
  cfg = cases.settings(reward_model)
  slope = jax.grad(lambda out: reward_model.loss(out, batch, cfg)[0])(out).scores
  last = np.asarray(common.last_token(batch.lengths, 6))
  np.testing.assert_array_equal(np.asarray(slope)[~last], 0.0)
  assert np.all(np.asarray(slope)[:, 0].sum(1) < 0) and np.all(np.asarray(slope)[:, 1].sum(1) > 0)


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


def test_prefix_credit_adds_up_to_the_advantage():
  r = cases.rollouts()
  end = common.last_token(r.lengths, 6)
  # no two completions alike
  r = cases.replace(r, tokens=jnp.where(end, 10 + jnp.arange(4)[None, :, None], r.tokens))
  whole, split = (
    cases.prepare(r, cases.settings(advantage=a)).advantages
    for a in ("group_relative", "prefix_credit")
  )
  np.testing.assert_allclose(split.sum(2), whole[..., 0], atol=1e-4)


def test_what_the_two_sided_clip_stops_is_counted_apart():
  """Three bad tokens: below the lower bound, above delta, between."""
  lp, old = jnp.log(jnp.array([0.2, 0.8, 0.5])), jnp.log(jnp.array([0.5, 0.5, 0.5]))
  batch = cases.one_token_batch(lp, -1.0, 1.0, old)
  for objective in (grpo, rpg):
    found = objective.loss(
      cases.one_token_outputs(lp), batch, cases.settings(objective, clip_delta=1.5)
    )[1]
    assert {k: found[k] for k in ("clip_low", "clip_delta", "clip_high")} == {
      "clip_low": (1.0, 3.0),
      "clip_delta": (1.0, 3.0),
      "clip_high": (0.0, 3.0),
    }
    assert (
      "clip_delta"
      not in objective.loss(cases.one_token_outputs(lp), batch, cases.settings(objective))[1]
    )


def test_ppo_is_not_asked_about_settings_of_grpo():
  cfg = cases.section(ppo)
  assert not {"baseline", "scale", "kl_in_reward", "kl_weighted", "advantage"} & set(cfg)
  ppo.check(cfg)  # reads none of them


def test_every_objective_of_the_folder_is_complete():
  folder = pathlib.Path(base.__file__).parent
  names = [
    file.stem for file in folder.glob("*.py") if re.search(r"\nOBJECTIVE = ", file.read_text())
  ]
  assert len(names) > 12
  for name in names:
    registry.objective(name)


def test_the_section_of_another_objective_is_refused_with_the_way_out():
  """As `--config.objective.name=ppo` leaves it, where the section was GRPO's."""
  section = cases.section(grpo)
  section.name = "ppo"
  with pytest.raises(SettingError) as error:
    base.check_names(ppo.OBJECTIVE, section)
  message = str(error.value)
  assert message.startswith("objective.name='ppo': use --config=FILE:objective=ppo, or ")
  assert "the section lacks gamma, group_baseline, " in message
  assert "and has advantage, baseline, ddof, " in message and "which ppo does not read" in message
  assert "use --config=FILE:objective=ppo" in message and "\n" not in message
