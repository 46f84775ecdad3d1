"""What orbax and tensorstore are allowed to print."""

import logging
import os
import sys
import types

import pytest

from grpo_jax.run import orbax_logging

ORBAX = os.path.join("", "lib", "orbax", "checkpoint.py")


@pytest.mark.parametrize(
  ("path", "level", "printed"),
  [
    (ORBAX, logging.ERROR, False),
    (ORBAX, logging.INFO, False),
    (ORBAX, logging.WARNING, True),
    ("ours.py", logging.ERROR, True),
  ],
)
def test_of_orbax_only_warnings_are_printed(path, level, printed):
  record = logging.LogRecord("absl", level, os.path.join(os.sep, path), 1, "text", (), None)
  assert orbax_logging._worth_printing(record) == printed


@pytest.mark.parametrize(
  ("text", "printed"),
  [
    ("Task exception was never retrieved", False),
    ("Task was destroyed but it is pending!", False),
    ("socket.send() raised exception.", True),
  ],
)
def test_the_other_writes_of_a_failed_save_are_not_told(text, printed):
  record = logging.LogRecord("asyncio", logging.ERROR, "x.py", 1, text, (), None)
  assert orbax_logging._not_left_behind(record) == printed


@pytest.mark.parametrize(
  ("text", "told"), [("Event loop is closed", 0), ("another", 1), ("not Event loop is closed", 1)]
)
def test_what_follows_from_a_failed_write_is_not_told(text, told, monkeypatch):
  events = []
  monkeypatch.setattr(sys, "__unraisablehook__", events.append)
  orbax_logging._unraisable(types.SimpleNamespace(exc_value=RuntimeError(text)))
  assert len(events) == told
