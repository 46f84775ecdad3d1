"""Where the reasoning steps of a completion end."""

from collections.abc import Sequence


def step_ends(texts: Sequence[str]) -> list[int]:
  """Returns the index of the last token of each reasoning step, where a step is a line that is not blank.

  The token that holds a line's newline ends the step. What follows the last such line (blank lines, the stop token)
  belongs to the last step, so that the last entry is always `len(texts) - 1`.

  Args:
    texts: the text of each token of a completion, in order.
  """
  ends: list[int] = []
  blank = True  # whether the line that is not closed yet holds nothing but white space
  for i, text in enumerate(texts):
    *closed, rest = text.split("\n")
    if closed:
      if not blank or any(line.strip() for line in closed):
        ends.append(i)
      blank = True
    blank = blank and not rest.strip()
  if blank and ends:
    ends.pop()
  return [*ends, len(texts) - 1] if texts else []
