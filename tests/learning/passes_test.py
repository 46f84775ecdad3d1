"""Forward passes of trees that are not trained."""

import functools

import jax
import numpy as np
import optax
import pytest
import tiny
from learn_test import TEMPERATURE, Bigrams, table

from grpo_jax.errors import SettingError
from grpo_jax.learning import passes
from grpo_jax.objectives import gkd, rft
from grpo_jax.packing.plan import Packing


def setup(**learner):
  cfg = tiny.section("learner", chunk=64, **learner)
  return passes.Setup(Bigrams(tiny.layout()), tiny.objective(gkd), optax.sgd(1.0), cfg, TEMPERATURE)


def test_the_teachers_states_predict_each_token():
  """Their logits are those of its log-probs, whatever the microbatches and rows."""
  r, real = tiny.rollouts(), tiny.real(tiny.rollouts())
  teacher = jax.tree.map(jax.numpy.asarray, table(1))
  want = passes.frozen_outputs(setup(), {"policy": teacher}, r, Packing()).logprobs
  for microbatch in (0, 2):
    s = setup(microbatch=microbatch)
    count = passes.microbatches_of_rollout(s.cfg, tiny.P)
    packing = tiny.packing(r, tiny.ONE, count)
    states = jax.jit(functools.partial(passes.teacher_hidden, s))(teacher, r, packing)
    assert states.shape == (*r.tokens.shape, 8)
    logp = jax.nn.log_softmax(states @ teacher["unembed"].T / TEMPERATURE)
    got = np.take_along_axis(np.asarray(logp), r.tokens[..., None], -1)[..., 0]
    np.testing.assert_allclose(got[real], want[real], atol=1e-5)


@pytest.mark.parametrize("rule", ["stop_reached", "stop_surrogate", "stop_kl"])
def test_a_rule_needs_a_ratio(rule):
  cfg = tiny.section("learner", mu=2, **{rule: 0.1})
  with pytest.raises(SettingError, match=f"learner.{rule}=0.1: rft has no ratio"):
    passes.Setup(None, tiny.objective(rft), None, cfg, TEMPERATURE)


@pytest.mark.parametrize("rule", ["stop_reached", "stop_surrogate", "stop_kl"])
def test_a_rule_needs_several_passes(rule):
  cfg = tiny.section("learner", mu=1, minibatches=2, **{rule: 0.1})
  with pytest.raises(SettingError, match=f"learner.{rule}=0.1 with learner.mu=1"):
    passes.Setup(None, tiny.objective(), None, cfg, TEMPERATURE)
