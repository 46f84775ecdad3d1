"""The word problems of many steps."""

from arithmetic_test import _examples

from experiments.arithmetic import WARM_START, get_config
from grpo_jax.data import long_problems
from grpo_jax.tokenizer import reading


def test_long_problems():
  """Five to eight steps, in the words and within the lengths that the shipped tokenizer and
  arithmetic.py:hard have.
  """
  examples = _examples("train", 300, min_steps=5, max_steps=8, max_number=40)
  assert {example.meta["family"] for example in examples} == {
    problem.family for problem in long_problems.PROBLEMS
  }
  assert {example.meta["steps"] for example in examples} == {5, 6, 7, 8}
  tokenizer = reading.load(str(WARM_START))
  config = get_config("hard")
  for example in examples:
    text = f"{example.question}\n{example.solution}"
    words = [tokenizer.text(token) for token in tokenizer.encode(text)]
    assert "".join(words) == text
    assert not [
      word for word, after in zip(words, words[1:]) if word.strip().isalpha() and after.isalpha()
    ]
    assert len(tokenizer.encode(example.question)) < config.data.max_prompt_length
    assert len(tokenizer.encode(example.solution)) < config.sampler.max_length
