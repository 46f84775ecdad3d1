"""Rewards that do what no reward should: what each does, and what must become of it.

A row is (name, what must happen, code). What must happen is a word, and for some of them what
belongs to it:

  fault TEXT     the call is a fault whose message has TEXT in it; the reward counts as `on_error` there
  value NUMBER   the call is worth that number
  none           the completion gets no reward of it
  refused TEXT   it is refused when it is loaded, in a line that has TEXT in it
  ends           KeyboardInterrupt comes through: the run ends with code 130
"""

IMPORTS = """
import asyncio, ctypes, decimal, fractions, gc, heapq, io, json, locale, multiprocessing, os, random, signal, sys
import threading, time, warnings
import numpy as np
"""


def body(text: str) -> str:
  """A reward of one completion that does that and returns 0.25, unless the text returns something
  else.
  """
  lines = "\n".join(f"  {line}" for line in text.strip("\n").split("\n"))
  return f"{IMPORTS}\ndef reward(example, completion):\n{lines}\n  return 0.25\n"


def group(text: str) -> str:
  """A reward of a group, likewise."""
  lines = "\n".join(f"  {line}" for line in text.strip("\n").split("\n"))
  return (
    f"{IMPORTS}\ndef reward(example, completions):\n{lines}\n  return [0.25] * len(completions)\n"
  )


FROZEN = "fault TypeError: what a data set gives to rewards cannot be changed"
NO_NUMBER = "fault which is no number"
NOT_FINITE = "fault which is no finite reward"

ROWS = (
  # what a reward is given
  (
    "tokens append",
    "fault 'tuple' object has no attribute 'append'",
    body("completion.tokens.append(7)"),
  ),
  ("tokens pop", "fault 'tuple' object has no attribute 'pop'", body("completion.tokens.pop()")),
  ("tokens item", "fault does not support item assignment", body("completion.tokens[0] = 7")),
  ("tokens del", "fault doesn't support item deletion", body("del completion.tokens[-1]")),
  ("tokens field", "fault can't set attribute", body("completion.tokens = [1]")),
  ("tokens +=", "value 0.25", body("tokens = completion.tokens\ntokens += (7,)")),
  (
    "step ends",
    "fault 'tuple' object has no attribute 'clear'",
    body("completion.step_ends.clear()"),
  ),
  ("text field", "fault can't set attribute", body("completion.text = ''")),
  ("example field", "fault can't set attribute", body("example.answer = '7'")),
  ("example anything", "fault has no attribute", body("example.seen = True")),
  ("meta new", FROZEN, body("example.meta['seen'] = True")),
  ("meta pop", FROZEN, body("example.meta.pop('results')")),
  ("meta update", FROZEN, body("example.meta.update(results=[])")),
  ("meta default", FROZEN, body("example.meta.setdefault('n', 0)")),
  ("meta or", FROZEN, body("meta = example.meta\nmeta |= {'n': 1}")),
  ("meta list", FROZEN, body("example.meta['results'].append(1)")),
  ("meta sort", FROZEN, body("example.meta['results'].sort(reverse=True)")),
  ("meta shuffle", FROZEN, body("random.shuffle(example.meta['results'])")),
  ("meta deep", FROZEN, body("example.meta['deep']['list'][0]['x'] = 2")),
  (
    "meta set",
    "fault 'frozenset' object has no attribute 'add'",
    body("example.meta['set'].add(3)"),
  ),
  ("meta array", "fault read-only", body("example.meta['array'] += 1")),
  (
    "meta copy",
    "value 0.25",
    body("meta = json.loads(json.dumps(example.meta['deep']))\nmeta['list'].clear()"),
  ),
  ("group clear", "fault returned 0 values for 3", group("completions.clear()")),
  ("group reverse", "value 0.25", group("completions.reverse()")),
  (
    "group tokens",
    "fault 'tuple' object has no attribute 'append'",
    group("completions[-1].tokens.append(1)"),
  ),
  # the process
  ("chdir", "value 0.25", body("os.chdir('/')")),
  ("chdir group", "value 0.25", group("os.chdir('/')")),
  ("exit", "fault called sys.exit(0)", body("sys.exit(0)")),
  ("exit without code", "fault called sys.exit(None)", body("exit()")),
  ("os exit", "fault called os._exit(0)", body("os._exit(0)")),
  (
    "os exit kept",
    "fault called os._exit(0)",
    body("try:\n  os._exit(0)\nexcept Exception:\n  pass"),
  ),
  ("os exit group", "fault called os._exit(3)", group("os._exit(3)")),
  ("interrupt", "ends", body("raise KeyboardInterrupt")),
  ("fork returns", "value 0.25", body("if os.fork() == 0:\n  return 1.0\nos.wait()")),
  ("fork exits", "value 0.25", body("if os.fork() == 0:\n  os._exit(0)\nos.wait()")),
  ("fork sys exits", "value 0.25", body("if os.fork() == 0:\n  sys.exit(0)\nos.wait()")),
  ("fork raises", "value 0.25", body("if os.fork() == 0:\n  raise ValueError\nos.wait()")),
  ("closes output", "value 0.25", body("try: os.close(1)\nexcept OSError: pass")),
  ("closes error", "value 0.25", body("try: os.close(2)\nexcept OSError: pass")),
  ("replaces output", "value 0.25", body("os.dup2(os.open(os.devnull, os.O_WRONLY), 1)")),
  ("stdout", "value 0.25", body("sys.stdout = io.StringIO()")),
  ("stdout gone", "value 0.25", body("sys.stdout = None")),
  (
    "signals",
    "value 0.25",
    body("for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)"),
  ),
  (
    "alarm",
    "value 0.25",
    body("signal.signal(signal.SIGALRM, signal.SIG_IGN)\nsignal.setitimer(signal.ITIMER_REAL, 0)"),
  ),
  (
    "own alarm",
    "value 0.25",
    body("signal.signal(signal.SIGALRM, signal.SIG_DFL)\nsignal.alarm(1)"),
  ),
  ("hooks", "value 0.25", body("threading.excepthook = sys.excepthook = lambda *a: None")),
  ("seeds", "value 0.25", body("random.seed(0)\nnp.random.seed(0)")),
  (
    "environment",
    "value 0.25",
    body("os.environ['JAX_ENABLE_X64'] = '1'\nos.environ.pop('HOME', None)"),
  ),
  ("locale", "value 0.25", body("locale.setlocale(locale.LC_ALL, 'C')")),
  ("module", "value 0.25", body("sys.modules.pop('json', None)")),
  ("warnings", "value 0.25", body("warnings.simplefilter('error')")),
  ("numpy errors", "value 0.25", body("np.seterr(all='raise')")),
  ("limits", "value 0.25", body("sys.setrecursionlimit(20_000)\ngc.disable()")),
  # no end, too much
  ("recursion", "fault RecursionError", body("def f(): return f()\nreturn f()")),
  ("memory", "fault MemoryError", body("return bytearray(1 << 60)")),
  ("cancelled", "fault raised CancelledError", body("raise asyncio.CancelledError")),
  ("generator exit", "fault raised GeneratorExit", body("raise GeneratorExit")),
  ("stop iteration", "fault StopIteration", body("raise StopIteration")),
  (
    "odd error",
    "fault Odd",
    body("class Odd(Exception):\n  def __str__(self): raise ValueError\nraise Odd"),
  ),
  # what it returns
  ("forgotten", "none", body("value = 1.0\nreturn")),
  ("empty", "none", body("return []")),
  ("true", "value 1", body("return True")),
  ("numpy true", "value 1", body("return np.bool_(True)")),
  ("numpy", "value 0.5", body("return np.float16(0.5)")),
  ("numpy integer", "value 2", body("return np.int64(2)")),
  ("minus zero", "value 0", body("return -0.0")),
  ("fraction", "value 0.5", body("return fractions.Fraction(1, 2)")),
  ("array", NO_NUMBER, body("return np.ones(())")),
  ("jax array", NO_NUMBER, body("import jax.numpy as jnp\nreturn jnp.ones(())")),
  ("text", NO_NUMBER, body("return '0.5'")),
  ("complex", NO_NUMBER, body("return 1 + 0j")),
  ("decimal", NO_NUMBER, body("return decimal.Decimal('0.5')")),
  ("dict", NO_NUMBER, body("return {'reward': 1.0}")),
  ("set", NO_NUMBER, body("return {1.0}")),
  ("function", NO_NUMBER, body("return reward")),
  ("class", NO_NUMBER, body("return float")),
  ("generator", NO_NUMBER, body("return (x for x in iter(int, 1))")),
  ("nan", NOT_FINITE, body("return float('nan')")),
  ("infinity", NOT_FINITE, body("return float('inf')")),
  ("huge", NOT_FINITE, body("return 10**400")),
  ("large", NOT_FINITE, body("return 1e31")),
  ("thousands of digits", "fault ValueError", body("return 10**5000")),
  (
    "changes its mind",
    NOT_FINITE,
    body("class F(float):\n  def __abs__(self): return 0.0\nreturn F('nan')"),
  ),
  (
    "list of number",
    "fault returned 1.0 in a list, which is no (token index, value)",
    body("return [1.0]"),
  ),
  ("nested", NO_NUMBER, body("return [(0, [1.0])]")),
  ("pair of three", "fault which is no (token index, value)", body("return [(0, 1.0, 2.0)]")),
  ("beyond", "fault returned a reward for token 99", body("return [(99, 1.0)]")),
  ("before", "fault returned a reward for token -1", body("return [(-1, 1.0)]")),
  ("no index", "fault returned a reward for token 0.0", body("return [(0.0, 1.0)]")),
  ("group of one", "fault returned 1 values for 3", group("return [1.0]")),
  ("group number", "fault which is no list of 3 numbers", group("return 1.0")),
  ("group none", "fault which is no list of 3 numbers", group("return None")),
  ("group of nones", NO_NUMBER, group("return [None] * 3")),
  (
    "group dict",
    "fault which is no list of 3 numbers",
    group("return dict.fromkeys(range(3), 1.0)"),
  ),
  # what is no reward
  (
    "async",
    "refused is an async function",
    "async def reward(example, completion):\n  return 1.0\n",
  ),
  ("yields", "refused is a generator", "def reward(example, completion):\n  yield 1.0\n"),
  (
    "is a class",
    "refused is a class",
    "class reward:\n  def __init__(self, example, completion): pass\n",
  ),
  (
    "of trl",
    "refused first parameter is called 'prompts'",
    "def reward(prompts, completions, **more):\n  return [1.0]\n",
  ),
  (
    "swapped",
    "refused first parameter is called 'completion'",
    "def reward(completion, example):\n  return 1.0\n",
  ),
  ("one parameter", "refused cannot be called so", "def reward(completion_only):\n  return 1.0\n"),
  (
    "needs more",
    "refused cannot be called so",
    "def reward(example, completion, answer):\n  return 1.0\n",
  ),
  ("exits at import", "refused fails to import: SystemExit", "import sys\nsys.exit(0)\n"),
)

# Names of a reward that are refused, and names that work.
NAMES = (
  "",
  " ",
  "mean",
  "std",
  "a\nb",
  "a/b",
  "/",
  " a",
  "a ",
  "\t",
  "a\0b",
  "a\x1b[31m",
  "a\u2028b",
  "x" * 65,
  "\ud800",
)
GOOD_NAMES = ("correct", "my reward", "a.b", "a-b_c", "Länge", "mean2", "x" * 64, "1")
