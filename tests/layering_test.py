"""Which module may import which. A module that is new is named here, in its layer, or the test says so."""

import ast
import fnmatch
import graphlib
import pathlib

ROOT = pathlib.Path(__file__).parents[1]

# From the bottom up; a name stands for a module or a package. Imports run downwards.
LAYERS = (
  (
    "errors",
    "frozen",
    "types",
    "guard",
    "apart",
    "leaving",
    "lock",
    "quiet",
    "terminal",
    "kinds",
    "ranges",
    "storage",
    "mirror",
  ),
  ("ops", "sharding", "packing", "checksums", "folder", "logs", "manifest", "hosts", "inputs", "lifeline", "room"),
  ("models", "tokenizer", "data", "rewards", "objectives"),
  (
    "forward",
    "sampler",
    "decode_loop",
    "slot_cache",
    "stream",
    "optim",
    "state",
    "arrays",
    "checkpoint",
    "complete",
    "origin",
    "inputs",
    "workdir",
    "signals",
    "metrics",
    "compiled",
  ),
  (
    "learn",
    "movement",
    "rollouts",
    "generate",
    "evaluate",
    "agreement",
    "reward_models",
    "model_rewards",
    "step_scores",
  ),
  ("loops", "plan", "reports"),
  ("experiments",),
)

# Inside a layer, one way: (importer, imported), patterns as of file names. All together form no circle.
LINKS = (
  ("types", "frozen"),
  ("leaving", "apart"),
  ("kinds", "errors"),
  ("ranges", "kinds"),
  ("ranges", "storage"),
  ("storage", "errors"),
  ("lock", "storage"),
  ("mirror", "storage"),
  ("ops.advantages", "ops.masked"),
  ("ops.surrogate", "ops.masked"),
  ("lifeline", "hosts"),
  ("logs", "folder"),
  ("manifest", "folder"),
  ("inputs", "hosts"),
  ("packing.*", "sharding"),
  ("packing.rows", "packing.plan"),
  ("packing.lists", "packing.plan"),
  ("packing.sizes", "packing.plan"),
  ("packing.lists", "packing.rows"),
  ("ops.*", "ops.shapes"),
  ("models.decoder", "models.attention"),
  ("models.decoder", "models.heads"),
  ("models.decoder", "models.layers"),
  ("models.decoder", "models.shape"),
  ("models.decoder", "models.shards"),
  ("models.decoder", "models.lora"),
  ("models.layers", "models.lora"),
  ("models.shards", "models.lora"),
  ("models.hf.peft", "models.lora"),
  ("models.hf.peft", "models.hf.names"),
  ("models.hf.peft", "models.hf.tensors"),
  ("models.hf.peft", "models.hf.writing"),
  ("models.hf.tensors", "models.hf.writing"),
  ("models.layers", "models.attention"),
  ("models.layers", "models.int8"),
  ("models.hf.*", "models.attention"),
  ("models.hf.*", "models.hf.families"),
  ("models.hf.tensors", "models.hf.names"),
  ("models.hf.*", "models.decoder"),
  ("models.hf.*", "models.limits"),
  ("models.hf.*", "models.shape"),
  ("models.hf.*", "models.hf.config"),
  ("models.hf.tensors", "models.hf.files"),
  ("models.hf.tensors", "models.hf.headers"),
  ("models.costs", "models.shape"),
  ("models.shape", "models.attention"),
  ("models.variants", "models.attention"),
  ("models.variants", "models.shape"),
  ("tokenizer.reading", "tokenizer.backend"),
  ("tokenizer.reading", "tokenizer.chat"),
  ("tokenizer.chat", "tokenizer.templates"),
  ("tokenizer.reading", "tokenizer.tokenizer"),
  ("tokenizer.tokenizer", "tokenizer.backend"),
  ("tokenizer.tokenizer", "tokenizer.chat"),
  ("tokenizer.tokenizer", "tokenizer.steps"),
  ("tokenizer.making", "tokenizer.tokenizer"),
  ("data.arithmetic", "data.word_problems"),
  ("data.arithmetic", "data.long_problems"),
  ("data.long_problems", "data.word_problems"),
  ("data.gsm8k", "data.jsonl"),
  ("data.step_labels", "data.jsonl"),
  ("data.*", "rewards.math"),
  ("data.jsonl", "rewards.choice"),
  ("rewards.*", "rewards.math"),
  ("rewards.option", "rewards.choice"),
  ("rewards.option", "rewards.boxed"),
  ("rewards.boxed", "rewards.answers"),
  ("objectives.*", "objectives.common"),
  ("objectives.*", "objectives.contract"),
  ("objectives.*", "objectives.metrics"),
  ("objectives.*", "objectives.advantages"),
  ("objectives.*", "objectives.grpo"),
  ("objectives.*", "objectives.sft"),
  ("sampler", "decode_loop"),
  ("sampler", "slot_cache"),
  ("decode_loop", "slot_cache"),
  ("stream", "sampler"),
  ("stream", "decode_loop"),
  ("optim", "state"),
  ("checkpoint", "state"),
  ("checkpoint", "workdir"),
  ("checkpoint", "complete"),
  ("arrays", "complete"),
  ("origin", "complete"),
  ("movement", "learn"),
  ("generate", "rollouts"),
  ("evaluate", "generate"),
  ("evaluate", "agreement"),
  ("step_scores", "agreement"),
  ("model_rewards", "reward_models"),
  ("model_rewards", "rollouts"),
  ("reward_models", "rollouts"),
  ("loops.*", "loops.imports"),
  ("loops.run", "loops.depends"),
  ("loops.depends", "loops.scorers"),
  ("loops.*", "loops.build"),
  ("loops.*", "loops.checks"),
  ("loops.*", "loops.evaluator"),
  ("loops.*", "loops.pair_evaluator"),
  ("loops.*", "loops.pairs"),
  ("loops.reward_model", "loops.offline"),
  ("loops.process_reward_model", "loops.offline"),
  ("loops.process_reward_model", "loops.reward_model"),
  ("loops.process_reward_model", "loops.continuations"),
  ("loops.process_reward_model", "loops.step_data"),
  ("loops.process_reward_model", "loops.step_evaluator"),
  ("loops.*", "loops.learner"),
  ("loops.*", "loops.profiler"),
  ("loops.*", "loops.run"),
  ("loops.run", "loops.watch"),
  ("loops.trees", "loops.weights"),
  ("loops.build", "loops.weights"),
  ("loops.*", "loops.trees"),
  ("plan.programs", "loops.trees"),
  ("loops.*", "loops.collect"),
  ("loops.*", "loops.scorers"),
  ("loops.imports", "loops.calls"),
  ("loops.tracing", "loops.calls"),
  ("loops.checks", "loops.tracing"),
  ("loops.checks", "loops.unread"),
  ("loops.*", "loops.groups"),
  ("loops.collect", "loops.judges"),
  ("loops.iterative", "loops.judges"),
  ("loops.iterative", "loops.online"),
  ("loops.iterative", "loops.replay"),
  ("loops.iterative", "loops.teaching"),
  ("loops.teaching", "loops.offline"),
  ("loops.teaching", "loops.replay"),
  ("loops.replay", "loops.offline"),
  ("plan.programs", "loops.build"),
  ("plan.programs", "loops.checks"),
  ("plan.programs", "loops.imports"),
  ("plan.programs", "loops.judges"),
  ("plan.programs", "loops.scorers"),
  ("plan.programs", "loops.learner"),
  ("plan.trips", "plan.hlo"),
  ("plan.collectives", "plan.hlo"),
  ("plan.collectives", "plan.trips"),
  ("plan.*", "plan.chips"),
  ("plan.*", "plan.collectives"),
  ("plan.*", "plan.programs"),
  ("plan.*", "plan.facts"),
  ("plan.*", "plan.memory"),
  ("plan.*", "plan.topology"),
  ("plan.page", "plan.parts"),
  ("plan.page", "plan.estimate"),
  ("plan.make", "plan.estimate"),
  ("plan.make", "plan.lengths"),
  ("plan.*", "plan.page"),
  ("plan.*", "plan.make"),
  ("plan.scaling", "plan.sweep"),
  ("reports.*", "reports.jsonl"),
  ("experiments.arithmetic_iterative", "experiments.arithmetic"),
  ("experiments.*", "experiments.arguments"),
  ("experiments.*", "experiments.defaults"),
  ("experiments.arithmetic_sft", "experiments.arithmetic"),
  ("experiments.compare", "experiments.processes"),
  ("experiments.*", "experiments.progress"),
  ("experiments.*", "experiments.presets"),
  ("experiments.*", "experiments.sources"),
  ("experiments.arithmetic_prm", "experiments.arithmetic"),
  ("experiments.arithmetic_process", "experiments.arithmetic"),
  ("experiments.arithmetic_rm", "experiments.arithmetic"),
  ("data.pool", "data.loader"),
  ("experiments.gsm8k_*", "experiments.gsm8k"),
  ("experiments.reward_comparison", "experiments.comparisons"),
  ("experiments.growth", "experiments.benchmark"),
  ("experiments.growth", "experiments.benchmarks"),
)

# Packages that a layer does without: ops are functions of arrays, objectives never see a model.
WITHOUT = {"ops": ("flax", "ml_collections", "optax"), "objectives": ("flax", "optax"), "rewards": ("flax", "jax")}
MAY_IMPORT_BY_NAME = ("loops", "experiments")  # importlib
AT_IMPORT = ("devices", "local_devices", "device_count", "local_device_count", "process_index", "process_count")


def sources() -> dict[str, str]:
  """Name (`ops.masked`, `experiments.run`) -> text, of every module."""
  files = [*(ROOT / "grpo_jax").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
  return {name(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


def name(path: pathlib.Path) -> str:
  parts = path.with_suffix("").parts
  return ".".join(part for part in parts if part not in ("grpo_jax", "__init__"))


def layer(module: str) -> int | None:
  found = [i for i, names in enumerate(LAYERS) if module.split(".")[0] in names]
  return found[0] if found else None


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
  return full.removeprefix("grpo_jax").removeprefix(".") if full.split(".")[0] == "grpo_jax" else None


def violations(texts: dict[str, str]) -> list[str]:
  """A line for every import that goes up, sideways without a link, or by name where it must not."""
  modules, found, graph = set(texts), [], {}
  for module, text in sorted(texts.items()):
    if not module:
      continue
    tree, level = ast.parse(text), layer(module)
    if level is None:
      found.append(f"{module}: in no layer; add it to LAYERS of tests/layering_test.py")
      continue
    for full in sorted(imports(tree, modules)):
      top = full.split(".")[0]
      if full.startswith("."):
        found.append(f"{module}: imports {full}; write the whole name")
      elif top == "importlib" and not full.startswith(("importlib.resources", "importlib.metadata")):
        if module.split(".")[0] not in MAY_IMPORT_BY_NAME:
          found.append(f"{module}: imports importlib; only {' and '.join(MAY_IMPORT_BY_NAME)} may")
      elif top in WITHOUT.get(module.split(".")[0], ()):
        found.append(f"{module}: imports {top}")
      elif (target := own(full)) and target != module:
        found += _import(module, level, target)
        if layer(target) == level:
          graph.setdefault(module, set()).add(target)
    found += [f"{module}: {what}" for what in _calls(tree, module)]
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    found.append(f"a circle: {' -> '.join(error.args[1])}")
  return found


def _import(module: str, level: int, target: str) -> list[str]:
  below = layer(target)
  if below is None:
    return [f"{module}: imports {target}, which is in no layer; add it to LAYERS of tests/layering_test.py"]
  if target.split(".")[0] == "reports" and module.split(".")[0] not in ("reports", "experiments"):
    return [f"{module}: imports {target}; nothing imports the reports, experiments/run.py calls them"]
  if below > level:
    return [f"{module} (layer {level}): imports {target} (layer {below}), upwards"]
  if below == level and not any(fnmatch.fnmatch(module, a) and fnmatch.fnmatch(target, b) for a, b in LINKS):
    return [f"{module}: imports {target} of its own layer; list the link in LINKS or move what it needs down"]
  return []


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
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"jax.{call}" for call in AT_IMPORT}:
      found.append(f"line {node.lineno}: {ast.unparse(node.func)}() at import")
  return found


def _run_at_import(tree: ast.AST):
  """The nodes that run when the module is imported: not the bodies of functions, nor `if __name__ == ...`."""
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


def test_every_link_is_between_modules_of_one_layer():
  for importer, imported in LINKS:
    assert layer(importer) == layer(imported) is not None, (importer, imported)


def test_upwards_and_sideways_are_seen():
  texts = {
    "ops.masked": "from grpo_jax.ops import advantages",
    "ops.advantages": "from grpo_jax import types\nfrom grpo_jax.ops.masked import mean",
    "types": "def f():\n  import grpo_jax.learning.learn",
    "learn": "import grpo_jax.types\nfrom grpo_jax import types",
    "models.decoder": "from grpo_jax.objectives.grpo import loss",
    "objectives.grpo": "from grpo_jax import objectives",
  }
  found = violations(texts)
  assert any(line.startswith("ops.masked: imports ops.advantages of its own layer") for line in found)
  assert any(line.startswith("types (layer 0): imports learn (layer 4)") for line in found)
  assert any(line.startswith("models.decoder: imports objectives.grpo of its own layer") for line in found)
  assert any(line.startswith("a circle: ") for line in found)
  assert not any(line.startswith(("learn", "ops.advantages")) for line in found)


def test_strangers_and_forbidden_packages_are_seen():
  texts = {
    "novelty": "",
    "state": "from grpo_jax.novelty import x",
    "optim": "import importlib",
    "loops.online": "import importlib.util\nfrom grpo_jax.reports import plots",
    "ops.surrogate": "import flax.nnx as nnx\nfrom ml_collections import ConfigDict\nf = jax.jit(g)",
    "ops.masked": "from . import surrogate",
    "models.decoder": "f = nnx.jit(g)",
    "reports.plots": "",
  }
  assert violations(texts) == [
    "loops.online: imports reports.plots; nothing imports the reports, experiments/run.py calls them",
    "models.decoder: line 1: nnx.jit; plain jax.jit on parameter trees",
    "novelty: in no layer; add it to LAYERS of tests/layering_test.py",
    "ops.masked: imports .; write the whole name",
    "ops.surrogate: imports flax",
    "ops.surrogate: imports ml_collections",
    "ops.surrogate: line 3: jax.jit; who calls an op compiles it",
    "optim: imports importlib; only loops and experiments may",
    "state: imports novelty, which is in no layer; add it to LAYERS of tests/layering_test.py",
  ]


def test_devices_are_not_asked_for_at_import():
  text = "N = len(jax.devices())\ndef f():\n  return jax.devices()\nclass C:\n  x = jax.device_count()\n"
  assert violations({"sharding": text}) == [
    "sharding: line 1: jax.devices() at import",
    "sharding: line 5: jax.device_count() at import",
  ]
