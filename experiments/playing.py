"""Plays episodes of a policy with an environment and prints them, for sample.py.

jax is imported only when a policy is loaded.
"""

import ast
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import rich.text

from experiments import asking, sources
from experiments.questions import Question
from grpo_jax.aliases import Json
from grpo_jax.config import sections
from grpo_jax.errors import SettingError

if TYPE_CHECKING:
  from grpo_jax.config import settings
  from grpo_jax.sampling.generate import Generator
  from grpo_jax.setup.experiment import Experiment
  from grpo_jax.types import Example

OF_ENVIRONMENT = tuple(name for name in sections.KINDS if name.startswith("environment."))


class Player(NamedTuple):
  """Holds a policy, with the environment that answers its turns."""

  generator: "Generator"
  params: Any  # the policy's tree
  limits: "settings.Environment"
  seed: int
  game: int | None  # what `reset` is given, as in evaluations; None: it follows from the seed


class Episode(NamedTuple):
  """Holds an episode."""

  completion: str  # the text of both sides
  row: Json  # its `tokens`, `sampled` and `turn_rewards`, as samples.jsonl has them
  stopped: bool  # false: it reached a limit, or the environment failed
  ended: str  # how it ended, in words
  fault: str  # why the environment failed, or ""


def choose(flag: str | None, run: str) -> Json:
  """Returns the settings of the environment to play, by their dotted names; {}: there is none.

  Args:
    flag: NAME or NAME:argument=value,...; "": none is played. None: that of the run.
    run: whose environment it may be; "" for none.
  """
  trained = sources.trained_with(run, (*OF_ENVIRONMENT, "rewards.deadline"))
  if flag is None:
    return trained if trained.get("environment.name") else {}
  name, colon, arguments = flag.partition(":")
  if not name:
    return {}
  if not colon and name == trained.get("environment.name"):
    return trained
  named = tuple(_argument(item, flag) for item in arguments.split(",")) if colon else ()
  return trained | {"environment.name": name, "environment.arguments": named}


def _argument(item: str, flag: str) -> tuple[str, Any]:
  """Returns the name and the value of `argument=value`; what is no number or bool is text."""
  name, equals, text = item.partition("=")
  if not (equals and name.isidentifier()):
    raise SettingError(
      f"--environment={flag!r}: {item!r} is no argument; write NAME:argument=value,..., as in "
      "guess:guesses=5"
    )
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError, RecursionError, MemoryError):
    return name, text
  return name, value if isinstance(value, bool | int | float) else text


def load(
  path: str,
  step: int | None,
  numbers: dict[str, Any],
  like: str | None,
  played: Json,
  asked: Sequence[Question],
) -> "tuple[Player, list[Example]]":
  """Returns the policy of a folder or run with its environment, and the examples to be played.

  Args:
    path: of the weights.
    step: of a run's checkpoint, see `sources.model`.
    numbers: the flags that were given.
    like: a run, as whose policy they are asked.
    played: the environment, see `choose`.
    asked: the questions; none: the problem --problem of the run's test data.
  """
  import numpy as np

  from grpo_jax.packing.sizes import Sizes
  from grpo_jax.sampling import episodes, sampler
  from grpo_jax.setup import build, environments

  try:
    experiment = asking.make_experiment(path, numbers, like, played, with_data=not asked)
  except SettingError as error:  # a setting of the run, which the flag changes
    text = str(error).replace("environment.name=", "--environment=")
    is_argument = "environment.arguments=" in text
    how = "; write --environment=NAME:argument=value,..." if is_argument else ""
    raise SettingError(text + how) from error
  examples, game, problem = to_examples(asked), None, numbers.get("problem", 1)
  if not asked:
    examples = [find_problem(experiment, problem)]
    key = build.key(experiment.seed, build.EVALUATE, 0)
    (game,) = episodes.reset_numbers(key, np.array([problem - 1]))
  model = sources.model(experiment, path, step)
  width = asking.width_for(max(len(model.render(example.question)) for example in examples))
  sample = sampler.make_sampler(model.decoder, experiment.sampler, model.stop, model.stop_table)
  sizes = Sizes(0, model.layout, width, 1)
  generator = environments.make_generator(experiment, model, sample, sizes)
  limits = experiment.environment
  print(
    f"the environment {limits.name!r} answers; an episode has at most {limits.turns} turns and "
    f"{experiment.sampler.max_length} tokens",
    flush=True,
  )
  generator = generator._replace(max_prompt_length=width)
  return Player(generator, model.load(), limits, numbers.get("seed", 0), game), examples


def to_examples(asked: Sequence[Question]) -> "list[Example]":
  """Returns questions as examples, which have no worked solution."""
  from grpo_jax.types import Example

  return [Example(text, "", answer, meta) for text, answer, meta in asked]


def find_problem(experiment: "Experiment", number: int) -> "Example":
  """Returns a problem of the test data, by its number from 1, and says which it is."""
  problems = experiment.open_test()
  if number > len(problems):
    raise SettingError(
      f"--problem={number}: the test data has {len(problems)} problems; use 1 to {len(problems)}"
    )
  example = problems[number - 1]
  print(
    f"problem {number} of {len(problems)} of the test data, with the answer {example.answer!r}",
    flush=True,
  )
  return example


def play(
  player: Player, examples: "Sequence[Example]", turn: int, rows: int = 1
) -> list[list[Episode]]:
  """Returns the episodes of some examples, [examples][samples].

  Args:
    player: plays them.
    examples: at least one.
    turn: how many were played before; each turn has noise of its own.
    rows: least number of prompts, filled up by empty ones, so that batches share a program.
  """
  import numpy as np

  from grpo_jax.sampling import generate
  from grpo_jax.sampling import rollouts as host
  from grpo_jax.setup import build
  from grpo_jax.types import STOPPED

  generator = player.generator
  layouts = generator.sample.layout, generator.sizes.layout
  shards = math.lcm(*(layout.size("prompt") for layout in layouts))
  height = -(-max(rows, len(examples)) // shards) * shards
  filled = [*examples, *[None] * (height - len(examples))]
  key = build.key(player.seed, build.SAMPLE, turn)
  games = None if player.game is None else np.full(height, player.game)
  played, _, faults = generate.generate(generator, player.params, filled, key, games=games)
  texts, tokens = generate.completions(generator, played), host.to_host(played.tokens)
  group, length = tokens.shape[1:]
  assert played.given is not None and played.rewards is not None and played.sampled is not None
  sampled, given, rewards = played.sampled, played.given, played.rewards

  def episode(p: int, g: int) -> Episode:
    whole, fault = slice(played.lengths[p, g]), faults.get((p, g), "")
    own, stopped = sampled[p, g, whole].tolist(), bool(played.ended[p, g] == STOPPED)
    completion = texts[p][g]
    assert completion is not None  # one process has them all
    row = {
      "tokens": generator.tokenizer.texts(tokens[p, g, whole]),
      "sampled": own,
      "turn_rewards": [
        [i, round(float(rewards[p, g, i]), 4)] for i in np.flatnonzero(given[p, g]).tolist()
      ],
    }
    ended = how_it_ended(own, stopped, fault, length, player.limits)
    return Episode(completion.text, row, stopped, ended, fault)

  return [[episode(p, g) for g in range(group)] for p in range(len(examples))]


def how_it_ended(
  sampled: Sequence[bool], stopped: bool, fault: str, length: int, limits: "settings.Environment"
) -> str:
  """Returns in words how an episode ended: by itself, at a limit, or because of a fault.

  Args:
    sampled: of each of its tokens, see `Rollouts`.
    stopped: whether the environment ended it after a whole turn.
    fault: why the environment failed, or "".
    length: most tokens of an episode.
    limits: the other limits.
  """
  runs = [(own, len(list(tokens))) for own, tokens in itertools.groupby(sampled)]
  if fault:
    return f"the environment failed: {fault}"
  if stopped:
    return "over"
  if len(sampled) == length:
    return "cut off by --max_length"
  if sum(own for own, _ in runs) == limits.turns:
    return f"cut off by environment.turns={limits.turns}"
  if runs[-1][1] == limits.turn_length:
    return f"cut off by environment.turn_length={limits.turn_length}"
  return "cut off by --max_length, which has no room for the environment's answer"


def print_episodes(player: Player, example: "Example", out: TextIO) -> None:
  """Plays the episodes of an example and prints them as conversations."""
  # without the control characters of a text, which a terminal would obey
  from grpo_jax.run import console

  start = time.monotonic()
  (group,) = play(player, [example], 0)
  seconds = time.monotonic() - start
  terminal = console.make(out)
  question = console.printable(example.question).strip("\n").replace("\n", "\n  ")
  for n, episode in enumerate(group, 1):
    terminal.print(rich.text.Text(f"question: {question}"), soft_wrap=True)
    text = console.conversation(episode.row, most_characters=sys.maxsize, most_turns=sys.maxsize)
    terminal.print(text, soft_wrap=True)
    out.flush()
    count = f"{n} of {len(group)}: " if len(group) > 1 else ""
    own, turns = episode.row["sampled"], sum(turn.sampled for turn in console.turns(episode.row))
    print(
      f"[{count}{turns} {'turn' if turns == 1 else 'turns'}, {sum(own)} tokens sampled and "
      f"{len(own) - sum(own)} read, {' '.join(console.printable(episode.ended).split())}, "
      f"{seconds:.1f} s]",
      flush=True,
    )
  if not example.answer and any(episode.fault for episode in group):
    print(
      "the question has no answer, and the environment may need one: leave --prompt out to play a "
      'problem of the run, or give --file=FILE.jsonl with the field "answer"',
      flush=True,
    )


def play_file(player: Player, examples: "Sequence[Example]", out: TextIO) -> None:
  """Prints the episodes of all examples, a line of JSON for each."""
  asking.show_progress(_played(player, examples, out), len(examples), out)


def _played(player: Player, examples: "Sequence[Example]", out: TextIO) -> Iterator[int]:
  """Plays some examples at a time and prints them, and yields how many are done."""
  from grpo_jax.run import console

  for start in range(0, len(examples), asking.BATCH):
    some = examples[start : start + asking.BATCH]
    groups = play(player, some, start, rows=min(asking.BATCH, len(examples)))
    for example, group in zip(some, groups):
      line = {
        "question": example.question,
        "completions": [episode.completion for episode in group],
        "stopped": [episode.stopped for episode in group],
        "ended": [episode.ended for episode in group],
        "turns": [
          [
            {"speaker": turn.speaker, "text": turn.text, "rewards": turn.rewards}
            for turn in console.turns(episode.row)
          ]
          for episode in group
        ],
      }
      print(json.dumps(line), file=out, flush=True)
    yield start + len(some)
