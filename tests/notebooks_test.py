"""Runs the notebooks of examples/ from top to bottom, and looks at the outputs that they are kept with."""

import importlib.util
import json
import re

import notebooks
import pytest
from conftest import environment

MOST_BYTES = 300_000
PLACES = r"/(?:home|root|tmp|work|Users|var)/"  # how a path of one machine begins
FOR_A_TPU = notebooks.ROOT / "launch" / "tpu.ipynb"
NAMES = {"each_token", "embedded_task", "your_own"}
books = pytest.mark.parametrize("book", notebooks.BOOKS, ids=lambda book: book.stem)


def outputs(notebook) -> list:
  """Returns all outputs of a notebook in their order."""
  return [o for cell in notebook["cells"] if cell["cell_type"] == "code" for o in cell["outputs"]]


def text(output) -> str:
  """Returns what an output shows as text."""
  shown = output.get("text") or output.get("data", {}).get("text/plain", "")
  return shown if isinstance(shown, str) else "".join(shown)


def values(name: str, folder, expression: str, changes=None):
  """Runs a notebook in a copy and returns the value of an expression at its end, by JSON.

  `changes` are lines that are replaced.
  """
  if importlib.util.find_spec("nbclient") is None:
    pytest.skip("nbclient is not installed (pip install -e '.[notebook]')")
  (book,) = [book for book in notebooks.BOOKS if book.stem == name]
  # compiled as for a reader: without optimisations the 40 steps take three times as long
  env = environment(PYTHONPATH=str(notebooks.ROOT), XLA_FLAGS="")
  done = notebooks.run(book, folder, env, f"import json\nprint(json.dumps({expression}))", changes)
  assert not [o for o in outputs(done) if o["output_type"] == "error" or o.get("name") == "stderr"]
  return json.loads(text(outputs(done)[-1]))


def test_there_are_three():
  assert {book.stem for book in notebooks.BOOKS} == NAMES


@books
def test_a_notebook_is_kept_with_the_outputs_of_one_run(book):
  """Without errors, warnings, control characters and paths of the machine that made them."""
  content = book.read_text(encoding="utf-8")
  notebook = json.loads(content)
  code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
  assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
  shown = outputs(notebook)
  assert len(shown) > 5 and len(content.encode()) < MOST_BYTES
  assert {o["output_type"] for o in shown} <= {"stream", "display_data", "execute_result"}
  assert {o.get("name", "stdout") for o in shown} == {"stdout"}
  words = "\n".join(map(text, shown))
  assert "\x1b" not in words and "Traceback" not in words
  assert not re.search(PLACES, words) and not re.search(PLACES, str([c["source"] for c in code]))


@books
def test_a_notebook_says_how_to_open_it_and_how_long_it_takes(book):
  first = "".join(json.loads(book.read_text(encoding="utf-8"))["cells"][0]["source"])
  assert "pip install -e '.[plot,notebook]' -c constraints.txt" in first
  assert "jupyter lab examples" in first and "minute" in first


def test_the_notebook_for_a_tpu_gives_commands_that_are_there():
  """It has no outputs, since it was not run on one."""
  cells = json.loads(FOR_A_TPU.read_text(encoding="utf-8"))["cells"]
  code = [cell for cell in cells if cell["cell_type"] == "code"]
  assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
  assert "never on a TPU" in "".join(cells[0]["source"])
  text = "".join(line for cell in cells for line in cell["source"])
  files = set(re.findall(r"(?:launch|experiments|docs)/\w+\.(?:sh|py|md)", text))
  assert {"launch/local.sh", "experiments/arithmetic.py"} < files
  assert all((notebooks.ROOT / file).is_file() for file in files)
  for module in re.findall(r"-m (experiments\.\w+)", text):
    assert importlib.util.find_spec(module)


@pytest.mark.slow
@pytest.mark.long
def test_the_notebook_for_a_tpu_runs_on_a_cpu(tmp_path):
  """From a clone that it makes, with an environment that it makes there."""
  import nbclient
  import nbformat

  notebook = nbformat.read(FOR_A_TPU, as_version=4)
  changed = {"REPOSITORY": str(notebooks.ROOT), "EXTRAS": "plot", "STEPS": 2}
  notebook.cells[1].source = "\n".join(f"{k} = {v!r}" for k, v in changed.items())
  client = nbclient.NotebookClient(
    notebook, timeout=notebooks.SECONDS, resources={"metadata": {"path": str(tmp_path)}}
  )
  shown = outputs(client.execute(env=environment(XLA_FLAGS="")))
  assert not [output for output in shown if output["output_type"] == "error"]
  run = tmp_path / "grpo_jax" / "runs" / "arithmetic"
  assert json.loads((run / "result.json").read_text())["steps"] == 2
  assert any("image/png" in output.get("data", {}) for output in shown)
  answer = [output["text"] for output in shown if "text" in output][-1]
  assert re.search(r"\d", answer)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.long)])
def test_the_embedded_task_is_learned(tmp_path, count):
  shown = (
    '[result, len(rewards), [row["reward"] for row in group], after.model.tokenizer.vocab_size]'
  )
  steps = {"config.steps = 40": f"config.steps = {count}"}
  result, lines, rewards, vocabulary = values("embedded_task", tmp_path, shown, steps)
  assert lines == result["steps"] == count
  assert result["accuracy_after"] > result["accuracy_before"] + (0.05 if count == 40 else -0.05)
  assert set(rewards) <= {0, 1} and vocabulary > 10
  assert (tmp_path / "runs" / "embedded_task" / "metrics.jsonl").exists()


@pytest.mark.long
@pytest.mark.slow
def test_parts_of_ones_own_are_trained_with(tmp_path):
  reward, advantage, objective, environment = values(
    "your_own", tmp_path, "[reward, advantage, objective, environment]"
  )
  assert {"reward/short", "reward/rare"} <= reward.keys() and not reward["reward_faults"]
  assert advantage["grad_norm"] > 0 and abs(objective["surprise"] - objective["entropy"]) < 0.2
  assert environment["turns/max"] == 2 and "reward/environment" in environment
  assert not list(notebooks.ROOT.glob("my_*.py"))


@pytest.mark.long
@pytest.mark.slow
def test_an_update_moves_each_token_as_the_notebook_says(tmp_path):
  shown = "[float(abs(before - after)[mask].max()), shares, moved, acting.sum().item()]"
  most, shares, moved, count = values("each_token", tmp_path, shown)
  assert most > 0.1 and count > 1000
  assert all(sum(shares[name].values()) == pytest.approx(1) for name in ("mu = 1", "mu = 4"))
  own, _, shared, by_sum = moved.values()
  assert own > 0.6 and by_sum > shared + 0.1
