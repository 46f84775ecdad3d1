"""Builds the site of docs/ and follows every link of every page."""

import html.parser
import os
import pathlib
import subprocess
import sys
import urllib.parse

import pytest
from conftest import ROOT

import grpo_jax

pytestmark = [pytest.mark.slow]


class Links(html.parser.HTMLParser):
  """Collects what a page links to, and what can be linked to in it."""

  def __init__(self, page: pathlib.Path):
    super().__init__()
    self.targets: list[str] = []
    self.anchors = {""}
    self.feed(page.read_text(encoding="utf-8"))

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    values = dict(attrs)
    self.anchors |= {values[key] or "" for key in ("id", "name") if key in values}
    self.targets += [values[key] or "" for key in ("href", "src") if key in values]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  pytest.importorskip("mkdocs", reason="pip install -e '.[docs]' -c constraints.txt")
  folder = tmp_path_factory.mktemp("site")
  command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"]
  done = subprocess.run(
    command,
    cwd=ROOT,
    capture_output=True,
    text=True,
    env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
  )
  assert done.returncode == 0, done.stderr[-4000:]
  return folder


def test_every_link_leads_somewhere(site):
  pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
  assert len(pages) > 40
  broken = []
  for page, links in pages.items():
    for target in links.targets:
      parts = urllib.parse.urlsplit(target)
      if parts.scheme or parts.netloc:
        continue
      file = (page.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else page
      there = file.exists() and (file not in pages or parts.fragment in pages[file].anchors)
      if not there and parts.fragment != "__skip":
        broken.append(f"{page.relative_to(site)}: {target}")
  assert not broken


def test_the_names_of_the_package_lead_to_their_docstrings(site):
  links = Links(site / "reference" / "grpo_jax.html")
  ends = {target.rpartition(".")[2] for target in links.targets if "#grpo_jax." in target}
  assert {grpo_jax._RENAMED.get(name, name) for name in grpo_jax.__all__} <= ends


def test_the_front_page_is_the_readme(site):
  text = (site / "index.html").read_text(encoding="utf-8")
  assert 'href="quickstart.html"' in text and 'src="gemma3_270m.png"' in text
  assert (site / "examples" / "grpo_minimal.html").exists()
