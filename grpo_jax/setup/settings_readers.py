"""Finds the files that read each setting, for docs/settings.md, by parsing the sources.

A read is `config.SECTION.NAME` (or `experiment.`), or `cfg.NAME` where `cfg` holds a section:

    cfg = config.learner                # a variable or attribute that is assigned one
    optimizer.schedule(config.learner)  # a parameter, or field of a class, that is called with one
    def f(cfg: settings.Learner)        # a parameter, or field, with the annotation of one

`cfg["NAME"]`, `cfg.get("NAME")` and `getattr(cfg, "NAME")` are reads, too; with a variable in place
of "NAME" they are reads of those settings of the section that nothing reads by name.
"""

import ast
import collections
import pathlib
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

CONFIGS = ("config", "experiment")  # what holds all sections
# Folders that tell less of a setting, in two steps: they measure a run, or check and show settings.
LATER = (("evaluation/",), ("config/", "setup/", "plan/", "reports/"))

Sections = set[str]
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Scope(NamedTuple):
  """Holds a file, or a function of it, with the sections that its names may hold."""

  file: str
  body: ast.AST
  names: dict[str, Sections]  # of variables and parameters; "self.NAME" in the scope of a file
  outer: "Scope | None"


class Target(NamedTuple):
  """Holds where the arguments of a call go: a function, or the fields of a class."""

  parameters: list[str]
  names: dict[str, Sections]  # of the function's scope, or of the file's for a class
  prefix: str  # "self." for a class


def readers(names: Collection[str], sources: dict[str, str]) -> dict[str, list[str]]:
  """Returns the files that read each setting, the most telling first.

  Files of a folder that is named as the section come first, those that check or show settings last,
  and those with more reads earlier.

  Args:
    names: dotted names, such as "sampler.top_p", or "steps" outside sections.
    sources: text of each file by its path in grpo_jax/, such as "sampling/sampler.py".
  """
  of_section: dict[str, list[str]] = {}
  for name in names:
    section, _, last = name.rpartition(".")
    of_section.setdefault(section, []).append(last)
  sections = of_section.keys() - {""}
  trees = {file: ast.parse(text) for file, text in sources.items()}
  scopes = [scope for file, tree in trees.items() for scope in _scopes(file, tree)]
  targets = _targets(scopes)
  imported = {file: _imported(tree, targets) for file, tree in trees.items()}
  _annotate(scopes, targets, sections)
  size = -1
  while size != (size := sum(len(held) for scope in scopes for held in scope.names.values())):
    for scope in scopes:
      _pass_on(scope, targets, imported[scope.file], sections)
  by_name: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in names}
  by_variable = {name: collections.Counter[str]() for name in names}
  for scope in scopes:
    for name, is_named in _reads(scope, of_section):
      if name in by_name:
        (by_name if is_named else by_variable)[name][scope.file] += 1
  counts = {name: by_name[name] or by_variable[name] for name in names}
  return {
    name: sorted(files, key=lambda file: _rank(name, file, files[file]))
    for name, files in counts.items()
  }


def read_sources() -> dict[str, str]:
  """Returns the text of each file of grpo_jax/, by its path there."""
  root = pathlib.Path(__file__).parents[1]
  return {
    file.relative_to(root).as_posix(): file.read_text(encoding="utf-8")
    for file in sorted(root.rglob("*.py"))
  }


def _rank(name: str, file: str, reads: int) -> tuple[int, int, str]:
  """Returns a key that is smaller for a more telling file."""
  section = name.rpartition(".")[0]
  if section and file.startswith(section):  # evaluation/ for eval
    return -1, -reads, file
  return next((i + 1 for i, some in enumerate(LATER) if file.startswith(some)), 0), -reads, file


def _scopes(file: str, tree: ast.Module) -> Iterator[Scope]:
  """Yields the scope of a file and of every function in it."""

  def inside(body: ast.AST, outer: Scope) -> Iterator[Scope]:
    for node in ast.iter_child_nodes(body):
      scope = Scope(file, node, {}, outer) if isinstance(node, Function | ast.Lambda) else outer
      if scope is not outer:
        yield scope
      yield from inside(node, scope)

  whole = Scope(file, tree, {}, None)
  yield whole
  yield from inside(tree, whole)


def _targets(scopes: list[Scope]) -> dict[tuple[str, str], Target]:
  """Returns the functions and classes at the top of each file, by file and name."""
  targets = {}
  by_body = {id(scope.body): scope for scope in scopes}
  for scope in scopes:
    for node in scope.body.body if isinstance(scope.body, ast.Module) else ():
      if isinstance(node, Function):
        targets[scope.file, node.name] = Target(_parameters(node), by_body[id(node)].names, "")
      elif isinstance(node, ast.ClassDef):
        made = [f for f in node.body if isinstance(f, Function) and f.name == "__init__"]
        if made:
          target = Target(_parameters(made[0])[1:], by_body[id(made[0])].names, "")
        else:
          target = Target([name for name, _ in _fields(node)], scope.names, "self.")
        targets[scope.file, node.name] = target
  return targets


def _parameters(function: Function) -> list[str]:
  arguments = function.args
  return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _fields(node: ast.ClassDef) -> list[tuple[str, ast.expr]]:
  """Returns the fields of a dataclass or NamedTuple with their annotations."""
  lines = [line for line in node.body if isinstance(line, ast.AnnAssign)]
  return [(line.target.id, line.annotation) for line in lines if isinstance(line.target, ast.Name)]


def _imported(tree: ast.Module, targets: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
  """Returns the file and name of what a call can name, as "module.function" or "function"."""
  imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
  names = {}
  for file, name in targets:
    module = "grpo_jax." + file.removesuffix(".py").replace("/", ".")
    for node in imports:
      for alias in node.names:
        if (node.module, alias.name) == (module, name):
          names[alias.asname or name] = file, name
        elif f"{node.module}.{alias.name}" == module:
          names[f"{alias.asname or alias.name}.{name}"] = file, name
  return names


def _annotate(
  scopes: list[Scope], targets: dict[tuple[str, str], Target], sections: Collection[str]
) -> None:
  """Notes the parameters and fields whose annotation names a section, as settings.Learner does."""
  classes = {section.replace("_", ""): section for section in sections}
  for scope in scopes:
    arguments = ast.walk(scope.body.args) if isinstance(scope.body, Function) else ()
    noted = [(a.arg, a.annotation) for a in arguments if isinstance(a, ast.arg) and a.annotation]
    if isinstance(scope.body, ast.Module):
      for node in ast.walk(scope.body):
        noted += (
          [("self." + n, a) for n, a in _fields(node)] if isinstance(node, ast.ClassDef) else []
        )
    for name, annotation in noted:
      written = ast.unparse(annotation).rpartition(".")
      if written[0] == "settings" and written[2].lower() in classes:
        scope.names.setdefault(name, set()).add(classes[written[2].lower()])


def _pass_on(
  scope: Scope,
  targets: dict[tuple[str, str], Target],
  imported: dict[str, tuple[str, str]],
  sections: Collection[str],
) -> None:
  """Notes the sections that assignments and calls of a scope hand to other names."""
  whole = scope
  while whole.outer:
    whole = whole.outer
  for node in _own_nodes(scope.body):
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
      left, right = node.targets[0], node.value
      pairs = [(left, right)]
      if isinstance(left, ast.Tuple) and isinstance(right, ast.Tuple):
        pairs = list(zip(left.elts, right.elts))
      for to, value in pairs:
        written = ast.unparse(to)
        names = whole.names if written.startswith("self.") else scope.names
        _note(names, written, _held(scope, value, sections))
    elif isinstance(node, ast.Call):
      called = ast.unparse(node.func)
      target = targets.get(imported.get(called, (scope.file, called)))
      if target:
        given = [*zip(target.parameters, node.args), *((k.arg, k.value) for k in node.keywords)]
        for name, value in given:
          if name in target.parameters:
            _note(target.names, f"{target.prefix}{name}", _held(scope, value, sections))


def _note(names: dict[str, Sections], name: str, held: Sections) -> None:
  if held:
    names.setdefault(name, set()).update(held)


def _own_nodes(body: ast.AST) -> Iterator[ast.AST]:
  """Yields the nodes of a scope, without those of the functions in it."""
  for node in ast.iter_child_nodes(body):
    if not isinstance(node, Function | ast.Lambda):
      yield node
      yield from _own_nodes(node)


def _held(scope: Scope | None, value: ast.expr, sections: Collection[str]) -> Sections:
  """Returns the sections that an expression may be."""
  if isinstance(value, ast.Attribute):
    if value.attr in sections and _is_config(value.value):
      return {value.attr}
    name = f"self.{value.attr}"
  elif isinstance(value, ast.Name):
    name = value.id
  else:
    return set()
  while scope:
    if name in scope.names:
      return scope.names[name]
    scope = scope.outer
  return set()


def _is_config(value: ast.expr) -> bool:
  """Returns whether an expression is named as a whole config is, such as `self.config`."""
  return ast.unparse(value).rpartition(".")[2] in CONFIGS


def _reads(scope: Scope, names: dict[str, list[str]]) -> Iterator[tuple[str, bool]]:
  """Yields (dotted name, read by name?) for every read of a setting in a scope.

  Args:
    scope: a file or function.
    names: the settings of each section; those outside sections are "".
  """
  for node in _own_nodes(scope.body):
    value, key = _value_and_key(node)
    if value is not None:
      if _is_config(value) and key is not None:
        yield key, True
      for section in _held(scope, value, names.keys() - {""}):
        keys = names[section] if key is None else [key]
        yield from ((f"{section}.{name}", key is not None) for name in keys)


def _value_and_key(node: ast.AST) -> tuple[ast.expr | None, str | None]:
  """Returns what a node takes something from, and the name of that; None for a variable."""
  if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
    return node.value, node.attr
  value: ast.expr | None = None
  key: ast.expr | None = None
  if isinstance(node, ast.Subscript):
    value, key = node.value, node.slice
  elif isinstance(node, ast.Call) and node.args:
    if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
      value, key = node.func.value, node.args[0]
    elif isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1:
      value, key = node.args[:2]
  if isinstance(key, ast.Constant) and isinstance(key.value, str):
    return value, key.value
  return value, None
