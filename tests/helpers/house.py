"""Draws docs/house.svg, the folders of grpo_jax and which imports which: `python
tests/helpers/house.py`.

A folder stands above everything that it imports. An arrow that follows from others (a to b, b to c,
so a to c) is left out. tests/layering_test.py compares the picture with the imports.
"""

import ast
import html
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "house.svg"
WIDTH, HEIGHT, GAP, MARGIN = (
  190,
  50,
  30,
  24,
)  # of a box, between boxes and around all of them, in pixels
LETTERS = 31  # of a line of small print


def folders() -> dict[str, str]:
  """Returns the job of each folder by its name: the first line of its `__init__.py`."""
  files = sorted((ROOT / "grpo_jax").glob("*/__init__.py"))
  return {
    file.parent.name: (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
    for file in files
  }


def imports(names: set[str]) -> dict[str, set[str]]:
  """Returns the folders that each folder imports."""
  found: dict[str, set[str]] = {name: set() for name in names}
  for name in names:
    for file in (ROOT / "grpo_jax" / name).rglob("*.py"):
      for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpo_jax"):
          inner = [f"{node.module}.{alias.name}".split(".")[1] for alias in node.names]
          found[name] |= {each for each in inner if each in names and each != name}
  return found


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
  """Returns everything that `start` imports, directly or through others."""
  return {each for of in graph[start] for each in {of} | reached(graph, of)}


def drawn(graph: dict[str, set[str]]) -> dict[str, set[str]]:
  """Returns the imports that do not follow from others."""
  return {
    name: {b for b in of if not any(b in reached(graph, a) for a in of)}
    for name, of in graph.items()
  }


def rows(graph: dict[str, set[str]]) -> list[list[str]]:
  """Returns the folders from the top row to the bottom one: each stands one row above the highest
  that it imports.
  """
  levels: dict[str, int] = {}

  def level(name: str) -> int:
    if name not in levels:
      levels[name] = 1 + max((level(of) for of in graph[name]), default=-1)
    return levels[name]

  highest = max(map(level, graph))
  return [sorted(name for name in graph if levels[name] == n) for n in range(highest, -1, -1)]


def wrapped(text: str) -> list[str]:
  """Returns the first two lines of a text in small print."""
  lines = [""]
  for word in text.split():
    if len(lines[-1]) + len(word) >= LETTERS:
      lines.append("")
    lines[-1] = f"{lines[-1]} {word}".strip()
  return lines if len(lines) < 3 else [lines[0], f"{lines[1]} ..."]


def picture() -> str:
  """Returns the picture as SVG."""
  jobs = folders()
  graph = imports(set(jobs))
  levels = rows(graph)
  widest = max(map(len, levels))
  width = widest * (WIDTH + GAP) - GAP + 2 * MARGIN
  height = len(levels) * (HEIGHT + GAP) - GAP + 2 * MARGIN
  places = {}
  for y, names in enumerate(levels):
    left = (width - len(names) * (WIDTH + GAP) + GAP) / 2
    places |= {
      name: (left + x * (WIDTH + GAP), MARGIN + y * (HEIGHT + GAP)) for x, name in enumerate(names)
    }
  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
    'font-family="sans-serif">',
    f'<rect width="{width}" height="{height}" fill="white"/>',
  ]
  for name, of in sorted(drawn(graph).items()):
    for other in sorted(of):
      (x, y), (u, v) = places[name], places[other]
      start, end, half = (x + WIDTH / 2, y + HEIGHT), (u + WIDTH / 2, v), GAP / 2
      curve = (
        f"M{start[0]:g},{start[1]:g} C{start[0]:g},{start[1] + half:g} {end[0]:g},{end[1] - half:g}"
      )
      parts.append(f'<path d="{curve} {end[0]:g},{end[1]:g}" fill="none" stroke="#9aa5b1"/>')
  for name, (x, y) in sorted(places.items()):
    parts.append(
      f'<rect x="{x:g}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="#eef3f8" '
      'stroke="#51708f"/>'
    )
    middle = x + WIDTH / 2
    parts.append(
      f'<text x="{middle:g}" y="{y + 17}" text-anchor="middle" font-size="14" '
      f'font-weight="bold">{name}</text>'
    )
    for n, line in enumerate(wrapped(jobs[name])):
      text = html.escape(line)
      parts.append(
        f'<text x="{middle:g}" y="{y + 31 + 12 * n}" text-anchor="middle" '
        f'font-size="10">{text}</text>'
      )
  return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
  PICTURE.write_text(picture(), encoding="utf-8")
