"""Formats the bar, numbers, the time left and tables of samples for a terminal or a log."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import rich.console
import rich.progress
import rich.table
import rich.text

TABLE_CHARACTERS = 600  # characters of a question or completion in a table of samples
TABLE_TURNS = 16  # turns of an episode there; a text of the environment counts as one


class ShownTurn(NamedTuple):
  """Holds a turn of an episode, or what the environment wrote after one."""

  sampled: bool  # false: the environment wrote it
  text: str
  rewards: list[float | None]

  @property
  def speaker(self) -> str:
    """Says who wrote it."""
    return "policy" if self.sampled else "environment"


def make(file: IO[str] | None = None) -> rich.console.Console:
  """Returns a console on a file (None: standard output); a notebook gets the lines of a log.

  For a notebook rich would make HTML of each line, and the kernel's FORCE_COLOR asks for the
  control characters of a terminal.
  """
  console = rich.console.Console(file=file)
  if not console.is_jupyter:
    return console
  return rich.console.Console(file=file, force_jupyter=False, force_terminal=False)


def time_left(ends: Sequence[float], steps: int) -> str:
  """Returns the time that `steps` more steps take, as H:MM:SS.

  Args:
    ends: when the last steps ended, in seconds; the time before the first one, which compiled, does
      not count.
    steps: the number of steps left.
  """
  return remaining(ends[-1] - ends[0] if ends else 0.0, len(ends) - 1, steps)


def remaining(seconds: float, done: int, left: int) -> str:
  """Returns the time for `left` more steps as H:MM:SS, if `done` steps took `seconds`."""
  if left <= 0:
    return "0:00:00"
  if done <= 0:
    return "-:--:--"
  s = round(seconds / done * left)
  return f"{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}"


class Pace:
  """Says how far long work is, and the time that is left of it."""

  def __init__(self) -> None:
    self._text, self._done = "", 0
    self._start = (0.0, 0)  # a time, and what was done of the work then
    self._next: float | None = None  # when the next work begins, if that is known

  def begin(self, now: float) -> None:
    """Notes that the next work begins at `now`."""
    self._text, self._next = "", now

  def line(self, text: str, done: int, total: int, now: float) -> str:
    """Returns `text`, what is done and the time left at `now`; work of another text is another."""
    if text != self._text or done < self._done:
      self._start = (now, done) if self._next is None else (self._next, 0)
      self._next = None
    self._text, self._done = text, done
    if done >= total:
      self.begin(now)
      return f"{text} {done}/{total}"
    since, before = self._start
    return f"{text} {done}/{total}, {remaining(now - since, done - before, total - done)} left"


def samples_table(step: int, samples: Sequence[Mapping[str, Any]]) -> rich.table.Table:
  """Makes a table of samples. Their texts are never taken for markup.

  Args:
    step: of the run, for the title.
    samples: `question`, `completion`, `reward` and `advantage` of each; None for numbers that are
      not finite. Episodes have `tokens`, `sampled` and `turn_rewards` besides (run/writer.py).
  """
  table = rich.table.Table(
    title=f"samples of step {step}", title_justify="left", show_lines=True, expand=True
  )
  table.add_column("question", ratio=2, overflow="fold")
  table.add_column("completion", ratio=3, overflow="fold")
  table.add_column("reward", justify="right", no_wrap=True)
  table.add_column("advantage", justify="right", no_wrap=True)
  question = None
  for sample in samples:
    repeated, question = sample["question"] == question, sample["question"]
    reward, advantage = sample["reward"], sample["advantage"]
    style = "" if not advantage else "green" if advantage > 0 else "red"
    is_episode = sample.get("sampled") and sample.get("tokens")
    table.add_row(
      _text("" if repeated else question),
      conversation(sample) if is_episode else _text(sample["completion"]),
      number(reward, ".2f"),
      rich.text.Text(number(advantage, "+.2f"), style=style),
    )
  return table


def spread(samples: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
  """Returns up to `count` samples of the first group, from the largest reward to the least.

  Where the group has more, they are evenly spaced in that order, with both ends.
  """
  group = [sample for sample in samples if sample.get("group") == samples[0].get("group")]
  group.sort(key=lambda sample: math.inf if sample["reward"] is None else -sample["reward"])
  if len(group) <= count:
    return group
  return [group[round(i * (len(group) - 1) / (count - 1))] for i in range(count)]


def printable(text: str) -> str:
  """Returns `text` with U+FFFD for the control characters that a terminal would obey."""
  return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)


def number(value: float | None, form: str = ".4g") -> str:
  """Returns a formatted number; None stands for one that is not finite."""
  return "nan" if value is None else format(value, form)


def bar(console: rich.console.Console, steps: int) -> rich.progress.Progress:
  """Makes a line of phase, bar, steps, time left and numbers; a narrow terminal drops the bar."""
  return rich.progress.Progress(
    _field("phase", 6),
    rich.progress.BarColumn(bar_width=20),
    rich.progress.MofNCompleteColumn(table_column=_cell(2 * len(str(steps)) + 1)),
    _field("left", 7),
    _field("shown"),
    console=console,
    refresh_per_second=4,
  )


def _cell(width: int | None = None) -> rich.table.Column:
  """Returns a column of the bar that is never wrapped."""
  return rich.table.Column(min_width=width, no_wrap=True, overflow="ellipsis")


def _field(name: str, width: int | None = None) -> rich.progress.TextColumn:
  """Returns a column of the bar that shows the field `name` of the task."""
  return rich.progress.TextColumn(
    f"{{task.fields[{name}]}}", table_column=_cell(width), markup=False
  )


def _text(text: object) -> rich.text.Text:
  """Returns the cell of a text."""
  return rich.text.Text(_cut(printable(str(text)), TABLE_CHARACTERS))


def _cut(text: str, most: int) -> str:
  """Returns the text, with dots for its end if it has more than `most` characters."""
  return text if len(text) <= most else text[: max(most - 4, 0)] + " ..."


def conversation(
  sample: Mapping[str, Any],
  most_characters: int = TABLE_CHARACTERS,
  most_turns: int = TABLE_TURNS,
) -> rich.text.Text:
  """Returns an episode as lines: who wrote what, and the rewards of each turn.

  Each turn begins with its speaker, and its other lines are indented, so that a text with a
  speaker's name in it does not look like another turn.

  Args:
    sample: `tokens`, `sampled` and `turn_rewards`, see `samples_table`.
    most_characters: that are shown.
    most_turns: that are shown; a text of the environment counts as one.
  """
  cell, room = rich.text.Text(), most_characters
  shown = list(turns(sample))
  for n, turn in enumerate(shown):
    if n == most_turns or room <= 0:
      cell.append(f"... {len(shown) - n} more\n")
      break
    text = _cut(printable(turn.text).strip("\n"), room)
    room -= len(text)
    rewards = ", ".join(number(reward, ".2f") for reward in turn.rewards)
    label = f"{turn.speaker} (reward {rewards}): " if rewards else f"{turn.speaker}: "
    cell.append(label, style="bold" if turn.sampled else "dim")
    cell.append(text.replace("\n", "\n  ") + "\n", style="" if turn.sampled else "dim")
  cell.right_crop(1)
  return cell


def turns(sample: Mapping[str, Any]) -> Iterator[ShownTurn]:
  """Yields the turns of an episode, and what the environment wrote between them."""
  rewards, first = dict(sample.get("turn_rewards") or ()), 0
  for sampled, places in itertools.groupby(sample["sampled"]):
    last = first + len(list(places))
    given = [rewards[i] for i in range(first, last) if i in rewards]
    yield ShownTurn(sampled, "".join(sample["tokens"][first:last]), given)
    first = last
