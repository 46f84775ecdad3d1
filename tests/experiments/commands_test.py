"""export, sample and evaluate: what is wrong with their flags is said at once; and all three on one
small run.
"""

import io
import json
import math
import types

import numpy as np
import pytest
import safetensors.numpy
import tiny
from conftest import ROOT
from tiny_turns import Ids

from experiments import arithmetic, asking, export, questions, sample, sources
from experiments import evaluate as command
from grpo_jax.config import sections
from grpo_jax.errors import CheckpointError, DataError, GrpoError, SettingError
from grpo_jax.evaluation.policy import paired
from grpo_jax.ops import decoding
from grpo_jax.run import provenance
from grpo_jax.sampling import rollouts
from grpo_jax.setup import defaults, weights
from grpo_jax.types import STOPPED, TRUNCATED, Completion

WARM_START = "experiments/arithmetic_warm_start"


@pytest.fixture
def run(tmp_path):
  """A folder with the names of a run's checkpoints, 0, 5 and 10."""
  for step in (10, 0, 5):
    (tmp_path / "run" / "checkpoints" / str(step)).mkdir(parents=True)
  return str(tmp_path / "run")


def test_a_step_that_is_not_there_lists_those_that_are(run):
  with pytest.raises(
    SettingError, match=r"^--step=7: --path='.*run' has no checkpoint of that step; use 0, 5, 10$"
  ):
    sources.check("--path", run, 7)
  sources.check("--path", run, 5)
  sources.check("--path", run, None)
  with pytest.raises(
    SettingError, match="^--step=5 with --path='experiments/arithmetic_warm_start': is no run"
  ):
    sources.check("--path", WARM_START, 5)


def test_many_steps_are_listed_in_part(tmp_path):
  for step in range(0, 500, 10):
    (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
  with pytest.raises(SettingError, match=r"use 0, 10, \.\.\., 320, .*, 490$"):
    sources.check("--path", str(tmp_path), 7)


def test_folders_without_weights_are_refused(tmp_path):
  with pytest.raises(
    SettingError, match="^--path='nowhere': no such folder; give a Hugging Face folder or"
  ):
    sources.check("--path", "nowhere", None)
  with pytest.raises(SettingError, match="has neither weights .* nor checkpoints"):
    sources.check("--path", str(tmp_path), None)
  (tmp_path / "checkpoints").mkdir()
  with pytest.raises(CheckpointError, match="no complete checkpoint; wait for its first"):
    sources.check("--path", str(tmp_path), None)


def test_what_is_missing_is_named(run):
  for workdir, out, message in (
    (None, "x", "^--workdir is missing"),
    (run, None, "^--out is missing"),
  ):
    with pytest.raises(SettingError, match=message):
      export.check(workdir, None, out)
  with pytest.raises(SettingError, match="^--path is missing"):
    sample.check("", None, "x", None, {}, None)
  with pytest.raises(SettingError, match="use 0, 5, 10$"):
    sample.check(run, 6, "x", None, {}, None)


def test_a_run_without_checkpoints_any_more_has_its_export(tmp_path):
  for folder in ("checkpoints", "export"):
    (tmp_path / folder).mkdir()
  (tmp_path / "export" / "config.json").write_text("{}")
  with pytest.raises(
    CheckpointError, match="no complete checkpoint any more; .*/export is the model of its end"
  ):
    export.check(str(tmp_path), None, str(tmp_path / "out"))


def test_a_folder_with_files_in_it_is_not_written_to(run, tmp_path):
  for out in (run, f"{run}/export", WARM_START, "README.md"):
    with pytest.raises(SettingError, match=f"^--out='{out}': "):
      export.check(run, 5, out)
  (tmp_path / "empty").mkdir()
  export.check(run, 5, str(tmp_path / "empty"))
  export.check(run, None, str(tmp_path / "new" / "one"))


@pytest.mark.parametrize(
  ("module", "flags", "message"),
  [
    (
      "export",
      ["--workdir=RUN", "--step=7", "--out=OUT"],
      "has no checkpoint of that step; use 0, 5, 10",
    ),
    (
      "sample",
      ["--path=RUN"],
      "--prompt is missing: where the input is no terminal give --prompt=TEXT or --file=FILE, without --chat",
    ),
    (
      "sample",
      ["--path=RUN", "--prompt=x", "--top_p=2"],
      "--top_p=2.0: use a finite number above 0, at most 1",
    ),
  ],
)
def test_flags_are_refused_before_jax_is_imported(module, flags, message, run, tmp_path, program):
  (tmp_path / "jax.py").write_text("raise RuntimeError('imported jax')")
  given = [flag.replace("RUN", run).replace("OUT", str(tmp_path / "out")) for flag in flags]
  done = program(f"experiments.{module}", *given, PYTHONPATH=str(tmp_path))
  assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
  assert done.stderr.startswith("error: ") and message in done.stderr


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"samples": 0}, "--samples=0: use a whole number from 1 to 4096"),
    (
      {"temperature": -1.0},
      "--temperature=-1.0: use 0 or a finite number of at least 0.001, at most 1000",
    ),
    ({"max_length": 0}, "--max_length=0: use a whole number of at least 1, at most 2147483647"),
    ({"seed": -1}, "--seed=-1: use a whole number from 0 to 4294967295"),
  ],
)
def test_numbers_that_cannot_be(given, message):
  with pytest.raises(SettingError) as error:
    sample.check(WARM_START, None, "x", None, given, None)
  assert str(error.value) == message


def test_a_question_is_given_once():
  with pytest.raises(SettingError, match="--file='q.txt' with --prompt='x': give one of them"):
    sample.check(WARM_START, None, "x", "q.txt", {}, None)
  with pytest.raises(SettingError, match="--prompt=' ': use a text that is not empty"):
    sample.check(WARM_START, None, " ", None, {}, None)


def test_questions_of_a_file(tmp_path):
  (tmp_path / "q.txt").write_text("What is 2?\n\n And 3? \n")
  (tmp_path / "q.jsonl").write_text(
    '{"question": "a\\nb", "answer": "7", "level": 2}\n{"prompt": "c", "answer": 8}\n'
    '{"prompt": "d", "answer": null}\n'
  )
  assert questions.read(str(tmp_path / "q.txt")) == [("What is 2?", "", {}), ("And 3?", "", {})]
  assert questions.read(str(tmp_path / "q.jsonl")) == [
    ("a\nb", "7", {"level": 2}),
    ("c", "8", {}),
    ("d", "", {}),
  ]
  (tmp_path / "bad.jsonl").write_text('\n{"question": 7}\n')
  with pytest.raises(
    DataError, match='bad.jsonl\', line 2: use an object with a text "question" or "prompt"'
  ):
    questions.read(str(tmp_path / "bad.jsonl"))
  (tmp_path / "none.txt").write_text("\n")
  for name, message in (
    ("none.txt", "has no question"),
    ("no.txt", "cannot be read"),
    ("q.csv", "ends in .txt or"),
  ):
    with pytest.raises(GrpoError, match=message):
      questions.read(str(tmp_path / name))


def test_text_that_grows_is_printed_once():
  printed, whole = "", "37 \u20ac + \u20ac"
  for text in ("37", "37 \ufffd", "37 \u20ac", "37 \u20ac + \ufffd", whole):
    printed += asking.new_text(printed, text)
  assert printed == whole
  assert asking.new_text("a b", "ab") == ""  # what is printed stays


def test_prompts_share_widths():
  assert [asking.width_for(n) for n in (1, 64, 65, 128, 300)] == [64, 64, 128, 128, 512]


def test_steps_are_of_the_paths_that_are_runs():
  assert command.steps_of([True, False, True], [5]) == [5, None, 5]
  assert command.steps_of([True, False, True], [5, 7]) == [5, None, 7]
  assert command.steps_of([False], []) == [None]
  for runs, steps in (([True], [5, 7]), ([False], [5]), ([True, True, True], [5, 7])):
    with pytest.raises(SettingError, match="^--step=5"):
      command.steps_of(runs, steps)


def test_a_paired_difference_by_hand():
  """Differences 1, 0, 1, -1, 0: mean 0.2, squared deviations 2.8, variance 0.7, error sqrt(0.7 /
  5).
  """
  mean, error = paired(np.array([0, 1, 0, 1, 1]), np.array([1, 1, 1, 0, 1]))
  assert mean == pytest.approx(0.2) and error == pytest.approx(math.sqrt(0.14))
  mean, error = paired(np.array([0.25]), np.array([1.0]))
  assert mean == 0.75 and math.isnan(error)


def test_the_table_shows_differences_in_points():
  problems = (
    {"accuracy": np.array([0.0, 1.0, 0.0, 1.0, 1.0])},
    {"accuracy": np.array([1.0, 1.0, 1.0, 0.0, 1.0])},
  )
  first = command.Evaluated({"path": "a", "accuracy": 0.6}, problems[0], [])
  second = command.Evaluated({"path": "b", "step": 5, "accuracy": 0.8}, problems[1], [])
  second.line["difference"] = command.differences(*problems)
  cells = [list(column.cells) for column in command.table([first, second]).columns]
  assert cells == [["accuracy"], ["60.0%"], ["80.0%"], ["+20.0 ± 37.4"]]


def asked_by(render, context=0):
  """Returns a policy that samples nothing, whose answers have up to ten tokens."""
  model = types.SimpleNamespace(
    tokenizer=types.SimpleNamespace(stop_texts=()),
    render=render,
    decoder=types.SimpleNamespace(config=types.SimpleNamespace(context=context)),
  )
  setup = types.SimpleNamespace(length=10)
  reply = lambda question, last: [last + 100, 5]  # noqa: E731
  return types.SimpleNamespace(model=model, sampler=types.SimpleNamespace(setup=setup), reply=reply)


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.mark.parametrize("out", [Terminal(), io.StringIO()])
def test_an_answer_is_printed_once_whether_it_streams_or_not(out, monkeypatch):
  """An escape that a model writes does not reach the terminal; half a character waits for its rest."""
  texts = ("3", "3 + \ufffd", "3 + \u20ac\x1b[2J")
  grown = [
    [[Completion(text, [1], TRUNCATED, []), Completion("second", [1], STOPPED, [])]]
    for text in texts
  ]
  monkeypatch.setattr(asking, "sample", lambda *_: iter(grown))
  policy = asked_by(lambda question: [1])
  asking.answer(policy, "q", 0, out)
  assert out.getvalue() == "3 + \u20ac\ufffd[2J\nsecond\n"


def test_answers_to_a_file_are_read_once(monkeypatch):
  """With a part for each 16 tokens, reading all parts would take a time that grows as a square."""
  sampler = tiny.make_sampler(max_length=80, stop=())
  model = types.SimpleNamespace(tokenizer=Ids(), render=lambda question: [int(question)])
  policy = asking.Policy(model, sampler, sampler.ready(tiny.params()), 0, None)
  *_, whole = asking.sample(policy, [[3], [5]], 0)
  read, out, completion = [], io.StringIO(), rollouts.completion
  monkeypatch.setattr(rollouts, "completion", lambda *args: read.append(args) or completion(*args))
  asking.answer_file(policy, ["3", "5"], out)
  assert len(read) == 2 * tiny.G
  lines = [json.loads(line)["completions"] for line in out.getvalue().splitlines()]
  assert lines == [[each.text for each in group] for group in whole]


def test_questions_are_asked_until_the_input_ends(monkeypatch):
  typed, asked = iter(["one ", "", "two"]), []

  def typing(prompt):
    try:
      return next(typed)
    except StopIteration:
      raise EOFError from None

  monkeypatch.setattr("builtins.input", typing)
  monkeypatch.setattr(
    asking, "answer", lambda policy, question, turn, out, past: asked.append((question, turn, past))
  )
  sample.converse(None, None, chat=False)
  assert asked == [("one", 0, []), ("two", 1, [])]


def test_questions_of_a_chat_follow_one_another(monkeypatch, capsys):
  """Ends a conversation at an empty line; a second one changes nothing."""
  typed, asked = iter(["one", "two", "", "", "three", "four"]), []

  def typing(prompt):
    try:
      return next(typed)
    except StopIteration:
      raise EOFError from None

  def answer(policy, question, turn, out, past):
    asked.append((question, turn, list(past)))
    return [*past, question]

  monkeypatch.setattr("builtins.input", typing)
  monkeypatch.setattr(asking, "answer", answer)
  sample.converse(None, None, chat=True)
  assert asked == [("one", 0, []), ("two", 1, ["one"]), ("three", 2, []), ("four", 3, ["three"])]
  assert capsys.readouterr().out.count("a new conversation\n") == 1


def test_a_chat_is_typed_and_needs_a_template():
  with pytest.raises(SettingError, match="^--chat with --prompt='x': a chat is typed; give one of"):
    sample.check_chat("x", None, {})
  with pytest.raises(
    SettingError, match="^--chat: an episode is a conversation already; use --env"
  ):
    sample.check_chat(None, None, {"environment.name": "guess"})
  sample.check_chat(None, None, {})
  with pytest.raises(
    SettingError,
    match="^--chat with --path='.*warm_start': .* leave --chat out, or use a model with ",
  ):
    asking.load(str(WARM_START), None, {}, chat=True)


def test_what_was_sampled_is_read_as_it_was_sampled(monkeypatch, capsys):
  """Keeps the first of two samples; a reply is told the last token before it."""
  read = []

  def sampled(policy, ids, turn):
    read.append(ids[0])
    yield [[Completion("a", [7, 2], STOPPED, []), Completion("b", [8], STOPPED, [])]]

  monkeypatch.setattr(asking, "sample", sampled)
  policy = asked_by(lambda question: [1, len(question)], context=15)
  past = asking.answer(policy, "one", 0, io.StringIO())
  assert "warning" not in capsys.readouterr().err
  assert past == [1, 3, 7, 2]
  assert asking.answer(policy, "two", 1, io.StringIO(), past) == [1, 3, 7, 2, 102, 5, 7, 2]
  assert read == [[1, 3], [1, 3, 7, 2, 102, 5]]
  assert capsys.readouterr().err.startswith(
    "warning: 6 tokens and an answer of up to 10 are more than the 15 that the model was trained for"
  )


def write_run(folder, config):
  (folder / "checkpoints").mkdir(parents=True)
  (folder / "config.json").write_text(json.dumps(config))
  return str(folder)


def test_a_run_is_asked_as_it_was_trained(tmp_path):
  data = {"template": "Q: {question}", "chat": False, "system": "s"}
  trained = {
    "max_length": 9,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.9,
    "min_p": 0.1,
    "stop": ["x"],
  }
  path = write_run(tmp_path / "run", {"data": data, "sampler": trained})
  found = asking.make_config(path, {"top_k": 7, "temperature": 0, "samples": 4}, path)
  assert (
    found.data.template == "Q: {question}" and found.data.system == "s" and found.sampler.group == 4
  )
  asked = [found.sampler[name] for name in ("max_length", "temperature", "top_k", "top_p", "stop")]
  assert asked == [9, 0.0, 7, 0.9, ("x",)]
  with pytest.raises(CheckpointError, match="config.json is not as the run wrote it"):
    asking.make_config(
      WARM_START, {}, write_run(tmp_path / "edited", {"sampler": {"max_length": "many"}})
    )
  found = asking.make_config(WARM_START, {}, "")
  assert (found.data.template, found.sampler.max_length, found.sampler.dtype) == (
    "{question}",
    512,
    "float32",
  )


def test_a_run_with_worked_examples_is_asked_after_the_same_ones(tmp_path):
  data = {"shots": 2, "mixture": [["arithmetic", "", 1.0]], "arithmetic": {"seed": 5, "size": 9}}
  path = write_run(tmp_path / "run", {"data": data})
  found = asking.make_config(path, {}, path)
  assert (found.data.shots, found.data.mixture) == (2, (("arithmetic", "", 1.0),))
  assert (found.data.arithmetic.seed, found.data.arithmetic.size) == (5, 9)
  assert found.data.arithmetic.max_number == 99  # as it was


def test_an_export_is_asked_as_its_run_was_trained(tmp_path):
  run = write_run(tmp_path / "run", {})
  (tmp_path / "run" / "export").mkdir()
  assert provenance.run_of(run) == provenance.run_of(f"{run}/export") == run
  assert provenance.run_of(WARM_START) == provenance.run_of(str(tmp_path)) == ""
  with pytest.raises(SettingError, match=f"^--like='{WARM_START}': is no run"):
    sample.check(WARM_START, None, "x", None, {}, WARM_START)


def test_an_export_of_before_more_steps_is_not_the_run(tmp_path):
  """A run that ended at step 5, was given more steps and has done some of them: its last checkpoint
  is newer.
  """
  run = tmp_path / "run"
  for folder in ("checkpoints/3", "checkpoints/5", "export", "model"):
    (run / folder).mkdir(parents=True)
  (run / "export" / "config.json").write_text("{}")
  (run / "model" / "decoder.json").write_text("{}")
  (run / "result.json").write_text('{"steps": 5}')
  assert (
    weights.find_source(str(run)) == (str(run / "export"), "")
    and sources.step_of(str(run), None) == 5
  )
  assert sources.step_of(str(run), 3) == 3 and sources.step_of(WARM_START, None) is None
  (run / "checkpoints/8").mkdir()
  assert (
    weights.find_source(str(run)) == (str(run / "model"), str(run))
    and sources.step_of(str(run), None) == 8
  )
  (run / "result.json").write_text('{"steps": "all"}')
  with pytest.raises(CheckpointError, match="result.json has steps='all'"):
    weights.find_source(str(run))


def test_other_prompts_than_those_of_training_are_told(tmp_path, capsys):
  c = defaults.get_config()
  run = write_run(
    tmp_path / "run",
    {"data": {"template": "Q: {question}", "chat": False}, "sampler": {"stop": ["x"]}},
  )
  (tmp_path / "run" / "export").mkdir()
  command.warn_of_prompts(c, f"{run}/export")
  said = capsys.readouterr().out.splitlines()
  assert len(said) == 2 and said[0].endswith(
    "was trained with data.template='Q: {question}', and is evaluated with '{question}\\n'"
  )
  assert said[1].endswith("was trained with sampler.stop=('x',), and is evaluated with ()")
  c.data.template, c.sampler.stop = "Q: {question}", ("x",)
  command.warn_of_prompts(c, run)
  command.warn_of_prompts(c, WARM_START)
  command.warn_of_prompts(c, write_run(tmp_path / "edited", {"data": 3, "sampler": None}))
  assert capsys.readouterr().out == ""


def test_another_environment_than_that_of_training_is_told(tmp_path, capsys):
  environment = {"name": "guess", "arguments": [], "turns": 3}
  run, c = write_run(tmp_path / "run", {"environment": environment}), defaults.get_config()
  command.warn_of_prompts(c, run)  # turns of no episode are not told
  assert capsys.readouterr().out == (
    f"warning: {run} was trained with environment.name='guess', and is evaluated with ''\n"
  )
  c.environment.name = "guess"
  command.warn_of_prompts(c, run)
  assert capsys.readouterr().out == (
    f"warning: {run} was trained with environment.turns=3, and is evaluated with 8\n"
  )


@pytest.mark.parametrize("path", ["s3://bucket/run", "gs://"])
def test_evaluate_refuses_a_place_that_is_none(path):
  c = arithmetic.get_config()
  with pytest.raises(SettingError, match=f"^--path='{path}'"):
    command.check(c, [WARM_START, path], [], None)


SMALL = (
  "learner.warmup=0",
  "steps=1",
  "data.prompts=4",
  "sampler.group=4",
  "sampler.max_length=56",
  "sampler.tries=1",
)
SMALL += ("eval.problems=0",)
SMALL += (
  "checkpoint.every=1",
  "checkpoint.keep=3",
  "checkpoint.export=False",
  "log.writers=()",
)


def answers(program, *flags, **options):
  done = program(*flags, timeout=400, **options)
  assert done.returncode == 0, done.stderr
  return [json.loads(line) if line.startswith("{") else line for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_all_three_on_a_small_run(program, tmp_path):
  """A run on two devices, exported on one; the export is asked and evaluated as the checkpoint that
  it is of.
  """
  run, out = tmp_path / "run", tmp_path / "exported"
  flags = [f"--config.{s}" for s in SMALL]
  done = program(
    "experiments.run",
    "--config=experiments/arithmetic.py",
    f"--workdir={run}",
    *flags,
    devices=2,
    timeout=400,
  )
  assert done.returncode == 0, done.stderr
  before = sorted(p.relative_to(run) for p in run.rglob("*"))

  answers(program, "experiments.export", f"--workdir={run}", "--step=1", f"--out={out}")
  tensors = safetensors.numpy.load_file(out / "model.safetensors")
  start = safetensors.numpy.load_file(ROOT / WARM_START / "model.safetensors")
  assert {name: (x.shape, x.dtype) for name, x in tensors.items()} == {
    n: (x.shape, x.dtype) for n, x in start.items()
  }
  assert any((tensors[name] != start[name]).any() for name in start)  # a step was done
  assert (out / "tokenizer.json").exists() and not list(tmp_path.glob(".exported*"))
  done = program(
    "experiments.export", f"--workdir={run}", "--part=critic", f"--out={tmp_path}/other"
  )
  assert done.returncode == 2 and "has no such learner; use policy" in done.stderr

  (tmp_path / "q.txt").write_text("Tom has 3 apples and buys 4 more. How many does he have?\n" * 2)
  asked = (
    "experiments.sample",
    f"--path={run}",
    "--step=1",
    f"--file={tmp_path}/q.txt",
    "--samples=2",
    "--seed=3",
  )
  one, two = answers(program, *asked), answers(program, *asked, devices=2)
  assert one == two and len(one) == 2 and len(one[0]["completions"]) == 2

  config = (
    "--config=experiments/arithmetic.py",
    *flags[:-5],
    "--config.eval.problems=16",
    "--config.eval.batch=8",
  )
  paths = [
    f"--path={run}",
    f"--path={out},{ROOT / WARM_START}",
    "--step=1",
    f"--out={tmp_path}/page",
  ]
  first, second, third = answers(program, "experiments.evaluate", *config, *paths)
  numbers = ("accuracy", "pass@1", "pass@8", "maj@8", "length", "truncated")
  assert [first[name] for name in numbers] == [second[name] for name in numbers] and first[
    "step"
  ] == 1
  assert second["difference"]["pass@1"] == {"mean": 0.0, "error": 0.0}
  assert third["difference"]["accuracy"]["mean"] == pytest.approx(
    third["accuracy"] - first["accuracy"]
  )
  rows = [
    json.loads(line) for line in (tmp_path / "page" / "samples.jsonl").read_text().splitlines()
  ]
  assert len(rows) == 3 * 16 * (1 + 8) and (tmp_path / "page" / "samples.html").exists()
  assert before == sorted(p.relative_to(run) for p in run.rglob("*"))  # nothing in the run was made


def test_a_run_is_asked_with_every_rule_that_cuts_its_distribution():
  """One that the command left out would be off there, in silence."""
  assert set(decoding.Truncation._fields) <= set(asking.SAMPLER)
  for name, off in decoding.Truncation()._asdict().items():
    assert sections.SETTINGS[f"sampler.{name}"].default == off


def test_a_growing_answer_keeps_back_what_may_be_a_stop_text():
  stops = ("\n\nQ:", "##")
  for text, shown in (("a", "a"), ("a\n", "a"), ("a\n\nQ", "a"), ("a#", "a"), ("a\nb", "a\nb")):
    assert asking.before_a_stop(text, stops) == shown
  assert asking.before_a_stop("a#", ()) == "a#"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_an_out_that_is_a_link_or_lies_in_a_file_is_refused_at_once(kind, tmp_path):
  (tmp_path / "file").write_text("")
  (tmp_path / "link").symlink_to(tmp_path / "nowhere")
  out = tmp_path / "link" if kind == "link" else tmp_path / "file" / "sub"
  with pytest.raises(SettingError, match="is a link" if kind == "link" else "is a file; use"):
    sources.check_out(str(out), [])
