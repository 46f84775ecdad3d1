"""Learn from data that does not change: SFT on the data set's own solutions."""

from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from grpo_jax import rollouts as host
from grpo_jax.data import loader
from grpo_jax.loops import build
from grpo_jax.loops.session import Session
from grpo_jax.types import STOPPED, TRUNCATED, Example, Prompts, Rollouts, SettingError


def run(config: ConfigDict, workdir: str) -> None:
  """Runs, or goes on with, the experiment in `workdir`; see `Session`."""
  if config.sampler.group != 1:
    raise SettingError(f"sampler.group={config.sampler.group}: SFT has one completion for a prompt; use 1")
  model = build.model(config)
  batches = build.batches(config)
  with Session(config, workdir, model, batches) as s:
    for step in s.steps():
      with s.writer.phase("data"):
        rows = next(batches)
        prompts, long = loader.to_prompts(rows, model.render, config.data.max_prompt_length, config.data.on_long)
        given = solutions(rows, host.trim(prompts), model, config.sampler.max_length)
        packing = host.pack(given.lengths, given.tokens.shape[2])
        rollouts = host.to_device(model.layout, given)
        take = None if packing is None else host.to_device(model.layout, packing)
      with s.writer.phase("learn"):
        s.state, learned, _ = s.update(s.state, s.ref_params, None, rollouts, take)
        learned = host.to_host(learned)
      tokens = int(given.lengths.sum())
      numbers = learned | host.statistics(given, packing)
      numbers |= {"prompts_too_long": long, "tokens_per_s/learn": tokens / s.writer.seconds["learn"]}
      s.log(step, numbers)


def solutions(rows: Sequence[Example | None], prompts: Prompts, model: build.Model, max_length: int) -> Rollouts:
  """The worked solutions as groups of one, each with its end token; longer ones are cut, and then have none."""
  tokens = np.zeros((len(rows), 1, max_length), np.int32)
  lengths = np.zeros((len(rows), 1), np.int32)
  ended = np.full((len(rows), 1), TRUNCATED, np.int32)
  for p, example in enumerate(rows):
    if example is None or not prompts.lengths[p]:
      continue
    ids = [*model.tokenizer.encode(example.solution), model.tokenizer.eos_id]
    ended[p, 0] = STOPPED if len(ids) <= max_length else TRUNCATED
    ids = ids[:max_length]
    tokens[p, 0, : len(ids)] = ids
    lengths[p, 0] = len(ids)
  zeros = np.zeros(tokens.shape, np.float32)
  return Rollouts(prompts, tokens, lengths, ended, zeros, zeros)
