"""Where nothing can be learned, nothing is gained: what a real run gains is not an accident of the loop."""

import json

import numpy as np
import pytest

from experiments import arithmetic
from grpo_jax.loops import online
from grpo_jax.rewards import combine

pytestmark = pytest.mark.slow


def run(workdir, **learner):
  config = arithmetic.get_config()
  config.steps = 60
  config.eval.problems = 1000
  config.eval.samples = 0
  config.eval.every = 0
  config.log.tensorboard = False
  config.checkpoint.export = False
  config.learner.update(learner)
  online.run(config, str(workdir))
  result = json.loads((workdir / "result.json").read_text())
  return result["accuracy_before"], result["accuracy_after"]


def test_nothing_is_learned_at_learning_rate_zero(tmp_path):
  before, after = run(tmp_path, lr=0.0)
  assert after == before


def test_nothing_is_gained_from_shuffled_rewards(tmp_path, monkeypatch):
  """Noise cannot teach. It can do harm: at this learning rate, without a KL, it does (README)."""
  rng, score = np.random.default_rng(0), combine.score

  def shuffled(*args, **kwargs):
    """The same rewards, each given to another completion of the batch."""
    found = score(*args, **kwargs)
    ends = found.given.argmax(axis=2)
    values = np.take_along_axis(found.rewards, ends[..., None], 2)
    mixed = rng.permutation(values.reshape(-1)).reshape(values.shape)
    rewards = np.zeros_like(found.rewards)
    np.put_along_axis(rewards, ends[..., None], mixed, 2)
    return found._replace(rewards=rewards)

  monkeypatch.setattr(combine, "score", shuffled)
  before, after = run(tmp_path)
  assert after <= before + 0.03
