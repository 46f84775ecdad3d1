"""Groups with their rewards."""

import itertools
from collections.abc import Sequence

import pytest
from offline_test import OUTCOMES, TWO_WORST, P, draw, scored

from grpo_jax.errors import SettingError
from grpo_jax.loops import groups


def filled_up(batches: Sequence[groups.Scored]) -> groups.Scored:
  """Returns the groups of batches and empty ones, P in all."""
  count = sum(len(batch.examples) for batch in batches)
  return groups.choose(batches, groups.padded(range(count), P))


@pytest.mark.parametrize("kind, width", [("samples", 3), ("pairs", 2)])
def test_rows_that_only_fill_a_batch_are_neither_counted_nor_kept(monkeypatch, kind, width):
  """Nor are prompts that were too long; batches are gone through until there are as many as were
  asked for.
  """

  def filled(*batches):
    return filled_up(batches)

  batches = [
    filled(scored(1, OUTCOMES)),
    filled(groups.select(scored(2, OUTCOMES), [])),
    scored(3, OUTCOMES, [], [], TWO_WORST),
    filled(scored(7, [], OUTCOMES)),
    scored(9, OUTCOMES, OUTCOMES, OUTCOMES, OUTCOMES),
    scored(13, OUTCOMES, OUTCOMES, OUTCOMES, OUTCOMES),
  ]
  kept, taken = draw(monkeypatch, kind, iter(batches))
  assert kept.prompts.tokens[:, 0].tolist() == [1, 3, 6, 8, 9] and taken == 5
  assert (
    kept.lengths.shape == (5, width)
    and (kept.lengths > 0).all()
    and (kept.prompts.lengths > 0).all()
  )


@pytest.mark.parametrize(
  "kind, tries, message",
  [
    ("samples", 1, "only 0 prompts gave samples;"),
    ("samples", 2, "only 0 prompts gave a better and a worse sample;"),
    ("pairs", 1, "only 0 prompts gave a better and a worse sample;"),
  ],
)
def test_drawing_ends_where_nothing_is_found(monkeypatch, kind, tries, message):
  empty = filled_up([groups.select(scored(1, OUTCOMES), [])])
  with pytest.raises(SettingError, match=f"offline.prompts=5: {message}"):
    draw(monkeypatch, kind, itertools.repeat(empty), tries)
