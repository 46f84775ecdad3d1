"""One call of a reward: what it gives, what is a fault, and rewards that are late from the start."""

import pytest

from grpo_jax.errors import SettingError
from grpo_jax.rewards import attempts
from grpo_jax.sandbox.deadline import LATE, Guard
from grpo_jax.types import STOPPED, Completion, Example

EXAMPLE = Example("?", "#### 72", "72", {})
WRITTEN = Completion("72", [5, 6, 7], STOPPED, [2])


def outcome(result):
  with Guard(0.0) as call:
    return attempts.attempt(call, lambda example, completion: result, EXAMPLE, WRITTEN)


def test_a_value_is_given_on_the_last_token_and_several_on_theirs():
  assert outcome(0.5) == ([(2, 0.5)], "")
  assert outcome([(0, 1), (1, -1.0)]) == ([(0, 1.0), (1, -1.0)], "")
  assert outcome(None) == outcome([]) == ([], "")


@pytest.mark.parametrize(
  "result, why", [("1", "is no number"), (float("nan"), "no finite"), ([(3, 1.0)], "token 3 of 3")]
)
def test_what_is_no_reward_is_a_message(result, why):
  values, message = outcome(result)
  assert values == [] and why in message


def test_a_reward_that_is_late_in_all_its_first_calls_ends_the_run():
  late, fine = [([], f"{LATE} 1 s")], [([(0, 1.0)], "")]
  first = attempts.FirstCalls()
  for _ in range(4):
    assert first.note("a", late, "groups") is late
    first.note("b", late)
  first.note("b", fine)
  first.note("b", late)  # four of six
  with pytest.raises(SettingError, match="'a' took longer than 1 s, on each of the first 5 groups"):
    first.note("a", late, "groups")
