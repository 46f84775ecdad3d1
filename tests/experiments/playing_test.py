"""Episodes that sample.py plays: which environment and problem, how they end, and their print."""

import io
import json
import types

import numpy as np
import pytest
import tiny_runs
from tiny_episodes import EPISODES

from experiments import playing, sample
from experiments.questions import Question
from grpo_jax.config import settings
from grpo_jax.errors import SettingError
from grpo_jax.loops import online
from grpo_jax.run import console
from grpo_jax.sampling import episodes
from grpo_jax.sampling import generate as generating
from grpo_jax.setup import build
from grpo_jax.setup.resolve import resolve
from grpo_jax.types import Example

WARM_START = "experiments/arithmetic_warm_start"
GUESS = {"name": "guess", "arguments": [["guesses", 5]], "turns": 6}


@pytest.fixture
def trained(tmp_path):
  """Returns the folder of a run that was trained with an environment."""
  (tmp_path / "run" / "checkpoints" / "3").mkdir(parents=True)
  config = {"environment": GUESS, "rewards": {"deadline": 2.0}}
  (tmp_path / "run" / "config.json").write_text(json.dumps(config))
  return str(tmp_path / "run")


def test_a_run_plays_its_own_environment_unless_another_is_named(trained):
  """Limits and deadline stay those of the run; its arguments are those of its environment."""
  own = playing.choose(None, trained)
  assert own == {
    "environment.name": "guess",
    "environment.arguments": (("guesses", 5),),
    "environment.turns": 6,
    "rewards.deadline": 2.0,
  }
  assert playing.choose("guess", trained) == own
  other = playing.choose("calculator", trained)
  assert other == own | {"environment.name": "calculator", "environment.arguments": ()}
  assert playing.choose("", trained) == playing.choose(None, "") == {}


def test_arguments_are_numbers_bools_or_text(trained):
  named = playing.choose("guess:guesses=3,far=-0.5,loud=True,how=1+1,who=(1)", trained)
  assert named["environment.arguments"] == (
    ("guesses", 3),
    ("far", -0.5),
    ("loud", True),
    ("how", "1+1"),
    ("who", 1),
  )
  for wrong in ("guess:", "guess:3", "guess:guesses=3,", "guess:a b=3"):
    with pytest.raises(SettingError, match="as in guess:guesses=5"):
      playing.choose(wrong, "")


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (
      {"path": WARM_START, "environment": "guess"},
      f"--environment='guess' with --path='{WARM_START}': is no run, whose problems could be "
      "played; give --prompt=TEXT, --file=FILE or --like=RUN",
    ),
    (
      {"path": WARM_START, "prompt": "x", "numbers": {"problem": 2}},
      "--problem=2: is played with an environment, and there is none; give --environment=NAME, or "
      "ask with --prompt",
    ),
    (
      {"path": "RUN", "prompt": "x", "numbers": {"problem": 2}},
      "--problem=2 with --prompt='x': give one of them",
    ),
    (
      {"path": "RUN", "file": "q.txt", "numbers": {"problem": 2}},
      "--problem=2 with --file='q.txt': give one of them",
    ),
    (
      {"path": "RUN", "numbers": {"problem": 0}},
      "--problem=0: use a whole number of at least 1, at most 2147483647",
    ),
    (
      {"path": "RUN", "environment": ""},
      "--prompt is missing: where the input is no terminal give --prompt=TEXT or --file=FILE, without --chat",
    ),
  ],
)
def test_flags_that_contradict_each_other_are_refused(flags, message, trained, monkeypatch):
  monkeypatch.setattr("sys.stdin", io.StringIO())
  given = {"step": None, "prompt": None, "file": None, "numbers": {}, "like": None} | flags
  given["path"] = trained if given["path"] == "RUN" else given["path"]
  with pytest.raises(SettingError) as error:
    sample.check(**given)
  assert str(error.value) == message


def test_a_run_with_an_environment_needs_no_question(trained, monkeypatch):
  monkeypatch.setattr("sys.stdin", io.StringIO())
  assert sample.check(trained, None, None, None, {}, None)["environment.name"] == "guess"
  assert sample.check(WARM_START, None, None, None, {}, trained)["environment.name"] == "guess"
  assert sample.check(WARM_START, None, "x", None, {}, None) == {}


def test_problems_are_counted_from_one(capsys):
  problems = [Example(f"q{n}", "", f"a{n}", {}) for n in (1, 2)]
  experiment = types.SimpleNamespace(open_test=lambda: problems)
  assert playing.find_problem(experiment, 2) is problems[1]
  assert capsys.readouterr().out == "problem 2 of 2 of the test data, with the answer 'a2'\n"
  with pytest.raises(SettingError, match="^--problem=3: the test data has 2 problems; use 1 to 2$"):
    playing.find_problem(experiment, 3)


LIMITS = {"turns": 2, "turn_length": 3}
T, F = True, False


@pytest.mark.parametrize(
  ("sampled", "stopped", "fault", "limits", "ended"),
  [
    ([T, T], True, "", LIMITS, "over"),
    ([T, F, T], True, "", LIMITS, "over"),
    ([T], False, "turn 1: no", LIMITS, "the environment failed: turn 1: no"),
    ([T] * 8, False, "", LIMITS, "cut off by --max_length"),
    ([T, F, F, T], False, "", LIMITS, "cut off by environment.turns=2"),
    ([T, T, T], False, "", LIMITS, "cut off by environment.turn_length=3"),
    (
      [T, T],
      False,
      "",
      LIMITS | {"turn_length": 0},
      "cut off by --max_length, which has no room for the environment's answer",
    ),
  ],
)
def test_how_an_episode_ended_is_told(sampled, stopped, fault, limits, ended):
  limits = settings.Environment(**limits)
  assert playing.how_it_ended(sampled, stopped, fault, 8, limits) == ended


def make_episode(ended="over", fault=""):
  row = {
    "tokens": ["1", "2", "\n", "high\x1b[2J\n", "14", "\n"],
    "sampled": [T, T, T, F, T, T],
    "turn_rewards": [[2, -0.5], [5, 1.0]],
  }
  return playing.Episode("12\nhigh\n14", row, not fault, ended, fault)


def test_an_episode_is_printed_as_a_conversation(monkeypatch, capsys):
  """Its end is told beside it; what a terminal would obey is left out."""
  failed = make_episode("the environment failed: a\nb", "a\nb")
  monkeypatch.setattr(playing, "play", lambda *_: [[make_episode(), failed]])
  out = io.StringIO()
  playing.print_episodes(None, Example("a [b]\nc\x1b", "", "", {}), out)
  conversation = [
    "question: a [b]",
    "  c\ufffd",
    "policy (reward -0.50): 12",
    "environment: high\ufffd[2J",
    "policy (reward 1.00): 14",
  ]
  assert out.getvalue().splitlines() == conversation * 2
  told = capsys.readouterr().out.splitlines()
  assert told[0].startswith("[1 of 2: 2 turns, 5 tokens sampled and 1 read, over, ")
  assert ", the environment failed: a b, " in told[1]
  assert len(told) == 3 and told[2].startswith("the question has no answer, and")
  monkeypatch.setattr(playing, "play", lambda *_: [[failed]])
  playing.print_episodes(None, Example("q", "", "7", {}), out)
  (told,) = capsys.readouterr().out.splitlines()  # the answer is not what is missing
  assert told.startswith("[2 turns, ")


def test_episodes_of_a_file_are_lines_of_json(monkeypatch, capsys):
  asked = []

  def play(player, examples, turn, rows):
    asked.append((len(examples), turn, rows))
    return [[make_episode()] for _ in examples]

  monkeypatch.setattr(playing, "play", play)
  out = io.StringIO()
  examples = playing.to_examples([Question(str(n), "7", {"n": n}) for n in range(17)])
  assert examples[3] == Example("3", "", "7", {"n": 3})
  playing.play_file(None, examples, out)
  assert asked == [(16, 0, 16), (1, 16, 16)]
  lines = [json.loads(line) for line in out.getvalue().splitlines()]
  assert [line["question"] for line in lines] == [str(n) for n in range(17)]
  assert lines[0] == {
    "question": "0",
    "completions": ["12\nhigh\n14"],
    "stopped": [True],
    "ended": ["over"],
    "turns": [
      [
        {"speaker": "policy", "text": "12\n", "rewards": [-0.5]},
        {"speaker": "environment", "text": "high\x1b[2J\n", "rewards": []},
        {"speaker": "policy", "text": "14\n", "rewards": [1.0]},
      ]
    ],
  }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A tiny run that was trained with the environment of tiny_episodes.py."""
  folder = tmp_path_factory.mktemp("played") / "run"
  changes = {"steps": 1, "seed": 7, "eval.problems": 0, "data.arithmetic.size": 32}
  online.train(resolve(tiny_runs.config(EPISODES | changes)), str(folder))
  return str(folder)


def load(run, *questions, flag=None, **numbers):
  return playing.load(run, None, numbers, None, playing.choose(flag, run), questions)


@pytest.mark.long
@pytest.mark.slow
def test_a_run_plays_its_own_problems(run, monkeypatch, capsys):
  """Rewards and observations are those that its environment gives; the noise is that of the seed."""
  player, (example,) = load(run, samples=16, problem=2)
  told = capsys.readouterr().out
  assert f"problem 2 of 32 of the test data, with the answer {example.answer!r}" in told
  assert "an episode has at most 8 turns and 20 tokens" in told
  key = build.key(7, build.EVALUATE, 0)  # an evaluation of the run plays the same game of it
  (number,) = episodes.reset_numbers(key, np.array([1]))
  assert player.game == number
  generate = generating.generate
  begun = []

  def spy(*args, games):
    begun.extend(games.tolist())
    return generate(*args, games=games)

  monkeypatch.setattr(generating, "generate", spy)
  (group,) = playing.play(player, [example], 0)
  assert set(begun) == {number}
  assert playing.play(player, [example], 0) == [group] != playing.play(player, [example], 1)
  ends = [episode.ended for episode in group]
  assert "over" in ends and any("a tool that is broken" in end for end in ends)
  for episode in group:
    assert episode.stopped == (episode.ended == "over")
    assert bool(episode.fault) == episode.ended.startswith("the environment failed: ")
    turns = list(console.turns(episode.row))
    for turn in turns[1::2]:
      assert not turn.sampled and turn.text == f"{example.answer}\n"
    for turn in turns[::2]:  # the last one has no reward if the environment failed on it
      assert turn.sampled and len(turn.rewards) == (turn is not turns[-1] or not episode.fault)
      assert set(turn.rewards) <= {0.0, 0.25, 0.5, 0.75, 1.0}


def test_questions_that_are_given_are_played(run):
  """Longer prompts than the run had fit, too; a file's batch is filled up on eight devices."""
  long = Question("How many? " * 80, "7", {})
  player, examples = load(run, long, Question("And 3?", "8", {}), samples=2, max_length=6)
  (first, second) = playing.play(player, examples, 0)
  for group, answer in ((first, "7"), (second, "8")):
    assert len(group) == 2
    for episode in group:
      assert 1 <= len(episode.row["tokens"]) <= 6
      read = [turn.text for turn in console.turns(episode.row) if not turn.sampled]
      assert set(read) <= {f"{answer}\n"}


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    (
      "nonsense",
      "^--environment='nonsense': .* grpo_jax.environments has calculator, guess, textarena$",
    ),
    ("none.py", "^--environment='none.py': no such file none.py, seen from "),
    ("guess", "missing a required argument: 'guesses'; write --environment=NAME:argument=value"),
  ],
)
def test_environments_that_cannot_be_are_refused_before_weights_are_read(
  run, flag, message, monkeypatch
):
  monkeypatch.setattr("experiments.sources.model", lambda *_: pytest.fail("read weights"))
  with pytest.raises(SettingError, match=message):
    load(run, flag=flag)
  with pytest.raises(SettingError, match="^--problem=33: the test data has 32 problems"):
    load(run, problem=33)
