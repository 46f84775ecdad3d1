"""Rewards and reward models of a config."""

import pytest
from registry_test import _rewards
from rewards.verifiers_test import completion, example, section

from grpo_jax.errors import SettingError
from grpo_jax.rewards import math
from grpo_jax.setup import scorers
from grpo_jax.types import Completion, Example


def test_rewards():
  cfg = _rewards(
    ("correct", "math.answer_correct", 1),
    ("overlong", "length.overlong", 0.5, {"max_length": 10, "buffer": 4}),
  )
  (name, reward, weight), (_, overlong, _) = scorers.reward_functions(cfg, [])
  assert (name, reward.score, weight) == ("correct", math.answer_correct, 1.0)
  assert overlong.score(Example("", "", "", {}), Completion("", [0] * 8, 1, [])) == -0.5


@pytest.mark.parametrize(
  "functions",
  [
    (),
    (("a", "math.answer_correct"),),
    (("a", "math.answer_correct", "1"),),
    (("a", "math.answer_correct", 1.0), ("a", "math.well_formed", 1.0)),
    (("a", "length.overlong", 1.0, {"max_len": 10, "buffer": 4}),),
    (("a", "length.overlong", 1.0),),
    (("a", "math.answer_correct", 1.0, {"strict": True}),),
  ],
)
def test_bad_rewards(functions):
  with pytest.raises(SettingError, match="rewards.functions has"):
    scorers.reward_functions(_rewards(*functions), [])


def test_a_file_of_ones_own_may_say_what_its_answers_are(tmp_path):
  (tmp_path / "mine.py").write_text(
    "def right(example, completion, *, end='.'):\n  return completion.text.endswith(end)\n\n\n"
    "def answer_of(completion, *, end='.'):\n  return completion.text.removesuffix(end)\n\n\n"
    "def check_arguments(*, end='.'):\n  if not end:\n    raise ValueError('empty')\n"
  )
  found = scorers.eval_reward(
    section(reward=f"{tmp_path}/mine.py:right", arguments=(("end", "!"),))
  )
  assert found.answer_of(completion("so!")) == "so" and found.score(example(""), completion("so!"))
  assert found.score_ahead is None
  with pytest.raises(ValueError, match="empty"):
    scorers.eval_reward(section(reward=f"{tmp_path}/mine.py:right", arguments=(("end", ""),)))
  (tmp_path / "other.py").write_text(
    "def right(example, completion, *, end):\n  pass\n\n\ndef answer_of(c):\n  pass\n"
  )
  with pytest.raises(
    SettingError,
    match="answer_of in the file of .*other.py:right has to take the same keyword arguments: got an unex",
  ):
    scorers.eval_reward(section(reward=f"{tmp_path}/other.py:right", arguments=(("end", "!"),)))
