"""Formats the bar, numbers, the time left and tables of samples for a terminal or a log."""

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


def samples_table(step: int, samples: Sequence[Mapping[str, Any]]) -> rich.table.Table:
  """Makes a table of samples. Their texts are never taken for markup.

  Args:
    step: of the run, for the title.
    samples: `question`, `completion`, `reward` and `advantage` of each; None for numbers that are
      not finite.
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


def _cut(text: str) -> str:
  """Returns the text, with dots for its end if it is too long for a table."""
  return text if len(text) <= TABLE_CHARACTERS else text[: TABLE_CHARACTERS - 4] + " ..."
