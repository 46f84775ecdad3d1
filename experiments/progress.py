"""Shows how far long work is: a bar on a terminal, elsewhere a plain line now and then."""

import time

import rich.console
import rich.progress

from grpo_jax.run import console as terminal

PLAIN_SECONDS = 60.0  # between lines where the console is no terminal


class Progress:
  """Shows how many of `total` steps are done, the time left and a text, inside a `with` block."""

  def __init__(self, total: int, done: int):
    """`done`: how many steps were done before; they took no time here."""
    self._total = total
    self._start: tuple[float, int] | None = (
      None  # when `show` was first called, and the steps done then
    )
    self._said_at, self._said_text = -PLAIN_SECONDS, ""
    console = terminal.make()
    self._bar = _bar(console) if console.is_terminal else None
    if self._bar:
      self._task = self._bar.add_task("", total=total, completed=done, left="-:--:--", text="")

  def __enter__(self) -> "Progress":
    if self._bar:
      self._bar.start()
    return self

  def __exit__(self, *exception) -> None:
    if self._bar:
      self._bar.stop()

  def show(self, done: int, text: str) -> None:
    """Shows that `done` steps are done.

    Without a terminal a line is printed if its text is new, or after a minute.
    """
    now = time.monotonic()
    self._start = self._start or (now, done)
    left = terminal.remaining(now - self._start[0], done - self._start[1], self._total - done)
    if self._bar:
      self._bar.update(self._task, completed=done, text=text, left=left)
    elif text != self._said_text or now - self._said_at >= PLAIN_SECONDS:
      print(f"{text}  {done / self._total:.0%}  {left} left", flush=True)
      self._said_at, self._said_text = now, text


def _bar(console: rich.console.Console) -> rich.progress.Progress:
  """Returns a bar with the share that is done, the time left and a text."""
  return rich.progress.Progress(
    rich.progress.BarColumn(bar_width=24),
    rich.progress.TextColumn(
      "{task.percentage:.0f}%  {task.fields[left]} left  {task.fields[text]}", markup=False
    ),
    console=console,
    refresh_per_second=2,
  )
