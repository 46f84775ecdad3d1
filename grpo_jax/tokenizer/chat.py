"""Chat templates: jinja2 programs that come with a model's weights, hence are run in a sandbox."""

import datetime
import functools
import json
from typing import NamedTuple

import jinja2
import jinja2.ext
import jinja2.sandbox

from grpo_jax.errors import SettingError

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
    SettingError: there is no chat template, it fails, or it does not show the user's message as it is.
  """
  text = _conversation(config, template.replace("{question}", question, 1), system)
  before, found, after = _conversation(config, template.replace("{question}", _MARK, 1), system).partition(_MARK)
  if not found or not text.startswith(before) or not text[len(before) :].endswith(after):
    raise SettingError("chat_template: does not show the user's message as it is; chat=False would work")
  return Turn(before, text[len(before) : len(text) - len(after)], after)


def token_text(token: str | dict | None) -> str | None:
  """The text of a special token, which tokenizer_config.json gives as a string or as {"content": text}."""
  return token.get("content") if isinstance(token, dict) else token


def first_line(error: Exception) -> str:
  """The first line of what an error says, at most 200 characters of it."""
  return str(error).split("\n")[0][:200]


def _conversation(config: dict, message: str, system: str) -> str:
  """The text of a system message and a user's message, ready for the assistant's answer."""
  template = config.get("chat_template")
  if isinstance(template, list):  # several templates, each with a name
    template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
  if not template:
    raise SettingError("chat=True: this tokenizer has no chat template; chat=False would work")
  specials = {name: token_text(token) for name, token in config.items() if name.endswith("_token")}
  messages = [{"role": "system", "content": system}] if system else []
  try:
    return _compiled(template).render(
      messages=[*messages, {"role": "user", "content": message}],
      add_generation_prompt=True,
      **{name: token for name, token in specials.items() if isinstance(token, str)},
    )
  except Exception as error:  # a template can raise anything
    raise SettingError(f"chat_template: {first_line(error)}; chat=False would work") from error


class _Generation(jinja2.ext.Extension):
  """Reads `{% generation %}`, with which some templates mark what an assistant says, and shows what is inside."""

  tags = frozenset({"generation"})

  def parse(self, parser):
    """Returns what stands between the tag and its end; jinja2 calls it."""
    next(parser.stream)
    return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.cache
def _compiled(template: str) -> jinja2.Template:
  """Compiles a template in the environment that chat templates are written for, that of transformers."""
  env = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
  )
  env.filters["tojson"] = _tojson
  env.globals["raise_exception"] = _raise_exception
  # The day that Llama's template takes by default: a run's prompts do not change overnight.
  env.globals["strftime_now"] = datetime.date(2024, 7, 26).strftime
  return env.from_string(template)


def _raise_exception(message: str) -> None:
  """What a template calls to refuse a conversation."""
  raise jinja2.TemplateError(message)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
  """The filter `tojson` of transformers; jinja2's own escapes for HTML."""
  return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
