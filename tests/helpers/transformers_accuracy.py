"""The greedy accuracy that transformers finds of a Hugging Face folder, on problems of a seed that
no experiment uses.

python tests/helpers/transformers_accuracy.py runs/arithmetic/export
"""

import sys
from collections.abc import Sequence

import numpy as np

from experiments import arithmetic
from grpo_jax.rewards.math import answer_correct
from grpo_jax.setup import registry
from grpo_jax.types import STOPPED, Completion, Example

UNUSED_SEED = 20_260_101
PROBLEMS = 2048
BATCH = 64


def unused_problems(size: int, arg: str = "") -> list[Example]:
  """Test problems of the experiment's kind; `arg` is that of experiments/arithmetic.py."""
  config = arithmetic.get_config(arg).data
  config.arithmetic.seed = UNUSED_SEED
  source = registry.test_data(config).open()
  return [source[i] for i in range(size)]


def answers(folder: str, problems: Sequence[Example]) -> list[str]:
  """What transformers' greedy generation writes."""
  import torch
  import transformers

  model = transformers.AutoModelForCausalLM.from_pretrained(folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
  texts = []
  for start in range(0, len(problems), BATCH):
    questions = [example.question + "\n" for example in problems[start : start + BATCH]]
    given = tokenizer(questions, return_tensors="pt", padding=True)
    given = {name: given[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
      out = model.generate(
        **given, max_new_tokens=arithmetic.get_config().sampler.max_length, do_sample=False
      )
    texts += tokenizer.batch_decode(out[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
  return texts


def right(problems: Sequence[Example], texts: Sequence[str]) -> np.ndarray:
  """[problems] 1.0 where the answer is."""
  return np.array(
    [answer_correct(e, Completion(text, [], STOPPED, [])) for e, text in zip(problems, texts)]
  )


if __name__ == "__main__":
  tests = unused_problems(PROBLEMS)
  print(
    f"{right(tests, answers(sys.argv[1], tests)).mean():.1%} of {PROBLEMS} problems of seed "
    f"{UNUSED_SEED}"
  )
