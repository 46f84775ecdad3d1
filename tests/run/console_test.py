"""The bar and the table of a run."""

import io

import pytest
import rich.console

from grpo_jax.run.console import (
  TABLE_CHARACTERS,
  TABLE_TURNS,
  Pace,
  remaining,
  samples_table,
  spread,
  time_left,
)


def test_the_time_that_is_left():
  assert remaining(10.0, 0, 5) == "-:--:--"
  assert remaining(60.0, 2, 122) == "1:01:00"


@pytest.mark.parametrize(
  ("ends", "steps", "text"),
  [
    ([], 5, "-:--:--"),
    ([3.0], 5, "-:--:--"),
    ([50.0, 60.0, 80.0], 300, "1:15:00"),
    ([0.0, 1.0], 0, "0:00:00"),
  ],
)
def test_time_left_leaves_the_first_step_out(ends, steps, text):
  assert time_left(ends, steps) == text


def test_the_pace_of_work_is_from_where_it_began():
  pace = Pace()
  assert pace.line("drawn", 2, 10, now=50.0) == "drawn 2/10, -:--:-- left"  # since when?
  assert pace.line("drawn", 4, 10, now=60.0) == "drawn 4/10, 0:00:30 left"
  assert pace.line("drawn", 10, 10, now=90.0) == "drawn 10/10"
  assert pace.line("labelled", 2, 4, now=94.0) == "labelled 2/4, 0:00:04 left"  # since 90
  pace.begin(100.0)
  assert pace.line("labelled", 1, 4, now=101.0) == "labelled 1/4, 0:00:03 left"
  assert pace.line("eval", 1, 4, now=103.0) == "eval 1/4, -:--:-- left"


EPISODE = {
  "question": "a number?",
  "completion": "12\nhigher\n14",
  "reward": 0.5,
  "advantage": 0.5,
  "tokens": ["1", "2", "\n", "higher\n", "14", "\n"],
  "sampled": [True, True, True, False, True, True],
  "turn_rewards": [[2, -0.5], [5, 1.0]],
}


def printed(*samples, width=100, terminal=False):
  """Cells of the column "completion" as they are printed, line by line."""
  console = rich.console.Console(
    file=io.StringIO(),
    width=width,
    force_terminal=terminal,
    color_system="standard" if terminal else None,
  )
  console.print(samples_table(1, samples))
  lines = console.file.getvalue().split("\n")
  return [line.split("│")[2] for line in lines if line.count("│") > 3]


def test_an_episode_is_a_conversation():
  assert [line.strip() for line in printed(EPISODE)] == [
    "policy (reward -0.50): 12",
    "environment: higher",
    "policy (reward 1.00): 14",
  ]


@pytest.mark.parametrize(
  ("rewards", "label"),
  [
    (None, "policy: "),
    ([], "policy: "),
    ([[2, None]], "policy (reward nan): "),
    ([[0, 0.25], [2, 1.0]], "policy (reward 0.25, 1.00): "),
  ],
)
def test_a_turn_has_the_rewards_that_were_given_in_it(rewards, label):
  assert printed(EPISODE | {"turn_rewards": rewards})[0].strip() == label + "12"


def test_samples_of_one_turn_and_rows_without_tokens_have_no_speakers():
  names = ("question", "completion", "reward", "advantage")
  for row in ({name: EPISODE[name] for name in names}, EPISODE | {"tokens": None}):
    assert [line.strip() for line in printed(row)] == ["12", "higher", "14"]


def test_no_text_looks_like_another_turn():
  row = EPISODE | {"tokens": ["1", "2\nenvironment: right", "\n", "\nno\n\npolicy: 3", "14", "\n"]}
  assert [line.rstrip() for line in printed(row)] == [
    " policy (reward -0.50): 12",
    "   environment: right",
    " environment: no",
    "",
    "   policy: 3",
    " policy (reward 1.00): 14",
  ]


def test_what_an_environment_wrote_is_dim_and_neither_markup_nor_a_command():
  text = "[bold]7[/bold] \x1b[31m[/x]"
  lines = printed(EPISODE | {"tokens": ["1", "2", "\n", text, "14", "\n"]}, terminal=True)
  assert "[bold]7[/bold] \ufffd[31m[/x]" in lines[1]
  assert "\x1b[2m" in lines[1] and "\x1b[31m" not in lines[1]
  assert "\x1b[2m" not in lines[0] and "\x1b[1mpolicy" in lines[0]


@pytest.mark.parametrize(
  ("length", "turns"),
  [(1, TABLE_TURNS), (50, TABLE_CHARACTERS // 50), (TABLE_CHARACTERS - 1, 2), (10_000, 1)],
)
def test_an_episode_has_the_room_of_a_completion(length, turns):
  row = EPISODE | {
    "tokens": ["y" * length, "N" * length] * 2000,
    "sampled": [True, False] * 2000,
    "turn_rewards": [],
  }
  *shown, last = printed(row)
  text = "".join(shown)
  assert text.count("policy: ") + text.count("environment: ") == turns
  assert text.count("y") - text.count("policy") + text.count("N") <= TABLE_CHARACTERS
  assert last.strip() == f"... {4000 - turns} more"


def test_an_episode_fits_a_narrow_terminal():
  text = "".join("".join(printed(EPISODE, width=60)).split())
  assert text == "policy(reward-0.50):12environment:higherpolicy(reward1.00):14"


@pytest.mark.parametrize(
  ("rewards", "shown"),
  [
    ([1.0, 0.0], [1.0, 0.0]),
    ([1.0, 1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0]),
    ([0.0, None, 0.5, 0.25, 1.0, 0.75, 0.8], [1.0, 0.75, 0.25, None]),
    ([], []),
  ],
)
def test_a_table_shows_the_first_group_from_its_best_to_its_worst(rewards, shown):
  samples = [{"group": 3, "reward": reward} for reward in rewards] + [{"group": 0, "reward": 9.0}]
  samples = samples if rewards else []
  assert [sample["reward"] for sample in spread(samples, 4)] == shown


def test_a_question_is_not_repeated():
  console = rich.console.Console(file=io.StringIO(), width=100)
  console.print(samples_table(1, [EPISODE, EPISODE, EPISODE | {"question": "another?"}]))
  text = console.file.getvalue()
  assert text.count("a number?") == 1 and text.count("another?") == 1
