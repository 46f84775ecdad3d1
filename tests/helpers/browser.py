"""Opens pages in a headless browser, and asks it what a script returns there."""

import html
import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
needed = pytest.mark.skipif(PROGRAM is None, reason=f"needs one of {', '.join(NAMES)}")

# Runs after the page's own scripts, and leaves nothing on it but an answer.
ASKED = """
<script>
  addEventListener("load", async () => {
    let answer;
    try {
      for (let i = 0; i < 200 && !document.querySelector("main > *"); i++) await new Promise(done => setTimeout(done, 20));
      answer = { value: await (async () => { SCRIPT })() };
    } catch (error) {
      answer = { error: String(error.stack ?? error) };
    }
    const pre = Object.assign(document.createElement("pre"), { id: "answer", textContent: JSON.stringify(answer) });
    document.body.replaceChildren(pre);
  });
</script>
"""


def ask(
  page: str, script: str, folder: pathlib.Path, fragment: str = "", size: str = "1200,900"
) -> Any:
  """What the body of an asynchronous function returns on a page, as JSON.

  Args:
    page: HTML, of a page that draws into `main`.
    script: the body of the function; it sees what the page's scripts define.
    folder: a place for the page and the browser's profile.
    fragment: of the address, without #.
    size: of the window.
  """
  file = folder / "asked.html"
  file.write_text(page + ASKED.replace("SCRIPT", script), encoding="utf-8", errors="replace")
  assert PROGRAM is not None
  flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
  flags += [f"--user-data-dir={folder / 'profile'}", f"--window-size={size}", "--dump-dom"]
  address = file.as_uri() + (f"#{fragment}" if fragment else "")
  done = subprocess.run([PROGRAM, *flags, address], capture_output=True, text=True, timeout=120)
  found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
  assert found, done.stderr[-2000:]
  answer = json.loads(html.unescape(found[1]))
  assert "error" not in answer, answer["error"]
  return answer["value"]
