"""What every file of an objective ends with."""

import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases as cases
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.objectives import (
  base,
  grpo,
)
from grpo_jax.setup import registry
from objectives.objectives_test import OTHER

EACH = (
  *(
    "grpo process",
    "gspo",
    "cispo",
    "sapo",
    "gmpo",
    "dppo",
    "vespo",
    "kimi",
    "clip_cov",
    "kl_cov",
    "tpo",
    "rpg reverse",
    "ppo",
    "target_prob",
    "sft",
    "rft",
    "dpo",
    "distill",
    "gkd",
  ),
  *("distill_offline", "reward_model", "process_reward_model"),
)


# RFT and GKD have no negative advantages
REFUSED = (("rft", "keep_condition"), ("gkd", "keep_condition"))


def test_each_objective_is_among_them():
  assert {cases.CASES[name][0] for name in EACH} == {module for module, _ in cases.CASES.values()}


@pytest.mark.parametrize("name", EACH)
def test_an_objective_reads_every_setting_that_it_has(name):
  """Each changes the loss or its gradient, so none can be set in vain, or is refused."""
  objective, _, _ = cases.given(name)
  r = cases.rollouts(process=name not in cases.PAIRS, G=2 if name in cases.PAIRS else 4)

  @functools.cache
  def found(**changes):
    cfg = cases.settings(objective, **changes)
    batch = cases.prepare(r, cfg)
    out = cases.scores(r) if objective.trains_reward_model else cases.outputs(r, spread=1.0)
    out = cases.with_divergence(out, objective.divergence(cfg))
    value, slope = jax.value_and_grad(lambda out: objective.loss(out, batch, cfg)[0])(out)
    return np.concatenate([jnp.ravel(x) for x in (value, *jax.tree.leaves(slope))])

  settings = objective.settings()
  for setting in settings:
    other, base = OTHER[setting]
    if (name, setting) in REFUSED:
      with pytest.raises(SettingError):
        found(**base | {setting: other})
      continue
    base = {name: value for name, value in base.items() if name in settings}
    assert not np.array_equal(found(**base | {setting: other}), found(**base)), setting


def test_every_objective_of_the_folder_is_complete():
  folder = pathlib.Path(base.__file__).parent
  names = [
    file.stem for file in folder.glob("*.py") if re.search(r"\nOBJECTIVE = ", file.read_text())
  ]
  assert len(names) > 12
  for name in names:
    registry.objective(name)
  # the tests of all objectives run with these
  assert set(names) == {module.__name__.rpartition(".")[2] for module, _ in cases.CASES.values()}


def test_the_section_of_another_objective_is_refused_with_the_way_out():
  """As `--config.objective.name=ppo` leaves it, where the section was GRPO's."""
  section = cases.section(grpo)
  section.name = "ppo"
  with pytest.raises(SettingError) as error:
    registry.configured(section)
  message = str(error.value)
  assert message.startswith("objective.name='ppo': use --config=FILE:objective=ppo, or ")
  assert "the section lacks critic_lam, gamma, group_baseline, " in message
  assert (
    "and has advantage, advantage_arguments, attempts, baseline, " in message
    and "which ppo does not read" in message
  )
  assert "use --config=FILE:objective=ppo" in message and "\n" not in message
