"""Renders chat templates, jinja2 programs that come with a model's weights, in a separate process.

A template could run forever or fill the memory; sandbox/serving.py ends it then.

A request is {"template": text, "values": {...}} and its reply {"text": ...} or {"error": one line}.
A request without "template" uses the last one. The process, which `chat` starts, imports only
jinja2.
"""

import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

from grpo_jax.aliases import Json
from grpo_jax.sandbox import serving

MEMORY = 512 * 1024**2  # bytes of address space; rendering Llama's template takes 50 MB
SECONDS = 2.0  # of computing for one conversation; compiling a template takes 0.05
CHARACTERS = 10**5  # of a conversation in addition to those of its messages


class Generation(jinja2.ext.Extension):
  """Reads `{% generation %}`, which marks the assistant's text in some templates, and shows it."""

  tags = {"generation"}

  def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
    """Returns the nodes between the tag and its end; jinja2 calls it."""
    next(parser.stream)
    return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compiled(template: str) -> jinja2.Template:
  """Returns a compiled template in the environment that transformers gives chat templates."""
  env = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
  )
  env.filters["tojson"] = tojson
  env.globals["raise_exception"] = raise_exception
  # The default day of Llama's template; a run's prompts do not change overnight.
  env.globals["strftime_now"] = datetime.date(2024, 7, 26).strftime
  return env.from_string(template)


def raise_exception(message: str) -> None:
  """Refuses a conversation, when a template calls it."""
  raise jinja2.TemplateError(message)


def tojson(
  value: object,
  ensure_ascii: bool = False,
  indent: int | None = None,
  separators: tuple[str, str] | None = None,
  sort_keys: bool = False,
) -> str:
  """Returns JSON like the filter `tojson` of transformers; that of jinja2 escapes it for HTML."""
  return json.dumps(
    value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
  )


def answer(template: jinja2.Template | Exception, values: dict) -> dict:
  """Returns {"text": the rendered conversation}, or {"error": the reason}."""
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
  """Returns the compiled template, or the error that compiling it raised."""
  try:
    return compiled(template)
  except Exception as error:
    return error


class Renderer:
  """Answers requests with the template that came last."""

  def __init__(self) -> None:
    self.template: jinja2.Template | Exception = ValueError("no template came yet")

  def __call__(self, request: Json) -> dict[str, str]:
    """Returns the reply to a request."""
    if "template" in request:
      self.template = compile_or_error(request["template"])
    return answer(self.template, request["values"])


if __name__ == "__main__":
  serving.serve(Renderer(), MEMORY, SECONDS)
