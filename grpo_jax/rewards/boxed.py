r"""Checks an answer in `\boxed{...}`, as in MATH.

answers.py compares most answers. Algebra is left to WORKERS processes of `algebra.py`, each with a
limit of time and memory; nothing that a model wrote is evaluated in this process. A completion
whose answer reaches a limit is a fault: it gets `rewards.on_error`, 0 unless set otherwise, and is
counted in `reward_faults`. The limit of time counts computing, not waiting, so that it does not
depend on the load of the machine; near it, two runs can still differ.
"""

import functools
import re
from collections.abc import Hashable, Sequence

from grpo_jax.errors import SettingError
from grpo_jax.rewards import answers
from grpo_jax.sandbox import worker
from grpo_jax.types import Completion, Example

WORKERS = 2  # processes that compare in parallel
KEPT = 100_000  # comparisons that are remembered
SEARCHED = 50_000  # characters at the end of a text in which its last box is looked for

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")

Pairs = tuple[tuple[str, str], ...]  # expressions of one answer, (expected, completion's)


def last_box(text: str) -> str | None:
  """Returns the content of the last box of a text, the outermost of nested ones; None without one.

  A last box that is not closed, as in a truncated text, has no content: 7 may be the beginning of
  72.
  """
  text = text[-SEARCHED:]
  content, start, depth, box = None, 0, 0, 0
  for token in _BRACES.finditer(text):
    if token[0] == "}":
      if depth == box > 0:
        content, box = text[start : token.start()], 0
      depth = max(depth - 1, 0)
    elif token[0] == "{":
      depth += 1
    elif token[0].endswith("{") and token[0] != "\\{":
      depth += 1
      if not box:
        content, start, box = None, token.end(), depth
  return content


def inside(text: str) -> answers.Answer | None:
  """Returns the answer in the last box of a text; None if there is none that can be read."""
  content = last_box(text)
  if content is None or len(content) > answers.LONGEST:
    return None
  return answers.read(re.sub(r"(^|=)\s*\{([^{}]*)\}$", r"\1\2", _BOX.sub("", content)))


def boxed_correct(example: Example, completion: Completion) -> float:
  r"""Returns 1 if the completion's last `\boxed{...}` holds the example's answer, else 0.

  The example's answer may be in a box, too. answers.py defines which answers are the same.

  Raises:
    ValueError: the example's answer cannot be read, or comparing the completion's was stopped.
  """
  expected, answer = _expected(example.answer), inside(completion.text)
  if answer is None:
    return 0.0
  pairs = _undecided(expected, answer)
  if not pairs:
    return float(answers.equal(expected, answer, _never))
  if pairs not in _known():
    _compare([pairs])
  result = _known()[pairs]
  if isinstance(result, str):
    raise ValueError(f"the comparison of its answer {result}")
  return float(answers.equal(expected, answer, lambda *pair: result[pair]))


def answer_of(completion: Completion) -> Hashable | None:
  """Returns the answer that a completion votes for, by `answers.key`; None without one."""
  answer = inside(completion.text)
  return None if answer is None else answers.key(answer)


def check_arguments() -> None:
  """Starts the processes, which need math-verify."""
  for process in _pool().processes:
    process.start()
  for process in _pool().processes:
    if "error" in process.ask({"pairs": []}):
      raise SettingError(
        "rewards.functions, eval.reward: boxed.boxed_correct needs math-verify, which is missing "
        "or does not start: pip install -e '.[math]' -c constraints.txt"
      )


def score_ahead(pairs: Sequence[tuple[Example, Completion]]) -> None:
  """Compares all expressions that `boxed_correct` will need for these, in parallel."""
  wanted: dict[Pairs, None] = {}
  for example, completion in pairs:
    answer = inside(completion.text)
    if answer is not None and (expected := _readable(example.answer)) is not None:
      wanted[_undecided(expected, answer)] = None
  _compare([pairs for pairs in wanted if pairs and pairs not in _known()])


def _expected(text: str) -> answers.Answer:
  """Returns the right answer; raises ValueError if it cannot be read."""
  answer = _readable(text)
  if answer is None:
    raise ValueError(f"the answer {text[:80]!r} cannot be read")
  return answer


@functools.lru_cache(maxsize=KEPT)
def _readable(text: str) -> answers.Answer | None:
  """Returns the right answer, in a box or not; None if it cannot be read."""
  return inside(text) if _BOX.search(text) else answers.read(text)


def _undecided(expected: answers.Answer, answer: answers.Answer) -> Pairs:
  """Returns the pairs of expressions that decide whether two answers are equal, if any do."""
  pairs: dict[tuple[str, str], None] = {}

  def note(*pair: str) -> bool:
    left, right = pair
    pairs[left, right] = None
    return True

  if not answers.equal(expected, answer, note) or answers.equal(expected, answer, _never):
    return ()
  return tuple(pairs)


def _never(expected: str, answer: str) -> bool:
  """Returns False: no two expressions are taken for equal."""
  del expected, answer
  return False


def _compare(wanted: Sequence[Pairs]) -> None:
  """Stores the results of the processes for these pairs."""
  known = _known()
  if len(known) + len(wanted) > KEPT:
    known.clear()
  replies = _pool().ask_all([{"pairs": pairs} for pairs in wanted])
  for pairs, reply in zip(wanted, replies, strict=True):
    if "error" in reply:
      known[pairs] = reply["error"]
    else:
      known[pairs] = dict(zip(pairs, reply["equal"], strict=True))


@functools.cache
def _known() -> dict[Pairs, dict[tuple[str, str], bool] | str]:
  """Returns the results so far: whether each pair is equal, or why that is unknown."""
  return {}


@functools.cache
def _pool() -> worker.Pool:
  """Returns the processes that compare, not started yet."""
  return worker.Pool([worker.Process("grpo_jax.rewards.algebra") for _ in range(WORKERS)])
