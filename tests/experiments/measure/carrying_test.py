"""Tests the program that measures carried rollouts."""

import pytest

from experiments.measure import carrying

SMALL = {
  "prompts": 16, "group": 2, "slots": 16, "carry": 8, "max_age": 2, "length": 8, "mean": 3,
  "layers": 1, "width": 64, "vocab": 32, "prompt_len": 4,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_a_step_with_carry_and_one_without_are_measured():
  """With carry, the slots of eight shards that have one group more wait less."""
  plain, carried = (carrying.steps_of(SMALL, carry) for carry in (0, 8))
  before, after = ([step(n) for n in range(4)] for step in (plain, carried))
  assert all(step.age == 0 and step.tokens >= 32 and step.speed > 0 for step in before)
  assert max(step.age for step in after) > 0
  busy = [sum(step.slot_use for step in steps) for steps in (before, after)]
  assert busy[0] < busy[1] <= 4
  lines = carrying.table({"carry=0": before, "carry=8": after}).splitlines()
  assert [line.split()[0] for line in lines[1:]] == ["carry=0", "carry=8"]


def test_the_table_holds_medians():
  steps = [carrying.Step(s, 10 * n, 0.5, 100, 0.25) for n, s in enumerate((4.0, 1.0, 2.0))]
  row = carrying.table({"some": steps}).splitlines()[1].split()
  assert row == ["some", "2.00", "50", "10", "50.0%", "0.25"]
  assert steps[0].speed == pytest.approx(25)


@pytest.mark.parametrize(
  ("command", "argument", "said"),
  [
    ("carrying", "--mean=0", "mean=0: "),
    ("carrying", "8", "8: not understood"),
    ("slow_rewards", "--carry=4", "'carry'"),
    ("slow_rewards", "--group=0", "group=0: "),
    ("slow_rewards", "8", "8: not understood"),
    ("programs", "8", "8: not understood"),
  ],
)
def test_what_is_not_read_and_what_makes_no_sense_is_refused(program, command, argument, said):
  small = {"prompts": 2, "group": 2, "length": 8, "mean": 3, "layers": 1, "width": 64, "vocab": 32}
  flags = [f"--{name}={value}" for name, value in small.items() if command != "programs"]
  done = program(f"experiments.measure.{command}", "--steps=1", *flags, argument)
  assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr
