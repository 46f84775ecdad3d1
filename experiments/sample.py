"""Asks a policy questions that are typed, given as a flag or read from a file.

    python -m experiments.sample --path=FOLDER_OR_WORKDIR [--step=N]
        [--like=RUN] [--prompt=TEXT | --file=FILE.txt|FILE.jsonl] [--samples=N] [--max_length=N]
        [--temperature=X] [--top_k=N] [--top_p=X] [--min_p=X] [--seed=N]
        [--chat] [--environment=NAME[:argument=value,...]] [--problem=N]

Without --prompt and --file it asks for questions until the end of the input (Ctrl-D), each by
itself. With --chat they follow one another: each is asked after the questions and answers before it
(of several --samples after the first), until an empty line begins a new conversation. A file has a
question on each line; in .jsonl it is the field "question" or "prompt" of an object. Answers to a
file are printed as JSON, one line per question; others as text, which a terminal shows while it is
sampled (on several devices: when it is complete).

A run, or its export, is asked as it was trained: with the template, chat, stop tokens and sampler
of its config.json, except where flags differ. Another folder is asked with its chat template if it
has one, otherwise with the text alone. --like=RUN asks it as that run was trained, to compare
weights before and after. --temperature=0 takes the most likely token each time. The same seed gives
the same answers.

A run that was trained with an environment plays an episode, which is printed as a conversation when
it has ended: who wrote what, the reward of each turn, and how it ended. Without --prompt and --file
it plays a problem of the run's test data, the first one or --problem=N. --environment names another
environment, a module or a file of yours, for any weights; empty, it plays none. A question of
--prompt has no answer, and one of a .jsonl file that of its field "answer"; its other fields are
the example's `meta`.
"""

import sys
from typing import Any, TextIO

from absl import app, flags, logging

from experiments import arguments, asking, playing, questions, sources
from grpo_jax.aliases import Json
from grpo_jax.config import kinds, sections
from grpo_jax.errors import SettingError, said_of
from grpo_jax.run import provenance

ROWS = asking.SAMPLER | {
  "samples": kinds.Whole(1, 4096),
  "seed": sections.KINDS["seed"],
  "problem": kinds.Whole(1),
}


def main(argv: list[str]) -> None:
  """Asks the policy that the flags name."""
  del argv
  logging.set_verbosity(logging.WARNING)  # orbax logs every step it takes
  values = flags.FLAGS
  with arguments.one_line_errors(), said_of("--path"), sources.output() as out:
    numbers = {name: values[name].value for name in ROWS if values[name].value is not None}
    weights = (values.path, values.step)
    played = check(*weights, values.prompt, values.file, numbers, values.like, values.environment)
    asked = [questions.Question(values.prompt, "", {})] if values.prompt is not None else []
    if values.file:
      asked = questions.read(values.file)
    if values.chat:
      check_chat(values.prompt, values.file, played)
    print("starting: importing jax, loading weights", flush=True)
    if played:
      player, examples = playing.load(*weights, numbers, values.like, played, asked)
      if values.file:
        playing.play_file(player, examples, out)
      else:
        playing.print_episodes(player, examples[0], out)
      return
    policy = asking.load(*weights, numbers, values.like, values.chat)
    if values.file:
      asking.answer_file(policy, [question.text for question in asked], out)
    elif values.prompt is not None:
      asking.answer(policy, values.prompt, 0, out)
    else:
      converse(policy, out, values.chat)


def check(
  path: str | None,
  step: int | None,
  prompt: str | None,
  file: str | None,
  numbers: dict[str, Any],
  like: str | None,
  environment: str | None = None,
) -> Json:
  """Refuses flags without weights or a question, or with wrong numbers, before jax is imported.

  Returns:
    The environment to play, see `playing.choose`.
  """
  if not path:
    raise SettingError(f"--path is missing: {sources.WEIGHTS}, as in --path=runs/1")
  for name, value in numbers.items():
    if not ROWS[name].fits(value):
      raise kinds.refused(f"--{name}", value, ROWS[name].expects)
  if prompt is not None and file is not None:
    raise SettingError(f"--file={file!r} with --prompt={kinds.shown(prompt)}: give one of them")
  if prompt is not None and not (prompt.strip() and kinds.is_text(prompt)):
    raise SettingError(f"--prompt={kinds.shown(prompt)}: use a text that is not empty")
  sources.check("--path", path, step)
  if like:
    sources.check("--like", like, None)
    if not provenance.run_of(like):
      raise SettingError(
        f"--like={like!r}: is no run; give the workdir of one, as whose policy to ask"
      )
  played = playing.choose(environment, provenance.run_of(like or path))
  asks = prompt is not None or bool(file)
  if "problem" in numbers:
    check_problem(numbers["problem"], played, prompt, file)
  if played and not asks and not provenance.run_of(like or path):
    raise SettingError(
      f"--environment={environment!r} with --path={path!r}: is no run, whose problems could be "
      "played; give --prompt=TEXT, --file=FILE or --like=RUN"
    )
  if not played and not asks and not sys.stdin.isatty():
    raise SettingError(
      "--prompt is missing: where the input is no terminal give --prompt=TEXT or --file=FILE, "
      "without --chat"
    )
  return played


def check_chat(prompt: str | None, file: str | None, played: Json) -> None:
  """Refuses --chat where no question is typed, or an episode is played."""
  refuse_questions("--chat", "a chat is typed; ", prompt, file)
  if played:
    raise SettingError(
      "--chat: an episode is a conversation already; use --environment= to play none"
    )


def check_problem(number: int, played: Json, prompt: str | None, file: str | None) -> None:
  """Refuses --problem where no problem of a run is played."""
  if not played:
    raise SettingError(
      f"--problem={number}: is played with an environment, and there is none; give "
      "--environment=NAME, or ask with --prompt"
    )
  refuse_questions(f"--problem={number}", "", prompt, file)


def refuse_questions(flag: str, why: str, prompt: str | None, file: str | None) -> None:
  """Refuses --prompt and --file beside a flag that leaves no room for them."""
  for name, value in (("prompt", prompt), ("file", file)):
    if value:
      raise SettingError(f"{flag} with --{name}={kinds.shown(value)}: {why}give one of them")


def converse(policy: asking.Policy, out: TextIO, chat: bool) -> None:
  """Asks for questions until the end of the input, and answers each by itself, or in a chat."""
  anew = ", an empty line for a new conversation," if chat else ""
  print(f"a question{anew} or Ctrl-D to end", flush=True)
  turn, past = 0, list[int]()
  while True:
    try:
      question = input("> ").strip()
    except EOFError:
      print(flush=True)
      return
    except UnicodeDecodeError:
      print("not understood: these bytes are no UTF-8", flush=True)
      continue
    if chat and not question and past:
      past = []
      print("a new conversation", flush=True)
    if question and kinds.is_text(question):
      asked = asking.answer(policy, question, turn, out, past)
      past = asked if chat else []
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
  flags.DEFINE_bool(
    "chat", False, "Typed questions follow one another; an empty line begins a new conversation."
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
  flags.DEFINE_string(
    "environment",
    None,
    "Plays episodes with it: NAME or FILE.py, or NAME:argument=value,...; by default with that of "
    "the run. Empty: one turn alone.",
  )
  flags.DEFINE_integer(
    "problem", None, "Of the run's test data, to be played without --prompt and --file; 1 is first."
  )
  app.run(main, flags_parser=arguments.parse_flags)
