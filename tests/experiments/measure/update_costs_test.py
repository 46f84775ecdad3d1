"""Tests what the rows of presets.py cost: what is measured, in which order, and what is printed."""

import functools

import jax
import numpy as np
import pytest
import small_models  # noqa: F401  adds the variants named test_*
from conftest import ROOT

from experiments import presets
from experiments.measure import update_costs as costs
from grpo_jax.errors import SettingError
from grpo_jax.setup.experiment import make
from grpo_jax.types import Prompts, Rollouts

FILE = f"{ROOT}/experiments/arithmetic.py"
TINY = {
  "init_from": "",
  "tokenizer": "words",
  "model.variant": "test_qwen3",
  "data.prompts": 2,
  "data.arithmetic.size": 32,
  "sampler.group": 2,
  "sampler.slots": 4,
  "sampler.max_length": 4,
}
config_of = functools.partial(costs.row_config, FILE, TINY)


@pytest.mark.parametrize("row", costs.ROWS)
def test_every_row_has_a_config_that_a_run_would_have(row):
  """Starts a teacher as the policy does, and takes the overrides."""
  c = config_of(row)
  preset, changes = costs.VARIANTS.get(row, (row, {}))
  assert c.objective.name == presets.PRESETS[preset][0]
  assert c.sampler.max_length == 4 and c.ref_from == ""
  for name, value in changes.items():
    section, _, last = name.rpartition(".")
    assert c[section][last] == value


def test_an_override_holds_for_every_row():
  for row in ("cispo", "areal"):
    assert costs.row_config(FILE, TINY | {"learner.mu": 8}, row).learner.mu == 8


@pytest.mark.parametrize(
  ("row", "passes", "trees"),
  [
    ("grpo", "", "policy"),
    ("grpo_kl", "reference", "policy reference"),
    ("cispo", "old policy", "policy"),
    ("top_entropy", "old policy", "policy"),
    ("ppo", "reference, old policy, critic", "policy critic reference"),
    ("vapo", "old policy, critic", "policy critic"),
    ("gkd", "teacher", "policy teacher"),
    ("sdft", "teacher", "policy teacher"),
    ("sft", "", "policy"),
    ("dpo", "reference", "policy reference"),
  ],
)
def test_which_passes_and_trees_a_row_has(row, passes, trees):
  experiment = make(config_of(row))
  assert ", ".join(costs.passes(experiment)) == passes
  assert " ".join(costs.trees(experiment)) == trees


def batch(prompts: int, group: int) -> Rollouts:
  tokens = np.arange(prompts * group * 3).reshape(prompts, group, 3)
  lengths = tokens[..., 0]
  both = Prompts(np.arange(prompts)[:, None], np.arange(prompts))
  return Rollouts(both, tokens, lengths, lengths, tokens, tokens)


def test_pairs_are_the_same_completions_each_with_its_prompt():
  before = batch(3, 4)
  pairs = costs.as_pairs(before)
  assert pairs.tokens.shape == (6, 2, 3) and pairs.lengths.shape == (6, 2)
  np.testing.assert_array_equal(pairs.tokens.ravel(), before.tokens.ravel())
  np.testing.assert_array_equal(pairs.prompts.lengths, [0, 0, 1, 1, 2, 2])
  np.testing.assert_array_equal(pairs.prompts.tokens[:, 0], [0, 0, 1, 1, 2, 2])
  assert pairs.rewards is None


def test_what_a_row_cannot_do_is_refused_before_the_first_is_measured(monkeypatch):
  """Refuses groups that leave a completion over in pairs, and settings that a run refuses."""
  monkeypatch.setattr(costs, "draw", lambda *_: pytest.fail("a batch was sampled"))
  for changes, rows, message in [
    ({"sampler.group": 3}, ("grpo", "dpo"), "^--config.sampler.group=3 with pairs.* leave dpo out"),
    ({"data.system": "a"}, ("dpo",), "^data.system='a'"),
  ]:
    with pytest.raises(SettingError, match=message):
      costs.measure(functools.partial(costs.row_config, FILE, TINY | changes), rows, 1)


def test_both_take_turns_after_one_update_each(monkeypatch):
  asked, seconds = [], iter([9, 9, 1, 4, 2, 5, 30, 60])  # the first two are not counted

  def timed(program):
    asked.append(program.memory)
    return program, next(seconds)

  monkeypatch.setattr(costs, "timed", timed)
  base, other = (costs.Program(print, None, (), name) for name in (1, 2))
  assert costs.in_turn(base, other, 3) == (base, 2, 5)
  assert asked == [1, 2] * 4


def test_a_row_is_timed_with_one_update_and_its_own_number_is_told(monkeypatch):
  """Ratios are to a grpo of one update, on one batch for all."""
  made = []

  def make_program(experiment, batch, devices):
    updates = experiment.learner.mu * experiment.learner.minibatches
    made.append((experiment.objective.name, updates, batch))
    memory = 10 * updates if experiment.objective.name == "grpo" else 30 * updates
    return costs.Program(print, None, (), memory)

  def in_turn(base, other, rounds):
    return base, rounds * base.memory, rounds * other.memory

  monkeypatch.setattr(costs, "draw", lambda experiment, devices: experiment.objective.name)
  monkeypatch.setattr(costs, "make_program", make_program)
  monkeypatch.setattr(costs, "in_turn", in_turn)
  shown = []
  found = costs.measure(config_of, ("cispo", "vapo"), 2, shown.append)
  assert made == [(*pair, "grpo") for pair in (("grpo", 1), ("cispo", 1), ("cispo", 4), ("ppo", 1))]
  assert (
    shown
    == found
    == [
      costs.Cost("cispo", 3, 3, 60, 30, 4, 12, ("old policy",), ("policy",)),
      costs.Cost("vapo", 3, 3, 60, 30, 1, 3, ("old policy", "critic"), ("policy", "critic")),
    ]
  )


@pytest.mark.slow
def test_a_teacher_is_asked_with_the_prompts_of_its_row():
  """Shows it completions after a prompt that has the solution, too; other rows have none."""
  drawn = costs.draw(make(config_of("grpo")), jax.devices()[:1])
  assert costs.learned_from(make(config_of("gkd")), drawn).ref_prompts is None
  told = costs.learned_from(make(config_of("sdft")), drawn)
  assert (told.ref_prompts.lengths > told.prompts.lengths + 5).all()


@pytest.mark.long
@pytest.mark.slow
def test_a_critic_and_a_reference_need_memory_and_every_row_learns_from_one_batch():
  rows, shown = ("grpo", "ppo", "sdft"), []
  found = costs.measure(config_of, rows, 1, shown.append, jax.devices()[:1])
  assert shown == found and [cost.name for cost in found] == list(rows)
  grpo, ppo, _ = found
  assert all(cost.seconds > 0 and cost.time > 0 for cost in found)
  assert grpo.memory == grpo.memory_asked == 1 < ppo.memory


def test_a_line_rounds_noise_away():
  cost = costs.Cost("gspo", 1.049, 0.951, 0.5, 2_400_000, 2, 0.5, ("old policy",), ("policy",))
  text = "| `gspo` | x1.0 (0.500 s) | x1.0 (2 MB) | 2 | x0.5 | old policy | policy |"
  assert costs.line(cost) == text
  head, rule = costs.heading().splitlines()
  assert head.count("|") == rule.count("|") == text.count("|")


@pytest.mark.parametrize(
  ("rows", "out", "overrides", "message"),
  [
    (["grpo", "gpro"], None, [], "--rows=gpro: no such row; choose from grpo, "),
    (["grpo"], "no/such/costs.md", [], "--out='no/such/costs.md': "),
    (["grpo"], f"{ROOT}/tests", [], f"--out='{ROOT}/tests': is a folder"),
    (["grpo"], f"{ROOT}/README.md", [], f"--out='{ROOT}/README.md': is there already"),
    (["grpo"], "costs.txt", [], "--out='costs.txt': use a name that ends with .md"),
    (["grpo"], "gs://bucket/costs.md", [], "--out='gs://bucket/costs.md': is in a bucket"),
    (["grpo"], None, ["objective.beta"], "--config.objective.beta: each row has settings"),
  ],
)
def test_bad_flags_are_refused_before_anything_is_measured(rows, out, overrides, message):
  with pytest.raises(SettingError) as error:
    costs.check(rows, out, overrides)
  assert str(error.value).startswith(message)
