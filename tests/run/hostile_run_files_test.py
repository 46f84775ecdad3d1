"""Hostile and damaged files of a run's folder: no command ends in a traceback, and what is wrong is
told.
"""

import json
import os
import pathlib
import shutil
import types
from collections.abc import Callable

import doctor_test
import jax
import pytest
import run_test
import small_models  # noqa: F401  adds the variants named test_*
from ml_collections import ConfigDict

from experiments import doctor, sources
from grpo_jax.errors import GrpoError
from grpo_jax.reports import inspector
from grpo_jax.run import compile_cache, workdir
from grpo_jax.setup import build, defaults
from grpo_jax.setup.experiment import make

good = doctor_test.good
Edit = Callable[[pathlib.Path], object]

DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "9" * 5000


def text(name: str, content: str | bytes) -> Edit:
  """Puts this in the place of a file."""
  return lambda run: (run / name).write_bytes(
    content if isinstance(content, bytes) else content.encode()
  )


def keys(name: str, **changes: object) -> Edit:
  """Changes values of a JSON file, by dotted names with "__"; a text that begins with @ stands as
  it is.
  """

  def edit(run: pathlib.Path) -> None:
    value = json.loads((run / name).read_text())
    for key, new in changes.items():
      *within, last = key.split("__")
      holder = value
      for part in within:
        holder = holder[part]
      holder[last] = new
    raw = json.dumps(value)
    for new in changes.values():
      if isinstance(new, str) and new.startswith("@"):
        raw = raw.replace(json.dumps(new), new[1:])
    (run / name).write_text(raw)

  return edit


def folder(name: str) -> Edit:
  """Puts a folder in the place of a file."""
  return lambda run: ((run / name).unlink(missing_ok=True), (run / name).mkdir())


def link(name: str, target: str) -> Edit:
  """Puts a link in the place of a file."""

  def edit(run: pathlib.Path) -> None:
    (run / name).unlink(missing_ok=True)
    os.symlink(target, run / name)

  return edit


def fifo(name: str) -> Edit:
  """Puts a pipe, from which nothing comes, in the place of a file."""
  return lambda run: ((run / name).unlink(missing_ok=True), os.mkfifo(run / name))


ABOUT = "checkpoints/5/about/metadata"
TOLD: dict[str, Edit] = {
  "config: empty": text("config.json", ""),
  "config: a list": text("config.json", "[1]"),
  "config: 100,000 lists in one another": text("config.json", DEEP),
  "config: no UTF-8": text("config.json", b"\xff\xfe{}"),
  "config: NaN as a rate": keys("config.json", learner__lr="@NaN"),
  "config: 5,000 digits of steps": keys("config.json", steps=f"@{DIGITS}"),
  "config: log.every=0": keys("config.json", log__every=0),
  "config: a text as a section": keys("config.json", log="x"),
  "config: a folder": folder("config.json"),
  "config: a link out of the folder": link("config.json", "/etc/hostname"),
  "result: a list": text("result.json", "[]"),
  "result: steps below 0": keys("result.json", steps=-1),
  "result: steps that no float holds": keys("result.json", steps="@1e999"),
  "result: a text as seconds": keys("result.json", wall_s="long"),
  "inputs: a list": text("inputs.json", "[]"),
  "inputs: deep": text("inputs.json", '{"a": ' + DEEP + "}"),
  "inputs: numbers and lists": text(
    "inputs.json", '{"version of jax": 7, "data.path/x": [1], "code of a.py": null}'
  ),
  "inputs: names that a terminal obeys": text(
    "inputs.json", json.dumps({"version of \x1b[31m\n" + "x" * 999: "\x1b[2J"})
  ),
  "decoder: a thousand million layers": keys("model/decoder.json", layers=10**9),
  "decoder: a text as attention": keys("model/decoder.json", attention="full"),
  "decoder: two widths": text("model/decoder.json", '{"width": 8, "width": 16}'),
  "tokenizer: no JSON": text("model/tokenizer.json", "\0" * 100),
  "tokenizer: a list": text("model/tokenizer.json", "[]"),
  "checksums: a list": text("checksums.json", "[]"),
  "checksums: of files elsewhere": text(
    "checksums.json", '{"../../etc/passwd": "1 bytes, 00000000"}'
  ),
  "checksums: numbers": text("checksums.json", '{"config.json": 7}'),
  "about: deep": text(ABOUT, DEEP),
  "about: no object": text(ABOUT, "7"),
  "about: empty": text(ABOUT, ""),
  "checkpoint: without its arrays": lambda run: shutil.rmtree(run / "checkpoints/5/state"),
  "checkpoint: a number too large for any": lambda run: (run / "checkpoints" / ("9" * 30)).mkdir(),
  "metrics: a folder": folder("metrics.jsonl"),
  "metrics: endless": link("metrics.jsonl", "/dev/zero"),
  "metrics: a pipe": fifo("metrics.jsonl"),
  "metrics: NULs": text("metrics.jsonl", b"\0" * 10**6),
  "samples: a line of 20 MB": text(
    "samples.jsonl", '{"step": 1, "completion": "' + "x" * 20_000_000 + '"}\n'
  ),
  "sums: numbers of 5,000 digits": text("metrics.crc", f"{DIGITS} 1 00000000 00000000\n" * 9),
  "sums: a million newlines": text("metrics.crc", "\n" * 10**6 + "x"),
  "export: a header of 2^63 bytes": text("export/model.safetensors", b"\xff" * 7 + b"\x7f{}"),
  "export: a config that is a list": text("export/config.json", "[]"),
  "programs: an empty entry": text("compiled/empty-cache", ""),
}
UNTOLD: dict[str, Edit] = {  # what a run makes anew, or what is nothing of its own
  "lock: a million bytes": text("lock", b"\xff" * 10**6),
  "programs: a folder that is called an entry": lambda run: (run / "compiled" / "x-cache").mkdir(),
  "programs: an endless entry": link("compiled/zero-cache", "/dev/zero"),
  "programs: checksums that are a list": text("compiled/checksums.json", "[1]"),
  "inputs: gone": lambda run: (run / "inputs.json").unlink() or (run / "checksums.json").unlink(),
  "checkpoints: a file": text("checkpoints/notes.txt", "mine"),
}
# one of most files, for the quick tests
SHORT = (
  "config: empty",
  "result: a list",
  "inputs: numbers and lists",
  "decoder: a text as attention",
  "tokenizer: a list",
  "checksums: of files elsewhere",
  "about: no object",
  "metrics: a pipe",
  "lock: a million bytes",
)


@pytest.fixture(scope="module")
def model(good) -> tuple[ConfigDict, build.Model]:
  """The config of the run, and its model."""
  c = defaults.get_config()
  c.steps, c.tokenizer, c.model.variant = 5, "words", "test_qwen3"
  c.data.name, c.data.path = "jsonl", str(good.parent / "data")
  c.eval.problems, c.checkpoint.every, c.checkpoint.export = 0, 2, True
  c.log.writers = ()
  return c, build.model(make(c), jax.devices()[:1])


def plots() -> types.ModuleType:
  return pytest.importorskip("grpo_jax.reports.plots", exc_type=ImportError)


@pytest.mark.parametrize(
  "what", [w if w in SHORT else pytest.param(w, marks=pytest.mark.slow) for w in TOLD | UNTOLD]
)
def test_every_command_answers_in_lines(good, model, tmp_path, capsys, what):
  run = pathlib.Path(shutil.copytree(good, tmp_path / "run"))
  (TOLD | UNTOLD)[what](run)
  assert bool(doctor_test.bad(run)) == (what in TOLD)
  assert doctor.show("", doctor.whole(str(run))) is not None
  assert all(
    len(line) <= doctor.WIDTH and "\x1b" not in line
    for line in capsys.readouterr().out.splitlines()
  )
  tries = [
    lambda: plots().draw(str(run)),
    lambda: inspector.write(str(run)),
    lambda: sources.check("--path", str(run), None),
    lambda: sources.trained_with(str(run), sources.PROMPT),
    lambda: workdir.steps_logged(str(run)),
    lambda: compile_cache.examine(str(run / "compiled")),
    lambda: run_test.loop(model[0], model[1], run, {"policy": doctor_test.Policy(model[1])}),
  ]
  for command in tries:
    try:
      command()
    except GrpoError as error:
      assert "\n" not in str(error) and len(str(error)) < 1000


def test_there_are_enough():
  assert len(TOLD) + len(UNTOLD) >= 40 and set(SHORT) <= (TOLD | UNTOLD).keys()
