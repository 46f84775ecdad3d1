"""Adds to the site of mkdocs.yml what lies outside docs/: the README and its like, the examples,
and a page of docstrings for every package.
"""

import ast
import pathlib
import re

from mkdocs import plugins
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {
  "index.md": "README.md",
  "CHANGELOG.md": "CHANGELOG.md",
  "CONTRIBUTING.md": "CONTRIBUTING.md",
  "SECURITY.md": "SECURITY.md",
}


def packages() -> list[str]:
  """Returns the packages of the library in alphabetic order, such as grpo_jax.models.hf."""
  found = (ROOT / "grpo_jax").rglob("__init__.py")
  return sorted(".".join(p.parent.relative_to(ROOT).parts) for p in found)


def address(package: str) -> str:
  """Returns the page of a package."""
  return f"reference/{package}.md"


def reference(package: str) -> str:
  """Returns the text of a package's page: its docstring, the names that it offers from other
  modules, and what its own modules hold.
  """
  folder = ROOT / package.replace(".", "/")
  code = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
  modules = sorted(p.stem for p in folder.glob("*.py") if p.stem != "__init__")
  parts = [f"# {package}", ast.get_docstring(code) or "", offered(code)]
  return "\n\n".join([*parts, *(f"::: {package}.{module}" for module in modules)])


def offered(code: ast.Module) -> str:
  """Returns a line for each name that a package imports for its users, with a link."""
  found = [node for node in ast.walk(code) if isinstance(node, ast.ImportFrom)]
  lines = [
    f"- `{alias.asname}`: [{node.module}.{alias.name}][]"
    for node in found
    for alias in node.names
    if alias.asname
  ]
  return "\n".join(lines)


def example(file: pathlib.Path) -> str:
  """Returns the text of a program's page."""
  return f"# {file.name}\n\n```python\n{file.read_text(encoding='utf-8')}```\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
  """Lists the packages' pages in the navigation."""
  code = next(part["Code"] for part in config.nav or [] if "Code" in part)
  code[-1]["Reference"] = [{p: address(p)} for p in packages()]
  return config


@plugins.event_priority(100)  # before the plugin that looks for notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds the pages."""
  texts = {page: (ROOT / name).read_text(encoding="utf-8") for page, name in PAGES.items()}
  texts |= {address(p): reference(p) for p in packages()}
  texts |= {f"examples/{f.stem}.md": example(f) for f in (ROOT / "examples").glob("*.py")}
  for page, text in texts.items():
    files.append(File.generated(config, page, content=text))
  for notebook in (ROOT / "examples").glob("*.ipynb"):
    files.append(
      File(f"examples/{notebook.name}", str(ROOT), config.site_dir, config.use_directory_urls)
    )
  return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
  """Points links from the repository's folders to those of the site."""
  if page.file.src_uri in PAGES:
    markdown = re.sub(r"\]\(docs/", "](", markdown)
  elif "/" not in page.file.src_uri:
    markdown = re.sub(r"\]\(\.\./", "](", markdown)
  return re.sub(r"\]\(examples/(\w+)\.py\)", r"](examples/\1.md)", markdown)
