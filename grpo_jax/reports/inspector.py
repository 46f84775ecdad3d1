"""Makes DIR/samples.html from a run's samples.jsonl: `python -m grpo_jax.reports.inspector DIR`.

The self-contained page shows the samples of a step and filters them by reward and by text. It sorts
them by length, by reward and, if a reward model and a rule both scored them, by their disagreement.
Tokens are coloured by advantage or by log-prob if the run wrote those. An episode is shown as a
conversation of the policy and its environment, with the reward of each turn.
"""

import json
import pathlib

from grpo_jax.aliases import Json
from grpo_jax.config.kinds import Form, Kind, Whole
from grpo_jax.io import storage
from grpo_jax.reports import jsonl
from grpo_jax.sandbox import model_folder


def _is_pair(x: object) -> bool:
  """Returns whether this is the index of a token and the reward that was given there, or null."""
  if not isinstance(x, list) or len(x) != 2:
    return False
  index, reward = x
  return Whole().fits(index) and (reward is None or jsonl.NUMBER.fits(reward))


NUMBERS = Form(
  "numbers", lambda x: isinstance(x, list) and all(n is None or jsonl.NUMBER.fits(n) for n in x)
)
TEXTS = Form("texts", lambda x: isinstance(x, list) and all(isinstance(text, str) for text in x))
BOOLS = Form("booleans", lambda x: isinstance(x, list) and all(isinstance(b, bool) for b in x))
PAIRS = Form("pairs [token index, reward]", lambda x: isinstance(x, list) and all(map(_is_pair, x)))
# The fields that the page computes with; it shows any other field as it is.
ROWS: dict[str, Kind] = {
  **jsonl.STEP,
  **dict.fromkeys(("question", "completion"), model_folder.TEXT),
  **dict.fromkeys(("reward", "advantage", "disagreement"), jsonl.NUMBER),
  **dict.fromkeys(("advantages", "logprobs"), NUMBERS),
  "rewards": model_folder.OBJECT,
  "tokens": TEXTS,
  "sampled": BOOLS,
  "turn_rewards": PAIRS,
}

PAGE = pathlib.Path(__file__).with_name("inspector.html")


def write(workdir: str) -> storage.Path | None:
  """Writes the page and returns its path, or None if there are no samples."""
  folder = storage.place(workdir)
  samples = jsonl.read(folder / "samples.jsonl", ROWS)
  if not samples:
    return None
  out = folder / "samples.html"
  out.write_bytes(page(samples, storage.title(folder)).encode(errors="replace"))
  return out


def page(samples: list[Json], title: str) -> str:
  """Returns the page with the samples in it.

  The text of a sample cannot become markup: `<` is escaped here, and the page's script sets nothing
  but `textContent`.
  """
  data = json.dumps({"title": title, "samples": samples}, ensure_ascii=False)
  return PAGE.read_text(encoding="utf-8").replace("__DATA__", data.replace("<", "\\u003c"))


if __name__ == "__main__":
  run_folder = jsonl.folder_argument("grpo_jax.reports.inspector", __doc__)
  print(write(run_folder) or f"{run_folder}: no samples.jsonl with anything in it")
