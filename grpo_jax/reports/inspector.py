"""Makes DIR/samples.html from a run's samples.jsonl: `python -m grpo_jax.reports.inspector DIR`.

The self-contained page shows one group at a time: a prompt with its completions side by side,
sorted by reward. Tokens are coloured by advantage, log-prob or entropy, or by what the update did
to each: whether it became more likely, and whether its ratio is short of its clip bound, at it or
past it. A token that is tapped shows its numbers. An episode is shown as a conversation of the
policy and its environment, with the reward of each turn.

The data are in chunks, of which the page parses those that are looked at, so that a phone opens a
file of 100 MB. A longer samples.jsonl is shown from a later step on. An index tells what groups are
sorted and filtered by.
"""

import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence

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
STANDS = Form(
  "short, at, past or null",
  lambda x: isinstance(x, list) and all(s is None or s in ("short", "at", "past") for s in x),
)
TEXTS = Form("texts", lambda x: isinstance(x, list) and all(isinstance(text, str) for text in x))
BOOLS = Form("booleans", lambda x: isinstance(x, list) and all(isinstance(b, bool) for b in x))
TEXT_OR_NONE = Form("a text or null", lambda x: x is None or isinstance(x, str))
PAIRS = Form("pairs [token index, reward]", lambda x: isinstance(x, list) and all(map(_is_pair, x)))
# The fields that the page computes with; it shows any other field as it is.
ROWS: dict[str, Kind] = {
  **jsonl.STEP,
  **dict.fromkeys(("question", "completion"), model_folder.TEXT),
  **dict.fromkeys(("group", "sample"), Whole()),
  **dict.fromkeys(("reward", "advantage", "disagreement"), jsonl.NUMBER),
  **dict.fromkeys(("logprob_before", "logprob_after"), jsonl.NUMBER),
  **dict.fromkeys(("advantages", "logprobs", "entropies"), NUMBERS),
  **dict.fromkeys(("logprobs_after", "ratios", "bounds"), NUMBERS),
  "stands": STANDS,
  "rewards": model_folder.OBJECT,
  "tokens": TEXTS,
  "sampled": BOOLS,
  "turn_rewards": PAIRS,
  "teacher_prompt": TEXT_OR_NONE,
}

LARGEST = 100_000_000  # bytes of samples.jsonl that become a page
CHUNK = 500_000  # characters of the data that a browser parses at once, or one group
FOLDER = pathlib.Path(__file__).parent


def write(workdir: str) -> storage.Path | None:
  """Writes the page and returns its path, or None if there are no samples."""
  folder = storage.place(workdir)
  samples, are_all = last_samples(folder, LARGEST)
  if not samples:
    return None
  out = folder / "samples.html"
  out.write_bytes(page(samples, storage.title(folder), are_all).encode(errors="replace"))
  return out


def last_samples(folder: storage.Path, size: int) -> tuple[list[Json], bool]:
  """Returns the samples of the last steps of a run, and whether they are all that it has.

  Args:
    folder: of the run.
    size: bytes at the end of samples.jsonl to read, or as many as the last step has. A step that
      begins before them is left out.
  """
  path = folder / "samples.jsonl"
  length = storage.size(path) if path.is_file() else 0
  while size < length:
    samples = jsonl.read(path, ROWS, size)
    if whole := [row for row in samples if row.get("step") != samples[0].get("step")]:
      return whole, False
    size *= 2  # the last step is larger than that
  return jsonl.read(path, ROWS), True


def first_groups(samples: Sequence[Json], size: int) -> tuple[list[Json], bool]:
  """Returns the samples of the first groups that have `size` bytes of JSON, and whether all have.

  There is always one group.
  """
  shown: list[Json] = []
  for group in groups(samples):
    size -= len(as_json(group))
    if shown and size < 0:
      return shown, False
    shown += group
  return shown, True


def page(samples: Sequence[Json], title: str, are_all: bool = True) -> str:
  """Returns the page with the samples in it.

  The text of a sample cannot become markup: `<` is escaped here, and the page's script sets nothing
  but `textContent`.

  Args:
    samples: rows of samples.jsonl.
    title: the name of the run.
    are_all: whether there are none of earlier steps; otherwise the page says so.
  """
  index, parts = [], []
  for n, (entries, text) in enumerate(chunks(groups(samples))):
    index.append(entries)
    parts.append(f'<script type="application/json" id="chunk{n}">{text}</script>\n')
  parts.append(f'<i id="chunk{len(index)}" hidden></i>')  # the last chunk is whole
  head, rest = template().split("__INDEX__")
  script, tail = rest.split("__CHUNKS__")
  since = None if are_all else samples[0].get("step")
  data = {"title": title, "since": since, "chunks": index}
  return "".join([head, as_json(data), script, *parts, tail])


def template() -> str:
  """Returns the page without samples: __INDEX__ and __CHUNKS__ stand for them."""
  names = ("inspector.html", "inspector_cards.js", "inspector.js")
  page, *scripts = [(FOLDER / name).read_text(encoding="utf-8") for name in names]
  return page.replace("__SCRIPT__", "\n".join(scripts))


def as_json(value: object) -> str:
  """Returns the JSON of a value, which cannot end the element that holds it."""
  return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def groups(samples: Iterable[Json]) -> list[list[Json]]:
  """Returns the samples of each group, in the order of their first ones.

  Rows of older runs have no `group`: those of a step with one question are taken for a group.
  """
  found: dict[tuple[object, ...], list[Json]] = {}
  for sample in samples:
    group = sample.get("group")
    of = ("question", sample.get("question")) if group is None else ("group", group)
    found.setdefault((sample.get("step"), *of), []).append(sample)
  return list(found.values())


def chunks(groups: Iterable[list[Json]]) -> Iterator[tuple[list[Json], str]]:
  """Yields the index entries of some groups, and the JSON of these groups, a list of lists."""
  entries: list[Json] = []
  texts: list[str] = []
  size = 0
  counts: dict[object, int] = {}  # groups so far of each step, which name those without a number
  for samples in groups:
    text, step = as_json(samples), samples[0].get("step")
    if texts and size + len(text) > CHUNK:
      yield entries, f"[{','.join(texts)}]"
      entries, texts, size = [], [], 0
    entries.append(entry(samples, counts.get(step, 0)))
    texts.append(text)
    size += len(text)
    counts[step] = counts.get(step, 0) + 1
  if texts:
    yield entries, f"[{','.join(texts)}]"


def entry(samples: list[Json], number: int) -> Json:
  """Returns what the page knows of a group before it parses its samples.

  Args:
    samples: of the group.
    number: names the group if the samples do not.
  """
  group = samples[0].get("group")
  found: Json = {
    "step": samples[0].get("step"),
    "group": number if group is None else group,
    "rewards": [sample.get("reward") for sample in samples],
    "lengths": [len(sample.get("tokens") or sample.get("completion") or "") for sample in samples],
  }
  gaps = [sample.get("disagreement") for sample in samples]
  if any(gap is not None for gap in gaps):
    found["disagreements"] = gaps
  for name, has in (("after", "logprobs_after"), ("fault", "faults")):
    if any(sample.get(has) for sample in samples):
      found[name] = True
  moves = [*map(moved_against, samples)]
  if any(move < 0 for move in moves):
    found["fell"] = True
  if any(move > 0 for move in moves):
    found["rose"] = True
  return found


def moved_against(sample: Json) -> float:
  """Returns the log-prob that an update gave a completion against the sign of its advantage.

  Negative: it got less likely though it was better than its group. Positive: it got more likely
  though it was worse. 0: neither, or not known.
  """
  names = ("logprob_before", "logprob_after", "advantage")
  before, after, advantage = (sample.get(name) or 0.0 for name in names)
  known = sample.get("logprob_after") is not None
  return after - before if known and (after - before) * advantage < 0 else 0.0


if __name__ == "__main__":
  nothing = "no samples.jsonl with anything in it"
  jsonl.folder_command("grpo_jax.reports.inspector", __doc__, write, nothing)
