"""Makes one page of one or several runs: curves, results, settings and samples.

    python -m experiments.report DIR [DIR ...]

The page is one file that needs no network. Its curves can be smoothed and read point by point, and
those of several runs lie over one another.
"""

import math
import pathlib
import re
from collections.abc import Sequence

from grpo_jax.aliases import Json
from grpo_jax.config import comments, sections
from grpo_jax.io import storage
from grpo_jax.reports import inspector, jsonl, panels
from grpo_jax.run import writer
from grpo_jax.sandbox import model_folder

POINTS = 2000  # lines of a run that are drawn; of a longer one, means of neighbours
SAMPLES = 30_000_000  # bytes of samples.jsonl in a page, of the last steps of all its runs
DIGITS = 6  # of a number
NAME = "report.html"
# Metrics of this section that are no seconds, or are in those of other phases.
NO_PHASES = ("time/score_share", "time/first_step", "time/compile")
FOLDER = pathlib.Path(__file__).parent
GLOSSARY = FOLDER.parents[1] / "docs" / "metrics.md"


def write(folders: Sequence[str], out: str, seconds: int = 0) -> storage.Path:
  """Writes the page of some runs and returns its path.

  Args:
    folders: their workdirs.
    out: the file.
    seconds: after which a browser reads the page again; 0: never.
  """
  path = storage.place(out)
  runs = [read(storage.place(folder), SAMPLES // len(folders)) for folder in folders]
  for run, name in zip(runs, names_apart(folders)):
    run["name"] = name
  # as a whole: a browser may be reading it
  storage.write(path, page(runs, glossary_of(GLOSSARY), seconds).encode(errors="replace"))
  return path


def is_page(path: storage.Path) -> bool:
  """Returns whether a file begins as `write` begins every page."""
  begin = (FOLDER / "run_page.html").read_bytes().partition(b"<style>")[0]
  return storage.start(path, len(begin)) == begin


def write_own(workdir: str) -> storage.Path | None:
  """Writes the page of one run to its folder; returns its path, or None without metrics."""
  if not (storage.place(workdir) / "metrics.jsonl").exists():
    return None
  return write([workdir], str(storage.place(workdir) / NAME))


def read(folder: storage.Path, size: int = SAMPLES) -> Json:
  """Returns what the page shows of a run; its samples are a page of their own, or "".

  Args:
    folder: of the run.
    size: bytes of its samples, of the last steps.
  """
  where = f"DIR={folder}"
  config = model_folder.read_json(where, folder, "config.json") or {}
  samples, are_all = inspector.last_samples(folder, size)
  title, told = storage.title(folder), folder / writer.WARNINGS
  return {
    "name": title,
    "result": end_of(folder),
    "config": sections.flat(config),
    "warnings": told.read_bytes().decode(errors="replace").splitlines() if told.exists() else [],
    "samples": inspector.page(samples, title, are_all) if samples else "",
    **curves(jsonl.metrics(folder / "metrics.jsonl")),
  }


def end_of(folder: storage.Path) -> Json | None:
  """Returns result.json; None if the run has not ended, or goes on to more steps since."""
  where = f"DIR={folder}"
  result = model_folder.read_json(where, folder, "result.json")
  config = model_folder.read_json(where, folder, "config.json") or {}
  done, steps = (result or {}).get("steps"), config.get("steps")
  goes_on = isinstance(done, int) and isinstance(steps, int) and done < steps
  return None if goes_on else result


def names_apart(folders: Sequence[str]) -> list[str]:
  """Returns a name for each folder: its last part, or more of its path where several have the same.

  If a folder is given twice, all names are numbered.
  """
  titles = [storage.title(folder) for folder in folders]
  paths = [pathlib.PurePath(storage.absolute(folder)).parts for folder in folders]
  names, depth = titles, 1
  while len(set(names)) < len(names) and depth < max(map(len, paths)):
    depth += 1
    names = [
      "/".join(parts[-depth:]) if titles.count(title) > 1 else title
      for title, parts in zip(titles, paths)
    ]
  if len(set(names)) < len(names):  # one folder twice
    names = [f"{name} ({n})" for n, name in enumerate(titles, 1)]
  return names


def curves(lines: list[jsonl.Metrics]) -> Json:
  """Returns the metrics of a run in columns, and what they can be drawn over.

  `step`, `tokens` (sampled so far, in millions) and `hours` (of all phases so far) have an entry
  for each line. `metrics` has, for each name, the numbers of lines and the values there.
  """
  tokens, hours, before, over = 0.0, 0.0, 0.0, []
  for line in lines:
    if "tokens" in line:  # of its step, as in those since the line before
      tokens += (line["tokens"] or 0.0) * ((line["step"] or 0.0) - before)
      before = line["step"] or 0.0
    hours += sum(line[name] or 0.0 for name in line if is_phase(name)) / 3600
    over.append((line["step"], tokens / 1e6, hours))
  size = max(1, math.ceil(len(lines) / POINTS))
  parts = [range(first, min(first + size, len(lines))) for first in range(0, len(lines), size)]
  metrics: dict[str, tuple[list[int], list[float]]] = {}
  for n, part in enumerate(parts):
    for name in dict.fromkeys(name for i in part for name in lines[i] if name != "step"):
      values = [value for i in part if (value := lines[i].get(name)) is not None]
      if values:
        where, what = metrics.setdefault(name, ([], []))
        where.append(n)
        what.append(rounded(sum(values) / len(values)))
  ends = [over[part[-1]] for part in parts]
  axes = {
    "step": [end[0] or 0.0 for end in ends],
    "tokens": [rounded(end[1]) for end in ends],
    "hours": [rounded(end[2]) for end in ends],
  }
  below = [name for name in sorted(panels.LEAST) if name in metrics]
  below = [name for name in below if not panels.is_drawn(lines, name)]
  return {**axes, "metrics": metrics, "flat": below}


def is_phase(name: str) -> bool:
  """Returns whether a metric is the seconds of a phase, which add up to the time of the run."""
  return name.startswith("time/") and name not in NO_PHASES


def rounded(value: float) -> float:
  """Returns a number with `DIGITS` digits."""
  return float(f"{value:.{DIGITS}g}")


def glossary_of(path: pathlib.Path) -> list[tuple[list[str], str]]:
  """Returns the metrics that a page of the documentation explains; none if it is not there.

  Each entry has the names of some metrics and their meaning, without markup.
  """
  if not path.is_file():
    return []
  found = []
  metrics, _, _ = path.read_text(encoding="utf-8").partition("\n## ")  # the next table is no metric
  for line in metrics.splitlines():
    if match := re.fullmatch(r"\| (`.*`) \| (.*) \|", line):
      meaning = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[2]).replace("`", "")
      found.append((re.findall(r"`([^`]*)`", match[1]), meaning))
  return found


def grouped(runs: Sequence[Json]) -> list[Json]:
  """Returns the panels that some run has something for: title, share, and [name, label] pairs.

  A metric that stays below its `panels.LEAST` in every run is in none of them.
  """
  names = {name for run in runs for name in run["metrics"] if name not in run["flat"]}
  sampled = panels.sampled_accuracies([dict.fromkeys(names)])
  found = []
  for panel in panels.PANELS:
    every = panel.metrics + (sampled if panel is panels.ACCURACY else ())
    metrics = [each for each in every if each[0] in names]
    if metrics:
      found.append({"title": panel.title, "share": panel.share, "metrics": metrics})
  return found


def of_objectives(names: Sequence[str]) -> dict[str, str]:
  """Returns what the settings of objectives mean; of a name that several have, that of `names`."""
  found = comments.meanings("objectives")
  own = [name for name in names if name in found]
  # in a file of the user's own a setting that others have may mean another thing
  others = found if set(names) <= {"", *found} else ()
  order = [*others, "grpo", "shared_settings", *own]  # the last one counts
  return {f"objective.{key}": text for name in order for key, text in found[name].items()}


def page(runs: Sequence[Json], glossary: list[tuple[list[str], str]], seconds: int) -> str:
  """Returns the page. No text of a run can become markup, see `inspector.page`."""
  names = ("run_page.html", "run_charts.js", "run_page.js")
  text, *scripts = [(FOLDER / name).read_text(encoding="utf-8") for name in names]
  known = {
    name: {"meaning": row.meaning, "default": row.default}
    for name, row in sections.SETTINGS.items()
  }
  objectives = [str(run["config"].get("objective.name", "")) for run in runs]
  data = {
    "runs": [{name: value for name, value in run.items() if name != "samples"} for run in runs],
    "panels": grouped(runs),
    "settings": known,
    "of_objectives": of_objectives(objectives),
    "glossary": glossary,
    "seconds": seconds,
  }
  element = '<script type="application/json" id="samples{}">{}</script>\n'
  samples = "".join(
    element.format(n, inspector.as_json(run["samples"])) for n, run in enumerate(runs)
  )
  head, middle = text.split("__DATA__")
  before, rest = middle.split("__SCRIPT__")
  script, tail = rest.split("__SAMPLES__")
  parts = [head, inspector.as_json(data), before, "\n".join(scripts), script, samples, tail]
  return "".join(parts)
