"""Describes the evaluators that `Run` calls before, during and after the steps of a run."""

from typing import Any, Protocol

from grpo_jax.models.decoder import Params
from grpo_jax.run.writer import Writer
from grpo_jax.setup import depends


class Evaluation(depends.Contents, Protocol):
  """Measures a policy or a reward model on data that it is not trained on."""

  def __call__(
    self, writer: Writer, params: Params, step: int, samples: bool = False
  ) -> dict[str, float]:
    """Returns the metrics of `params` after `step` steps, once they are written and shown.

    `samples` asks for those that are measured only before and after the run.
    """
    ...

  def tested(self) -> list[Any]:
    """Returns the settings that decide on the test data, as JSON.

    The first and the last evaluation of a run are compared only if these are the same.
    """
    ...

  def summary(self, before: dict[str, float], after: dict[str, float]) -> str:
    """Returns the first ({} if it cannot be compared) and the last evaluation in words."""
    ...
