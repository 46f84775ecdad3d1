"""What a terminal or a log shows of a run: a bar, numbers, the time left, a table of samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
import rich.progress
import rich.table
import rich.text

TABLE_CHARACTERS = 600  # characters of a question or completion in a table of samples


def time_left(ends: Sequence[float], steps: int) -> str:
  """Returns the time that `steps` more steps take, as H:MM:SS.

  Args:
    ends: when the last steps ended, in seconds. What came before the first of them is left out: it
      compiled.
    steps: how many steps are left.
  """
  return remaining(ends[-1] - ends[0] if ends else 0.0, len(ends) - 1, steps)


def remaining(seconds: float, done: int, left: int) -> str:
  """Returns the time for `left` more steps as H:MM:SS, where `done` steps took so many seconds."""
  if left <= 0:
    return "0:00:00"
  if done <= 0:
    return "-:--:--"
  s = round(seconds / done * left)
  return f"{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}"


def samples_table(step: int, samples: Sequence[Mapping[str, Any]]) -> rich.table.Table:
  """Makes a table of question, completion, reward and advantage. The texts of samples are never
  taken for markup.

  Args:
    step: of the run, for the title.
    samples: with the four by their names; numbers as JSON has them, None for what is not finite.
  """
  table = rich.table.Table(
    title=f"samples of step {step}", title_justify="left", show_lines=True, expand=True
  )
  table.add_column("question", ratio=2, overflow="fold")
  table.add_column("completion", ratio=3, overflow="fold")
  table.add_column("reward", justify="right", no_wrap=True)
  table.add_column("advantage", justify="right", no_wrap=True)
  for sample in samples:
    reward, advantage = sample["reward"], sample["advantage"]
    style = "" if not advantage else "green" if advantage > 0 else "red"
    texts = (_cut(printable(str(sample[name]))) for name in ("question", "completion"))
    table.add_row(
      *map(rich.text.Text, texts),
      number(reward, ".2f"),
      rich.text.Text(number(advantage, "+.2f"), style=style),
    )
  return table


def printable(text: str) -> str:
  """Returns `text` with U+FFFD for the control characters that a terminal would obey: a sample may
  say anything.
  """
  return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)


def number(value: float | None, form: str = ".4g") -> str:
  """Returns a number in that format; None is what JSON has for one that is not finite."""
  return "nan" if value is None else format(value, form)


def bar(console: rich.console.Console, steps: int) -> rich.progress.Progress:
  """Makes a line of phase, bar, steps done, time left, numbers. A narrow terminal cuts numbers and
  drops the bar.
  """
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
  """A column of the bar that is never wrapped."""
  return rich.table.Column(min_width=width, no_wrap=True, overflow="ellipsis")


def _field(name: str, width: int | None = None) -> rich.progress.TextColumn:
  """A column of the bar that shows the field `name` of the task."""
  return rich.progress.TextColumn(
    f"{{task.fields[{name}]}}", table_column=_cell(width), markup=False
  )


def _cut(text: str) -> str:
  """The text as a table shows it, with dots where it is too long."""
  return text if len(text) <= TABLE_CHARACTERS else text[: TABLE_CHARACTERS - 4] + " ..."
