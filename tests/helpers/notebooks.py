"""Runs the notebooks of examples/ from top to bottom.

    PYTHONPATH=. python tests/helpers/notebooks.py examples/embedded_task.ipynb ...

runs each of them in a temporary folder and writes it anew, with the outputs of this run.
"""

import pathlib
import shutil
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
BOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SECONDS = 1800  # that a cell may take, on a busy machine


def run(
  book: pathlib.Path,
  folder: pathlib.Path,
  env: Mapping[str, str] | None = None,
  last: str = "",
  changes: Mapping[str, str] | None = None,
) -> Any:
  """Returns the notebook with the outputs of a run in a copy of examples/ in `folder`.

  Args:
    book: the notebook.
    folder: where it runs, and where its runs are written.
    env: environment of its process; None: that of this one.
    last: code of another cell, which is run after the others.
    changes: lines of code, and what stands there in their place.

  Raises:
    nbclient.exceptions.CellExecutionError: a cell failed.
  """
  import nbclient  # the extra `notebook`
  import nbformat

  there = folder / "examples"
  shutil.copytree(book.parent, there)
  notebook = nbformat.read(book, as_version=4)
  for old, new in (changes or {}).items():
    (cell,) = [cell for cell in notebook.cells if old in cell.source.splitlines()]
    cell.source = "\n".join(new if line == old else line for line in cell.source.splitlines())
  if last:
    notebook.cells.append(nbformat.v4.new_code_cell(last))
  client = nbclient.NotebookClient(
    notebook,
    timeout=SECONDS,
    record_timing=False,
    coalesce_streams=True,
    resources={"metadata": {"path": str(there)}},
  )
  return client.execute(**({} if env is None else {"env": dict(env)}))


def main(names: list[str]) -> None:
  """Runs the notebooks and writes them anew."""
  import nbformat

  for name in names:
    with tempfile.TemporaryDirectory() as folder:
      notebook = run(pathlib.Path(name).absolute(), pathlib.Path(folder))
    del notebook.metadata["language_info"]["version"]  # of Python: it changes nothing
    nbformat.write(notebook, name)


if __name__ == "__main__":
  main(sys.argv[1:])
