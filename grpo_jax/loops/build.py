"""What every loop makes from its config before it starts; all bad input is found here, before anything is compiled."""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from grpo_jax import checkpoint, sharding
from grpo_jax import tokenizer as tokenizers
from grpo_jax.data import loader
from grpo_jax.loops import imports
from grpo_jax.models import heads, hf, variants
from grpo_jax.models.decoder import Decoder, DecoderConfig
from grpo_jax.sharding import Layout
from grpo_jax.tokenizer import Tokenizer
from grpo_jax.types import SettingError

# What a random key is for; keys are functions of (seed, purpose, step), never carried.
INIT, SAMPLE, EVALUATE = range(3)
TOKENIZER_EXAMPLES = 10_000  # of each data set, where a tokenizer is made


class Model(NamedTuple):
  """A policy and what speaks its language."""

  layout: Layout
  decoder: Decoder
  tokenizer: Tokenizer
  render: Callable[[str], list[int]]  # question -> prompt ids
  stop: tuple[int, ...]  # tokens that end a completion
  load: Callable[[], Any]  # its starting parameters, in their shards; each call a fresh copy


def key(seed: int, purpose: int, step: int) -> jax.Array:
  return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), step)


def model(config: ConfigDict) -> Model:
  """The policy that `init_from`, `tokenizer` and `model` describe.

  Raises:
    SettingError: missing or corrupt weights, a tokenizer that does not fit, a mesh that the devices do not make.
  """
  layout = sharding.make_layout(config.mesh)
  source = weights_folder(config.init_from)
  tokenizer = make_tokenizer(config, source)
  shape = hf.read_config(source) if source else variants.variant(config.model.variant, vocab=tokenizer.vocab_size)
  hf.check_tokenizer(tokenizer, shape)
  run = {"layers": config.model.layers, "remat": config.model.remat, "dtype": config.model.dtype}
  decoder = Decoder(shape, layout, **run)
  if source:
    hf.check(source, decoder.shapes())
    load = functools.partial(hf.load, source, decoder)
  else:
    init = jax.jit(decoder.init, out_shardings=decoder.shardings())
    load = functools.partial(init, key(config.seed, INIT, 0))
  if checkpoint_of_run(config.init_from):
    struct = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
    shapes = jax.tree.map(struct, decoder.shapes(), decoder.shardings())
    load = lambda: checkpoint.restore_params(config.init_from, {"policy": shapes})["policy"]
  d = config.data
  render = functools.partial(tokenizer.render, template=d.template, chat=d.chat, system=d.system)
  stop = tuple(dict.fromkeys((*tokenizer.eos_ids, *(tokenizer.token_id(t) for t in config.sampler.stop))))
  return Model(layout, decoder, tokenizer, render, stop, load)


def make_tokenizer(config: ConfigDict, source: str) -> Tokenizer:
  """The tokenizer of a folder, or one made from the training data: `words` or `bpe`.

  Raises:
    SettingError: a fresh model without a tokenizer.
  """
  if config.tokenizer not in ("words", "bpe"):
    if not (config.tokenizer or source):
      raise SettingError(
        "tokenizer='': a fresh model needs one; pass a folder with a tokenizer.json, or 'bpe' or 'words' to make one "
        "from the training data"
      )
    return tokenizers.load(config.tokenizer or source)
  sources, _ = imports.train_sources(config.data)
  examples = (each[i] for each in sources for i in range(min(len(each), TOKENIZER_EXAMPLES)))
  texts = [text for e in examples for text in (config.data.template.format(question=e.question), e.solution)]
  return tokenizers.word_level(texts) if config.tokenizer == "words" else tokenizers.train_bpe(texts, config.model.vocab)


def checkpoint_of_run(init_from: str) -> bool:
  """Whether `init_from` is the workdir of a run that has not written its export."""
  return os.path.isdir(os.path.join(init_from, "checkpoints")) and not os.path.exists(
    os.path.join(init_from, "export", "config.json")
  )


def weights_folder(init_from: str) -> str:
  """The Hugging Face folder that `init_from` means: itself, or the export of a run's workdir."""
  if init_from and os.path.exists(os.path.join(init_from, "export", "config.json")):
    return os.path.join(init_from, "export")
  return init_from


def batches(config: ConfigDict) -> loader.Batches:
  """Endless shuffled training batches; every host makes the whole batch."""
  sources, weights = imports.train_sources(config.data)
  return loader.Batches(sources, weights, prompts=config.data.prompts, seed=config.seed)


def params(model: Model, needs: frozenset[str]) -> dict[str, Any]:
  """The trees that an update changes: the policy, and a critic that starts from it where the objective needs values."""
  trees = {"policy": model.load()}
  if "values" in needs:
    head = jax.jit(heads.init_scalar, static_argnums=0, out_shardings=model.layout.replicated())
    trees["critic"] = model.load() | {"value_head": head(model.decoder.config.width)}
  return trees


def abstract_params(model: Model, needs: frozenset[str]) -> dict[str, Any]:
  """Shapes and shardings of `params`."""
  struct = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
  tree = jax.tree.map(struct, model.decoder.shapes(), model.decoder.shardings())
  if "values" not in needs:
    return {"policy": tree}
  head = jax.eval_shape(heads.init_scalar, model.decoder.config.width)
  return {"policy": tree, "critic": tree | {"value_head": jax.tree.map(lambda x: struct(x, model.layout.replicated()), head)}}
