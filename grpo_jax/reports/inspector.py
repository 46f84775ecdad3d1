"""DIR/samples.jsonl -> DIR/samples.html, one page that needs nothing else: `python -m grpo_jax.reports.inspector DIR`.

Samples by step, to be filtered by reward and by text, their tokens coloured by advantage or by log-prob where the run
wrote them.
"""

import json
import pathlib
import sys

from grpo_jax.reports import jsonl

PAGE = pathlib.Path(__file__).with_name("inspector.html")


def write(workdir: str) -> pathlib.Path | None:
  """Writes the page; without samples, writes nothing."""
  folder = pathlib.Path(workdir)
  rows = jsonl.read(folder / "samples.jsonl")
  if not rows:
    return None
  out = folder / "samples.html"
  out.write_text(page(rows, folder.resolve().name), encoding="utf-8", errors="replace")
  return out


def page(rows: list[dict], title: str) -> str:
  """The page with the samples in it. What they say stays text: `<` is escaped, the script sets `textContent` only."""
  data = json.dumps({"title": title, "rows": rows}, ensure_ascii=False).replace("<", "\\u003c")
  return PAGE.read_text(encoding="utf-8").replace("__DATA__", data)


if __name__ == "__main__":
  if len(sys.argv) != 2:
    sys.exit("usage: python -m grpo_jax.reports.inspector DIR")
  print(write(sys.argv[1]) or f"{sys.argv[1]}: no samples.jsonl with anything in it")
