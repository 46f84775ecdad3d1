"""Chat templates: a user's turn as the model's authors wrote it. The templates run in a process of
their own.
"""

import functools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from grpo_jax.errors import SettingError
from grpo_jax.sandbox.model_folder import first_line
from grpo_jax.sandbox.worker import Process

# What `transformers` gives a template beside the messages where nobody gives more; some ask whether
# it is none.
_NOTHING = {"tools": None, "documents": None}
# Stands for the question while its surroundings are found; its characters are for private use and
# in nobody's template.
_MARK = "\ue000question\ue000"

Argument = bool | int | float | str | None  # a value that a chat template may be given


class Turn(NamedTuple):
  """A rendered conversation up to the point where the assistant answers, cut at the question."""

  before: str
  question: str  # as the template shows it: trimmed, for example
  after: str


def render(
  config: dict,
  question: str,
  template: str,
  system: str,
  arguments: Sequence[tuple[str, Argument]] = (),
) -> Turn:
  """Renders `question` as the user's turn of the tokenizer's chat template.

  Templates trim and inspect what they are given. So the conversation is rendered twice, with the
  question and with a
  mark in its place: the question is what lies between the mark's surroundings.

  Args:
    config: tokenizer_config.json, which holds the chat template and the special tokens.
    question: what the user asks.
    template: the user's message, with "{question}" for the question.
    system: the system message; "" for none.
    arguments: what the chat template is given beside the messages, as (name, value).

  Raises:
    SettingError: there is no chat template, it fails, takes too long or too much memory, or it does
      not show the user's message as it is.
  """
  program, specials = find_template(config), _specials(config)
  values = (
    *specials,
    *((name, value) for name, value in arguments),
  )  # an argument goes before a special token
  text = _conversation(program, values, template.replace("{question}", question, 1), system)
  marked = _conversation(program, values, template.replace("{question}", _MARK, 1), system)
  before, found, after = marked.partition(_MARK)
  if not found or not text.startswith(before) or not text[len(before) :].endswith(after):
    raise SettingError(
      "chat_template: does not show the user's message as it is; data.chat=False would work"
    )
  return Turn(before, text[len(before) : len(text) - len(after)], after)


def token_text(token: str | dict | None) -> str | None:
  """The text of a special token, which tokenizer_config.json gives as a string or as {"content":
  text}.
  """
  return token.get("content") if isinstance(token, dict) else token


def find_template(config: dict) -> str:
  """Returns the chat template of tokenizer_config.json, of several the one that is called
  "default".

  Raises:
    SettingError: there is none.
  """
  template = config.get("chat_template")
  if isinstance(template, list):
    template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
  if not template:
    raise SettingError(
      "data.chat=True: this tokenizer has no chat template; data.chat=False would work"
    )
  return template


def _specials(config: dict) -> tuple[tuple[str, str], ...]:
  """The special tokens that a template may name, as (name, text)."""
  found = ((name, token_text(token)) for name, token in config.items() if name.endswith("_token"))
  return tuple((name, text) for name, text in found if isinstance(text, str))


# the mark's is asked for with every question, a question's in every epoch
@functools.lru_cache(maxsize=2048)
def _conversation(
  template: str, values: tuple[tuple[str, Argument], ...], message: str, system: str
) -> str:
  """The text of a system message and a user's message, ready for the assistant's answer; `values`
  by their names.
  """
  messages = [{"role": "system", "content": system}] if system else []
  messages = [*messages, {"role": "user", "content": message}]
  given = {**_NOTHING, **dict(values), "messages": messages, "add_generation_prompt": True}
  found = _renderer().render(template, given)
  if "error" in found:
    without = "data.system='' or " if system else ""  # Gemma's templates refuse a system message
    raise SettingError(
      f"chat_template: {first_line(found['error'])}; {without}data.chat=False would work"
    )
  return found["text"]


@functools.cache
def _renderer() -> "_Renderer":
  """The one process of this program that renders templates."""
  return _Renderer()


class _Renderer:
  """The process of templates.py, which is sent a template once."""

  def __init__(self):
    self.process = Process("grpo_jax.tokenizer.templates")
    self.template: str | None = None  # the one that the process has
    self.lock = threading.Lock()

  def render(self, template: str, values: dict[str, Any]) -> dict[str, str]:
    """Returns {"text": the conversation} or {"error": why there is none}."""
    with self.lock:
      known, self.template = self.template == template, None
      reply = self.process.ask(
        {"values": values} if known else {"values": values, "template": template}
      )
      # an error may have been the end of what had it
      self.template = None if "error" in reply else template
      return reply
