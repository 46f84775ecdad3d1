"""The example trains, resumes where it stopped, and its loss is the library's objective."""

import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import Prompts, Rollouts

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def example(monkeypatch):
  spec = importlib.util.spec_from_file_location("grpo_minimal", ROOT / "examples/grpo_minimal.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  monkeypatch.setattr(module, "PROMPTS", 8)  # one for each simulated device
  monkeypatch.setattr(module, "GROUP", 4)
  monkeypatch.setattr(module, "LENGTH", 16)
  return module


@pytest.mark.slow
def test_it_trains_and_resumes_as_if_it_had_not_stopped(example, tmp_path, monkeypatch):
  # Where nobody is right nothing is learned: an odd number of tokens is right here.
  monkeypatch.setattr(example, "answer_correct", lambda _, c: float(len(c.tokens) % 2))
  steps = []
  whole = example.train(3, tmp_path / "whole", lambda *numbers: steps.append(numbers))
  example.train(2, tmp_path / "parts", lambda *numbers: None)
  parts = example.train(3, tmp_path / "parts", lambda *numbers: steps.append(numbers))
  assert [step for step, _, _ in steps] == [1, 2, 3, 3] and steps[2] == steps[3]
  jax.tree.map(np.testing.assert_array_equal, whole, parts)
  start = example.load_policy(example.POLICY).params
  moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), whole, start)
  assert max(jax.tree.leaves(moved)) > 1e-5


def test_its_loss_is_the_formula(example, monkeypatch):
  rng = np.random.default_rng(0)
  new, old, ref, advantages = rng.normal(0, 0.3, (4, 2, 4, 16)).astype(np.float32)
  lengths = np.array([[1, 16, 3, 5], [2, 7, 16, 4]], np.int32)
  prompts = Prompts(np.zeros((2, 3), np.int32), np.full(2, 3, np.int32))
  nothing = np.zeros_like(new)
  rollouts = Rollouts(prompts, nothing.astype(np.int32), lengths, lengths, nothing, nothing)
  monkeypatch.setattr(example, "token_logprobs", lambda *_: new)
  batch = example.Batch(rollouts, advantages, old, ref)
  found = example.loss(None, {"policy": None}, batch)

  completions = []
  for p, g in np.ndindex(2, 4):
    of_tokens = []
    for t in range(lengths[p, g]):
      ratio, a = np.exp(new[p, g, t] - old[p, g, t]), advantages[p, g, t]
      d = ref[p, g, t] - new[p, g, t]
      gain = min(ratio * a, np.clip(ratio, 1 - example.CLIP, 1 + example.CLIP) * a)
      of_tokens.append(gain - example.BETA * (np.exp(d) - d - 1))
    completions.append(np.mean(of_tokens))
  np.testing.assert_allclose(found, -np.mean(completions), rtol=1e-6)
