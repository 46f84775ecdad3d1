"""Chat templates: a user's turn as the model's authors wrote it. The templates run in a process of their own."""

import atexit
import contextlib
import functools
import json
import signal
import subprocess
import sys
import threading
from typing import Any, NamedTuple

from grpo_jax.errors import SettingError
from grpo_jax.folder import first_line
from grpo_jax.tokenizer import templates

# Stands for the question while its surroundings are found; its characters are for private use and in nobody's template.
_MARK = "\ue000question\ue000"


class Turn(NamedTuple):
  """A rendered conversation up to the point where the assistant answers, cut at the question."""

  before: str
  question: str  # as the template shows it: trimmed, for example
  after: str


def render(config: dict, question: str, template: str, system: str) -> Turn:
  """Renders `question` as the user's turn of the tokenizer's chat template.

  Templates trim and inspect what they are given. So the conversation is rendered twice, with the question and with a
  mark in its place: the question is what lies between the mark's surroundings.

  Args:
    config: tokenizer_config.json, which holds the chat template and the special tokens.
    question: what the user asks.
    template: the user's message, with "{question}" for the question.
    system: the system message; "" for none.

  Raises:
    SettingError: there is no chat template, it fails, takes too long or too much memory, or it does not show the
      user's message as it is.
  """
  program, specials = find_template(config), _specials(config)
  text = _conversation(program, specials, template.replace("{question}", question, 1), system)
  marked = _conversation(program, specials, template.replace("{question}", _MARK, 1), system)
  before, found, after = marked.partition(_MARK)
  if not found or not text.startswith(before) or not text[len(before) :].endswith(after):
    raise SettingError("chat_template: does not show the user's message as it is; data.chat=False would work")
  return Turn(before, text[len(before) : len(text) - len(after)], after)


def token_text(token: str | dict | None) -> str | None:
  """The text of a special token, which tokenizer_config.json gives as a string or as {"content": text}."""
  return token.get("content") if isinstance(token, dict) else token


def find_template(config: dict) -> str:
  """Returns the chat template of tokenizer_config.json, of several the one that is called "default".

  Raises:
    SettingError: there is none.
  """
  template = config.get("chat_template")
  if isinstance(template, list):
    template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
  if not template:
    raise SettingError("data.chat=True: this tokenizer has no chat template; data.chat=False would work")
  return template


def _specials(config: dict) -> tuple[tuple[str, str], ...]:
  """The special tokens that a template may name, as (name, text)."""
  found = ((name, token_text(token)) for name, token in config.items() if name.endswith("_token"))
  return tuple((name, text) for name, text in found if isinstance(text, str))


@functools.lru_cache(maxsize=2048)  # the mark's is asked for with every question, a question's in every epoch
def _conversation(template: str, specials: tuple[tuple[str, str], ...], message: str, system: str) -> str:
  """The text of a system message and a user's message, ready for the assistant's answer."""
  messages = [{"role": "system", "content": system}] if system else []
  messages = [*messages, {"role": "user", "content": message}]
  found = _renderer().render(template, {"messages": messages, "add_generation_prompt": True, **dict(specials)})
  if "error" in found:
    raise SettingError(f"chat_template: {first_line(found['error'])}; data.chat=False would work")
  return found["text"]


@functools.cache
def _renderer() -> "_Renderer":
  """The one process of this program that renders templates."""
  renderer = _Renderer()
  atexit.register(renderer.stop)
  return renderer


class _Renderer:
  """A process of `templates`, started when it is needed, and again after a template was its end."""

  def __init__(self):
    self.process: subprocess.Popen | None = None
    self.template: str | None = None  # the one that the process has
    self.lock = threading.Lock()

  def render(self, template: str, values: dict[str, Any]) -> dict[str, str]:
    """Returns {"text": the conversation} or {"error": why there is none}."""
    with self.lock:
      try:
        if self.process is None:
          self._start()
        request = {"values": values} if template == self.template else {"values": values, "template": template}
        self.template = template
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
      except OSError:
        line = b""
      except BaseException:  # an interrupt: the answer that is on its way is not the next one's
        self.stop()
        raise
      return json.loads(line) if line.endswith(b"\n") else {"error": self._why()}

  def _start(self) -> None:
    """Starts the process in a session of its own: an interrupt from the keyboard is for the run alone."""
    command = [sys.executable, "-P", templates.__file__]  # -P: modules beside that file are not for it
    pipe = subprocess.PIPE
    self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True)

  def _why(self) -> str:
    """Ends what is left of the process and returns why it gave no answer."""
    code = self.stop()
    if code == -signal.SIGPROF:
      return f"computes for more than {templates.SECONDS:g} seconds"
    return f"ended its process with code {code}, as one that needs more than {templates.MEMORY // 1024**2} MB of memory"

  def stop(self) -> int | None:
    """Ends the process and returns its exit code."""
    process, self.process, self.template = self.process, None, None
    if process is None:
      return None
    for pipe in (process.stdin, process.stdout):
      with contextlib.suppress(OSError):  # what it did not take any more
        pipe.close()
    try:
      return process.wait(timeout=templates.SECONDS)
    except subprocess.TimeoutExpired:
      process.kill()
      return process.wait()
