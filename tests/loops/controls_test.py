"""Where nothing can be learned, nothing is gained: what a real run gains is not an accident of the
loop.
"""

import json

import numpy as np
import pytest

from experiments import arithmetic
from grpo_jax.loops import online
from grpo_jax.rewards import combine
from grpo_jax.setup.resolve import resolve

pytestmark = pytest.mark.slow


GENTLE = {
  "lr": 1e-4,
  "beta": 0.1,
}  # what the experiment ships with is a random walk where rewards are noise


def run(workdir, lr, beta=0.0, steps=40, problems=1000):
  config = arithmetic.get_config()
  config.steps = steps
  config.eval.problems = problems
  config.eval.samples = 0
  config.eval.every = 0
  config.log.writers = ()
  config.checkpoint.export = False
  config.learner.lr, config.objective.beta = lr, beta
  online.train(resolve(config), str(workdir))
  result = json.loads((workdir / "result.json").read_text())
  return result["accuracy_before"], result["accuracy_after"]


@pytest.mark.long
def test_nothing_is_learned_at_learning_rate_zero(tmp_path):
  before, after = run(tmp_path, lr=0.0, steps=8, problems=256)
  assert after == before


@pytest.mark.long
def test_rewards_teach_and_shuffled_rewards_do_not(tmp_path, monkeypatch):
  """The same settings twice: rewards, and the same numbers given to other completions of the batch."""
  rng, score = np.random.default_rng(0), combine.score

  def shuffled(*args, **kwargs):
    found = score(*args, **kwargs)
    ends = found.given.argmax(axis=2)
    values = np.take_along_axis(found.rewards, ends[..., None], 2)
    mixed = rng.permutation(values.reshape(-1)).reshape(values.shape)
    rewards = np.zeros_like(found.rewards)
    np.put_along_axis(rewards, ends[..., None], mixed, 2)
    return found._replace(rewards=rewards)

  before, taught = run(tmp_path / "taught", **GENTLE)
  monkeypatch.setattr(combine, "score", shuffled)
  _, after = run(tmp_path / "shuffled", **GENTLE)
  print(f"{before:.1%}: {taught:.1%} with rewards, {after:.1%} with shuffled ones")
  assert abs(after - before) <= 0.03
  assert taught >= before + 0.08
