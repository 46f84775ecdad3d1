"""Warnings about what a run learns."""

import math
import re

import pytest
from agreement_test import LEVEL, said

from grpo_jax.run import watch


class Console:
  """Takes the place of a writer, and keeps what it is given."""

  def __init__(self):
    self.said = []

  def warn(self, about: str, text: str) -> None:
    self.said.append(text)


def test_a_run_that_learns_nothing_is_warned_of_once():
  writer, look = Console(), watch.Watch("sampler.max_length=96")
  for flat in (*[1.0] * (watch.STEPS - 1), 0.5, *[1.0] * (2 * watch.STEPS)):
    look({"zero_variance": flat, "reward/mean": 0.0, "truncated": 0.2}, writer)
  (said,) = writer.said
  assert f"in {watch.STEPS} steps no group had an advantage" in said and "reward/mean is 0)" in said


def test_a_run_whose_samples_are_cut_off_is_warned_of():
  writer, look = Console(), watch.Watch("sampler.max_length=96")
  for _ in range(watch.STEPS):
    look({"truncated": 0.97}, writer)
  assert "sampler.max_length=96: raise it" in writer.said[0] and len(writer.said) == 1


def test_what_ends_episodes_is_named():
  assert watch.limits_of(96) == "sampler.max_length=96"
  assert watch.limits_of(96, turns=8) == "sampler.max_length=96 or environment.turns=8"
  assert watch.limits_of(96, 4, 8).endswith("=96, environment.turn_length=4 or environment.turns=8")


def test_a_run_that_unlearns_to_end_is_warned_of_soon():
  writer, look = Console(), watch.Watch("sampler.max_length=96")
  for truncated in (0.02, 0.3, *[0.6] * (watch.SOON - 1), 0.4, *[0.6] * (2 * watch.SOON)):
    look({"truncated": truncated, "reward/mean": 0.6}, writer)
  (said,) = writer.said
  assert (
    "60% of the completions are now cut off at sampler.max_length=96, where it was 2% before"
    in said
  )
  writer, look = Console(), watch.Watch("sampler.max_length=96")
  for _ in range(2 * watch.SOON):  # it never ended them
    look({"truncated": 0.6}, writer)
  assert not writer.said


def test_a_run_whose_reward_falls_is_warned_of():
  writer, look = Console(), watch.Watch("sampler.max_length=96")
  for mean in (*[2.0] * watch.STEPS, float("nan"), *[1.2] * watch.STEPS):
    look({"reward/mean": mean}, writer)
  assert not writer.said
  for _ in range(watch.STEPS):
    look({"reward/mean": 0.6}, writer)
  assert (
    set(writer.said)
    and "reward/mean was 2 in the first 10 steps since this start" in writer.said[0]
  )
  writer, look = Console(), watch.Watch("sampler.max_length=96")
  for mean in (
    *[-1.0] * watch.STEPS,
    *[-0.4] * watch.STEPS,
    *[0.0] * watch.STEPS,
  ):  # a punishment that grows less
    look({"reward/mean": mean}, writer)
  assert not writer.said


def test_one_lucky_sample_less_is_no_fall():
  writer, look = Console(), watch.Watch("sampler.max_length=96")
  for mean in (0.0, 0.0, 0.004, *[0.0] * (3 * watch.STEPS)):
    look({"reward/mean": mean}, writer)
  assert not writer.said
  writer, look = Console(), watch.Watch("sampler.max_length=96")
  for n in range(4 * watch.STEPS):  # from 0.3 to 0.1, with noise
    look({"reward/mean": (0.3 if n < 2 * watch.STEPS else 0.1) + 0.1 * (n % 2)}, writer)
  assert writer.said


def test_a_learned_reward_that_orders_by_less_than_chance_is_warned_of():
  assert not said(LEVEL[:40], LEVEL, agreement=0.6)
  assert not said(LEVEL[: watch.STEPS - 1], LEVEL, agreement=0.4)
  (text,) = said(LEVEL[:40], LEVEL, agreement=0.4)
  assert re.match(
    r"in 10 steps agreement/judge was 0\.\d+: .* than chance would \(reward/judge is 0\.\d+, rewar",
    text,
  )


def test_rises_are_counted_in_standard_errors():
  assert watch.rise([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]) == pytest.approx(1 / math.sqrt(2 / 3))
  assert watch.rise([1.0, 1.0], [1.0, 1.0]) == 0 and watch.rise([1.0, 1.0], [0.9, 0.9]) == -math.inf
