"""Imports run downwards between folders and form no circle. A folder that is new is named here, in
its place. The test of `grpo_jax/X/y.py` is `tests/X/y_test.py`.
"""

import ast
import graphlib
import pathlib
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).parents[1]

# From the bottom up: a folder of grpo_jax/, or one of its single files. Imports run downwards, and
# those inside a folder form no circle. A folder in a folder counts as the outer one.
FOLDERS = (
  "errors",
  "aliases",
  "frozen",
  "types",
  "ops",
  "io",
  "config",
  "sandbox",
  "distributed",
  "objectives",
  "rewards",
  "tokenizer",
  "data",
  "environments",
  "writers",
  "packing",
  "models",
  "learning",
  "sampling",
  "run",
  "setup",
  "reward_models",
  "evaluation",
  "loops",
  "plan",
  "reports",
  "experiments",
)

# Packages that a folder does without: ops are functions of arrays, objectives never see a model.
WITHOUT = {
  "ops": ("flax", "ml_collections", "optax"),
  "objectives": ("flax", "optax"),
  "rewards": ("flax", "jax"),
}
MAY_IMPORT_BY_NAME = ("setup", "experiments")  # importlib
AT_IMPORT = (
  "devices",
  "local_devices",
  "device_count",
  "local_device_count",
  "process_index",
  "process_count",
)

# Modules without a test file of their own: they hold interfaces alone, which run nothing.
UNTESTED = ("aliases.py", "evaluation/evaluation.py", "loops/protocols.py")


def sources() -> dict[str, str]:
  """Name (`ops.masked`, `experiments.run`) -> text, of every module."""
  files = [*(ROOT / "grpo_jax").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
  return {name(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


def name(path: pathlib.Path) -> str:
  parts = path.with_suffix("").parts
  return ".".join(part for part in parts if part not in ("grpo_jax", "__init__"))


def place(module: str) -> int | None:
  """Returns how high a module's folder stands; None where FOLDERS does not name it."""
  folder = module.split(".")[0]
  return FOLDERS.index(folder) if folder in FOLDERS else None


def imports(tree: ast.AST, modules: set[str]) -> set[str]:
  """Full dotted names of what is imported anywhere in a module, functions included."""
  found = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      base = "." * node.level + (node.module or "")
      for alias in node.names:
        inner = f"{base}.{alias.name}"
        found.add(inner if own(inner) in modules else base)
  return found


def own(full: str) -> str | None:
  """`grpo_jax.ops.masked` -> `ops.masked`; None for what is not the project's."""
  if full.split(".")[0] == "experiments":
    return full
  return (
    full.removeprefix("grpo_jax").removeprefix(".") if full.split(".")[0] == "grpo_jax" else None
  )


def violations(texts: dict[str, str]) -> list[str]:
  """Returns a line for every import that goes up, or by name where it must not, and for a circle."""
  modules, found, graph = set(texts), [], {}
  for module, text in sorted(texts.items()):
    if not module:
      continue
    tree, level = ast.parse(text), place(module)
    if level is None:
      found.append(f"{module}: is in no folder that FOLDERS of tests/layering_test.py names")
      continue
    for full in sorted(imports(tree, modules)):
      top = full.split(".")[0]
      if full.startswith("."):
        found.append(f"{module}: imports {full}; write the whole name")
      elif top == "importlib" and not full.startswith(
        ("importlib.resources", "importlib.metadata")
      ):
        if module.split(".")[0] not in MAY_IMPORT_BY_NAME:
          found.append(f"{module}: imports importlib; only {' and '.join(MAY_IMPORT_BY_NAME)} may")
      elif top in WITHOUT.get(module.split(".")[0], ()):
        found.append(f"{module}: imports {top}")
      elif (target := own(full)) and target != module:
        found += _import(module, level, target)
        graph.setdefault(module, set()).add(target)
    found += [f"{module}: {what}" for what in _calls(tree, module)]
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    found.append(f"a circle: {' -> '.join(error.args[1])}")
  return found


def _import(module: str, level: int, target: str) -> list[str]:
  below = place(target)
  if below is None:
    return [
      f"{module}: imports {target}, which is in no folder that FOLDERS of tests/layering_test.py "
      "names"
    ]
  if target.split(".")[0] == "reports" and module.split(".")[0] not in ("reports", "experiments"):
    return [
      f"{module}: imports {target}; nothing imports the reports, experiments/run.py calls them"
    ]
  return [f"{module}: imports {target}, upwards"] if below > level else []


def _calls(tree: ast.Module, module: str) -> list[str]:
  found = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and node.attr == "jit":
      of = ast.unparse(node.value)
      if of == "nnx":
        found.append(f"line {node.lineno}: nnx.jit; plain jax.jit on parameter trees")
      elif module.split(".")[0] == "ops":
        found.append(f"line {node.lineno}: {of}.jit; who calls an op compiles it")
  for node in _run_at_import(tree):
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {
      f"jax.{call}" for call in AT_IMPORT
    }:
      found.append(f"line {node.lineno}: {ast.unparse(node.func)}() at import")
  return found


def _run_at_import(tree: ast.AST):
  """The nodes that run when the module is imported: not the bodies of functions, nor `if __name__
  == ...`.
  """
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
      continue
    if isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__"):
      continue
    yield node
    yield from _run_at_import(node)


def test_imports_run_downwards():
  found = violations(sources())
  assert not found, "\n" + "\n".join(found)


def test_every_folder_is_there():
  assert {module.split(".")[0] for module in sources() if module} == set(FOLDERS)


def test_upwards_and_circles_are_seen():
  texts = {
    "ops.masked": "from grpo_jax.ops import advantages",
    "ops.advantages": "from grpo_jax import types\nfrom grpo_jax.ops.masked import mean",
    "types": "def f():\n  import grpo_jax.learning.learn",
    "learning.learn": "import grpo_jax.types\nfrom grpo_jax import types",
    "models.decoder": "from grpo_jax.objectives.grpo import loss",
    "objectives.grpo": "from grpo_jax.models import decoder",
  }
  found = violations(texts)
  assert found[:2] == [
    "objectives.grpo: imports models.decoder, upwards",
    "types: imports learning.learn, upwards",
  ]
  assert len(found) == 3 and found[2].startswith("a circle: ")


def test_a_circle_inside_a_folder_is_seen():
  masked, advantages = "from grpo_jax.ops import advantages", "from grpo_jax.ops.masked import mean"
  (found,) = violations({"ops.masked": masked, "ops.advantages": advantages})
  assert found.startswith("a circle: ops.")


def test_strangers_and_forbidden_packages_are_seen():
  texts = {
    "novelty": "",
    "learning.state": "from grpo_jax.novelty import x",
    "learning.optimizer": "import importlib",
    "setup.registry": "import importlib.util\nfrom grpo_jax.reports import plots",
    "ops.surrogate": "import flax.nnx as nnx\nfrom ml_collections import ConfigDict\nf = jax.jit(g)",
    "ops.masked": "from . import surrogate",
    "models.decoder": "f = nnx.jit(g)",
    "reports.plots": "",
  }
  assert violations(texts) == [
    "learning.optimizer: imports importlib; only setup and experiments may",
    "learning.state: imports novelty, which is in no folder that FOLDERS of tests/layering_test.py "
    "names",
    "models.decoder: line 1: nnx.jit; plain jax.jit on parameter trees",
    "novelty: is in no folder that FOLDERS of tests/layering_test.py names",
    "ops.masked: imports .; write the whole name",
    "ops.surrogate: imports flax",
    "ops.surrogate: imports ml_collections",
    "ops.surrogate: line 3: jax.jit; who calls an op compiles it",
    "setup.registry: imports reports.plots; nothing imports the reports, experiments/run.py calls "
    "them",
  ]


def test_devices_are_not_asked_for_at_import():
  text = (
    "N = len(jax.devices())\ndef f():\n  return jax.devices()\nclass C:\n  x = jax.device_count()\n"
  )
  assert violations({"distributed.sharding": text}) == [
    "distributed.sharding: line 1: jax.devices() at import",
    "distributed.sharding: line 5: jax.device_count() at import",
  ]


def without_test(modules: Iterable[str], tests: Iterable[str]) -> list[str]:
  """Returns the modules, such as "ops/masked.py", that have no test of their name in `tests`."""
  tested = {test.removesuffix("_test.py") + ".py" for test in tests}
  return sorted(module for module in modules if module not in tested)


def files(folder: str, names: str) -> list[str]:
  """Returns the files of a folder with such names, by their paths in it."""
  return [file.relative_to(ROOT / folder).as_posix() for file in (ROOT / folder).rglob(names)]


def test_every_module_has_a_test_of_its_name():
  modules = [module for module in files("grpo_jax", "*.py") if not module.endswith("__init__.py")]
  assert without_test(modules, files("tests", "*_test.py")) == sorted(UNTESTED)


def test_a_module_without_a_test_is_seen():
  modules = ["ops/masked.py", "ops/shapes.py", "types.py"]
  assert without_test(modules, ["ops/masked_test.py", "io/shapes_test.py", "types_test.py"]) == [
    "ops/shapes.py"
  ]
