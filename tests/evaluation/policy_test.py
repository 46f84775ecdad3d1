"""pass@1, pass@k and maj@k against their closed forms, by a sampler that has all answers."""

import fractions
import itertools
from typing import Any

import jax
import numpy as np
import pytest
import tiny

from experiments import evaluate as evaluate_command
from grpo_jax.errors import SettingError
from grpo_jax.evaluation import policy
from grpo_jax.reports import inspector
from grpo_jax.rewards.math import answer_correct, answer_of
from grpo_jax.sampling.generate import Generator
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example, Rollouts


def answers(*texts, ended=STOPPED):
  return [Completion(f"so\n#### {text}" if text else "no idea", [1], ended, []) for text in texts]


class Numbers:
  """A tokenizer whose token i reads `#### i`."""

  def decode(self, ids):
    return f"#### {ids[0]}" if ids else ""

  def step_ends(self, tokens):
    return []

  def before_stop(self, text):
    return None

  def tokens_before_stop(self, ids):
    return None


def run(
  samples,
  answers,
  *,
  group,
  mesh=tiny.ONE,
  batch=4,
  render=None,
  width=None,
  votes=answer_of,
  learned=None,
):
  """Evaluates on problems with the right `answers`; prompt i is the token i + 1, and its samples
  are `samples[i]`.
  """
  examples = [Example(str(i), "", str(a), {}) for i, a in enumerate(answers)]
  keys = []

  def sample(params, prompts, key, ends, prompt_size):
    assert params == "the policy"
    keys.append(tuple(jax.random.key_data(key).tolist()))
    first, lengths = np.asarray(prompts.tokens)[:, 0], np.asarray(prompts.lengths)
    assert len(first) == batch
    width_ = width or group
    tokens = np.full((batch, width_, 3), 99, np.int32)
    for row, (token, n) in enumerate(zip(first, lengths)):
      if n:
        tokens[row, :, 0] = samples[token - 1]
    n = np.where(lengths[:, None] > 0, np.full((batch, width_), 2), 0)
    zeros = np.zeros(tokens.shape, np.float32)
    out = Rollouts(
      prompts, *map(jax.numpy.asarray, (tokens, n, np.full(n.shape, STOPPED), zeros, zeros))
    )
    return out, {}

  seen = []
  sample.layout = tiny.layout(mesh)
  generator = Generator(
    sample, tiny.sizes(mesh), Numbers(), render or (lambda question: [int(question) + 1]), 2
  )
  outcomes = policy.solve(
    generator,
    "the policy",
    examples,
    answer_correct,
    votes,
    jax.random.key(0),
    games=jax.random.key(1),
    batch=batch,
    progress=lambda done, of: seen.append((done, of)),
    learned=learned,
  )
  assert len(set(keys)) == len(keys)  # no two batches with the same noise
  if learned:
    return policy.learned_metrics(outcomes), seen
  return (policy.metrics_of if group == 1 else policy.sampled_metrics)(outcomes), seen


def test_greedy_accuracy_counts_each_problem_once():
  """Six problems in batches of four: the rows that fill the last batch are no problems."""
  found, seen = run([[1], [2], [0], [4], [5], [0]], [1, 2, 3, 4, 5, 6], group=1)
  assert found == {"accuracy": pytest.approx(4 / 6), "length": 2.0, "truncated": 0.0}
  assert seen == [(4, 6), (6, 6)]


def test_pass_and_majority_of_several_samples():
  found, _ = run([[1, 1, 1, 0], [0, 0, 0, 2], [3, 3, 9, 9], [8, 8, 8, 8]], [1, 2, 3, 4], group=4)
  assert found["pass@1"] == pytest.approx((3 + 1 + 2 + 0) / 16)
  assert found["pass@4"] == pytest.approx(3 / 4)
  assert found["maj@4"] == pytest.approx((1 + 0 + 0.5 + 0) / 4)


def test_without_a_way_to_say_what_an_answer_is_there_is_no_vote():
  found, _ = run([[1, 0], [0, 0]], [1, 2], group=2, batch=2, votes=None)
  assert found == {"pass@1": 0.25, "pass@2": 0.5}


def test_a_vote_that_fails_is_a_fault():
  def odd(completion):
    raise ValueError("no answer")

  with pytest.raises(
    SettingError, match="failed on all 4 completions .* first: ValueError: no answer"
  ):
    run([[1, 0], [0, 0]], [1, 2], group=2, batch=2, votes=odd)


@pytest.mark.parametrize("width", [1, 2])
def test_a_prompt_that_is_too_long_counts_as_not_solved(width):
  """Also where a sharded group makes greedy evaluation decode several equal samples."""

  def render(question):
    return [1] * 3 if question == "1" else [int(question) + 1]

  found, _ = run(
    [[1] * width, [2] * width, [3] * width], [1, 2, 3], group=1, render=render, width=width
  )
  assert found["accuracy"] == pytest.approx(2 / 3) and found["prompts_too_long"] == 1
  found, _ = run([[1, 1], [2, 2], [3, 3]], [1, 2, 3], group=2, render=render)
  assert found["pass@1"] == found["pass@2"] == found["maj@2"] == pytest.approx(2 / 3)


def test_what_a_reward_model_gives_is_compared_with_right_and_wrong():
  """Its scores are of completions, by their places; a problem whose prompt is too long has none."""

  def given(sampled):
    def outcome(p, g, completion):
      assert completion.tokens == tuple(sampled.tokens[p, g, :2].tolist())
      return [] if completion.tokens[0] == 9 else [(1, float(completion.tokens[0]))]

    def steps(p, g, completion):
      return [(0, 0.5), (1, 0.25)]

    return [("judge", outcome, 1.0), ("steps", steps, 1.0)]

  def render(question):
    return [1] * 3 if question == "5" else [int(question) + 1]

  found, _ = run(
    [[1], [8], [3], [9], [2], [7]], [1, 2, 3, 4, 5, 6], group=1, learned=given, render=render
  )
  assert (
    found
    == {  # 1 and 3 are right, 8 and 2 are wrong; 9 was given nothing, and the sixth was not sampled
      "reward/judge": pytest.approx((1 + 8 + 3 + 2) / 4),
      "agreement/judge": pytest.approx(1 / 4),
      "reward/steps": 0.375,
      "agreement/steps": 0.5,
    }
  )
  found, _ = run([[1], [9]], [1, 2], group=1, learned=given)
  assert found == {
    "reward/judge": 1.0,
    "reward/steps": 0.375,
    "agreement/steps": 0.5,
  }  # no wrong one has a score


def test_the_error_of_a_difference_is_of_a_sample_of_problems():
  """Differences 1, 0, 0, -1: their variance is 2/3 with n - 1 in its denominator."""
  mean, error = policy.paired(np.array([0, 1, 0, 1.0]), np.array([1, 1, 0, 0.0]))
  assert mean == 0 and error == pytest.approx((2 / 3 / 4) ** 0.5)
  before, after = {"accuracy": np.array([0.0, 1.0])}, {"accuracy": np.array([1.0, 1.0])}
  assert evaluate_command.differences(before, after)["accuracy"] == {
    "mean": 0.5,
    "error": pytest.approx(0.5),
  }


def test_a_prompt_that_is_too_long_is_counted_once():
  greedy = policy.Outcomes([[False]], None, [], [], [], {}, [True])
  sampled = policy.Outcomes([[False, False]], None, [], [], ["late"], {}, [True])
  found = policy.metrics_of(greedy, sampled)
  assert (
    found["prompts_too_long"],
    found["reward_faults"],
    found["accuracy"],
    found["pass@2"],
  ) == (1, 1, 0.0, 0.0)


def test_copies_of_a_greedy_completion_are_one_fault():
  greedy = policy.Outcomes([[False] * 4, [True] * 4], None, [], [], ["late"] * 4, {}, [False] * 2)
  sampled = policy.Outcomes([[False] * 4, [True] * 4], None, [], [], ["late"] * 3, {}, [False] * 2)
  assert policy.metrics_of(greedy)["reward_faults"] == 1
  assert policy.metrics_of(greedy, sampled)["reward_faults"] == 1 + 3


def test_episodes_in_which_the_environment_failed_are_counted_and_not_solved(monkeypatch):
  made = policy.generate.generate
  failures = {(0, 1): "turn 2: step: OSError: no tool", (1, 0): "turn 1: late"}

  def generate(*args, **named):
    return made(*args, **named)._replace(faults=failures)

  monkeypatch.setattr(policy.generate, "generate", generate)
  found, _ = run([[1], [2], [3], [4]], [1, 2, 3, 4], group=1)
  assert found["accuracy"] == 3 / 4 and found["reward_faults"] == 1
  found, _ = run([[1, 1], [2, 2], [0, 3], [4, 4]], [1, 2, 3, 4], group=2)
  assert found["pass@1"] == (1 + 1 + 1 + 2) / 8 and found["pass@2"] == 1.0
  failures |= {(p, 0): "turn 1: step: OSError: no tool" for p in range(4)}
  with pytest.raises(
    SettingError,
    match="^environment.name: failed in all 4 episodes .* first: turn 1: step: OSError",
  ):
    run([[1], [2], [3], [4]], [1, 2, 3, 4], group=1)


@pytest.mark.parametrize("batch", [2, 3, 4])
def test_a_problem_is_the_same_game_in_each_evaluation(batch, monkeypatch):
  """By its place among the problems, whatever the noise and the batch."""
  made, numbers = policy.generate.generate, []

  def generate(*args, games, **named):
    numbers.extend(games.tolist())
    return made(*args, games=games, **named)

  monkeypatch.setattr(policy.generate, "generate", generate)
  run([[1], [2], [3], [4]], [1, 2, 3, 4], group=1, batch=batch)
  want = policy.episodes.reset_numbers(jax.random.key(1), np.arange(4)).tolist()
  assert numbers[:4] == want and len(set(want)) == 4


def test_a_vote_that_cannot_be_counted_is_a_fault():
  def boxes(completion):
    return [completion.text] if "1" in completion.text else completion.text

  found, _ = run([[1, 1], [2, 2]], [1, 2], group=2, batch=2, votes=boxes)
  assert found["maj@2"] == 0.5 and found["pass@1"] == 1.0
  alone, _ = run([[1], [2]], [1, 2], group=1, batch=2, votes=boxes)
  assert alone["reward_faults"] == 1 and alone["accuracy"] == 1.0


def test_a_wrong_sample_of_an_evaluation_is_kept_with_reward_0():
  rows: list[dict[str, Any]] = []
  for right in (True, False):
    judged = policy.Judged(right, None, "", [])
    completion = Completion("4", [4], TRUNCATED, [0])
    evaluate_command._keep(
      rows, {"kind": "greedy"}, Example("2 + 2", "", "4", {}), completion, judged
    )
  assert [(row["reward"], row["ended"], row["answer"]) for row in rows] == [
    (1.0, "truncated", "4"),
    (0.0, "truncated", "4"),
  ]


def test_answers_of_several_paths_are_side_by_side_and_differences_come_first():
  def rows(path, step, greedy, sampled):
    kinds = ("greedy", greedy), ("sampled", [x for both in sampled for x in both])
    return [
      {"path": path, "step": step, "kind": kind, "reward": float(x), "question": f"{n // per}"}
      for (kind, xs), per in zip(kinds, (1, 2))
      for n, x in enumerate(xs)
    ]

  first = rows("a", 0, [1, 0, 1], [(1, 1), (0, 0), (1, 0)])
  second = rows("b", 9, [1, 1, 1], [(1, 1), (0, 1), (0, 0)])  # apart by 0, 1 and 0.5
  assert evaluate_command.of_all_paths([first]) == first
  found = evaluate_command.of_all_paths([first, second])
  assert [row["group"] for row in found] == [1] * 6 + [2] * 6 + [0] * 6
  assert {(row["path"], row.get("checkpoint"), row["step"]) for row in found} == {
    ("a", None, 0),  # a folder
    ("b", 9, 0),
  }
  assert [row["reward"] for row in found[:6]] == [0, 0, 0, 1, 0, 1]
  assert len(inspector.groups(found)) == 3


def test_answers_to_one_question_are_side_by_side_whatever_a_path_skips():
  """Skips a prompt that is too long for one path alone, and asks a question twice."""

  def rows(path, questions, reward=0.0):
    about = {"path": path, "step": 0, "kind": "greedy", "reward": reward}
    return [about | {"question": question} for question in questions]

  found = evaluate_command.of_all_paths([rows("a", "xyy"), rows("b", "wxyy")])
  groups = [(row["group"], row["question"], row["path"]) for row in found]
  assert sorted(groups) == [
    (0, "x", "a"), (0, "x", "b"), (1, "y", "a"), (1, "y", "b"), (2, "y", "a"), (2, "y", "b"),
    (3, "w", "b"),
  ]  # fmt: skip
  found = evaluate_command.of_all_paths([rows("a", "x"), rows("b", "wx"), rows("c", "w", 1.0)])
  assert [row["question"] for row in found] == ["x", "x", "w", "w"]  # the first was not asked w


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n):
  for correct in range(n + 1):
    right = [True] * correct + [False] * (n - correct)
    for k in range(1, n + 1):
      subsets = list(itertools.combinations(right, k))
      share = fractions.Fraction(sum(map(any, subsets)), len(subsets))
      assert policy.pass_at_k(n, correct, k) == pytest.approx(float(share))
  assert policy.pass_at_k(n, n, 1) == 1.0 and policy.pass_at_k(n, 0, n) == 0.0


@pytest.mark.parametrize(
  "texts, share",
  [
    (("7", "7", "3"), 1.0),
    (("3", "3", "7"), 0.0),
    (("7", "3"), 0.5),  # a tie is shared
    (("7", "3", "4", "5"), 0.25),
    (("7", "7.0", "$7", "3", "3"), 1.0),  # one number, written three ways
    (("7", "", "", ""), 1.0),  # no answer is no vote
    (("", ""), 0.0),
    (("seven", "seven", "7"), 0.0),  # words vote as they stand
  ],
)
def test_majority(texts, share):
  example = Example("q", "s", "7", {})
  group = answers(*texts)
  votes = [answer_of(c) for c in group]
  assert policy.majority([answer_correct(example, c) >= 1 for c in group], votes) == pytest.approx(
    share
  )


def test_an_answer_that_was_cut_off_does_not_vote():
  group = [*answers("7"), *answers("3", "3", ended=TRUNCATED)]
  assert policy.majority([True, False, False], [answer_of(c) for c in group]) == 1.0
