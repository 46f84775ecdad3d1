"""What a teacher is asked that the policy is not told."""

import re
import types

import numpy as np
import pytest
import tiny_runs

from grpo_jax.errors import SettingError
from grpo_jax.loops import groups, online, teacher_prompts
from grpo_jax.setup import checks, defaults
from grpo_jax.setup.resolve import resolve
from grpo_jax.types import STOPPED, Completion, Example, Prompts, ScoredRollouts

EXAMPLE = Example("what?", "worked out", "7", {})
FULL = "{question}\n\nright: {success}\n\nsaid: {feedback}\n\nagain: {question}"


def parity(example, completion):
  return tiny_runs.parity(example, completion)


def feedback(example, completion):
  if completion.text == "raises":
    raise ValueError("no")
  if completion.text == "pair":
    return 0.0, "bad"
  return f"it was {completion.text}" if completion.text != "b" else None


def completion(text):
  return Completion(text, (1, 2), STOPPED, ())


@pytest.mark.parametrize(
  "success,said,want",
  [
    ("7", "no", "what?\n\nright: 7\n\nsaid: no\n\nagain: what?"),
    ("7", None, "what?\n\nright: 7\n\nagain: what?"),
    (None, "no", "what?\n\nsaid: no\n\nagain: what?"),
    (None, None, None),
    (
      "{feedback}",
      "no {success}",
      "what?\n\nright: {feedback}\n\nsaid: no {success}\n\nagain: what?",
    ),
  ],
)
def test_paragraphs_with_what_is_missing_are_left_out(success, said, want):
  values = {"question": "what?", "solution": None, "success": success, "feedback": said}
  assert teacher_prompts.filled(FULL, values) == want


def test_a_success_is_the_first_of_another_sample():
  group = [completion(text) for text in "abcd"]
  right = np.array([False, True, False, True])
  found = [teacher_prompts.known(EXAMPLE, group, right, g)["success"] for g in range(4)]
  assert found == ["b", "d", "b", "b"]
  alone = np.array([False, True, False, False])
  assert teacher_prompts.known(EXAMPLE, group, alone, 1)["success"] is None
  assert teacher_prompts.known(EXAMPLE, group, alone, 1)["solution"] == "worked out"


def experiment(prompt, **changes):
  c = tiny_runs.config({"rewards.functions": (("parity", f"{__file__}:parity", 1.0),)})
  c.objective = defaults.objective("gkd", c)
  c.update_from_flattened_dict({"reference.prompt": prompt} | changes)
  return resolve(c)


def asked(monkeypatch, prompt, rewards, texts, second=None, **changes):
  """Returns the batch and metrics of two groups of three, the second of which only fills it, and
  the warnings.
  """
  group = [None if text is None else completion(text) for text in texts]
  monkeypatch.setattr(teacher_prompts, "completions", lambda *_: [group, [completion("")] * 3])
  lengths = np.array([[2, 2, 2], [0, 0, 0]])
  judged = np.array([[reward is not None for reward in rewards], [False] * 3])
  given = (np.arange(4) == 1)[None, None] & judged[..., None]
  rewards = [reward or 0 for reward in rewards]
  outcome = np.where(given, np.array([rewards, [0] * 3], np.float32)[..., None], 0)
  tokens = np.zeros((2, 3, 4), np.int32)
  rollouts = ScoredRollouts(
    Prompts(tokens[:, 0], lengths[:, 0]), tokens, lengths, lengths, tokens, tokens,
    rewards=outcome, given=given, components=outcome.sum(2)[..., None],
  )  # fmt: skip
  generator = types.SimpleNamespace(render=lambda text: [ord(c) for c in text])
  warned = []
  scored, metrics = teacher_prompts.ask(
    experiment(prompt, **changes),
    types.SimpleNamespace(generator=generator),
    groups.Scored([EXAMPLE, second], rollouts, [], 0.0),
    lambda name, text: warned.append(text),
  )
  prompts = scored.rollouts.ref_prompts
  ids = prompts.tokens.reshape(prompts.lengths.size, -1)
  texts = ["".join(map(chr, one[:n])) for one, n in zip(ids, prompts.lengths.ravel(), strict=True)]
  return texts, metrics, warned


def test_each_completion_gets_the_prompt_of_its_own(monkeypatch):
  prompt = "{question}\n\n{success}\n\n{feedback}"
  texts, metrics, warned = asked(monkeypatch, prompt, [0, 1, 0], ["a", "b", "raises"])
  assert texts == ["what?\n\nb\n\nit was a", "", "what?\n\nb", "", "", ""]
  assert metrics == {"teacher/too_long": 0.0, "teacher/taught": pytest.approx(2 / 3)}
  assert warned == ["a reward's feedback failed: ValueError: no; it counts as none"]


def test_each_process_asks_for_feedback_on_its_own_completions_alone(monkeypatch):
  """What another process was told is taken from it, even if the function says another thing here."""
  others = [[None, completion("x"), None], [None] * 3]
  calls = iter([[[None, "of another process", None], [None] * 3], others])
  monkeypatch.setattr(teacher_prompts.hosts, "gather", lambda own: [own, next(calls)])
  texts, _, _ = asked(monkeypatch, "{question} {feedback}", [0, 0, 0], ["a", None, "c"])
  assert texts[:3] == ["what? it was a", "what? of another process", "what? it was c"]


def test_no_feedback_is_asked_for_a_prompt_without_it(monkeypatch):
  texts, _, warned = asked(monkeypatch, "{question} {solution}", [0, 0, 0], ["a", "raises", "c"])
  assert texts == ["what? worked out", ""] and not warned


def test_a_group_that_is_told_the_solution_alone_shares_a_prompt(monkeypatch):
  texts, metrics, _ = asked(monkeypatch, "{question} {solution}", [0, 0, 0], ["a", "b", "c"])
  assert texts == ["what? worked out", ""]  # the second group has no completions
  assert metrics == {"teacher/too_long": 0.0, "teacher/taught": 1.0}
  changes = {"reference.max_prompt_length": 6}
  texts, metrics, warned = asked(
    monkeypatch, "{question} {solution}", [0, 0, 0], ["a", "b", "c"], **changes
  )
  assert texts == ["", ""] and len(warned) == 1
  assert metrics == {"teacher/too_long": 1.0, "teacher/taught": 0.0}


def test_a_group_that_was_not_sampled_is_not_asked(monkeypatch):
  """Its question was too long for the policy; so would be the teacher's prompt."""
  long = EXAMPLE._replace(question="what?" * 9)
  changes = {"second": long, "reference.max_prompt_length": 20}
  texts, metrics, _ = asked(monkeypatch, "{question} {solution}", [0] * 3, ["a"] * 3, **changes)
  assert texts == ["what? worked out", ""] and metrics["teacher/too_long"] == 0


def test_a_prompt_with_more_than_the_solution_is_one_for_each_completion(monkeypatch):
  prompt = "{question}\n\n{solution}\n\n{success}"
  texts, *_ = asked(monkeypatch, prompt, [1, 0, 0], ["a", "b", "c"])
  told = "what?\n\nworked out"
  assert texts == [told, told + "\n\na", told + "\n\na", "", "", ""]


def test_a_completion_without_a_reward_is_no_success(monkeypatch):
  texts, *_ = asked(
    monkeypatch,
    "{question} {success}",
    [None, 0, 0],
    ["a", "b", "c"],
    **{"reference.success": -0.5},
  )
  assert texts[:3] == ["what? b", "what? c", "what? b"]


def test_a_prompt_that_is_too_long_teaches_nothing(monkeypatch):
  changes = {"reference.max_prompt_length": 6, "reference.success": 1.0}
  texts, metrics, warned = asked(
    monkeypatch, "{question}{success}", [0, 1.5, 1], ["a", "bb", "c"], **changes
  )
  assert texts == [""] * 6 and metrics == {"teacher/too_long": 2.0, "teacher/taught": 0.0}
  assert warned == [
    "the teacher knew nothing of the 3 completions of a step, which trains nothing: "
    "reference.prompt asks for success, and 2 prompts were longer than "
    "reference.max_prompt_length"
  ]


def test_without_a_prompt_there_is_nothing_to_ask():
  batch = types.SimpleNamespace(rollouts=None)
  assert teacher_prompts.ask(experiment(""), None, batch, None) == (batch, {})


@pytest.mark.parametrize(
  "prompt,said",
  [
    ("{question}", "use a text with {question} and what the policy is not told"),
    ("{solution}", "use a text with {question} and what the policy is not told"),
    ("{question} {answer}", "{answer} is filled in by nothing; use some of {question}, {solution}"),
    ("{question} {solution} {sucess}", "{sucess} is filled in by nothing; use some of {question}"),
    ("{question}\\n{solution}", "has a backslash and an n in place of a line break"),
    ("{question}\\n\\n{solution}", "has a backslash and an n in place of a line break"),
    ("{question} {feedback}\n\n{success}", "a paragraph is left out if a value in it is missing"),
  ],
)
def test_a_prompt_that_tells_nothing_is_refused(prompt, said):
  with pytest.raises(SettingError, match=re.escape(f"reference.prompt={prompt!r}: {said}")):
    teacher_prompts.check(experiment(prompt))


@pytest.mark.parametrize(
  "text",
  [
    r"Put $x \neq 1$ into \boxed{answer}", r"\frac{a}{b}, x^{n}, \sqrt[n]{x}, \begin{array}{cc}",
    "the set {x}", '{{answer}} ${name} {"answer": 1}', r"join lines with '\n'", r"\nRightarrow",
  ],
)  # fmt: skip
def test_a_prompt_may_have_formulas(text):
  teacher_prompts.check(experiment("{question} {solution} " + text))


def twice(example, completion):
  """Returns a second reward of this file, which has one feedback."""
  return 0.0


def test_two_rewards_of_a_file_say_the_same_once(monkeypatch):
  both = (("parity", f"{__file__}:parity", 1.0), ("twice", f"{__file__}:twice", 1.0))
  changes = {"rewards.functions": both}
  texts, *_ = asked(monkeypatch, "{question} {feedback}", [0] * 3, ["a", "c", "raises"], **changes)
  assert texts[:3] == ["what? it was a", "what? it was c", ""]


def test_feedback_that_is_no_text_counts_as_none(monkeypatch):
  texts, _, warned = asked(monkeypatch, "{question} {feedback}", [0] * 3, ["a", "pair", "c"])
  assert texts[:3] == ["what? it was a", "", "what? it was c"]
  assert warned[0].startswith("a reward's feedback returned a tuple, and counts as none")


def test_a_success_of_a_group_of_one_is_refused():
  prompt = "{question} {success}"
  teacher_prompts.check(experiment(prompt))
  with pytest.raises(SettingError, match="reference.prompt=.* with sampler.group=1: .*success"):
    teacher_prompts.check(experiment(prompt, **{"sampler.group": 1}))


def test_feedback_that_no_reward_gives_is_refused():
  prompt = "{question} {feedback}"
  teacher_prompts.check(experiment(prompt))
  functions = (("parity", tiny_runs.PARITY, 1.0),)
  with pytest.raises(SettingError, match="no file of rewards.functions has a feedback"):
    teacher_prompts.check(experiment(prompt, **{"rewards.functions": functions}))


def test_an_objective_that_asks_no_teacher_is_refused():
  c = tiny_runs.config({"reference.prompt": "{question} {solution}"})
  with pytest.raises(
    SettingError, match="reference.prompt=.*objective.name='grpo' .*asks no teach"
  ):
    checks.check_settings(resolve(c))


@pytest.mark.slow
@pytest.mark.parametrize(
  "objective,reported",
  [pytest.param("gkd", "divergence", marks=pytest.mark.long), ("distill", "kl")],
)
def test_a_run_teaches_itself_and_is_resumed(tmp_path, objective, reported):
  """The teacher is the policy of the step's start, which is told the solution."""
  short = {
    "eval.problems": 0,
    "checkpoint.every": 1,
    "checkpoint.export": False,
    "learner.schedule": "constant",
    "mesh.fsdp": 4,
    "mesh.group": 2,
    "reference.ema": 1.0,
    "reference.prompt": "{question}\n\n{solution}",
  }

  def lines(folder, steps):
    c = tiny_runs.config(short | {"steps": steps})
    c.objective = defaults.objective(objective, c)
    online.train(resolve(c), str(folder))
    return tiny_runs.metrics_of_steps(folder)

  first = lines(tmp_path / "two", 1)
  assert first[0]["teacher/taught"] == 1.0 and first[0]["grad_norm"] > 0
  resumed, whole = lines(tmp_path / "two", 2), lines(tmp_path / "one", 2)
  assert [line[reported] for line in resumed] == [line[reported] for line in whole]
  assert whole[1][reported] > 0
