"""Tests the program that measures slow rewards."""

from experiments.measure import slow_rewards

SMALL = {
  "prompts": 8, "group": 2, "slots": 16, "length": 8, "mean": 3,
  "layers": 1, "width": 64, "vocab": 32, "prompt_len": 4,
}  # fmt: skip


def test_a_step_is_scored_here_and_by_workers():
  """Each step asserts that completions get their lengths; 16 waits of 0.05 s follow one another."""
  here, elsewhere = (slow_rewards.steps_of(SMALL, 0.05, workers)(0) for workers in (0, 2))
  assert here.score > 16 * 0.05 and here.sample > 0 and elsewhere.sample > 0
