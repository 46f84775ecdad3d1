r"""The check of an answer in `\boxed{...}`, as in MATH: answers.py compares what needs no algebra,
processes the rest.

Nothing that a model wrote is evaluated in this process. What is left to algebra goes to WORKERS
processes of `algebra.py`, each with a limit of time and memory. A completion whose answer reaches a
limit is a fault: it gets `rewards.on_error`, 0 unless set otherwise, and is counted in
`reward_faults`. The limit of time counts computing, not waiting, so that it does not depend on what
else a machine does; near it, two runs can still differ.
"""

import functools
import re
from collections.abc import Hashable, Sequence

from grpo_jax.errors import SettingError
from grpo_jax.rewards import answers
from grpo_jax.sandbox import worker
from grpo_jax.types import Completion, Example

WORKERS = 2  # processes that compare at a time
KEPT = 100_000  # comparisons that are remembered
# characters at the end of a text, in which its last box is; a longer text takes no longer
SEARCHED = 50_000

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")

Pairs = tuple[tuple[str, str], ...]  # expressions of one answer, (expected, given)


def last_box(text: str) -> str | None:
  """Returns what the last box of a text holds, of boxes within one another the outermost; None
  without a box.

  A last box that is not closed, as in a text that was cut off there, holds nothing: 7 may be the
  beginning of 72. The last SEARCHED characters are looked at.
  """
  text = text[-SEARCHED:]
  found, start, depth, box = None, 0, 0, 0
  for token in _BRACES.finditer(text):
    if token[0] == "}":
      if depth == box > 0:
        found, box = text[start : token.start()], 0
      depth = max(depth - 1, 0)
    elif token[0] == "{":
      depth += 1
    elif token[0].endswith("{") and token[0] != "\\{":
      depth += 1
      if not box:
        found, start, box = None, token.end(), depth
  return found


def inside(text: str) -> answers.Answer | None:
  """Returns the answer that a text gives in its last box; None where there is none that can be
  read.
  """
  found = last_box(text)
  if found is None or len(found) > answers.LONGEST:
    return None
  return answers.read(re.sub(r"(^|=)\s*\{([^{}]*)\}$", r"\1\2", _BOX.sub("", found)))


def boxed_correct(example: Example, completion: Completion) -> float:
  r"""1 if what the completion's last `\boxed{...}` holds is the example's answer, else 0.

  The example's answer may be in a box, too. What counts as the same answer: answers.py.

  Raises:
    ValueError: the example's own answer cannot be read, or the completion's is one that was
      stopped.
    SettingError: math-verify is not installed.
  """
  expected, answer = _expected(example.answer), inside(completion.text)
  if answer is None:
    return 0.0
  pairs = _open(expected, answer)
  if not pairs:
    return float(answers.equal(expected, answer, _never))
  if pairs not in _known():
    _compare([pairs])
  found = _known()[pairs]
  if isinstance(found, str):
    raise ValueError(f"the comparison of its answer {found}")
  return float(answers.equal(expected, answer, lambda *pair: found[pair]))


def answer_of(completion: Completion) -> Hashable | None:
  """Returns what a completion votes for: its answer, of which answers.py sees most forms as one;
  None without one.
  """
  answer = inside(completion.text)
  return None if answer is None else answers.key(answer)


def check_arguments() -> None:
  """Starts the processes.

  Raises:
    SettingError: math-verify is not installed.
  """
  for process in _processes():
    process.start()
  for process in _processes():
    if "error" in process.ask({"pairs": []}):
      raise SettingError(
        "rewards.functions, eval.reward: boxed.boxed_correct needs math-verify, which is missing "
        "or does not start: "
        "pip install -e '.[math]' -c constraints.txt"
      )


def score_ahead(pairs: Sequence[tuple[Example, Completion]]) -> None:
  """Has the processes compare all that `boxed_correct` will want to know of these, so that one
  waits for no other.
  """
  wanted = {}
  for example, completion in pairs:
    answer = inside(completion.text)
    if answer is not None and (expected := _readable(example.answer)) is not None:
      wanted[_open(expected, answer)] = None
  _compare([each for each in wanted if each and each not in _known()])


def _expected(text: str) -> answers.Answer:
  """The right answer; raises ValueError where it cannot be read."""
  found = _readable(text)
  if found is None:
    raise ValueError(f"the answer {text[:80]!r} cannot be read")
  return found


@functools.lru_cache(maxsize=KEPT)
def _readable(text: str) -> answers.Answer | None:
  """The right answer, in a box or not; None where it cannot be read."""
  return inside(text) if _BOX.search(text) else answers.read(text)


def _open(expected: answers.Answer, answer: answers.Answer) -> Pairs:
  """The pairs of expressions on which it depends whether two answers are equal; none where it does
  on nothing.
  """
  asked = dict.fromkeys([])

  def note(*pair: str) -> bool:
    asked[pair] = None
    return True

  if not answers.equal(expected, answer, note) or answers.equal(expected, answer, _never):
    return ()
  return tuple(asked)


def _never(expected: str, answer: str) -> bool:
  """Takes no two expressions for equal."""
  del expected, answer
  return False


def _compare(wanted: Sequence[Pairs]) -> None:
  """Makes known what the processes say of these."""
  known = _known()
  if len(known) + len(wanted) > KEPT:
    known.clear()
  replies = worker.ask_all(_processes(), [{"pairs": pairs} for pairs in wanted])
  for pairs, reply in zip(wanted, replies, strict=True):
    known[pairs] = (
      reply["error"] if "error" in reply else dict(zip(pairs, reply["equal"], strict=True))
    )


@functools.cache
def _known() -> dict[Pairs, dict[tuple[str, str], bool] | str]:
  """What was compared: of each pair whether it is equal, or why that is not known."""
  return {}


@functools.cache
def _processes() -> tuple[worker.Process, ...]:
  """The processes that compare, not started yet."""
  return tuple(worker.Process("grpo_jax.rewards.algebra") for _ in range(WORKERS))
