"""The warm start that ships: half right, well formed, and the same model to transformers as to us."""

import pathlib

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments import arithmetic
from grpo_jax import rollouts as host
from grpo_jax import sampler
from grpo_jax.data import loader
from grpo_jax.data.arithmetic import Arithmetic
from grpo_jax.loops import build
from grpo_jax.rewards.math import answer_correct, well_formed
from grpo_jax.types import STOPPED, Completion

UNUSED_SEED = 20_260_101  # of no experiment
PROBLEMS = 256


@pytest.fixture(scope="module")
def model():
  config = arithmetic.get_config()
  config.mesh.fsdp = 1
  return build.model(config, devices=jax.devices()[:1])


@pytest.fixture(scope="module")
def problems():
  source = Arithmetic("test", seed=UNUSED_SEED, size=PROBLEMS)
  return [source[i] for i in range(PROBLEMS)]


def completions(model, problems, **changes):
  config = ConfigDict(arithmetic.get_config().sampler.to_dict() | changes)
  prompts, _ = loader.to_prompts(problems, model.render, 64)
  sample = sampler.make_sampler(model.decoder, config, model.stop)
  out, _ = sample(model.load(), host.to_device(model.layout, prompts), jax.random.key(0))
  return host.completions(host.to_host(out), model.tokenizer)


def test_it_is_small_and_honest(model, problems):
  folder = pathlib.Path(arithmetic.WARM_START)
  assert sum(f.stat().st_size for f in folder.iterdir()) < 8e6
  groups = completions(model, problems, group=2)
  formed = [well_formed(e, c) for e, group in zip(problems, groups) for c in group]
  assert np.mean(formed) >= 0.95


def test_transformers_solves_the_same_problems(model, problems):
  transformers = pytest.importorskip("transformers")
  torch = pytest.importorskip("torch")
  greedy = [group[0] for group in completions(model, problems, group=1, temperature=0.0)]
  theirs = transformers.AutoModelForCausalLM.from_pretrained(arithmetic.WARM_START)
  tokenizer = transformers.AutoTokenizer.from_pretrained(arithmetic.WARM_START)
  same, right, ours = 0, 0, 0
  for example, own in zip(problems, greedy):
    ids = tokenizer(example.question + "\n", return_tensors="pt")["input_ids"]
    with torch.no_grad():
      out = theirs.generate(ids, max_new_tokens=56, do_sample=False)[0, ids.shape[1] :]
    text = tokenizer.decode(out, skip_special_tokens=True)
    same += text == own.text
    right += answer_correct(example, Completion(text, [], STOPPED, []))
    ours += answer_correct(example, own)
  assert abs(right - ours) <= 0.03 * PROBLEMS
  assert same >= 0.98 * PROBLEMS
