"""The warm starts that ship: half right or rarely, well formed, and the same model to transformers
as to us.
"""

import pathlib

import jax
import numpy as np
import pytest
import transformers_accuracy
from ml_collections import ConfigDict

from experiments import arithmetic
from grpo_jax.data import loader
from grpo_jax.rewards.math import answer_correct, well_formed
from grpo_jax.sampling import rollouts as host
from grpo_jax.sampling import sampler
from grpo_jax.setup import build
from grpo_jax.setup.experiment import make

PROBLEMS = 256


@pytest.fixture(scope="module")
def model():
  config = arithmetic.get_config()
  config.mesh.fsdp = 1
  return build.model(make(config), devices=jax.devices()[:1])


@pytest.fixture(scope="module")
def problems():
  return transformers_accuracy.unused_problems(PROBLEMS)


def completions(model, problems, arg="", **changes):
  settings = arithmetic.get_config(arg)
  config = ConfigDict(settings.sampler.to_dict() | changes)
  prompts, _ = loader.to_prompts(problems, model.render, settings.data.max_prompt_length)
  sample = sampler.make_sampler(model.decoder, config, model.stop)
  out, _ = sample(model.load(), host.to_device(model.layout, prompts), jax.random.key(0))
  return host.completions(host.to_host(out), model.tokenizer)


@pytest.mark.slow
def test_it_is_small_and_honest(model, problems):
  folder = pathlib.Path(arithmetic.WARM_START)
  assert sum(f.stat().st_size for f in folder.iterdir()) < 8e6
  groups = completions(model, problems, group=2)
  formed = [well_formed(e, c) for e, group in zip(problems, groups) for c in group]
  assert np.mean(formed) >= 0.95


@pytest.mark.long
@pytest.mark.slow
def test_the_hard_one_is_rarely_right_and_solves_some_of_all_in_eight_tries():
  config = arithmetic.get_config("hard")
  config.mesh.fsdp = 1
  hard, some = (
    build.model(make(config), devices=jax.devices()[:1]),
    transformers_accuracy.unused_problems(PROBLEMS, "hard"),
  )
  groups = completions(hard, some, "hard", group=8)
  right = np.array([[answer_correct(e, c) for c in group] for e, group in zip(some, groups)])
  formed = [well_formed(e, c) for e, group in zip(some, groups) for c in group]
  assert sum(f.stat().st_size for f in arithmetic.HARD_WARM_START.iterdir()) < 4e6
  assert right.mean() <= 0.15 and right.any(axis=1).mean() >= 0.35 and np.mean(formed) >= 0.95


@pytest.mark.slow
def test_transformers_solves_the_same_problems(model, problems):
  pytest.importorskip("transformers")
  pytest.importorskip("torch")
  own = [group[0].text for group in completions(model, problems, group=1, temperature=0.0)]
  theirs = transformers_accuracy.answers(str(arithmetic.WARM_START), problems)
  ours_right, theirs_right = (
    transformers_accuracy.right(problems, texts) for texts in (own, theirs)
  )
  assert abs(ours_right.mean() - theirs_right.mean()) <= 0.03
  assert np.mean([a == b for a, b in zip(own, theirs)]) >= 0.98
