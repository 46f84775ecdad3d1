"""Asks a policy: a question typed, given or of a file.

    python -m experiments.sample --path=FOLDER_OR_WORKDIR [--step=N]
        [--like=RUN] [--prompt=TEXT | --file=FILE.txt|FILE.jsonl] [--samples=N] [--max_length=N]
        [--temperature=X] [--top_k=N] [--top_p=X] [--min_p=X] [--seed=N]

Without --prompt and --file it asks for questions until the end of the input (Ctrl-D). A file has a
question on each line; in .jsonl it is the field "question" or "prompt" of an object. Its answers
are printed as JSON, a line for each question; others as text, on a terminal while they are sampled
(on several devices, when they are complete).

A run, or its export, is asked as it was trained: by the template, the chat, the stop tokens and the
sampler of its config.json, but for what the flags say. Another folder is asked by its chat template
if it has one, else with the text as it is; or with --like=RUN as that run was trained, to compare
the weights before and after. --temperature=0 takes the most likely token each time. The same seed
gives the same answers.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from absl import app, flags, logging
from ml_collections import ConfigDict

from experiments import arguments, sources
from experiments.progress import Progress
from grpo_jax.config import kinds, settings
from grpo_jax.errors import SettingError, said_of
from grpo_jax.io import storage
from grpo_jax.run import provenance

if TYPE_CHECKING:
  from grpo_jax.sampling.stream import Stream
  from grpo_jax.setup.build import Model
  from grpo_jax.types import Completion

EVERY = 16  # tokens between two prints of a completion that grows
BATCH = 16  # questions of a file at a time
LEAST_WIDTH = 64  # tokens of a prompt: widths are powers of two from here on, each a program
OF_FOLDERS = {
  "sampler.max_length": 512,
  "data.template": "{question}",
}  # where no config.json of a run says more
OF_RUNS = (*sources.PROMPT, "sampler.dtype", "sampler.weights_dtype", "sampler.cache_dtype")
SAMPLER = {  # the flags that are settings of the sampler, and what each may be
  "max_length": settings.KINDS["sampler.max_length"],
  "temperature": kinds.Form(
    f"0 or {settings.KINDS['sampler.temperature'].expects}",
    lambda value: value == 0 or settings.KINDS["sampler.temperature"].fits(value),
  ),
  "top_k": settings.KINDS["sampler.top_k"],
  "top_p": settings.KINDS["sampler.top_p"],
  "min_p": settings.KINDS["sampler.min_p"],
}
ROWS = SAMPLER | {"samples": kinds.Whole(1, 4096), "seed": settings.KINDS["seed"]}


class Policy(NamedTuple):
  """A policy that can be asked."""

  model: "Model"
  stream: "Stream"
  ready: Any  # its weights, as they decode
  seed: int


def main(argv: list[str]) -> None:
  """Asks what the flags say."""
  del argv
  logging.set_verbosity(logging.WARNING)  # orbax tells of every step it takes
  values = flags.FLAGS
  with arguments.one_line_errors(), said_of("--path"), sources.output() as out:
    given = {name: values[name].value for name in ROWS if values[name].value is not None}
    check(values.path, values.step, values.prompt, values.file, given, values.like)
    questions = read_questions(values.file) if values.file else [values.prompt]
    print("starting: importing jax, loading weights", flush=True)
    policy = load(values.path, values.step, given, values.like)
    if values.file:
      answer_file(policy, questions, out)
    elif values.prompt is not None:
      answer(policy, values.prompt, 0, out)
    else:
      converse(policy, out)


def check(
  path: str | None,
  step: int | None,
  prompt: str | None,
  file: str | None,
  given: dict[str, Any],
  like: str | None,
) -> None:
  """Refuses flags that name no weights, no question, or no number that works; jax is not imported."""
  if not path:
    raise SettingError(f"--path is missing: {sources.WEIGHTS}, as in --path=runs/1")
  for name, value in given.items():
    if not ROWS[name].fits(value):
      raise kinds.refused(f"--{name}", value, ROWS[name].expects)
  if prompt is not None and file is not None:
    raise SettingError(f"--file={file!r} with --prompt={kinds.shown(prompt)}: give one of them")
  if prompt is None and not file and not sys.stdin.isatty():
    raise SettingError(
      "--prompt is missing: give --prompt=TEXT or --file=FILE where the input is no terminal"
    )
  if prompt is not None and not (prompt.strip() and kinds.is_text(prompt)):
    raise SettingError(f"--prompt={kinds.shown(prompt)}: use a text that is not empty")
  sources.check("--path", path, step)
  if like:
    sources.check("--like", like, None)
    if not provenance.run_of(like):
      raise SettingError(
        f"--like={like!r}: is no run; give the workdir of one, as whose policy to ask"
      )


def read_questions(file: str) -> list[str]:
  """Returns the questions of a file: its lines, or (.jsonl) the field "question" or "prompt" of
  each.
  """
  storage.check("--file", file)
  if not file.endswith((".txt", ".jsonl")):
    raise SettingError(f"--file={file!r}: use a name that ends in .txt or .jsonl")
  try:
    lines = storage.place(file).read_text(encoding="utf-8").split("\n")
  except (OSError, ValueError) as error:
    raise SettingError(
      f"--file={file!r}: cannot be read ({str(error)[:200]}); give a file in UTF-8"
    ) from error
  numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
  if not numbered:
    raise SettingError(f"--file={file!r}: has no question; write one on each line")
  if file.endswith(".txt"):
    return [line for _, line in numbered]
  return [_question(line, f"--file={file!r}, line {number}") for number, line in numbered]


def _question(line: str, where: str) -> str:
  """The question of a line of JSON."""
  try:
    found = json.loads(line)
  except (ValueError, RecursionError):
    found = None
  texts = [found.get(name) for name in ("question", "prompt")] if isinstance(found, dict) else []
  for text in texts:
    if kinds.is_text(text) and text.strip():
      return text
  raise SettingError(
    f'{where}: use an object with a text "question" or "prompt", as in {{"question": "What is '
    f'2+3?"}}'
  )


def make_config(path: str, given: dict[str, Any], run: str) -> ConfigDict:
  """Returns the config by which weights are asked: that of a run, if there is one, with what the
  flags say.

  Args:
    path: of the weights.
    given: the flags.
    run: as whose policy they are asked; "": none.
  """
  from grpo_jax.setup import defaults

  config = defaults.get_config()
  try:
    if run:
      changes = sources.trained_with(run, (*OF_RUNS, *(f"sampler.{name}" for name in SAMPLER)))
    else:
      changes = OF_FOLDERS | {"sampler.dtype": provenance.weights_dtype(path)}
    config.update_from_flattened_dict(changes)
  except (AttributeError, TypeError) as error:
    raise SettingError(
      f"--path={run!r}: config.json is not as the run wrote it ({error}); put it back"
    ) from error
  settings.check(config)
  config.sampler.group = given.get("samples", 1)
  config.sampler.update(
    {
      name: float(value) if name == "temperature" else value
      for name, value in given.items()
      if name in SAMPLER
    }
  )
  return config


def load(path: str, step: int | None, given: dict[str, Any], like: str | None = None) -> Policy:
  """Returns the policy of a folder or run, its weights on all devices; `like`: the run as whose
  policy it is asked.
  """
  from grpo_jax.sampling import stream
  from grpo_jax.tokenizer import reading

  run = provenance.run_of(like or path)
  config = make_config(path, given, run)
  if not run:
    config.data.chat = reading.load(path, "--path").has_chat_template
  plain = f"the template {config.data.template!r}" if run else "the text as it is"
  how = "the chat template" if config.data.chat else plain
  print(f"questions are asked with {how}{f', as {run} was trained' if run else ''}", flush=True)
  model = sources.model(config, path, step)
  made = stream.make_stream(model.decoder, config.sampler, model.stop)
  return Policy(model, made, made.sampler.ready(model.load()), given.get("seed", 0))


def sample(
  policy: Policy, questions: Sequence[str], turn: int, rows: int = 1
) -> Iterator[list[list["Completion"]]]:
  """Yields the answers to some questions as they grow, [questions][samples]; the last ones are
  complete.

  Args:
    policy: is asked.
    questions: at least one.
    turn: how many questions were asked before: the noise is another one each time.
    rows: to which empty prompts fill the questions up, so that batches share a program.
  """
  import numpy as np

  from grpo_jax.sampling import rollouts
  from grpo_jax.setup import build
  from grpo_jax.types import Prompts

  ids = [policy.model.render(question) for question in questions]
  shards = policy.stream.sampler.layout.size("prompt")
  tokens = np.zeros(
    (-(-max(rows, len(ids)) // shards) * shards, width_for(max(map(len, ids)))), np.int32
  )
  for row, each in zip(tokens, ids):
    row[: len(each)] = each
  lengths = np.array([*map(len, ids), *[0] * (len(tokens) - len(ids))], np.int32)
  prompts = rollouts.to_device(policy.stream.sampler.layout, Prompts(tokens, lengths))
  for found in policy.stream(
    policy.ready, prompts, build.key(policy.seed, build.SAMPLE, turn), EVERY
  ):
    groups = list(zip(*found))[: len(ids)]
    yield [
      [rollouts.completion(*each, policy.model.tokenizer) for each in zip(*group)]
      for group in groups
    ]


def width_for(longest: int) -> int:
  """Returns the tokens of a prompt's row: a power of two that holds the longest, so that few
  programs are compiled.
  """
  return max(LEAST_WIDTH, 1 << (longest - 1).bit_length())


def new_text(shown: str, text: str) -> str:
  """Returns what can be printed of a text that grows, after what is shown of it.

  A character of several tokens reads as U+FFFD until the last has come; it, and a text whose
  beginning changed, wait.
  """
  whole = text.rstrip("\ufffd")
  return whole[len(shown) :] if whole.startswith(shown) else ""


def answer(policy: Policy, question: str, turn: int, out: TextIO) -> None:
  """Prints the answers to one question: the first of them on a terminal while it grows."""
  from grpo_jax.run.console import (
    printable,
  )  # an answer may say anything, and a terminal obeys control characters

  start, shown, group = time.monotonic(), "", []
  for (group,) in sample(policy, [question], turn):
    if out.isatty():
      more = new_text(shown, group[0].text)
      print(printable(more), end="", file=out, flush=True)
      shown += more
  print(printable(group[0].text.removeprefix(shown)), file=out, flush=True)
  _told(group[0], 1, len(group), time.monotonic() - start)
  for n, each in enumerate(group[1:], 2):
    print(printable(each.text), file=out, flush=True)
    _told(each, n, len(group), time.monotonic() - start)


def _told(completion: "Completion", n: int, of: int, seconds: float) -> None:
  """Says on stderr which answer it was, how long, and why it ended."""
  from grpo_jax.types import STOPPED

  ended = "stopped" if completion.ended == STOPPED else "cut off by --max_length"
  print(
    f"[{f'{n} of {of}: ' if of > 1 else ''}{len(completion.tokens)} tokens, {ended}, {seconds:.1f} "
    "s]",
    flush=True,
  )


def answer_file(policy: Policy, questions: Sequence[str], out: TextIO) -> None:
  """Prints the answers to all questions, a line of JSON for each."""
  if out.isatty():  # the lines themselves show how far it is, and a bar would stand among them
    for _ in _answered(policy, questions, out):
      pass
    return
  with Progress(len(questions), 0) as bar:
    for done in _answered(policy, questions, out):
      bar.show(done, "answered")


def _answered(policy: Policy, questions: Sequence[str], out: TextIO) -> Iterator[int]:
  """Prints the answers to some questions at a time, and yields how many are answered."""
  from grpo_jax.types import STOPPED

  for start in range(0, len(questions), BATCH):
    some = questions[start : start + BATCH]
    *_, last = sample(policy, some, start, rows=min(BATCH, len(questions)))
    for question, group in zip(some, last):
      completions = [each.text for each in group]
      stopped = [each.ended == STOPPED for each in group]
      print(
        json.dumps({"question": question, "completions": completions, "stopped": stopped}),
        file=out,
        flush=True,
      )
    yield start + len(some)


def converse(policy: Policy, out: TextIO) -> None:
  """Asks for questions and answers each by itself, until the end of the input."""
  print("a question, or Ctrl-D to end", flush=True)
  turn = 0
  while True:
    try:
      question = input("> ").strip()
    except EOFError:
      print(flush=True)
      return
    if question and kinds.is_text(question):
      answer(policy, question, turn, out)
      turn += 1


if __name__ == "__main__":
  flags.DEFINE_string("path", None, "A Hugging Face folder or the workdir of a run.")
  flags.DEFINE_integer(
    "step", None, "Of the run's checkpoint; its export, or the last one, where it is not given."
  )
  flags.DEFINE_string(
    "like", None, "A run: asks as it was trained, where --path is another folder."
  )
  flags.DEFINE_string("prompt", None, "A question.")
  flags.DEFINE_string(
    "file", None, "Questions, one on each line: .txt, or .jsonl with the field question or prompt."
  )
  flags.DEFINE_integer("samples", None, "Answers to each question; 1 where it is not given.")
  flags.DEFINE_integer("max_length", None, "Tokens of an answer; as the run has it, or 512.")
  flags.DEFINE_float("temperature", None, "0: the most likely token; as the run has it, or 1.")
  flags.DEFINE_integer("top_k", None, "Of that many tokens; 0: off.")
  flags.DEFINE_float("top_p", None, "Of the tokens that make up this share; 1: off.")
  flags.DEFINE_float(
    "min_p", None, "Of tokens at least this share as likely as the most likely; 0: off."
  )
  flags.DEFINE_integer("seed", None, "Of the noise; 0 where it is not given.")
  app.run(main, flags_parser=arguments.parse_flags)
