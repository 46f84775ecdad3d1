"""Writes the prompts of a run, with their answers, in the order in which it learns from them.

    python -m experiments.measure.recipe_prompts --config=experiments/gemma3_270m.py \\
      --config.init_from=MODEL --config.steps=40 --out=prompts.jsonl

peers/trl_recipe.py trains on them.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import app, flags

from experiments import arguments
from grpo_jax.config import sections
from grpo_jax.errors import SettingError
from grpo_jax.io import storage

if TYPE_CHECKING:
  from grpo_jax.setup.experiment import Experiment  # imports jax


def main(argv: list[str]) -> None:
  """Writes the file that the flags describe."""
  del argv
  values = flags.FLAGS
  with arguments.one_line_errors():
    storage.check_disk("--out", values.out, "use a file of a disk")
    storage.check_file("--out", values.out, new=True)
    sections.check(values.config)
    from grpo_jax.setup import resolve  # imports jax

    text = "".join(lines(resolve.resolve(values.config)))
    try:
      pathlib.Path(values.out).write_text(text, encoding="utf-8")
    except OSError as error:
      raise SettingError(f"--out={values.out}: cannot be written ({error.strerror})") from error


def lines(experiment: "Experiment") -> Iterator[str]:
  """Yields a line of JSON for each prompt of the steps: the text and the answer."""
  from grpo_jax.setup import build, shots  # imports jax

  data = experiment.data
  if data.chat:
    raise SettingError("data.chat=True: the prompts are written as plain text; use data.chat=False")
  for name, value, plain in (
    ("data.redraw", data.redraw, 1.0),
    ("sampler.carry", experiment.sampler.carry, 0),
  ):
    if value != plain:
      raise SettingError(
        f"{name}={value}: the order of the prompts follows from the samples; use {plain}"
      )
  shown = shots.shown(experiment.train_data[0], data.shots, data.template)
  batches = build.batches(experiment, build.model(experiment))
  for _ in range(experiment.steps):
    for example in next(batches):
      prompt = data.template.replace("{question}", shown + example.question, 1)
      yield json.dumps({"prompt": prompt, "answer": example.answer}) + "\n"


if __name__ == "__main__":
  arguments.define_experiment()
  flags.DEFINE_string("out", None, "The file to write.", required=True)
  app.run(main, flags_parser=arguments.parse_flags)
