"""Makes one page of one or several runs: curves, results, settings, samples, what metrics mean.

    python -m experiments.report DIR [DIR ...] [--out=FILE] [--every=SECONDS]

DIR is the workdir of a run, which may still be going. The page is one file for a browser, --out:
DIR/report.html by default, and for several runs compared.html in the folder of the first. With
--every it is written again and again until all of the runs have finished, and an open page follows.
A run that ends writes its own.
"""

import functools
import time

from absl import app, flags, logging

from experiments import arguments
from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.reports import run_page
from grpo_jax.run.reasons import reason

MOST = 32  # runs in a page
COMPARED = "compared.html"  # the page of several runs


def main(argv: list[str]) -> None:
  """Writes the page of the folders that the command line names."""
  logging.set_verbosity(logging.WARNING)
  with arguments.one_line_errors():
    folders, every = argv[1:], flags.FLAGS.every
    check(folders)
    name = run_page.NAME if len(folders) == 1 else COMPARED
    out = flags.FLAGS.out or str(storage.place(folders[0]) / name)
    storage.check_file("--out", out, ".html")
    check_page(out)
    while True:
      ends = [run_page.end_of(storage.place(folder)) for folder in folders]
      last = None not in ends or not every  # all runs have finished, or it is written once
      try:
        print(run_page.write(folders, out, 0 if last else every), flush=True)
      except OSError as error:
        if last:
          raise SettingError(f"--out={out!r}: no page could be made ({reason(error)})") from error
        print(f"warning: {reason(error)}; tried again in {every} s", flush=True)
      if last:
        return
      time.sleep(every)


def check(folders: list[str], example: str = "experiments.report runs/one runs/two") -> None:
  """Refuses what are no folders of runs; `example` is a module that takes them, and two."""
  if not 1 <= len(folders) <= MOST:
    raise SettingError(
      f"DIR: {len(folders)} folders; give 1 to {MOST} folders of runs, as in python -m {example}"
    )
  for folder in folders:
    storage.check("DIR", folder)
    storage.check_reached("DIR", folder)
    if not (storage.place(folder) / "metrics.jsonl").exists():
      raise SettingError(
        f"DIR={folder!r}: has no metrics.jsonl; give the --workdir of a run that has begun"
      )


def check_page(out: str) -> None:
  """Refuses to replace a file with content that this command has not written."""
  path = storage.place(out)
  try:
    with storage.as_os_errors():
      ours = not (path.exists() and storage.size(path)) or run_page.is_page(path)
  except OSError as error:
    raise SettingError(
      f"--out={out!r}: cannot be read ({reason(error)}); use another name"
    ) from error
  if not ours:
    raise SettingError(f"--out={out!r}: is there already, and no page of runs; use another name")


if __name__ == "__main__":
  flags.DEFINE_string(
    "out",
    "",
    "File of the page; DIR/report.html by default, of several runs DIR/compared.html of the first.",
  )
  flags.DEFINE_integer(
    "every", 0, "Seconds until the page is written again; 0: it is written once.", lower_bound=0
  )
  app.run(main, flags_parser=functools.partial(arguments.parse_flags, operands=MOST + 1))
