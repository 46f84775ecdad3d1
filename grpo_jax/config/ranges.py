"""What each setting may be: one row for every setting of experiments/defaults.py.

A new setting is a line there and a row here. The settings of an objective or of a data set stand in
its own file, and so does what they may be. jax is not imported here: a value out of range is
answered at once.
"""

import operator
from typing import Any

from ml_collections import ConfigDict

from grpo_jax.config import kinds
from grpo_jax.config.kinds import (
  PATH,
  PLACE,
  SWITCH,
  TEXT,
  Choice,
  Form,
  Number,
  Row,
  Whole,
  is_text,
)
from grpo_jax.io import storage

MESH_AXES = ("replica", "fsdp", "group", "tensor")


def is_stop(value: Any) -> bool:
  """Returns whether a value is a tuple of texts that are not empty."""
  return isinstance(value, tuple | list) and all(is_text(each) and each for each in value)


def is_template(value: Any) -> bool:
  """Returns whether a value is text with one place for the question; of jinja's {{question}},
  braces would be left.
  """
  return is_text(value) and value.count("{question}") == 1 and "{{question}}" not in value


def is_some_of(value: Any, names: tuple[str, ...]) -> bool:
  """Returns whether a value is a tuple of some of the names, each once."""
  return (
    isinstance(value, tuple | list)
    and 0 < len(value) == len(set(map(str, value)))
    and all(n in names for n in value)
  )


def is_rules(value: Any) -> bool:
  """Returns whether a value is a table from logical names to mesh axes, each name once."""
  if not isinstance(value, tuple | list) or not all(
    isinstance(row, tuple | list) and len(row) == 2 for row in value
  ):
    return False
  if not all(is_text(name) and isinstance(axes, tuple | list) for name, axes in value):
    return False
  once = len({name for name, _ in value}) == len(value)
  return once and all(
    axis in MESH_AXES and axes.count(axis) == 1 for _, axes in value for axis in axes
  )


def is_arguments(value: Any) -> bool:
  """Returns whether a value is what a chat template may be given: names of its own, each once, with
  a plain value.
  """
  if not isinstance(value, tuple | list) or not all(
    isinstance(row, tuple | list) and len(row) == 2 for row in value
  ):
    return False
  names = [name for name, _ in value]
  named = all(is_text(name) and name.isidentifier() and name not in TAKEN for name in names)
  return (
    named and len(set(names)) == len(names) and all(isinstance(each, PLAIN) for _, each in value)
  )


ROWS = Form(
  "a tuple of tuples, with a comma after a single one, as in ((...),)",
  lambda x: isinstance(x, tuple | list),
)
TEMPLATE = Form("text with {question} in it, once and in single braces", is_template)
TAKEN = ("messages", "add_generation_prompt")  # which are said by others
PLAIN = (bool, int, float, str, type(None))
ARGUMENTS = Form(
  f"(('name', value), ...), each name once and none of {', '.join(TAKEN)}, each value True, False, "
  "None, a number or "
  "text",
  is_arguments,
)
STOP = Form("a tuple of texts that are not empty, as in ('</s>',)", is_stop)
RULES = Form(
  f"(('name', ('axis', ...)), ...), each name once, with the axes {', '.join(MESH_AXES)}", is_rules
)
LORA = ("q", "k", "v", "o", "gate", "up", "down")  # as in models/lora.py, which imports jax
MODULES = Form(f"a tuple of some of {', '.join(LORA)}, each once", lambda x: is_some_of(x, LORA))
AXIS = Whole(1, also=(-1,))
SHARE = Number(0, 1)
DTYPES = ("float32", "bfloat16")

TABLE: dict[str, Row] = {
  "seed": Whole(0, 2**32 - 1),
  "loop": PATH,  # experiments/run.py says which there are
  "steps": Whole(1),
  "init_from": PLACE,
  "ref_from": PLACE,
  "tokenizer": PLACE,
  "model.variant": PATH,  # models/variants.py says which there are
  "model.hub": TEXT,
  "model.vocab": Whole(
    258, 2**20
  ),  # all bytes, and two special tokens; the largest vocabularies have 2**18
  "model.layers": Choice(("scan", "unroll")),
  "model.remat": Choice(("none", "block", "dots")),
  "model.dtype": Choice(DTYPES),
  "data.name": PATH,
  "data.path": PLACE,
  "data.train": PATH,
  "data.test": PATH,
  "data.shuffle": SWITCH,
  "data.test_name": PATH,
  "data.test_path": PLACE,
  "data.mixture": ROWS,  # setup/registry.py reads them
  "data.template": TEMPLATE,
  "data.chat": SWITCH,
  "data.system": TEXT,
  "data.chat_arguments": ARGUMENTS,
  "data.steps": TEXT,  # tokenizer/steps.py says which patterns work
  "data.prompts": Whole(1),
  "data.redraw": Number(0, 1, above=True),
  "data.max_prompt_length": Whole(1),
  "data.on_long": Choice(("skip", "cut")),
  "offline.data": Choice(("solutions", "samples", "pairs", "steps")),
  "offline.prompts": Whole(1),
  "offline.pairs": PLACE,
  "offline.require": TEXT,
  "offline.held_out": Whole(0),
  "offline.steps": PLACE,
  "offline.continuations": Whole(0),
  "offline.labels": Choice(("hard", "soft")),
  "offline.teacher": PLACE,
  "lora.rank": Whole(0),
  "lora.alpha": Number(0, above=True),
  "lora.modules": MODULES,
  "lora.base_dtype": Choice(("same", *DTYPES)),
  "iterative.steps": Whole(1),
  "iterative.reward_model": PLACE,
  "iterative.weight": Number(-1e6, 1e6),
  "iterative.labels": TEXT,
  "iterative.reward_model_lr": Number(0),
  "iterative.pairs": Whole(1),
  "iterative.epochs": Whole(1),
  "iterative.replay": Number(0, 1, below=True),
  "iterative.kept_steps": Whole(0),
  "sampler.group": Whole(1),
  "sampler.max_length": Whole(1),
  "sampler.tensor": Whole(0),
  "sampler.slots": Whole(0),
  "sampler.tries": Whole(1),
  "sampler.temperature": Number(
    1e-3, 1e3
  ),  # outside, it is greedy or uniform, and float32 loses the log-probs
  "sampler.top_k": Whole(0),
  "sampler.top_p": Number(0, 1, above=True),
  "sampler.min_p": SHARE,
  "sampler.stop": STOP,
  "sampler.dtype": Choice(DTYPES),
  "sampler.weights_dtype": Choice(("same", "int8")),
  "sampler.cache_dtype": Choice((*DTYPES, "int8")),
  "rewards.functions": ROWS,  # setup/registry.py reads them
  "rewards.outcome_models": ROWS,
  "rewards.process_models": ROWS,
  "rewards.on_error": Number(-1e30, 1e30),  # as large as a reward may be
  "rewards.deadline": Number(
    1e-3, 86400, also=(0,)
  ),  # seconds; 0: any time. A timer rounds 1e-9 to none
  "objective.name": PATH,
  "learner.lr": Number(0),
  "learner.critic_lr": Number(0),
  "learner.schedule": Choice(("constant", "linear", "cosine")),
  "learner.warmup": Whole(0),
  "learner.b1": Number(0, 1, below=True),
  "learner.b2": Number(0, 1, below=True),
  "learner.adam_eps": Number(1e-30, 1),  # 0 would divide 0 by 0, and 1e30 leave everything as it is
  "learner.weight_decay": Number(0),
  "learner.clip_norm": Number(0),
  "learner.mu": Whole(1),
  "learner.stop_reached": SHARE,
  "learner.stop_surrogate": Number(0),
  "learner.stop_kl": Number(0),
  "learner.minibatches": Whole(1),
  "learner.microbatch": Whole(0),
  "learner.chunk": Whole(1),
  "learner.sizes": Whole(0, also=(-1,)),
  "learner.max_bad_steps": Whole(1),
  **{f"mesh.{axis}": AXIS for axis in MESH_AXES},
  "mesh.rules": RULES,
  "eval.every": Whole(0),
  "eval.problems": Whole(0),
  "eval.batch": Whole(1),
  "eval.samples": Whole(0),
  "eval.reward": PATH,
  "eval.arguments": ROWS,  # setup/registry.py reads them
  "checkpoint.every": Whole(1),
  "checkpoint.keep": Whole(1),
  "checkpoint.export": SWITCH,
  "log.every": Whole(1),
  "log.samples_every": Whole(0),
  "log.samples": Whole(0),
  "log.measure_every": Whole(0),
  "log.tensorboard": SWITCH,
  "log.bucket_seconds": Number(0),
  "profile.first_step": Whole(0),
  "profile.steps": Whole(0),
  "compilation_cache": PLACE,
}


def expand(config: ConfigDict) -> None:
  """Puts the home directory in place of `~` in settings that name a folder or file.

  Raises:
    SettingError: there is no such user.
  """
  for name in (name for name, row in TABLE.items() if row is PLACE):
    section, _, last = name.rpartition(".")
    holder = operator.attrgetter(section)(config) if section else config
    holder[last] = storage.expanded(name, holder[last])


def check(config: ConfigDict) -> None:
  """Refuses a config with a setting that is missing or out of range; it may have others than those
  of the table.

  A folder is refused by its name alone where it cannot be one (`storage.check`); whether it is
  there is not looked at.

  Raises:
    SettingError: the setting, its value, and what would work.
  """
  kinds.check(config, TABLE)
  for name, row in TABLE.items():
    if row is PLACE:
      storage.check(name, operator.attrgetter(name)(config))
