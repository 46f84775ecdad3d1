"""What is wrong in an objective or an advantage of one's own is one line, before weights are read."""

import re
import time

import bad_settings_test
import pytest
from ml_collections import ConfigDict

from experiments import arithmetic, arithmetic_rm, presets
from grpo_jax.errors import SettingError
from grpo_jax.setup import defaults, registry, tracing
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve

ADVANTAGES = """
import jax.numpy as jnp

def of_groups(rollouts): return rollouts.rewards.sum(2)
def of_prompts(rollouts): return rollouts.rewards.sum((1, 2))
def turned(rollouts): return rollouts.rewards.transpose(0, 2, 1)
def unknown(rollouts):
  count = 1
  return rollouts.reward * count
def nothing(rollouts): rollouts.rewards - 1.0
def a_list(rollouts): return [1.0, 2.0]
def number(rollouts): return 1.0
def text(rollouts): return "A"
def complex_numbers(rollouts): return rollouts.rewards + 1j
def on_values(rollouts):
  if rollouts.rewards.sum() > 0:
    return rollouts.rewards
  return -rollouts.rewards
def to_numpy(rollouts):
  import numpy as np
  return np.asarray(rollouts.rewards)
def shapes_differ(rollouts): return rollouts.rewards + rollouts.lengths
def ends(rollouts): raise SystemExit(0)
def by_zero(rollouts):
  r = rollouts.rewards.sum(2)
  return jnp.broadcast_to(((r - r.mean(1, keepdims=True)) / r.std(1, keepdims=True))[..., None], rollouts.tokens.shape)
def by_length(rollouts): return rollouts.rewards / rollouts.lengths[..., None]
def on_a_token(rollouts): return rollouts.rewards.at[1, 0, 0].set(jnp.nan)

def whole_numbers(rollouts): return jnp.ones(rollouts.tokens.shape, jnp.int32)
def half(rollouts): return rollouts.rewards.astype(jnp.bfloat16)
def settings(rollouts, *, eps, more=2.0): return rollouts.rewards * eps * more
"""

SHAPE = "it should return float32 [P, G, L] = [32, 8, 56]"


@pytest.fixture
def own(tmp_path):
  (tmp_path / "own.py").write_text(ADVANTAGES)
  return tmp_path / "own.py"


def refusal(config: ConfigDict) -> str:
  """What `check_settings` says of a config that it refuses; that takes no time in which something
  could be compiled.
  """
  start = time.process_time()
  with pytest.raises(SettingError) as error:
    resolve(config)
  assert (
    "\n" not in str(error.value)
    and len(str(error.value)) < 1000
    and time.process_time() - start < 5
  )
  return str(error.value)


@pytest.mark.parametrize(
  "name, line, says",
  [
    ("of_groups", 4, "returned float32[32, 8], which is [P, G]"),
    ("of_prompts", 5, "returned float32[32], which is [P]"),
    ("turned", 6, "returned float32[32, 56, 8], which is [P, L, G]"),
    ("unknown", 9, "failed, AttributeError: "),
    ("nothing", 10, "returned None: is a `return` missing?"),
    ("a_list", 11, "returned a list"),
    ("number", 12, "returned a float"),
    ("text", 13, "returned a str"),
    ("complex_numbers", 14, "returned complex64[32, 8, 56]"),
    ("on_values", 16, "(jax traces it, so that it sees no values: use jnp.where for an `if`)"),
    ("to_numpy", 21, "(jax traces it, so that it sees no values"),
    ("shapes_differ", 22, "failed, ValueError: Incompatible shapes"),
    ("ends", 23, "failed, SystemExit: 0"),
    (
      "by_zero",
      24,
      "returned NaN or an infinity for a group whose rewards are all equal; it should return "
      "finite",
    ),
    (
      "on_a_token",
      28,
      "returned NaN or an infinity for a group whose rewards differ; it should return finite",
    ),
    (
      "by_length",
      27,
      "returned NaN or an infinity for a group that is empty; it should return finite",
    ),
  ],
)
@pytest.mark.parametrize("objective", ["grpo", "rpg"])
def test_an_advantage_of_ones_own(name, line, says, objective, own):
  said = refusal(bad_settings_test.changed("objective.advantage", f"{own}:{name}", objective))
  assert said.startswith(
    f"objective.advantage='{own}:{name}': the function ({own}, line {line}) "
  ), said
  assert says in said and (SHAPE in said or "finite numbers" in said), said


def test_an_advantage_of_ones_own_cannot_read_the_old_policy(tmp_path):
  """With mu = 2 the learner has its log-probs; dynamic sampling, which asks first, has not."""
  (tmp_path / "own.py").write_text(
    "def own(rollouts): return rollouts.rewards * rollouts.old_logprobs\n"
  )
  config = bad_settings_test.changed("objective.advantage", f"{tmp_path}/own.py:own")
  config.learner.mu = 2
  assert "own.py, line 1) failed, TypeError" in refusal(config)


@pytest.mark.parametrize("name", ["whole_numbers", "half", "settings"])
def test_an_advantage_of_ones_own_that_works(name, own):
  resolve(bad_settings_test.changed("objective.advantage", f"{own}:{name}"))


# The body of a function of an objective, and what is said of it.
FUNCTIONS = {
  "def settings(): return {'a': 1}": "settings (FILE) returned a dict; it should return a ConfigDict",
  "def settings(): return 1 / 0": "settings (FILE) failed, ZeroDivisionError",
  "def settings(beta): return None": "settings (FILE) failed, TypeError",
  "def check(cfg): raise KeyError('x')": "check (FILE) failed, KeyError: 'x' (where that is a setting, `settings` does not give it: add yours",
  "def check(cfg): return cfg.no_such": "check (FILE) failed, AttributeError",
  "def needs(cfg): return ['ref']": "needs (FILE) returned a list; it should return a value of Needs (grpo_jax",
  "def needs(cfg): return {Needs.CRITIC}": "needs (FILE) returned a set; it should return a value of Needs",
  "def needs(cfg): return 1": "needs (FILE) returned an int; it should return a value of Needs",
  "def needs(cfg): pass": "needs (FILE) returned None: is a `return` missing?",
  "def prepare(rollouts, cfg, advantages): return rollouts": "prepare (FILE) returned a Rollouts; it should return a TrainBatch",
  "def prepare(rollouts, cfg, advantages): return grpo.prepare(rollouts, None, advantages)": "prepare (FILE) failed, AttributeError",
  "def prepare(rollouts): return None": "prepare (FILE) failed, TypeError",
  "def prepare(*args): return change(grpo.prepare(*args), mask=args[0].lengths)": (
    "prepare (FILE) returned mask int32[32, 8], which is [P, G]; it should return [P, G, L] = [32, "
    "8, 56]"
  ),
  "def prepare(*args): return change(grpo.prepare(*args), extra={'x': jnp.ones(3)})": (
    "prepare (FILE) returned extra['x'] float32[3]; it should return [P] or [P, G, ...] with P = 32"
  ),
  "def loss(outputs, batch, cfg): return grpo.loss(outputs, batch, cfg)[0]": (
    "loss (FILE) returned float32[]; it should return (loss, metrics): a float32 scalar, and "
    "{name: (total, count)}"
  ),
  "def loss(outputs, batch, cfg): return -outputs.logprobs * batch.weights, {}": (
    "loss (FILE) returned (float32[32, 8, 56], a dict)"
  ),
  "def loss(outputs, batch, cfg): return jnp.sum(batch.lengths), {}": "loss (FILE) returned (int32[], a dict)",
  "def loss(outputs, batch, cfg): return jnp.sum(outputs.logprobs), {'mine': 1.0}": (
    "loss (FILE) returned the metric 'mine' as a float"
  ),
  "def loss(outputs, batch, cfg): return jnp.sum(outputs.logprobs), {'mine': (outputs.entropy, 1.0)}": (
    "loss (FILE) returned the metric 'mine' as (float32[32, 8, 56], a float)"
  ),
  "def loss(outputs, batch, cfg): return jnp.sum(outputs.logprobs), None": "loss (FILE) returned (float32[], None)",
  "def loss(outputs, batch, cfg): return jnp.sum(outputs.values), {}": "loss (FILE) failed, ",
  "def loss(outputs, batch, cfg): return cfg.no_such * jnp.sum(outputs.logprobs), {}": (
    "loss (FILE) failed, AttributeError: \"'no_such'\" (where that is a setting, `settings` does not "
    "give it: add yours to those of the objective whose loss it is, as in c = grpo.settings())"
  ),
  "def loss(outputs, batch, cfg): return cfg.clip_hi * jnp.sum(outputs.logprobs), {}": (
    "loss (FILE) failed, AttributeError: '\\'clip_hi\\'\\nDid you mean \"clip_high\" instead of "
    '"clip_hi"?\' (where that is a setting'
  ),
  "def loss(outputs, batch, cfg): return jnp.sum(outputs.logprobs - batch.old_logprobs), {}": (
    "loss (FILE) failed, TypeError: unsupported operand type(s) for -: 'DynamicJaxprTracer' and "
    "'NoneType' (batch.old_logprobs is None in a single update by the policy that sampled: use "
    "common.policies)"
  ),
  "def loss(outputs, batch, cfg): return jnp.sum(outputs.logprobs - batch.ref_logprobs), {}": (
    "loss (FILE) failed, TypeError: unsupported operand type(s) for -: 'DynamicJaxprTracer' and "
    "'NoneType'; it should return"
  ),
  "def loss(outputs, batch, cfg): return jnp.sum(outputs.logprobs), {'reward/future': (1.0, 1.0)}": (
    "its loss returns the metric 'reward/future', and names that begin with reward/ are a run's own"
  ),
  "def loss(outputs, batch, cfg): return jnp.sum(outputs.logprobs), {'moved_nats': (1.0, 1.0)}": (
    "its loss returns the metric 'moved_nats', and a run has one itself; give it another name"
  ),
  "def loss(outputs, batch, cfg): return jnp.sum(no_gradient(outputs.logprobs)), {}": "loss (FILE) failed, ",
  "def loss(outputs, batch, cfg): return -jnp.sum(batch.weights * batch.advantages), {}": (
    "loss (FILE) has no gradient: it should depend on outputs.logprobs or another of the outputs"
  ),
  "def loss(outputs, batch, cfg): return -jnp.sum(batch.weights * stop(outputs.logprobs)), {}": (
    "loss (FILE) has no gradient: "
  ),
  "def loss(outputs, batch, cfg): return jnp.sum(batch.weights * (5.0 * batch.sampler_logprobs - outputs.logprobs)), {}": (
    "loss (FILE) adds a term of batch.sampler_logprobs alone, which has no gradient and trains "
    "nothing; use outputs.logprobs for the policy that is trained, or put the term in jax.lax."
  ),
  "def loss(outputs, batch, cfg): return jnp.sum(batch.weights * jnp.where(batch.mask > 0, outputs.logprobs, 0)) + 3 * jnp.sum(stop(outputs.entropy) * batch.weights), {}": (
    "loss (FILE) adds a term of batch.weights and outputs.entropy alone, which has no gradient"
  ),
  "def weights(mask, lengths, cfg): return mask.sum()": "weights (FILE) returned float32[]; it should return float32",
  "def bounds(batch, cfg): return 0.8": "bounds (FILE) returned a float; it should return two, each a number or",
  "def live_advantages(logprobs, batch): return batch.lengths": "live_advantages (FILE) returned int32[32, 8], which",
  "def flat(rollouts, cfg, advantages): return rollouts.given": "flat (FILE) returned bool[32, 8, 56]; it should return bool [P]",
  "def flat(rollouts, cfg, advantages): return rollouts.rewards.sum((1, 2))": "flat (FILE) returned float32[32], which is [P]",
  "def importance_ratio(logprobs, old, mask, cfg): return logprobs.sum()": (
    "importance_ratio (FILE) returned float32[]; it should return float32 [P, G, L] = [32, 8, 56] "
    "or [P, G, 1] ="
  ),
  "data = 'live'": "data is 'live'; use a tuple of some of live, samples",
  "data = ('alive',)": "data is ('alive',); use a tuple of some of live, samples",
  "data = ()": "data is (); use a tuple",
  "teacher = None": "teacher is None; use the name of a setting",
  "loss = 3": "loss is 3; it should be a function",
  "needs = None": "needs is None; it should be a function",
  "trains_reward_model = 'yes'": "trains_reward_model is 'yes'; use True or False",
}

START = """
import dataclasses
import jax
import jax.numpy as jnp
from grpo_jax.objectives import common, grpo
from grpo_jax.objectives.base import Needs

change = dataclasses.replace
stop = jax.lax.stop_gradient
no_gradient = lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]

"""


def with_field(body: str) -> str:
  """Returns the end of a file whose objective is GRPO, but for one field that `body` defines."""
  field = re.match(r"(?:def )?(\w+)", body)[1]
  return f"{body}\nOBJECTIVE = dataclasses.replace(grpo.OBJECTIVE, {field}={field})\n"


@pytest.mark.parametrize("body", FUNCTIONS)
def test_an_objective_of_ones_own(body, tmp_path):
  file = tmp_path / "own.py"
  file.write_text(START + with_field(body))
  with pytest.raises(SettingError) as error:
    resolve(arithmetic.get_config(f"objective={file}"))
  says = FUNCTIONS[body].replace("FILE", f"{file}, line 12")
  assert str(error.value).startswith(f"objective.name='{file}': {says}"), error.value
  assert "\n" not in str(error.value) and len(str(error.value)) < 1000


def test_an_objective_of_ones_own_that_works(tmp_path):
  (tmp_path / "own.py").write_text(f"{START}OBJECTIVE = grpo.OBJECTIVE\n")
  config = arithmetic.get_config(f"objective={tmp_path}/own.py")
  resolve(config)
  config.learner.update(mu=2, minibatches=4, microbatch=2, stop_kl=0.1)
  resolve(config)


def with_microbatches(objective):
  config = arithmetic.get_config(f"objective={objective}")
  config.learner.microbatch = 2
  return config


@pytest.mark.parametrize(
  "value",
  [
    "-jnp.mean(batch.mask * batch.advantages * outputs.logprobs)",
    "-jnp.mean(jnp.exp(outputs.logprobs - stop(outputs.logprobs)) * batch.advantages)",
    "-jnp.sum(batch.mask * batch.advantages * outputs.logprobs) / jnp.sum(batch.mask)",
  ],
)
def test_a_loss_that_is_no_sum_cannot_be_cut_into_microbatches(value, tmp_path):
  """Its gradient would depend on their number."""
  loss = f"def loss(outputs, batch, cfg): return {value}, {{}}"
  file = tmp_path / "own.py"
  file.write_text(START + with_field(loss))
  said = refusal(with_microbatches(file))
  assert said.startswith(f"objective.name='{file}': loss ({file}, line 12) has another gradient")
  assert "with learner.microbatch=2 it should be a sum over tokens" in said
  resolve(arithmetic.get_config(f"objective={file}"))  # whole, it is a mean as any other


LIVE = sorted(
  {module for module, _ in presets.PRESETS.values() if "live" in registry.objective(module).data}
)


@pytest.mark.parametrize("module", LIVE)
def test_the_losses_of_the_folder_are_sums(module, tmp_path):
  file = tmp_path / "own.py"
  file.write_text(f"from grpo_jax.objectives import {module}\nOBJECTIVE = {module}.OBJECTIVE\n")
  teacher = f",teacher={tmp_path}" if registry.objective(module).teacher else ""
  tracing.check_objective(make(with_microbatches(f"{file}{teacher}")))


@pytest.mark.parametrize("value, fits", [("jnp.sum(x) / len(x)", False), ("jnp.sum(x)", True)])
def test_a_loss_of_pairs_is_a_sum_too(value, fits, tmp_path):
  file = tmp_path / "own.py"
  file.write_text(
    f"{START}from grpo_jax.objectives import dpo\n"
    "def loss(outputs, batch, cfg):\n"
    "  x = jax.nn.softplus(-(outputs.logprobs[:, 0] - outputs.logprobs[:, 1]).sum(1))\n"
    f"  return {value}, {{}}\n"
    "OBJECTIVE = dataclasses.replace(dpo.OBJECTIVE, loss=loss)\n"
  )
  config = with_microbatches(file)
  config.loop, config.offline.data, config.offline.pairs = "offline", "pairs", "pairs.jsonl"
  config.ref_from = str(tmp_path)
  if fits:
    tracing.check_objective(make(config))
  else:
    with pytest.raises(SettingError, match="has another gradient for each half of a batch"):
      tracing.check_objective(make(config))


def test_a_loss_may_have_terms_that_are_only_reported(tmp_path):
  """A constant, and one that says so."""
  loss = (
    "def loss(outputs, batch, cfg): return (1.0 + stop(jnp.sum(batch.weights * outputs.entropy))"
    " - jnp.sum(batch.weights * outputs.logprobs)), {}"
  )
  (tmp_path / "own.py").write_text(START + with_field(loss))
  resolve(with_microbatches(tmp_path / "own.py"))


def test_a_rule_that_ends_the_passes_needs_its_metric(tmp_path):
  loss = "def loss(outputs, batch, cfg): return jnp.sum(batch.weights * outputs.logprobs), {}"
  (tmp_path / "own.py").write_text(START + with_field(loss))
  config = arithmetic.get_config(f"objective={tmp_path}/own.py")
  config.learner.update(mu=2, stop_kl=0.1)
  said = refusal(config)
  assert said.startswith("learner.stop_kl=0.1: it reads the metric old_kl, which objective.name=")


def test_a_reward_model_of_ones_own_needs_no_other_pass(tmp_path):
  (tmp_path / "own.py").write_text(
    "import dataclasses\n"
    "from grpo_jax.objectives import base, reward_model\n"
    "OBJECTIVE = dataclasses.replace(reward_model.OBJECTIVE, needs=base.needs_reference)\n"
  )
  config = arithmetic_rm.get_config()
  config.objective = defaults.objective(f"{tmp_path}/own.py", config)
  said = refusal(config)
  assert "returned Needs.REFERENCE; it should return Needs.NOTHING, as trains_reward" in said
