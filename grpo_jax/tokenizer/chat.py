"""Renders a user's turn by the chat template of a model, in a process of its own."""

import functools
import threading
from collections.abc import Sequence
from typing import NamedTuple

from grpo_jax.aliases import Json
from grpo_jax.errors import DataError, SettingError
from grpo_jax.sandbox.model_folder import first_line
from grpo_jax.sandbox.worker import Process

# Values that `transformers` passes by default with the messages; some templates test them.
_NOTHING = {"tools": None, "documents": None}
# Stands for the question while its surroundings are determined; its first character is for private
# use, so that no template has it.
_MARK = "\ue000question\ue000"
_ANSWER = "\ue000answer\ue000"  # stands for an assistant's message likewise

Argument = bool | int | float | str | None  # a value that a chat template may be given


class Turn(NamedTuple):
  """A rendered conversation up to the assistant's answer, split at the question."""

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

  Templates trim and inspect their messages. So the conversation is rendered twice, with the
  question and with a mark in its place: the question is the text between the mark's surroundings.

  Args:
    config: tokenizer_config.json, which holds the chat template and the special tokens.
    question: the user's question.
    template: the user's message, with "{question}" for the question.
    system: the system message; "" for none.
    arguments: (name, value) pairs for the chat template in addition to the messages.
  """
  program, specials = find_template(config), _specials(config)
  # Arguments, of which a config may have lists, take precedence over special tokens.
  values = (*specials, *((name, value) for name, value in arguments))
  text = _conversation(program, values, template.replace("{question}", question, 1), system)
  marked = _conversation(program, values, template.replace("{question}", _MARK, 1), system)
  before, mark, after = marked.partition(_MARK)
  if not mark or not text.startswith(before) or not text[len(before) :].endswith(after):
    raise DataError(
      "chat_template: does not show the user's message as it is; data.chat=False would work"
    )
  return Turn(before, text[len(before) : len(text) - len(after)], after)


def render_reply(
  config: dict,
  observation: str,
  role: str,
  template: str,
  system: str,
  arguments: Sequence[tuple[str, Argument]] = (),
) -> tuple[str, str, str]:
  """Renders a message after an assistant's, up to the assistant's next one.

  Args:
    config, template, system, arguments: as for `render`.
    observation: the message.
    role: of the message, such as "user" or "tool".

  Returns:
    The text between the assistant's message and the observation, the observation as the template
    shows it, and the text after it.
  """
  program, values = find_template(config), (*_specials(config), *arguments)
  message = template.replace("{question}", _MARK, 1)
  texts = []
  for shown in (observation, _MARK):
    later = (("assistant", _ANSWER), (role, shown))
    text = _conversation(program, values, message, system, later)
    _, answer, after = text.partition(_ANSWER)
    if not answer:
      raise DataError(
        "chat_template: does not show an assistant's message as it is; data.chat=False would work"
      )
    texts.append(after)
  text, marked = texts
  before, mark, after = marked.partition(_MARK)
  if not mark or not text.startswith(before) or not text[len(before) :].endswith(after):
    raise DataError(
      f"chat_template: does not show a message of {role!r} as it is; another environment.role, or "
      "data.chat=False, would work"
    )
  return before, text[len(before) : len(text) - len(after)], after


def after_answer(
  config: dict, template: str, system: str, arguments: Sequence[tuple[str, Argument]] = ()
) -> str:
  """Returns the text after an assistant's message up to its next one; "" if it is not shown.

  Args:
    config, template, system, arguments: as for `render`.
  """
  program, values = find_template(config), (*_specials(config), *arguments)
  message = template.replace("{question}", _MARK, 1)
  text = _conversation(program, values, message, system, (("assistant", _ANSWER),))
  return text.partition(_ANSWER)[2]


def token_text(token: str | dict | None) -> str | None:
  """Returns the text of a special token, which is a string or {"content": text} in the file."""
  return token.get("content") if isinstance(token, dict) else token


def find_template(config: dict) -> str:
  """Returns the chat template of tokenizer_config.json; of several, the "default" one."""
  template = config.get("chat_template")
  if isinstance(template, list):
    template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
  if not template:
    raise SettingError(
      "data.chat=True: this tokenizer has no chat template; data.chat=False would work"
    )
  return template


def _specials(config: dict) -> tuple[tuple[str, str], ...]:
  """Returns the special tokens that a template may name, as (name, text)."""
  texts = ((name, token_text(token)) for name, token in config.items() if name.endswith("_token"))
  return tuple((name, text) for name, text in texts if isinstance(text, str))


# Each question asks for the conversation with the mark, and repeats in every epoch.
@functools.lru_cache(maxsize=2048)
def _conversation(
  template: str,
  values: tuple[tuple[str, Argument], ...],
  message: str,
  system: str,
  later: tuple[tuple[str, str], ...] = (),
) -> str:
  """Returns the text of a conversation, ready for the assistant's answer.

  It has a system and a user's message, and `later` ones as (role, text).
  """
  messages = [{"role": "system", "content": system}] if system else []
  messages = [*messages, {"role": "user", "content": message}]
  messages = [*messages, *({"role": role, "content": text} for role, text in later)]
  variables = {**_NOTHING, **dict(values), "messages": messages, "add_generation_prompt": True}
  reply = _renderer().render(template, variables)
  if "error" in reply:
    without = "data.system='' or " if system else ""  # Gemma's templates refuse a system message
    if later:  # and a tool's
      without = f"environment.role is {later[-1][0]!r}; another one, or {without}"
    raise DataError(
      f"chat_template: {first_line(reply['error'])}; {without}data.chat=False would work"
    )
  return reply["text"]


@functools.cache
def _renderer() -> "_Renderer":
  """Returns the one process of this program that renders templates."""
  return _Renderer()


class _Renderer:
  """Talks to the process of templates.py, to which it sends a template once."""

  def __init__(self) -> None:
    self.process = Process("grpo_jax.tokenizer.templates")
    self.template: str | None = None  # the one that the process has
    self.lock = threading.Lock()

  def render(self, template: str, values: Json) -> dict[str, str]:
    """Returns {"text": the conversation} or {"error": the reason}."""
    with self.lock:
      known, self.template = self.template == template, None
      request = {"values": values} if known else {"values": values, "template": template}
      reply = self.process.ask(request)
      # An error may have ended the process, and with it the template.
      self.template = None if "error" in reply else template
      return reply
