"""The names that `grpo_jax` itself offers."""

import ast
import pathlib
import subprocess
import sys

import pytest

import grpo_jax

FILE = pathlib.Path(grpo_jax.__file__)


@pytest.mark.parametrize("name", grpo_jax.__all__)
def test_a_name_is_the_object_that_type_checkers_see(name):
  imports = [
    (node.module, alias.name)
    for node in ast.walk(ast.parse(FILE.read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.asname == name
  ]
  ((module, original),) = imports
  assert getattr(grpo_jax, name) is getattr(sys.modules[module], original)


def test_a_name_that_is_not_there():
  with pytest.raises(AttributeError, match="'grpo_jax' has no attribute 'Decoders'"):
    getattr(grpo_jax, "Decoders")  # noqa: B009


def test_jax_is_imported_when_it_is_needed():
  code = "import grpo_jax, sys; assert 'jax' not in sys.modules; grpo_jax.Decoder; assert 'jax' in sys.modules"
  subprocess.run([sys.executable, "-c", code], check=True)
