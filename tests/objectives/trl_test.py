"""Compares value and gradient with TRL 1.16's GRPOTrainer, on 200 random cases of each family.

TRL's numbers are stored in tests/data/trl.npz. tests/data/make_trl_fixture.py computes them by
TRL's own code, and tests/data/trl_cases.py draws the settings and the inputs. Both sides compute in
float64. Gradients agree to 1e-6 of the largest derivative of their case; 1e-7 is what is seen, the
rounding of the stored numbers and of our weights, which are float32. In float32 our losses, of up
to 3, are as much as 2e-6 away, and our gradients, of up to 0.4, 2e-7.

Both have ddof 1 and eps 1e-4 in their advantages, count truncated completions that are left out
among the completions, and keep the KL on tokens whose A a mask or a weight takes away.

What TRL computes otherwise, and how the cases deal with it:

advantages    A group of equal rewards has advantage 0 exactly here, and rounding noise divided by
              eps in TRL. In float64 that is too small to see.
clamps        Log-ratios are cut to [-20, 20] here, and log pi_ref - log pi at 20. TRL cuts neither.
              In VESPO it cuts the log-ratio of a token to [-20, 20], log W to [log 1e-8, 20], and
              lambda at 1e-4; we cut log W alone, to [-20, 20]. No case goes so far.
k3            It is computed by expm1 here.
bnpo, dapo    In TRL one is a mean over the tokens of a microbatch. The other (and cispo and vespo)
              divides by the tokens of the rollout over the number of its minibatches. All are
              `token_mean` here, over the tokens of the update. A case is one microbatch and one
              minibatch.
luspo         TRL adds up tokens. `aggregation="constant"` divides by `max_length` as well, which is
              1 in these cases.
cispo         TRL's cap is `epsilon_high` itself, ours 1 + clip_high. TRL can also take the
              sequence's ratio, which has no counterpart here.
gspo          TRL's `use_bias_correction_kl` takes the sequence's ratio, our `kl_weighted` the
              token's. No case with the sequence's ratio has it.
vespo         We have no KL there. TRL's W has pi_old / mu after it was truncated by token, ours the
              whole of it. In the cases nothing is truncated.
top_entropy   TRL chooses tokens by the live policy's entropy in each microbatch, we by the old
              policy's in the whole batch. A case has one entropy and is one microbatch. Of n tokens
              TRL keeps 1 + floor(q (n - 1)), since its quantile interpolates, and we keep
              ceil(q n), which is one more for some n; our share is smaller there. With the
              sequence's ratio TRL leaves tokens out of the sum whose log-probs still move the
              ratio; our `gspo` refuses that.
token_mask    The same: no case has the sequence's ratio.
off_policy    TRL keeps completions with a mean of log mu - log pi of at most the threshold, we
              those with a geometric mean of pi / mu of at least e^-threshold. Without vLLM TRL
              compares with pi_old, which is mu in those cases. TRL can combine this mask with a
              mode that masks; `keep` is one rule, so no case does.
"""

import functools
import math
import pathlib

import jax
import jax.numpy as jnp
import make_trl_fixture as maker
import numpy as np
import objective_cases
import pytest
import trl_cases

from grpo_jax.objectives import cispo, grpo, gspo, sapo, vespo
from grpo_jax.types import STOPPED, TRUNCATED, Outputs, Prompts, Rollouts

STORED = dict(np.load(pathlib.Path(__file__).parents[1] / "data" / "trl.npz"))
AGGREGATION = {
  "grpo": "sequence_mean",
  "sapo": "sequence_mean",
  "bnpo": "token_mean",
  "dapo": "token_mean",
  "cispo": "token_mean",
  "vespo": "token_mean",
  "dr_grpo": "constant",
  "luspo": "constant",
}
NO_CLIP = dict(epsilon=1.0, epsilon_high=1e6, delta=None)
OFF = {  # settings without what a family is about
  **dict.fromkeys(("grpo", "bnpo", "dapo", "dr_grpo", "gspo", "luspo", "cispo"), NO_CLIP),
  "sapo": dict(sapo_temperature_pos=1e-3, sapo_temperature_neg=1e-3),
  "vespo": {f"vespo_{x}_{sign}": 0.0 for x in ("k", "lambda") for sign in ("pos", "neg")},
  "gdpo": dict(multi_objective_aggregation="sum_then_normalize"),
  "top_entropy": dict(top_entropy_quantile=1.0),
  "off_policy_mask": dict(off_policy_mask_threshold=None),
}
NO_WEIGHT = dict(vllm_importance_sampling_correction=False)  # of the modes


# -- ours


def configured(trl, tokens):
  """Returns our objective with the settings that compute what `trl` does with `tokens` tokens."""
  loss_type = trl["loss_type"]
  by_sequence = trl["importance_sampling_level"] == "sequence"
  objectives = {"cispo": cispo, "sapo": sapo, "vespo": vespo}
  objective = objectives.get(loss_type, gspo if by_sequence else grpo)
  changes = dict(
    aggregation=AGGREGATION[loss_type],
    max_length=1 if loss_type == "luspo" else trl_cases.LENGTH,
    scale=trl["scale_rewards"],
    mask_truncated=trl["mask_truncated_completions"],
  )
  if trl["multi_objective_aggregation"] == "normalize_then_sum":
    changes |= dict(advantage="gdpo", reward_weights=trl["reward_weights"], scale="group")
  if objective is vespo:
    return objective_cases.configured(objective, **changes, **gamma_weight(trl))
  changes |= dict(beta=trl["beta"], kl_weighted=trl["use_bias_correction_kl"])
  changes |= surrogate(objective, trl) | mismatch(trl)
  if trl["top_entropy_quantile"] < 1.0:
    changes["top_entropy"] = share(trl["top_entropy_quantile"], tokens)
  return objective_cases.configured(objective, **changes)


def gamma_weight(trl):
  """Returns the settings of VESPO's weight."""
  signs = (("pos", "positive"), ("neg", "negative"))
  powers = {f"k_{name}": trl[f"vespo_k_{sign}"] for sign, name in signs}
  return powers | {f"lam_{name}": trl[f"vespo_lambda_{sign}"] for sign, name in signs}


def surrogate(objective, trl):
  """Returns the bounds or temperatures of the ratio."""
  if objective is cispo:
    return dict(clip_high=trl["epsilon_high"] - 1.0)
  if objective is sapo:
    return dict(tau_positive=trl["sapo_temperature_pos"], tau_negative=trl["sapo_temperature_neg"])
  bounds = dict(clip_low=trl["epsilon"], clip_high=trl["epsilon_high"])
  return bounds | dict(clip_delta=trl["delta"] or 0.0)


def mismatch(trl):
  """Returns the settings of weights and masks for a sampler that differs from the policy."""
  changes = {}
  if trl["off_policy_mask_threshold"] is not None:
    changes |= dict(keep="geometric", keep_low=math.exp(-trl["off_policy_mask_threshold"]))
    changes |= dict(keep_condition="negative", keep_live=True)
  if trl["vllm_importance_sampling_correction"]:
    level, _, action = trl["vllm_importance_sampling_mode"].partition("_")
    low, high = (trl[f"vllm_importance_sampling_clip_{x}"] or 0.0 for x in ("min", "max"))
    if action == "truncate":
      changes |= dict(mismatch=level, mismatch_low=low, mismatch_high=high)
    else:
      changes |= dict(mismatch=level, mismatch_high=0.0, keep=level, keep_low=low, keep_high=high)
  return changes


def share(quantile, tokens):
  """Returns the `top_entropy` that keeps as many of the tokens as TRL's quantile does."""
  kept = 1 + math.floor(quantile * (tokens - 1))
  return quantile if math.ceil(quantile * tokens) == kept else (kept - 0.5) / tokens


def loss_and_gradient(objective, use_vllm, arrays):
  """Returns our loss of one case and its gradient in the log-probs, [P * G, L]."""
  shape = (trl_cases.PROMPTS, trl_cases.GROUP, trl_cases.LENGTH)
  groups = {name: x.reshape(shape[:2] + x.shape[1:]) for name, x in arrays.items()}
  given = jnp.arange(shape[2]) == groups["lengths"][..., None] - 1
  sampler = groups["sampler" if use_vllm else "old"]
  rollouts = Rollouts(
    prompts=Prompts(jnp.zeros((shape[0], 1), int), jnp.ones(shape[0], int)),
    tokens=jnp.zeros(shape, int),
    lengths=groups["lengths"],
    ended=jnp.where(groups["stopped"], STOPPED, TRUNCATED),
    sampler_logprobs=sampler,
    truncated_logprobs=sampler,
    rewards=given * groups["rewards"][..., :1],
    given=given,
    components=groups["rewards"],
    old_logprobs=groups["old"],
    old_entropy=groups["entropy"],
    ref_logprobs=groups["ref"],
  )
  batch = objective.prepare(rollouts)

  def loss(logprobs):
    return objective.loss(Outputs(logprobs, groups["entropy"], jnp.zeros(shape)), batch)[0]

  value, slope = jax.value_and_grad(loss)(groups["logps"])
  return value, slope.reshape(-1, shape[2])


def ours(family, dtype, changes=None, first=trl_cases.SETTINGS):
  """Returns our losses [S, N] and gradients [S, N, P * G, L] under the first settings of a family.

  Nothing is jitted: settings are constants, and compiling for each takes longer than running.
  """
  results = []
  with jax.enable_x64(dtype == np.float64):
    for trl, drawn in trl_cases.cases(family)[:first]:
      objective = configured(trl | (changes or {}), int(drawn["lengths"][0].sum()))
      arrays = {
        name: jnp.asarray(x, dtype if x.dtype == np.float32 else None) for name, x in drawn.items()
      }
      run = jax.vmap(functools.partial(loss_and_gradient, objective, trl["use_vllm"]))
      results.append([np.asarray(x) for x in run(arrays)])
  return [np.stack(x) for x in zip(*results)]


def theirs(family, first=trl_cases.SETTINGS):
  """Returns TRL's losses and gradients, of the same shapes."""
  return STORED[f"{family}/loss"][:first], STORED[f"{family}/gradient"][:first]


def error(gradient, expected):
  """Returns the largest error of each case, by its largest derivative, of at least 1e-3; [S, N]."""
  size = np.maximum(np.abs(expected).max((2, 3)), 1e-3)
  return np.abs(gradient - expected).max((2, 3)) / size


# -- the comparison


@pytest.mark.parametrize("family", trl_cases.FAMILIES)
def test_value_and_gradient_are_those_of_trl(family):
  loss, gradient = ours(family, np.float64)
  expected_loss, expected_gradient = theirs(family)
  assert loss.size == 200
  np.testing.assert_allclose(loss, expected_loss, atol=1e-6, rtol=1e-6)
  np.testing.assert_array_less(error(gradient, expected_gradient), 1e-6)


@pytest.mark.parametrize("family", ["grpo", "gspo", "cispo", "sapo", "vespo"])
def test_float32_adds_only_its_rounding(family):
  """One of the families of each objective."""
  loss, gradient = ours(family, np.float32, first=1)
  expected_loss, expected_gradient = theirs(family, first=1)
  np.testing.assert_allclose(loss, expected_loss, atol=5e-6)
  np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


@pytest.mark.parametrize("family", trl_cases.FAMILIES)
def test_the_cases_exercise_what_their_family_names(family):
  """Without it, the gradients of many cases are others."""
  _, gradient = ours(family, np.float64, OFF.get(family, NO_WEIGHT), first=2)
  differs = error(gradient, theirs(family, first=2)[1]) > 1e-3
  assert np.mean(differs) > 0.4


def test_trl_keeps_at_most_one_high_entropy_token_less():
  """The cases have settings where it does, and others where it keeps as many."""
  fewer = set()
  for trl, arrays in trl_cases.cases("top_entropy"):
    tokens, quantile = int(arrays["lengths"][0].sum()), trl["top_entropy_quantile"]
    fewer.add(math.ceil(quantile * tokens) - (1 + math.floor(quantile * (tokens - 1))))
  assert fewer == {0, 1}


@pytest.mark.parametrize("family", trl_cases.FAMILIES)
def test_the_cases_are_those_whose_numbers_are_stored(family):
  """Numpy may change what a generator draws from a seed; then the numbers have to be made anew."""
  np.testing.assert_allclose(trl_cases.checksum(family), STORED[f"{family}/checksum"], rtol=1e-6)


def test_the_stored_numbers_are_trls():
  pytest.importorskip("torch")
  pytest.importorskip("trl")
  for name, value in maker.make().items():
    np.testing.assert_allclose(value, STORED[name], atol=1e-7, rtol=1e-6, err_msg=name)
