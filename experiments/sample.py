"""Asks a policy questions that are typed, given as a flag or read from a file.

    python -m experiments.sample --path=FOLDER_OR_WORKDIR [--step=N]
        [--like=RUN] [--prompt=TEXT | --file=FILE.txt|FILE.jsonl] [--samples=N] [--max_length=N]
        [--temperature=X] [--top_k=N] [--top_p=X] [--min_p=X] [--seed=N]

Without --prompt and --file it asks for questions until the end of the input (Ctrl-D). A file has a
question on each line; in .jsonl it is the field "question" or "prompt" of an object. Answers to a
file are printed as JSON, one line per question; others as text, which a terminal shows while it is
sampled (on several devices: when it is complete).

A run, or its export, is asked as it was trained: with the template, chat, stop tokens and sampler
of its config.json, except where flags differ. Another folder is asked with its chat template if it
has one, otherwise with the text as it is. --like=RUN asks it as that run was trained, to compare
weights before and after. --temperature=0 takes the most likely token each time. The same seed gives
the same answers.
"""

import sys
from typing import Any, TextIO

from absl import app, flags, logging

from experiments import arguments, asking, questions, sources
from grpo_jax.config import kinds, sections
from grpo_jax.errors import SettingError, said_of
from grpo_jax.run import provenance

ROWS = asking.SAMPLER | {"samples": kinds.Whole(1, 4096), "seed": sections.KINDS["seed"]}


def main(argv: list[str]) -> None:
  """Asks the policy that the flags name."""
  del argv
  logging.set_verbosity(logging.WARNING)  # orbax logs every step it takes
  values = flags.FLAGS
  with arguments.one_line_errors(), said_of("--path"), sources.output() as out:
    numbers = {name: values[name].value for name in ROWS if values[name].value is not None}
    check(values.path, values.step, values.prompt, values.file, numbers, values.like)
    asked = questions.read(values.file) if values.file else [values.prompt]
    print("starting: importing jax, loading weights", flush=True)
    policy = asking.load(values.path, values.step, numbers, values.like)
    if values.file:
      asking.answer_file(policy, asked, out)
    elif values.prompt is not None:
      asking.answer(policy, values.prompt, 0, out)
    else:
      converse(policy, out)


def check(
  path: str | None,
  step: int | None,
  prompt: str | None,
  file: str | None,
  numbers: dict[str, Any],
  like: str | None,
) -> None:
  """Refuses flags without weights or a question, or with wrong numbers, before jax is imported."""
  if not path:
    raise SettingError(f"--path is missing: {sources.WEIGHTS}, as in --path=runs/1")
  for name, value in numbers.items():
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


def converse(policy: asking.Policy, out: TextIO) -> None:
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
      asking.answer(policy, question, turn, out)
      turn += 1


if __name__ == "__main__":
  flags.DEFINE_string("path", None, "A Hugging Face folder or the workdir of a run.")
  flags.DEFINE_integer(
    "step", None, "Of the run's checkpoint; its export, or the last one, by default."
  )
  flags.DEFINE_string(
    "like", None, "A run: asks as it was trained, where --path is another folder."
  )
  flags.DEFINE_string("prompt", None, "A question.")
  flags.DEFINE_string(
    "file", None, "Questions, one on each line: .txt, or .jsonl with the field question or prompt."
  )
  flags.DEFINE_integer("samples", None, "Answers to each question; 1 by default.")
  flags.DEFINE_integer("max_length", None, "Tokens of an answer; as the run has it, or 512.")
  flags.DEFINE_float("temperature", None, "0: the most likely token; as the run has it, or 1.")
  flags.DEFINE_integer("top_k", None, "Of that many tokens; 0: off.")
  flags.DEFINE_float("top_p", None, "Of the tokens that make up this share; 1: off.")
  flags.DEFINE_float(
    "min_p", None, "Of tokens at least this share as likely as the most likely; 0: off."
  )
  flags.DEFINE_integer("seed", None, "Of the noise; 0 by default.")
  app.run(main, flags_parser=arguments.parse_flags)
