"""Puts worked examples of the training data before each question, for base models.

    Question: ...           with the template "Question: {question}\\nAnswer: ", and data.shots = 1
    Answer: ... #### 3

    Question: the one that is asked
    Answer:

They are the same in every run, whatever its seed, so that its results can be compared with another
one's. They are not trained on.
"""

import operator
import random
from collections.abc import Sequence

from grpo_jax.errors import SettingError
from grpo_jax.setup.registry import DataSet
from grpo_jax.types import Example

SEED = 0
BETWEEN = "\n\n"  # an example and the next question


class Without(Sequence[Example]):
  """Leaves some examples of a data set out; the others keep their order."""

  def __init__(self, examples: Sequence[Example], left_out: Sequence[int]):
    """Takes the indices of what is left out."""
    self._examples, self._left_out = examples, sorted(left_out)

  def __len__(self) -> int:
    return len(self._examples) - len(self._left_out)

  def __getitem__(self, index):
    index = operator.index(index)
    if not 0 <= index < len(self):
      raise IndexError(f"example {index} of {len(self)}")
    for out in self._left_out:
      index += out <= index
    return self._examples[index]


def indices(size: int, count: int) -> list[int]:
  """Returns which `count` of `size` examples are the worked ones.

  Raises:
    SettingError: no example would be left.
  """
  if count >= size:
    raise SettingError(
      f"data.shots={count}: the training data has {size} examples; use at most {size - 1}"
    )
  return random.Random(SEED).sample(range(size), count)


def examples(data_set: DataSet, count: int) -> list[Example]:
  """Returns the worked examples, from the first data set that is trained on."""
  if not count:
    return []
  data = data_set.open()
  return [data[i] for i in indices(len(data), count)]


def shown(data_set: DataSet, count: int, template: str) -> str:
  """Returns what stands before each question of a run, "" without worked examples."""
  return before_question(examples(data_set, count), template)


def check_template(template: str, count: int, special_tokens: Sequence[str]) -> None:
  """Refuses worked examples in a template with special tokens, which would be text in them."""
  found = [token for token in special_tokens if token in template]
  if count and found:
    raise SettingError(
      f"data.shots={count} with data.template={template!r}: {found[0]} is a special token, and "
      "would be plain text in the worked examples; use a template without special tokens, or "
      "data.shots=0"
    )


def before_question(worked: Sequence[Example], template: str) -> str:
  """Returns what stands before a question within `template`: the worked examples.

  It is a part of the question as far as the template is concerned, so that special tokens that an
  example names stay text.

  Raises:
    SettingError: an example has no worked solution.
  """
  before, _, after = template.partition("{question}")
  text = ""
  for example in worked:
    if not example.solution:
      raise SettingError(
        f"data.shots={len(worked)}: the training data has no solution of "
        f"{example.question[:80]!r}; use 0"
      )
    text += f"{example.question}{after}{example.solution}{BETWEEN}{before}"
  return text
