"""Makes the model, the data and the keys of a run from its config.

Bad input is refused here, before anything is compiled.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from grpo_jax.aliases import Json, Tree
from grpo_jax.data import loader
from grpo_jax.distributed import sharding
from grpo_jax.distributed.sharding import Layout
from grpo_jax.errors import CheckpointError, DataError, SettingError
from grpo_jax.io import storage
from grpo_jax.learning import passes
from grpo_jax.models import variants
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import tensors
from grpo_jax.packing.sizes import Sizes
from grpo_jax.run import checkpoint, workdir
from grpo_jax.setup import adapters, parameters, shots, weights
from grpo_jax.setup.experiment import Experiment, changed
from grpo_jax.tokenizer import making, reading, steps, stop_texts
from grpo_jax.tokenizer.tokenizer import Tokenizer
from grpo_jax.types import Example

# Purposes of random keys, which are functions of (seed, purpose, step) and never carried along.
INIT, SAMPLE, EVALUATE, CONTINUE, ADAPTERS, CARRY = range(6)
FIRST_PROMPTS = 256  # of each data set, rendered before a run starts
SIZES = 8  # programs by default if compiling is slow, see `sizes`
MADE = ("words", "bpe")  # tokenizers that are made from the training data
TOKENIZER_EXAMPLES = 10_000  # of each data set, to make a tokenizer from


class Model(NamedTuple):
  """A decoder with its tokenizer, prompt renderer, stop tokens and weight loader."""

  layout: Layout
  decoder: Decoder
  tokenizer: Tokenizer
  render: Callable[[str], list[int]]  # question -> prompt ids
  end: Callable[[], int]  # the token that ends a completion in the data
  stop: tuple[int, ...]  # tokens that end a sample
  stop_table: np.ndarray | None  # of texts that do (tokenizer/stop_texts.py); None: there are none
  # returns a fresh copy of its starting parameters, sharded and without adapters
  load: Callable[[], Tree]


def key(seed: int, purpose: int, step: int) -> jax.Array:
  """Returns the random key of a step; `purpose` is INIT, SAMPLE or another of these constants."""
  return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), step)


def model(
  experiment: Experiment, devices: Sequence[jax.Device] | None = None, scores: bool = False
) -> Model:
  """Returns the policy that `init_from`, `tokenizer` and `model` describe.

  Args:
    experiment: of the run.
    devices: to shard it over; None: all.
    scores: whether to make a reward model. If `init_from` holds a policy, the reward model is its
      decoder with a fresh head, whose scores are 0.
  """
  layout = sharding.make_layout(experiment.mesh, devices)
  folder, run = weights.find_source(experiment.init_from)
  check_start(experiment, folder)
  tokenizer = make_tokenizer(experiment, folder)
  if folder:
    shape = weights.read_shape(folder)
  else:
    shape = variants.variant(experiment.model.variant, vocab=tokenizer.vocab_size)
  tensors.check_tokenizer(tokenizer, shape)
  if shape.scores and not scores:
    raise SettingError(
      f"init_from={experiment.init_from!r}: is a reward model, which samples nothing; give a policy"
    )
  missing = ("score",) if scores and not shape.scores else ()  # parts that the source lacks
  shape = dataclasses.replace(shape, scores=scores)
  m = experiment.model
  decoder = Decoder(shape, layout, layers=m.layers, remat=m.remat, dtype=m.dtype)
  load = _loader(experiment, decoder, folder, run, missing)
  how = message_format(experiment)
  template, count = experiment.data.template, experiment.data.shots
  shots.check_template(template, count, tokenizer.special_tokens)
  shown = shots.shown(experiment.train_data[0], count, template)
  render = functools.partial(_render, tokenizer, shape.vocab, how, shown)
  stop, table = stop_texts.set_stops(tokenizer, experiment.sampler.stop, shape.vocab)
  decoder = dataclasses.replace(decoder, lora=adapters.make_lora(experiment.lora))
  end = functools.partial(tokenizer.end_id, **how)
  return Model(layout, decoder, tokenizer, render, end, stop, table, load)


def message_format(experiment: Experiment) -> Json:
  """Returns how the tokenizer renders a question, and what follows an answer: keyword arguments."""
  d = experiment.data
  arguments = tuple(map(tuple, d.chat_arguments))
  return {"template": d.template, "chat": d.chat, "system": d.system, "arguments": arguments}


def check_start(experiment: Experiment, folder: str) -> None:
  """Refuses a start that is neither a folder that is there nor a fresh model."""
  if folder and not storage.place(folder).is_dir():
    raise SettingError(f"init_from={folder!r}: no such folder; {where_to_get(experiment)}")
  if folder and experiment.model.variant:
    raise SettingError(
      f"model.variant={experiment.model.variant!r} with init_from={experiment.init_from!r}: "
      "weights bring their own shape; use --config.init_from= for a fresh model, or no variant"
    )
  if not folder and not experiment.model.variant:
    raise SettingError(
      f"init_from='': this experiment starts from weights; {where_to_get(experiment)}"
    )


def _loader(
  experiment: Experiment, decoder: Decoder, folder: str, run: str, missing: Sequence[str]
) -> Callable[[], Tree]:
  """Returns the function that loads the starting parameters, without adapters.

  Args:
    experiment: of the run.
    decoder: without adapters.
    folder, run: as `weights.find_source` returns them.
    missing: parts of the tree that these lack, which are made fresh.
  """
  lora = adapters.make_lora(experiment.lora)
  if lora and (run or not folder):
    raise SettingError(
      f"lora.rank={lora.rank} with init_from={experiment.init_from!r}: adapters stand on weights "
      "that stay as they are; give a Hugging Face folder, or a run with an export (python -m "
      "experiments.export makes a folder of any run)"
    )
  if run:
    if checkpoint.latest(run) is None:
      raise CheckpointError(
        f"init_from={run!r}: this run has no complete checkpoint; wait for its first, or use "
        "another"
      )
    load = functools.partial(weights.restore, run, decoder, left_out=missing)
  elif folder:
    tensors.check(folder, parameters.without(decoder.shapes(), missing))
    dtype = adapters.base_dtype(experiment.lora, folder) if lora else "float32"
    load = functools.partial(weights.load, folder, decoder, missing, dtype)
  else:
    init = jax.jit(decoder.init, out_shardings=decoder.shardings())
    load = functools.partial(init, key(experiment.seed, INIT, 0))
  if missing and folder:
    return functools.partial(parameters.with_fresh_head, load, decoder)
  return load


def _render(tokenizer: Tokenizer, vocab: int, how: Json, shown: str, question: str) -> list[int]:
  """Returns the ids of a prompt; refuses a template with tokens that the model does not embed."""
  ids = tokenizer.render(shown + question, **how)
  check_embedded(ids, vocab, f"data.chat={how['chat']}, data.template", "prompt")
  return ids


def check_embedded(ids: Sequence[int], vocab: int, setting: str, text: str) -> None:
  """Refuses tokens that a model of `vocab` embeddings has none for."""
  if max(ids, default=0) >= vocab:
    raise SettingError(
      f"{setting}: the token {max(ids)} of the {text} is none of the model's {vocab} embeddings; "
      "use another template, or the folder of the model's own tokenizer with --config.tokenizer=DIR"
    )


def of_another(experiment: Experiment, source: str, **more: object) -> Experiment:
  """Returns the experiment with a model without adapters from another folder or run.

  Args:
    experiment: of the run.
    source: the folder or run.
    **more: further settings to change, by their dotted names.
  """
  changes = {"init_from": source, "model.variant": "", "lora.rank": 0}
  return changed(experiment, changes | more)


def sizes(experiment: Experiment, layout: Layout, microbatches: int = 0) -> Sizes:
  """Returns the sizes that the programs of a run may have, by `learner.sizes`.

  With 0 microbatches there are as many as the learner makes.
  """
  most = experiment.learner.sizes
  if most == -1:
    most = 0 if layout.platform == "cpu" else SIZES
  microbatches = microbatches or passes.microbatches_of_rollout(
    experiment.learner, experiment.data.prompts
  )
  return Sizes(most, layout, experiment.data.max_prompt_length, microbatches)


def where_to_get(experiment: Experiment) -> str:
  """Returns a sentence on how to get weights for this experiment."""
  hub = experiment.model.hub or "Qwen/Qwen3-0.6B"
  return (
    f"`hf download {hub} --local-dir FOLDER` gets some, --config.init_from=FOLDER passes them (a "
    "run's workdir will do, too)"
  )


def make_tokenizer(experiment: Experiment, source: str) -> Tokenizer:
  """Returns the tokenizer of a folder, or one made from the training data (`words` or `bpe`).

  Its steps end as `data.steps` says.
  """
  tokenizer = find_tokenizer(experiment, source)
  tokenizer.step_pattern = steps.pattern(experiment.data.steps)
  tokenizer.step_seconds = steps.seconds(experiment.data.steps, experiment.rewards.deadline)
  return tokenizer


def find_tokenizer(experiment: Experiment, source: str) -> Tokenizer:
  """Returns the tokenizer of `make_tokenizer`, before `data.steps` is applied to it."""
  if experiment.tokenizer not in MADE:
    if not (experiment.tokenizer or source):
      raise SettingError(
        "tokenizer='': a fresh model needs one; pass a folder with a tokenizer.json, or 'bpe' or "
        "'words' to make one from the training data"
      )
    return reading.load(
      experiment.tokenizer or source, "tokenizer" if experiment.tokenizer else "init_from"
    )
  sources = experiment.open_train()
  examples = (data[i] for data in sources for i in range(min(len(data), TOKENIZER_EXAMPLES)))
  texts = [
    text
    for e in examples
    for text in (experiment.data.template.replace("{question}", e.question), e.solution)
  ]
  return (
    making.word_level(texts)
    if experiment.tokenizer == "words"
    else making.train_bpe(texts, experiment.model.vocab)
  )


def check_prompts(
  examples: Sequence[Example], model: Model, experiment: Experiment, setting: str
) -> None:
  """Refuses a data set of whose first prompts none fits."""
  count = min(len(examples), FIRST_PROMPTS)
  lengths = [len(model.render(examples[i].question)) for i in range(count)]
  most = experiment.data.max_prompt_length
  if not lengths:
    raise DataError(f"{setting}: this data set has no example")
  if min(lengths) > most and experiment.data.on_long == "skip":
    raise SettingError(
      f"data.max_prompt_length={most} ({setting}): the first {len(lengths)} prompts have "
      f"{min(lengths)} to {max(lengths)} tokens, so all would be skipped; use {max(lengths)}, or "
      "data.on_long='cut'"
    )


def beyond_context(model: Model, experiment: Experiment) -> list[str]:
  """Returns a line if a prompt and its completion may be longer than the model was trained for."""
  prompt, completion = experiment.data.max_prompt_length, experiment.sampler.max_length
  context = model.decoder.config.context
  if not 0 < context < prompt + completion:
    return []
  return [
    f"data.max_prompt_length={prompt} and sampler.max_length={completion}: {prompt + completion} "
    f"tokens are more than the {context} that the model was trained for (max_position_embeddings)"
  ]


def batches(experiment: Experiment, model: Model) -> loader.Batches:
  """Returns endless shuffled training batches; every host makes the whole batch.

  Raises:
    SettingError: all prompts are too long, or `offline.held_out` leaves none to learn from.
  """
  sources, weights = experiment.open_train(), [each.weight for each in experiment.train_data]
  for examples in sources:
    check_prompts(examples, model, experiment, "data.name")
  size, held_out = sum(map(len, sources)), experiment.offline.held_out
  if held_out >= size > 0:
    raise SettingError(
      f"offline.held_out={held_out}: the data have {size} examples, and none would be left to "
      f"learn from; use less than {size}"
    )
  return loader.Batches(
    sources,
    weights,
    prompts=experiment.data.prompts,
    seed=experiment.seed,
    shuffle=experiment.data.shuffle,
  )


def describe(model: Model, folder: str) -> None:
  """Writes the decoder's shape and the tokenizer, from which another run can start."""
  path = storage.place(folder)
  try:
    path.mkdir(parents=True, exist_ok=True)
    model.tokenizer.save(path)
    shape = json.dumps(dataclasses.asdict(model.decoder.config), indent=2)
    (path / weights.SHAPE).write_text(shape)
  except OSError as error:
    raise workdir.not_writable(folder, error) from error
