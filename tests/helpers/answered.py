"""An example, and a completion that answers it."""

from grpo_jax.types import STOPPED, Completion, Example


def example(answer="72", **meta):
  return Example("?", f"#### {answer}", answer, meta)


def completion(text, ended=STOPPED, tokens=5, step_ends=()):
  return Completion(text, list(range(tokens)), ended, list(step_ends))
