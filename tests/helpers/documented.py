"""Finds metrics that no page explains."""

import re
from collections.abc import Iterable

from grpo_jax.objectives import metrics
from grpo_jax.reports import run_page


def unexplained(lines: Iterable[dict]) -> list[str]:
  """Returns the metrics of a run, from lines of its metrics.jsonl, that are explained nowhere.

  They may be in docs/metrics.md, or by objective in objectives/metrics.py. A reward model that keeps
  learning has those of its own objective.
  """
  named = [name for names, _ in run_page.glossary_of(run_page.GLOSSARY) for name in names]
  tables = re.findall(r"^    ([a-z]\w*(?: \w+)*?)(?:  |$)", metrics.__doc__ or "", re.MULTILINE)
  named += [name for table in tables for name in table.split()]
  patterns = [re.escape(name).replace("NAME", ".+").replace("@k", r"@\d+") for name in named]
  known = re.compile("|".join([*patterns, "step"]))
  found = {name for line in lines for name in line}
  return sorted(
    name
    for name in found
    if not known.fullmatch(name) and not known.fullmatch(name.removeprefix("reward_model/"))
  )
