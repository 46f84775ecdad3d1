"""Renders chat templates, which are jinja2 programs that come with a model's weights. Runs as a
process of its own.

A template could run for ever or fill the memory; sandbox/worker.py ends it then.

For each conversation {"template": text, "values": {...}} gets {"text": ...} or {"error": one line}.
A request without "template" means the last one. Only jinja2 is imported; `chat` starts it.
"""

import datetime
import json
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from grpo_jax.sandbox import worker

MEMORY = 512 * 1024**2  # bytes of address space; rendering Llama's template takes 50 MB of it
# of computing for one conversation; a template's first one, which compiles it, takes 0.05
SECONDS = 2.0
CHARACTERS = 10**5  # of a conversation, beside those of its messages


class Generation(jinja2.ext.Extension):
  """Reads `{% generation %}`, with which some templates mark what an assistant says, and shows what
  is inside.
  """

  tags = frozenset({"generation"})

  def parse(self, parser):
    """Returns what stands between the tag and its end; jinja2 calls it."""
    next(parser.stream)
    return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compiled(template: str) -> jinja2.Template:
  """Returns a template, compiled in the environment that chat templates are written for, that of
  transformers.
  """
  env = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
  )
  env.filters["tojson"] = tojson
  env.globals["raise_exception"] = raise_exception
  # The day that Llama's template takes by default: a run's prompts do not change overnight.
  env.globals["strftime_now"] = datetime.date(2024, 7, 26).strftime
  return env.from_string(template)


def raise_exception(message: str) -> None:
  """Refuses a conversation; a template calls it."""
  raise jinja2.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
  """Returns JSON as the filter `tojson` of transformers makes it; jinja2's own escapes for HTML."""
  return json.dumps(
    value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
  )


def answer(template: jinja2.Template | Exception, values: dict) -> dict:
  """Returns {"text": the rendered conversation}, or {"error": what went wrong}."""
  try:
    if isinstance(template, Exception):
      raise template
    text = template.render(**values)
    most = CHARACTERS + sum(len(message["content"]) for message in values["messages"])
    if len(text) > most:
      return {"error": f"makes {len(text)} characters of a conversation, at most {most} would work"}
    return {"text": text}
  except MemoryError:
    return {"error": f"needs more than {MEMORY // 1024**2} MB of memory"}
  except Exception as error:  # a template can raise anything
    return {"error": f"{error}"[:2000] or type(error).__name__}


def compile_or_error(template: str) -> jinja2.Template | Exception:
  """Returns the compiled template, or what is wrong with it."""
  try:
    return compiled(template)
  except Exception as error:
    return error


class Renderer:
  """Answers requests with the template that came last."""

  def __init__(self):
    self.template: jinja2.Template | Exception = ValueError("no template came yet")

  def __call__(self, request: dict[str, Any]) -> dict[str, str]:
    """Returns what `answer` makes of the request's values."""
    if "template" in request:
      self.template = compile_or_error(request["template"])
    return answer(self.template, request["values"])


if __name__ == "__main__":
  worker.serve(Renderer(), MEMORY, SECONDS)
