"""Asks a policy questions and prints its answers, for sample.py; playing.py plays episodes.

jax is imported only when a policy is loaded.
"""

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from ml_collections import ConfigDict

from experiments import sources
from experiments.progress import Progress
from grpo_jax.aliases import Json
from grpo_jax.config import kinds, sections
from grpo_jax.errors import CheckpointError, SettingError
from grpo_jax.run import provenance

if TYPE_CHECKING:
  from grpo_jax.sampling.sampler import Sampler
  from grpo_jax.setup.build import Model
  from grpo_jax.setup.experiment import Experiment
  from grpo_jax.types import Completion

EVERY = 16  # tokens between two prints of a growing completion
BATCH = 16  # questions of a file at a time
LEAST_WIDTH = 64  # tokens of a prompt: widths are powers of two from here on, each a program
# Settings for a folder that is not a run's.
OF_FOLDERS = {"sampler.max_length": 512, "data.template": "{question}"}
OF_RUNS = (*sources.PROMPT, "sampler.dtype", "sampler.weights_dtype", "sampler.cache_dtype")
SAMPLER = {  # flags that are settings of the sampler
  "max_length": sections.KINDS["sampler.max_length"],
  "temperature": kinds.Form(
    f"0 or {sections.KINDS['sampler.temperature'].expects}",
    lambda value: value == 0 or sections.KINDS["sampler.temperature"].fits(value),
  ),
  "top_k": sections.KINDS["sampler.top_k"],
  "top_p": sections.KINDS["sampler.top_p"],
  "min_p": sections.KINDS["sampler.min_p"],
}


class Policy(NamedTuple):
  """Holds a policy that can be asked."""

  model: "Model"
  sampler: "Sampler"
  ready: Any  # its weights, as they decode
  seed: int
  # (a question, the last token before it) -> the ids of the user's next turn in a chat
  reply: Callable[[str, int], list[int]]


def make_config(
  path: str, numbers: dict[str, Any], run: str, played: Json | None = None, with_data: bool = False
) -> ConfigDict:
  """Returns the config for asking: that of a run, if there is one, changed by the flags.

  Args:
    path: of the weights.
    numbers: the flags that were given.
    run: as whose policy the weights are asked; "" for none.
    played: settings of the environment, by their dotted names; None: there is none.
    with_data: whether the problems of the run are read.
  """
  from grpo_jax.setup import defaults

  config = defaults.get_config()
  try:
    if run:
      changes = sources.trained_with(run, (*OF_RUNS, *(f"sampler.{name}" for name in SAMPLER)))
      if with_data or changes.get("data.shots"):  # worked examples of its training data
        saved = provenance.saved_config(run)
        data = sources.trained_with(run, [f"data.{name}" for name in saved.get("data") or {}])
        config.data.update({name.removeprefix("data."): value for name, value in data.items()})
        config.seed = saved.get("seed", config.seed)
    else:
      changes = OF_FOLDERS | {"sampler.dtype": provenance.weights_dtype(path)}
    config.update_from_flattened_dict(changes | (played or {}))
  except (AttributeError, TypeError) as error:
    raise CheckpointError(
      f"--path={run!r}: config.json is not as the run wrote it ({error}); put it back"
    ) from error
  sections.check(config)
  config.sampler.group = numbers.get("samples", 1)
  for name in SAMPLER.keys() & numbers.keys():
    config.sampler[name] = float(numbers[name]) if name == "temperature" else numbers[name]
  return config


def make_experiment(
  path: str,
  numbers: dict[str, Any],
  like: str | None,
  played: Json | None = None,
  with_data: bool = False,
) -> "Experiment":
  """Returns the experiment of `make_config`, and says how questions are asked in it.

  Args:
    path: of the weights.
    numbers, played, with_data: see `make_config`.
    like: a run, as whose policy they are asked; None or "": they are asked as `path` was trained.
  """
  from grpo_jax.setup import experiment
  from grpo_jax.tokenizer import reading

  run = provenance.run_of(like or path)
  config = make_config(path, numbers, run, played, with_data)
  if not run:
    config.data.chat = reading.load(path, "--path").has_chat_template
  plain = f"the template {config.data.template!r}" if run else "the text as it is"
  how = "the chat template" if config.data.chat else plain
  if config.data.shots:
    how += f" after {config.data.shots} worked examples"
  print(f"questions are asked with {how}{f', as {run} was trained' if run else ''}", flush=True)
  return experiment.make(config)


def load(
  path: str,
  step: int | None,
  numbers: dict[str, Any],
  like: str | None = None,
  chat: bool = False,
) -> Policy:
  """Returns the policy of a folder or run, asked as that of `like`, if given, or in a chat."""
  from grpo_jax.sampling import sampler
  from grpo_jax.setup import build

  asked = make_experiment(path, numbers, like)
  if chat and not asked.data.chat:
    raise SettingError(
      f"--chat with --path={path!r}: it is asked with a text, without a chat template, so that no "
      "question can follow another; leave --chat out, or use a model with a template and data.chat"
    )
  model = sources.model(asked, path, step)
  # a slot for each answer, so that all of them grow at the same time
  each = dataclasses.replace(asked.sampler, slots=0)
  made = sampler.make_sampler(model.decoder, each, model.stop, model.stop_table)
  reply = functools.partial(model.tokenizer.reply, **build.message_format(asked))
  return Policy(model, made, made.ready(model.load()), numbers.get("seed", 0), reply)


def sample(
  policy: Policy, ids: Sequence[Sequence[int]], turn: int, rows: int = 1, growing: bool = True
) -> Iterator[list[list["Completion"]]]:
  """Yields the growing answers to some prompts, [prompts][samples]; the last are complete.

  Args:
    policy: is asked.
    ids: of each prompt; at least one.
    turn: how many questions were asked before; each turn has noise of its own.
    rows: least number of prompts, filled up by empty ones, so that batches share a program.
    growing: whether answers are read while they grow; False: only the complete ones are.
  """
  import numpy as np

  from grpo_jax.sampling import rollouts, stream
  from grpo_jax.setup import build
  from grpo_jax.types import Prompts

  shards = policy.sampler.layout.size("prompt")
  height = -(-max(rows, len(ids)) // shards) * shards
  tokens = np.zeros((height, width_for(max(map(len, ids)))), np.int32)
  for row, prompt in zip(tokens, ids):
    row[: len(prompt)] = prompt
  lengths = np.array([*map(len, ids), *[0] * (len(tokens) - len(ids))], np.int32)
  prompts = rollouts.to_device(policy.sampler.layout, Prompts(tokens, lengths))
  key = build.key(policy.seed, build.SAMPLE, turn)
  for part in stream.parts(policy.sampler, policy.ready, prompts, key, EVERY):
    if not growing and part.result is None:
      continue
    groups = list(zip(part.seen.tokens, part.seen.lengths, part.seen.ended))[: len(ids)]
    yield [
      [rollouts.completion(*fields, policy.model.tokenizer) for fields in zip(*group)]
      for group in groups
    ]


def width_for(longest: int) -> int:
  """Returns a power of two that holds the longest prompt, so that few programs are compiled."""
  return max(LEAST_WIDTH, 1 << (longest - 1).bit_length())


def new_text(shown: str, text: str) -> str:
  """Returns what can be printed of a growing text after the part that is shown.

  A character of several tokens reads as U+FFFD until its last token has come, and is printed then.
  A text whose beginning changed waits until it is complete.
  """
  whole = text.rstrip("\ufffd")
  return whole[len(shown) :] if whole.startswith(shown) else ""


def before_a_stop(text: str, stops: Sequence[str]) -> str:
  """Returns a growing text without an end in which a stop text may have begun."""
  begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
  return text[: len(text) - max(begun, default=0)]


def answer(
  policy: Policy, question: str, turn: int, out: TextIO, past: Sequence[int] = ()
) -> list[int]:
  """Prints the answers to a question; a terminal shows the first one while it grows.

  Args:
    policy: is asked.
    question: is asked at the end of the conversation.
    turn: how many questions were asked before.
    out: where answers go.
    past: the ids of the conversation so far; none: it begins.

  Returns:
    The ids of the conversation with the question and the first answer. What was sampled stays as it
    was sampled.
  """
  # without the control characters of an answer, which a terminal would obey
  from grpo_jax.run.console import printable

  start, shown, group = time.monotonic(), "", []
  asked = policy.reply(question, past[-1]) if past else policy.model.render(question)
  ids = [*past, *asked]
  context, room = policy.model.decoder.config.context, policy.sampler.setup.length
  if 0 < context < len(ids) + room:
    print(
      f"warning: {len(ids)} tokens and an answer of up to {room} are more than the {context} that "
      "the model was trained for",
      file=sys.stderr,
    )
  for (group,) in sample(policy, [ids], turn):
    if out.isatty():
      more = new_text(shown, before_a_stop(group[0].text, policy.model.tokenizer.stop_texts))
      print(printable(more), end="", file=out, flush=True)
      shown += more
  text = group[0].text
  print(printable(text[len(shown) :] if text.startswith(shown) else text), file=out, flush=True)
  _report(group[0], 1, len(group), time.monotonic() - start)
  for n, completion in enumerate(group[1:], 2):
    print(printable(completion.text), file=out, flush=True)
    _report(completion, n, len(group), time.monotonic() - start)
  return [*ids, *group[0].tokens]


def _report(completion: "Completion", n: int, of: int, seconds: float) -> None:
  """Prints to stderr which answer it was, how long it is, and why it ended."""
  from grpo_jax.types import STOPPED

  ended = "stopped" if completion.ended == STOPPED else "cut off by --max_length"
  count = f"{n} of {of}: " if of > 1 else ""
  print(f"[{count}{len(completion.tokens)} tokens, {ended}, {seconds:.1f} s]", flush=True)


def answer_file(policy: Policy, questions: Sequence[str], out: TextIO) -> None:
  """Prints the answers to all questions, a line of JSON for each."""
  show_progress(_answered(policy, questions, out), len(questions), out)


def show_progress(answered: Iterator[int], total: int, out: TextIO) -> None:
  """Shows how many of `total` questions are answered, which `answered` prints to `out`."""
  if out.isatty():  # the lines show the progress, and a bar would get in between
    for _ in answered:
      pass
    return
  with Progress(total, 0) as bar:
    for done in answered:
      bar.show(done, "answered")


def _answered(policy: Policy, questions: Sequence[str], out: TextIO) -> Iterator[int]:
  """Prints the answers to some questions at a time, and yields how many are answered."""
  from grpo_jax.types import STOPPED

  for start in range(0, len(questions), BATCH):
    some = questions[start : start + BATCH]
    ids = [policy.model.render(question) for question in some]
    (last,) = sample(policy, ids, start, rows=min(BATCH, len(questions)), growing=False)
    for question, group in zip(some, last):
      completions = [completion.text for completion in group]
      stopped = [completion.ended == STOPPED for completion in group]
      line = {"question": question, "completions": completions, "stopped": stopped}
      print(json.dumps(line), file=out, flush=True)
    yield start + len(some)
