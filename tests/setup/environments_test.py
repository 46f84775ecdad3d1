"""The environment of a config: its functions, its limits, and what is refused in one line."""

import re
import textwrap
import types

import chat_templates
import pytest

from grpo_jax.environments import base, calculator
from grpo_jax.errors import DataError, SettingError
from grpo_jax.setup import environments, scorers
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve
from grpo_jax.tokenizer import reading
from grpo_jax.types import STOPPED, Completion, Example, Turn

EXAMPLE = Example("Which?", "", "20", {})


def completion(text):
  return Completion(text, [1], STOPPED, [])


def section(config, name, *arguments):
  config.environment.name, config.environment.arguments = name, arguments
  return make(config).environment


@pytest.fixture
def guess(config):
  """A config that plays the game guess."""
  section(config, "guess", ("guesses", 5))
  return config


def write(folder, text):
  """Returns the name of a file of one's own."""
  (folder / "mine.py").write_text(
    "from grpo_jax.types import Turn\n\n\n" + textwrap.dedent(text), encoding="utf-8"
  )
  return str(folder / "mine.py")


# -- its functions


def test_a_config_without_an_environment_has_none(config):
  assert scorers.environment(make(config).environment) is None
  assert environments.make(make(config), None) is None


def test_it_judges_alone_where_nothing_else_gives_rewards(guess, monkeypatch):
  monkeypatch.setattr(environments.worker, "shared", lambda *args: None)
  monkeypatch.setattr(environments.build, "message_format", lambda experiment: {"chat": False})
  made = environments.make(make(guess), None)
  (name, function, _), *_ = guess.rewards.functions
  judges = []
  for functions in ((), ((name, function, 0.0),)):  # one of weight 0 is only logged
    guess.rewards.functions = functions
    judges.append(environments.make(make(guess), None).judges)
  assert (made.judges, judges) == (False, [True, True])


def test_arguments_are_bound_to_both_functions(guess):
  reset, step = scorers.environment(make(guess).environment)
  state = reset(EXAMPLE, 7)
  assert state == {"number": 20, "left": 5}
  assert step(state, completion("20")) == Turn(state, None, 1.0)


def test_without_a_reset_the_first_state_is_the_example(config):
  reset, step = scorers.environment(section(config, "calculator"))
  assert reset is base.first_state
  assert base.begin(reset, EXAMPLE, 7)["answer"] == "20"  # it is called as a file's own reset is
  assert step({}, completion("<<calc: 1 + 1")) == Turn({}, "2")
  assert step.func is calculator.step


def test_a_file_of_ones_own(config, tmp_path):
  name = write(
    tmp_path,
    """
    def reset(example, key, *, tools=()):
      return [example.answer, key, list(tools)]

    def step(state, completion, *, tools=()):
      return Turn(state, f"{completion.text} {tools}", 0.5)
    """,
  )
  reset, step = scorers.environment(section(config, name, ("tools", ("a", "b"))))
  assert reset(EXAMPLE, 3) == ["20", 3, ["a", "b"]]
  assert step(1, completion("x")) == Turn(1, "x ('a', 'b')", 0.5)
  reset, step = scorers.environment(section(config, name))
  assert reset(EXAMPLE, 3) == ["20", 3, []] and step(1, completion("x")).observation == "x ()"


# -- its limits


def of(tokenizer, vocab=10**6):
  """Returns a model with that tokenizer and that many embeddings."""
  decoder = types.SimpleNamespace(config=types.SimpleNamespace(vocab=vocab))
  return types.SimpleNamespace(tokenizer=tokenizer, decoder=decoder)


def test_the_limits_are_those_of_the_config(guess, tmp_path):
  chat_templates.save("qwen3", tmp_path)
  (tmp_path / "config.json").write_text("{}")
  tokenizer = reading.load(tmp_path)
  guess.environment.update({"turns": 3, "turn_length": 7, "role": "tool"})
  guess.rewards.deadline = 2.5
  made = environments.make(make(guess), of(tokenizer))
  assert (made.turns, made.turn_length) == (3, 7)
  answered = made.workers.submit(base.first_request(EXAMPLE, 0, completion("7"))).result()
  assert answered == {"turn": [{"number": 20, "left": 4}, "higher\n", None]}
  assert made.reply("higher\n", -1) == tokenizer.encode("higher\n")  # there is no chat
  guess.data.chat, guess.data.system = True, "Be brief."
  guess.data.chat_arguments = (("enable_thinking", False),)
  made = environments.make(make(guess), of(tokenizer))
  assert tokenizer.decode(made.reply("higher", -1), False) == (
    "<|im_end|>\n<|im_start|>user\n<tool_response>\nhigher\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
  )


def test_workers_answer_with_the_file_as_it_is_when_a_run_begins(config, tmp_path, monkeypatch):
  step = "def step(state, completion):\n  return Turn(1, {!r})"
  write(tmp_path, step.format("old"))
  (tmp_path / "other").mkdir()
  write(tmp_path / "other", step.format("else"))
  config.environment.name, config.environment.workers = "mine.py", 1
  monkeypatch.setattr(environments.build, "message_format", lambda experiment: {"chat": False})

  def answered():
    workers = environments.make(make(config), None).workers
    return workers.submit(base.first_request(EXAMPLE, 0, completion("7"))).result()["turn"][1]

  monkeypatch.chdir(tmp_path)
  assert answered() == "old"
  write(tmp_path, step.format("new"))
  assert answered() == "new"
  monkeypatch.chdir(tmp_path / "other")
  assert answered() == "else"


def test_a_template_that_refuses_the_role_is_told_before_a_turn_is_sampled(guess, tmp_path):
  chat_templates.save("gemma2", tmp_path)
  (tmp_path / "config.json").write_text("{}")
  model = of(reading.load(tmp_path))
  guess.data.chat, guess.environment.role = True, "tool"
  with pytest.raises(
    DataError, match="^chat_template: .*; environment.role is 'tool'; another one"
  ):
    environments.make(make(guess), model)
  guess.environment.role = "user"
  assert environments.make(make(guess), model)


def test_a_message_with_a_token_that_the_model_does_not_embed_is_refused(guess, tmp_path):
  chat_templates.save("qwen3", tmp_path)
  (tmp_path / "config.json").write_text("{}")
  tokenizer = reading.load(tmp_path)
  guess.data.chat = True
  most = max(environments.make(make(guess), of(tokenizer)).reply("text", -1))
  assert environments.make(make(guess), of(tokenizer, most + 1))
  with pytest.raises(
    SettingError,
    match=f"^data.chat=True, environment.role='user': the token {most} of the message is none of",
  ):
    environments.make(make(guess), of(tokenizer, most))


# -- what is refused


@pytest.mark.parametrize(
  ("name", "message"),
  [
    (
      "nonsense",
      "no module grpo_jax.environments.nonsense; grpo_jax.environments has calculator, g",
    ),
    ("guess ", "not the name of a module; grpo_jax.environments has calculator, guess"),
    ("../guess", "not the name of a module"),
    ("guess:step", "not the name of a module"),
    ("none.py", "no such file none.py"),
    ("no_such_package.guess", "no module no_such_package.guess"),
    ("base", "has no function step(state, completion); see docs/environments.md"),
    ("os.path", "has no function step(state, completion)"),
    ("grpo_jax.rewards.math", "has no function step(state, completion)"),
  ],
)
def test_no_such_environment(name, message, config):
  line = refused(config, name)
  assert line.startswith(f"environment.name={name!r}: {message}"), line


def refused(config, name, *arguments):
  """Returns the line with which an environment is refused."""
  config.environment.name, config.environment.arguments = name, arguments
  with pytest.raises(SettingError) as error:
    resolve(config)
  assert "\n" not in str(error.value)
  return str(error.value)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "has no function step(state, completion); see"),
    ("step = 3", "has no function step(state, completion); see"),
    ("def steps(state, completion):\n  pass", "has no function step(state, completion); see"),
    ("raise KeyError('no key')", "fails to import: KeyError: 'no key'"),
    ("import no_such_package", "fails to import: ModuleNotFoundError"),
    ("def step(:", "fails to import: SyntaxError"),
  ],
)
def test_a_file_that_is_no_environment(text, message, config, tmp_path):
  line = refused(config, write(tmp_path, text))
  assert line.startswith("environment.name='") and message in line, line


TAKE = (
  "step(state, completion), and reset(example, key) if it has one, should take these as keyword"
)


@pytest.mark.parametrize(
  ("text", "arguments", "reason"),
  [
    ("def step(state):\n  pass", (), "too many positional arguments"),
    ("def step():\n  pass", (), "too many positional arguments"),
    ("def step(state, completion, key):\n  pass", (), "missing a required argument: 'key'"),
    ("def step(state, *, completion):\n  pass", (), "too many positional arguments"),
    (
      "def step(state, completion):\n  pass",
      (("tools", 1),),
      "unexpected keyword argument 'tools'",
    ),
    ("def step(state, completion, tools):\n  pass", (), "missing a required argument: 'tools'"),
    (
      "def step(state, completion):\n  pass",
      (("state", 1),),
      "multiple values for argument 'state'",
    ),
    (
      "def reset(example):\n  pass\ndef step(state, completion):\n  pass",
      (),
      "too many positional arguments",
    ),
    (
      "def reset(example, key):\n  pass\ndef step(state, completion, tools):\n  pass",
      (("tools", 1),),
      "unexpected keyword argument 'tools'",
    ),
  ],
)
def test_functions_of_other_parameters(text, arguments, reason, config, tmp_path):
  line = refused(config, write(tmp_path, text), *arguments)
  assert TAKE in line and line.endswith(reason), line


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((), "missing a required argument: 'guesses'"),
    ((("tries", 5),), "missing a required argument: 'guesses'"),
    ((("guesses", 5), ("tries", 5)), "unexpected keyword argument 'tries'"),
    (
      (("guesses", 5), ("guesses", 6)),
      "environment.arguments=(('guesses', 5), ('guesses', 6)): use e",
    ),
    (((1, 5),), TAKE),
    (("guesses",), "environment.arguments="),
    ((("guesses", 5, 6),), "environment.arguments="),
  ],
)
def test_arguments_that_are_not_taken(arguments, message, config):
  assert message in refused(config, "guess", *arguments)


@pytest.mark.parametrize(
  "setting", ["turns", "turn_length", "discount", "weight", "role", "arguments"]
)
def test_settings_of_no_environment(setting, config):
  value = {"role": "tool", "arguments": (("guesses", 5),), "discount": 0.5, "weight": 2.0}
  config.environment[setting] = value.get(setting, 3)
  message = re.escape(
    f"environment.{setting}={value.get(setting, 3)!r}: there is no environment.name;"
  )
  with pytest.raises(SettingError, match=f"^{message}"):
    resolve(config)


def test_a_loop_that_plays_no_episodes(guess):
  guess.loop = "iterative"
  guess.iterative.reward_model = "runs/1"
  message = "^environment.name='guess': loop='iterative' plays no episodes; loop='online' and"
  with pytest.raises(SettingError, match=message):
    resolve(guess)


# -- its rewards among the others


def test_an_environment_may_be_the_only_reward(guess):
  guess.rewards.functions = ()
  guess.environment.weight = 0.5
  assert resolve(guess).components == [("environment", 0.5)]
  guess.environment.name, guess.environment.arguments, guess.environment.weight = "", (), 1.0
  with pytest.raises(
    SettingError, match=r"^rewards.functions has the names \[\], .*: give at least"
  ):
    resolve(guess)


def test_a_reward_function_of_the_same_name(guess):
  row = ("environment", "math.answer_correct", 1.0)
  guess.rewards.functions = (row,)
  message = (
    r"^rewards.functions has the names \['environment', 'environment'\], with those of .* and "
  )
  with pytest.raises(SettingError, match=message + "the environment: .* each its own name$"):
    resolve(guess)
  guess.environment.name, guess.environment.arguments = "", ()
  assert resolve(guess).components == [("environment", 1.0)]


def test_weights_of_rewards_count_the_environment(guess):
  guess.rewards.functions = (("correct", "math.answer_correct", 1.0),)
  guess.objective.advantage = "gdpo"
  guess.objective.reward_weights = (1.0,)
  message = (
    r"^objective.reward_weights=\(1.0,\): give 2, .*the environment and .*: correct, environment$"
  )
  with pytest.raises(SettingError, match=message):
    resolve(guess)
  guess.objective.reward_weights = (1.0, 0.5)
  assert resolve(guess).reward_names == ["correct", "environment"]
  guess.objective.reward_weights, guess.environment.weight = (), 0.0
  with pytest.raises(SettingError, match="gives each reward the weight 1, and 'environment' has 0"):
    resolve(guess)
