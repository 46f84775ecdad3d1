"""Measures how the cost of a GRPO step grows with G, prompt, completion and vocabulary.

    python -m experiments.measure.growth --workdir=runs/growth [--vs=trl --peer=PYTHON]

For each point of LINES it runs experiments/measure/benchmark.py in a process of its own, and then
the peer if one is named. One thing grows at a time. Each result is a line of DIR/growth.jsonl, and
names the processor and the versions of packages and code (not those of a peer); where these are the
same, the same command again measures what is missing. DIR/growth.png shows the seconds of a step.
"""

import importlib.util
import json
import os
import pathlib
import platform
import re
import sys
import time
from typing import Any

from absl import app, flags

from experiments import arguments
from experiments.measure import benchmarks, peer_commands
from grpo_jax.distributed import inputs
from grpo_jax.io import storage
from grpo_jax.reports import jsonl

# The workload from which one thing at a time grows, to the values of LINES.
SMALL = {
  "layers": 2,
  "width": 256,
  "mlp": 768,
  "vocab": 8192,
  "prompts": 2,
  "group": 8,
  "prompt_len": 128,
}
SMALL |= {"completion": 64, "steps": 3}
LINES = {
  "group": (4, 8, 16, 32),
  "prompt_len": (128, 256, 512, 1024),
  "completion": (64, 128, 256),
  "vocab": (8192, 32768, 131072),
}
TITLES = {
  "group": "samples of a prompt, G",
  "prompt_len": "prompt tokens",
  "completion": "completion tokens",
  "vocab": "vocabulary",
}


def points() -> list[dict[str, int]]:
  """Returns every workload once, in the order of LINES."""
  workloads = [SMALL | {name: value} for name, values in LINES.items() for value in values]
  return [w for i, w in enumerate(workloads) if w not in workloads[:i]]


def measure(workload: dict[str, int], system: str, peer: str) -> dict[str, Any]:
  """Runs the benchmark of "grpo_jax" or of a peer for one workload, and returns what it printed.

  Args:
    workload: the arguments of experiments/measure/benchmarks.py.
    system: "grpo_jax", or the name of a peer.
    peer: the Python of the peer's environment.
  """
  argument = ",".join(f"{name}={value}" for name, value in workload.items())
  if system == "grpo_jax":
    return peer_commands.last_json(
      peer_commands.own([f"--config=experiments/measure/benchmarks.py:{argument}"])
    )
  return peer_commands.last_json(
    peer_commands.of_peer(system, peer, benchmarks.get_config(argument))
  )


def place() -> dict[str, str]:
  """Returns what seconds depend on beside the workload: processor, device, versions and code."""
  info = pathlib.Path("/proc/cpuinfo")  # only Linux has it
  text = info.read_text() if info.exists() else ""
  named = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
  name = named[1] if named else platform.processor() or platform.machine()
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  # jax itself would keep the device from the benchmark
  devices = {name: os.environ.get(name, "") for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")}
  return {"processor": f"{cores} cores, {name}"} | devices | inputs.describe_versions()


def check_place(workdir: str, results: list[dict[str, Any]], here: dict[str, str]) -> None:
  """Ends the program if a result is of another place; those of older files name none."""
  for result in results:
    there = result.get("place", {})
    if name := next((name for name in here if there.get(name) != here[name]), ""):
      arguments.fail(
        f"--workdir={workdir}: has results of another place ({name}: "
        f"{there.get(name, 'not told')}, here {here[name]}); use another --workdir"
      )


def draw(results: list[dict[str, Any]], path: pathlib.Path) -> None:
  """Draws a panel for each of LINES, with the seconds of a step as a curve for each system."""
  arguments.draw_to_files()
  import matplotlib.figure

  figure = matplotlib.figure.Figure(figsize=(4 * len(LINES), 3.4), dpi=120, layout="constrained")
  panels = figure.subplots(1, len(LINES))
  for panel, (name, values) in zip(panels, LINES.items()):
    for system in dict.fromkeys(r["system"] for r in results):
      seconds = {
        r["workload"][name]: r["step_s"]
        for r in results
        if of_line(r, name) and r["system"] == system
      }
      shown = [v for v in values if v in seconds]
      panel.plot(shown, [seconds[v] for v in shown], marker="o", label=system)
    panel.set(title=TITLES[name], ylim=(0, None))
    panel.set_xticks(values, [f"{v:,}" for v in values])
  panels[0].set_ylabel("seconds of a step")
  panels[0].legend()
  figure.savefig(path)


def of_line(result: dict[str, Any], name: str) -> bool:
  """Returns whether the workload of a result differs from SMALL in `name` alone."""
  return all(result["workload"][k] == v for k, v in SMALL.items() if k != name)


def main(argv: list[str]) -> None:
  """Measures what is missing in growth.jsonl, and draws everything."""
  del argv
  values = flags.FLAGS
  if not values.workdir:
    arguments.fail(
      "--workdir is missing: the folder of growth.jsonl and growth.png, as in --workdir=runs/growth"
    )
  if not importlib.util.find_spec("matplotlib"):
    arguments.fail("growth.png needs matplotlib: pip install matplotlib")
  with arguments.one_line_errors():
    storage.check_disk("--workdir", values.workdir, "use a folder of a disk")
  folder = pathlib.Path(values.workdir)
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    arguments.fail(
      f"--workdir={values.workdir}: cannot be made ({error.strerror}); use another folder"
    )
  path = folder / "growth.jsonl"
  results = jsonl.read(path)
  systems = ("grpo_jax", *([values.vs] if values.vs else []))
  made = [(r["workload"], r["system"]) for r in results]
  wanted = [(w, system) for w in points() for system in systems if (w, system) not in made]
  here = place()
  if wanted:
    check_place(values.workdir, results, here)
  if any(system == values.vs for _, system in wanted):
    peer_commands.check_peer(values.vs, values.peer)
  start = time.perf_counter()
  for i, (workload, system) in enumerate(wanted):
    left = (
      f", {(time.perf_counter() - start) / i * (len(wanted) - i) / 60:.0f} min left" if i else ""
    )
    changed = ", ".join(f"{k}={v}" for k, v in workload.items() if v != SMALL[k]) or "base"
    print(f"{i + 1} of {len(wanted)}: {system}, {changed}{left}", flush=True)
    result = measure(workload, system, values.peer)
    results.append({"system": system, "workload": workload, "place": here} | result)
    whole = path.with_suffix(".tmp")  # a line that a kill cut off must not stay before the next
    whole.write_text("".join(json.dumps(result) + "\n" for result in results))
    whole.replace(path)
  draw(results, folder / "growth.png")
  print(f"{folder}/growth.png")


if __name__ == "__main__":
  flags.DEFINE_string("workdir", None, "Folder of the results.")
  flags.DEFINE_enum("vs", None, ["trl", "tunix"], "Measure this peer, too.")
  flags.DEFINE_string("peer", sys.executable, "The Python of the peer's environment.")
  app.run(main, flags_parser=arguments.parse_flags)
