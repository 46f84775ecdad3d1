"""Makes DIR/samples.html from a run's samples.jsonl: `python -m grpo_jax.reports.inspector DIR`.

The page needs nothing else. It shows the samples of a step, filters them by reward and by text, and
sorts them by length, by reward and, where a reward model and a rule both scored them, by their
disagreement; tokens are coloured by advantage or by log-prob where the run wrote them.
"""

import json
import pathlib

from grpo_jax.config.kinds import Form
from grpo_jax.io import storage
from grpo_jax.reports import jsonl
from grpo_jax.sandbox import model_folder

NUMBERS = Form(
  "numbers", lambda x: isinstance(x, list) and all(n is None or jsonl.NUMBER.fits(n) for n in x)
)
TEXTS = Form("texts", lambda x: isinstance(x, list) and all(isinstance(text, str) for text in x))
# What the page computes with; whatever else a sample has is shown as it is.
ROWS = (
  jsonl.STEP
  | dict.fromkeys(("question", "completion"), model_folder.TEXT)
  | {"rewards": model_folder.OBJECT}
)
ROWS |= dict.fromkeys(("reward", "advantage", "disagreement"), jsonl.NUMBER) | {"tokens": TEXTS}
ROWS |= dict.fromkeys(("advantages", "logprobs"), NUMBERS)

PAGE = pathlib.Path(__file__).with_name("inspector.html")


def write(workdir: str) -> storage.Path | None:
  """Writes the page and returns its path; without samples it writes nothing and returns None."""
  folder = storage.place(workdir)
  samples = jsonl.read(folder / "samples.jsonl", ROWS)
  if not samples:
    return None
  out = folder / "samples.html"
  out.write_bytes(page(samples, storage.title(folder)).encode(errors="replace"))
  return out


def page(samples: list[dict], title: str) -> str:
  """Returns the page with the samples in it.

  What a sample says stays text: `<` is escaped here, and the page's script sets nothing but
  `textContent`.
  """
  data = json.dumps({"title": title, "samples": samples}, ensure_ascii=False).replace(
    "<", "\\u003c"
  )
  return PAGE.read_text(encoding="utf-8").replace("__DATA__", data)


if __name__ == "__main__":
  given = jsonl.folder_argument("grpo_jax.reports.inspector", __doc__)
  print(write(given) or f"{given}: no samples.jsonl with anything in it")
