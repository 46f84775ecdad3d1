"""The blocks of README.md and docs/ that a reader copies are run as they stand, with fewer steps."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
from collections.abc import Iterator

import house
import pytest
from conftest import ROOT

from experiments import arithmetic, config_files
from experiments.arguments import names_of
from grpo_jax.loops import online
from grpo_jax.setup import modules, registry
from grpo_jax.setup.resolve import resolve

README = (ROOT / "README.md").read_text(encoding="utf-8")
OWN = (ROOT / "docs" / "own.md").read_text(encoding="utf-8")
TURNS = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]
FEW = [
  "steps=1",
  "eval.batch=8",
  "eval.samples=0",
  "data.prompts=4",
  "sampler.group=2",
  "sampler.max_length=16",
]
FEW += ["sampler.tries=1", "log.writers=()", "log.measure_every=0"]


def section(title: str, page: str = OWN) -> list[tuple[str, str]]:
  """Returns (language, text) of the blocks under a heading of a page, such as docs/own.md."""
  text = re.split(r"\n##+ ", page.split(f"## {title}\n")[1])[0]
  return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def command(title: str, page: str = OWN) -> list[str]:
  """The arguments of the one command under a heading."""
  (text,) = [text for language, text in section(title, page) if language == "sh"]
  program, *arguments = shlex.split(os.path.expandvars(text.replace("\\\n", " ")))
  assert program == "launch/local.sh"
  return arguments


def run(
  program, folder: pathlib.Path, arguments: list[str], problems: int = 0, more: tuple[str, ...] = ()
) -> pathlib.Path:
  """Runs a command of the README in `folder`, where its files lie, and evaluates so many problems;
  the run's folder. `more` settings come after those of FEW.
  """
  (workdir,) = [a.removeprefix("--workdir=") for a in arguments if a.startswith("--workdir=")]
  named = [
    a.replace("--config=", f"--config={ROOT}/") if a.startswith("--config=exp") else a
    for a in arguments
  ]
  done = program(
    "experiments.run",
    *named,
    *(f"--config.{s}" for s in (*FEW, f"eval.problems={problems}", *more)),
    cwd=folder,
    PYTHONPATH=str(ROOT),
    timeout=400,
  )
  assert done.returncode == 0, done.stderr
  return folder / workdir


@pytest.mark.slow
@pytest.mark.parametrize(
  "title",
  [
    pytest.param("Your reward", marks=pytest.mark.long),
    pytest.param("Your advantage", marks=pytest.mark.long),
    "Your objective",
  ],
)
def test_a_file_of_ones_own(title, program, tmp_path):
  (text,) = [text for language, text in section(title) if language == "python"]
  name = re.match(r"# (\w+\.py)\n", text)[1]
  (tmp_path / name).write_text(text)
  folder = run(program, tmp_path, command(title))
  line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
  assert name != "my_reward.py" or {"reward/short", "reward/rare"} <= line.keys()
  assert not line["reward_faults"]
  assert line["skipped_steps"] == 0


def test_an_objective_that_calls_another(tmp_path):
  ((_, text),) = section("An advantage that depends on the policy as it is now")
  file = tmp_path / "near.py"
  file.write_text(text)
  config = arithmetic.get_config(f"objective={file}")
  config.update_from_flattened_dict({"learner.microbatch": 4, "objective.decay": 8.0})
  resolve(config)


def test_which_objectives_have_a_setting():
  """Four sentences of docs/objectives.md name them."""
  page = " ".join((ROOT / "docs" / "objectives.md").read_text(encoding="utf-8").split())
  every = set(modules.offered("grpo_jax.objectives").split(", "))
  has = {
    setting: {name for name in every if setting in registry.objective_defaults(name)}
    for setting in ("advantage", "beta", "keep", "aggregation")
  }
  for names, before, after in (
    (has["advantage"], "`objective.advantage` is a setting of ", ", and of an objective of your"),
    (has["beta"] - {"dpo"}, "or the policy before training, in ", ". (In `dpo` it is another"),
    (has["keep"], "leave some tokens out, in ", ". (The ratio of"),
    (
      every - has["aggregation"] - {"reward_model"},
      "`sequence_mean`; ",
      " do not have the setting",
    ),
  ):
    assert after in page
    named = page.partition(after)[0].rpartition(before)[2].replace(" and ", ", ").split(", ")
    assert set(named) == names, before


def test_the_test_of_an_objective(program, tmp_path):
  for language, text in section("Your objective") + section("The test of an objective"):
    if language == "python":
      (tmp_path / re.match(r"# (\w+\.py)\n", text)[1]).write_text(text)
  done = program("pytest", "-q", "-c", f"{ROOT}/pyproject.toml", f"--rootdir={ROOT}", str(tmp_path))
  assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_an_environment_of_ones_own(program, tmp_path):
  """The check of an answer: a first turn that is asked again, and a second that is rewarded."""
  (text,) = [text for language, text in section("Write yours", TURNS) if language == "python"]
  (tmp_path / "check_answer.py").write_text(text)
  more = ("environment.turn_length=5", "sampler.max_length=64")
  folder = run(program, tmp_path, command("Write yours", TURNS), 8, more)
  line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[1])
  assert line["turns/max"] == 2 and not line["reward_faults"] and "reward/environment" in line


@pytest.mark.slow
def test_the_reward_of_the_readme(program, tmp_path):
  (text,) = re.findall(r"```python\n(# my_reward.py\n.*?)```", README, re.DOTALL)
  (tmp_path / "my_reward.py").write_text(text)
  (shell,) = [
    block for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "my_reward.py" in block
  ]
  folder = run(program, tmp_path, shlex.split(shell.replace("\\\n", " "))[1:])
  line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
  assert "reward/short" in line and not line["reward_faults"]


@pytest.mark.long
@pytest.mark.slow
def test_a_verifier_by_its_settings(program, tmp_path):
  folder = run(program, tmp_path, command("Your verifier"), problems=8)
  lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
  assert [line["reward_faults"] for line in lines if "reward_faults" in line] == [0]


@pytest.mark.slow
@pytest.mark.parametrize(
  "which", [0, pytest.param(1, marks=pytest.mark.long)], ids=["answers", "choices"]
)
def test_data_of_ones_own(which, program, tmp_path):
  blocks = section("Your data")
  lines, shell = ([text for kind, text in blocks if kind == name] for name in ("json", "sh"))
  assert len(lines) == len(shell) == 2
  folder = tmp_path / "my_data"
  folder.mkdir()
  for split in ("train", "test"):
    (folder / f"{split}.jsonl").write_text(lines[which])
  ran = run(program, tmp_path, shlex.split(shell[which].replace("\\\n", " "))[1:], problems=8)
  assert (ran / "result.json").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_loop_of_ones_own(program, tmp_path):
  (text,) = [text for language, text in section("Your loop") if language == "sh"]
  copied, liked, ran = re.split(r"\n(?=\S)", text.strip())
  subprocess.run(
    f"{copied.replace('grpo_jax/', f'{ROOT}/grpo_jax/')}\n{liked}",
    shell=True,
    check=True,
    cwd=tmp_path,
  )
  assert (run(program, tmp_path, shlex.split(ran)[1:]) / "result.json").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_run_before_the_run(program, tmp_path):
  (text,) = [
    text for language, text in section("Two runs one after the other") if language == "python"
  ]
  (tmp_path / "my_experiment.py").write_text(text)
  few = [f"--config.first.{s}" for s in (*FEW[:4], "sampler.group=1", *FEW[5:], "eval.problems=0")]
  folder = run(program, tmp_path, [*command("Two runs one after the other"), *few])
  assert json.loads((folder / "first" / "result.json").read_text())["steps"] == 1
  assert json.loads((folder / "config.json").read_text())["init_from"] == f"{folder}/first"


def test_the_loop_is_the_one_that_runs():
  """Line by line, but for what stands for more lines."""
  (text,) = re.findall(r"```python\n( *for step in.*?)```", README, re.DOTALL)
  source = pathlib.Path(online.__file__).read_text(encoding="utf-8")
  for line in text.splitlines():
    assert line.strip() == "..." or line in source


def test_every_file_is_in_the_tree_of_design_md():
  """And every file that the tree names is there."""
  tree = DESIGN.split("## Files")[1]
  names = {
    pathlib.Path(name).name for name in re.findall(r"[\w/]+\.(?:py|sh|html|yaml|ipynb)\b", tree)
  }
  files = [
    p
    for d in ("grpo_jax", "experiments", "examples", "launch")
    for p in (ROOT / d).rglob("*.*")
    if ".ipynb_checkpoints" not in p.parts
  ]
  files += (ROOT / "tests" / "helpers").glob("*.py")
  files = [
    p
    for p in files
    if p.suffix in (".py", ".sh", ".html", ".yaml", ".ipynb") and p.name != "__init__.py"
  ]
  assert not sorted(str(p.relative_to(ROOT)) for p in files if p.name not in names)
  assert (
    not names
    - {p.name for p in files}
    - {"conftest.py", "layering_test.py", "samples.html", "report.html"}
  )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page):
  """Files, and headings of pages."""
  for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
    if "://" in target:
      continue
    name, _, heading = target.partition("#")
    file = (page.parent / name) if name else page
    assert file.exists(), target
    if heading:
      lines = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
      assert heading in {
        re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines
      }, target


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
  """Yields the module and the arguments of each command in the blocks and code spans of a page."""
  text = page.replace("\\\n", " ")
  blocks = re.findall(r"```sh\n(.*?)```|((?:^ {4,}.*\n)+)", text, re.DOTALL | re.MULTILINE)
  spans = re.findall(r"`((?:launch/local.sh|python -m experiments)[^`]*)`", text)
  line = ""
  for part in [*spans, *(part for block in blocks for part in "".join(block).splitlines())]:
    line = f"{line} {part}" if line else part
    with contextlib.suppress(ValueError):  # a quoted text goes on in the next line
      words, line = shlex.split(line, comments=True), ""
      words = [word for word in words if not re.fullmatch(r"[A-Z_0-9]+=.*", word)]  # EXTRAS=plot
      if words[:1] == ["launch/local.sh"]:
        yield "experiments.run", words[1:]
      elif words[:2] == ["python", "-m"] and words[2].startswith("experiments."):
        yield words[2], words[3:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_of_a_page_names_what_there_is(page, monkeypatch):
  """Looks for the module, its flags, the config file with its arguments, and the settings."""
  monkeypatch.chdir(ROOT)
  for module, arguments in commands(page.read_text(encoding="utf-8")):
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    given = [re.match(r"--([\w.]+)(?:=(.*))?", a, re.DOTALL) for a in arguments]
    flags = {match[1]: match[2] for match in given if match}
    for flag in {name.partition(".")[0] for name in flags} - {"config", "help"}:
      assert re.search(rf"\b{flag}\b", source), (module, flag)
    file, _, rest = flags.get("config", "").partition(":")
    if pathlib.Path(file).is_file() and not re.search(r"[A-Z]{3}|my_\w+\.py", rest):
      names = names_of(config_files.load(flags["config"]))
      changed = {name.removeprefix("config.") for name in flags if name.startswith("config.")}
      assert changed <= set(names), (flags["config"], changed - set(names))


def test_the_readme_is_short():
  assert README.count("\n") <= 150


def test_the_picture_of_the_folders_is_that_of_the_imports():
  assert house.PICTURE.read_text(encoding="utf-8") == house.picture()
