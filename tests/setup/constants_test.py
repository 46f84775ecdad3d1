"""Terms of a loss that have no gradient."""

import jax
import jax.numpy as jnp
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.setup import constants

stop = jax.lax.stop_gradient


@pytest.mark.parametrize("name", sorted(cases.CASES))
def test_no_objective_of_the_folder_has_one(name):
  objective, cfg, batch, out = cases.case(name)
  constants.check(name, objective.loss, out, batch, cfg)


# token losses of outputs o and batch b, and what is said of them
TERMS = {
  "old policy's KL": (
    lambda o, b: 0.1 * jnp.exp(b.ref_logprobs - b.old_logprobs) - o.logprobs,
    "adds a term of batch.old_logprobs and batch.ref_logprobs alone",
  ),
  "under a condition": (
    lambda o, b: -o.logprobs - jnp.clip(b.advantages, -1, 1),
    "adds a term of batch.advantages alone",
  ),
  "in a function of its own": (
    lambda o, b: jax.jit(lambda x: x - b.sampler_logprobs)(o.logprobs),
    "adds a term of batch.sampler_logprobs alone",
  ),
  "the entropy, detached": (
    lambda o, b: -o.logprobs - b.advantages * stop(o.entropy),
    "adds a term of batch.advantages and outputs.entropy alone",
  ),
  "nothing else": (lambda o, b: b.advantages, "has no gradient: it should depend on outputs"),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_that_trains_nothing_is_refused(name):
  token_loss, said = TERMS[name]
  _, cfg, batch, out = cases.case("grpo weighted")
  with pytest.raises(SettingError, match=said):
    constants.check(
      "own.py", lambda o, b, _: (jnp.sum(b.weights * token_loss(o, b)), {}), out, batch, cfg
    )


@pytest.mark.parametrize(
  "token_loss",
  [
    lambda o, b: -o.entropy - b.advantages * o.logprobs + 1.0,
    lambda o, b: (o.logprobs - b.old_logprobs) ** 2 / 2,  # a square is not a sum
    lambda o, b: jnp.where(b.mask > 0, b.advantages, 0.0) * (o.logprobs / 3.0),
    lambda o, b: 2.0 * stop(jnp.abs(b.advantages)) - o.logprobs,  # only reported
  ],
)
def test_factors_constants_and_what_is_only_reported_are_let_through(token_loss):
  _, cfg, batch, out = cases.case("grpo weighted")
  constants.check("own.py", lambda o, b, _: (jnp.sum(token_loss(o, b)), {}), out, batch, cfg)
