"""experiments.doctor: a whole folder is whole, and every kind of damage and of change is told."""

import json
import pathlib
import shutil

import damage
import jax
import pytest
import run_test
import small_models  # noqa: F401  adds the variants named test_*

from experiments import doctor, sources
from grpo_jax.run import finished, logs, manifest
from grpo_jax.run.writer import Writer
from grpo_jax.setup import build, defaults
from grpo_jax.setup.experiment import make

PARTS = ("config.json", "model/decoder.json", "model/tokenizer.json", "inputs.json", "result.json")
PARTS += (
  "export/config.json",
  "export/model.safetensors",
  "export/tokenizer.json",
  "metrics.jsonl",
  "samples.jsonl",
)


class Policy(run_test.Fake):
  """A learner of a whole model's parameters."""

  def __init__(self, model: build.Model):
    super().__init__(0.0)
    self.model = model
    self.trained = None

  def trees(self) -> dict:
    return {"policy": self.model.load()}


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> pathlib.Path:
  """The folder of a run that has ended, on data of a file."""
  home = tmp_path_factory.mktemp("good")
  (home / "data").mkdir()
  rows = "".join(
    json.dumps({"question": f"{i} + 1?", "answer": str(i + 1)}) + "\n" for i in range(8)
  )
  for split in ("train", "test"):
    (home / "data" / f"{split}.jsonl").write_text(rows)
  c = defaults.get_config()
  c.steps, c.tokenizer, c.model.variant = 5, "words", "test_qwen3"
  c.data.name, c.data.path = "jsonl", str(home / "data")
  c.eval.problems, c.checkpoint.every, c.checkpoint.export = 0, 2, True
  c.log.writers = ()
  model = build.model(make(c), jax.devices()[:1])
  run_test.loop(c, model, home / "run", {"policy": Policy(model)})
  with Writer(str(home / "run"), c.log, 5, 5) as writer:
    writer.samples(5, [{"question": "1 + 1?", "completion": "2", "reward": 1.0, "advantage": 0.0}])
  (home / "run" / "compiled" / "some-cache").write_bytes(b"\x78\x9c\x03\x00\x00\x00\x00\x01")
  return home / "run"


@pytest.fixture
def run(good, tmp_path) -> pathlib.Path:
  """A copy of it."""
  return pathlib.Path(shutil.copytree(good, tmp_path / "run"))


def bad(folder: pathlib.Path) -> dict[str, str]:
  """What is not right, by its part."""
  lines = [*doctor.whole(str(folder)), *doctor.depends_on(str(folder))]
  return {line.part: line.state for line in lines if line.state in doctor.BAD}


def test_a_whole_folder_is_whole(good):
  before = {
    path: (path.stat().st_mtime_ns, path.read_bytes())
    for path in sorted(good.rglob("*"))
    if path.is_file()
  }
  assert bad(good) == {}
  lines = [*doctor.whole(str(good)), *doctor.depends_on(str(good))]
  by_part = {line.part: line for line in lines}
  assert (
    "arrays, " in by_part["checkpoints/5"].text
    and "all have their checksums" in by_part["checkpoints/5"].text
  )
  assert "5 lines of 5 have their checksums" in by_part["metrics.jsonl"].text
  assert by_part["data.path/train.jsonl"].state == by_part["version of jax"].state == "ok"
  assert (
    by_part["export"].state == "ok" and by_part["result.json"].text == "the run ended at step 5"
  )
  after = {
    path: (path.stat().st_mtime_ns, path.read_bytes())
    for path in sorted(good.rglob("*"))
    if path.is_file()
  }
  assert before == after  # it writes nothing


@pytest.mark.parametrize(
  "kind", [damage.flip, damage.truncate, damage.empty, damage.garbage, damage.delete]
)
def test_every_kind_of_damage_to_every_file_is_told(good, run, kind):
  for part in PARTS:
    kind(run / part)
    found = bad(run)
    shutil.copyfile(good / part, run / part)
    near = {
      name: state
      for name, state in found.items()
      if name.split("/")[0] in (part, part.split("/")[0])
    }
    logs_gone = kind in (damage.delete, damage.truncate, damage.empty) and part.endswith(".jsonl")
    assert near or (logs_gone and found), (part, found)
    assert part == "inputs.json" or set(found.values()) <= {"damaged", "missing"}, (part, found)
  assert bad(run) == {}


@pytest.mark.slow
@pytest.mark.long
def test_a_byte_of_a_checkpoint(good, run):
  newest = run / "checkpoints" / "5"
  told = 0
  for file in damage.files(newest):
    if file.stat().st_size == 0:
      continue
    content = file.read_bytes()
    damage.flip(file, 3)
    found = bad(run)
    file.write_bytes(content)
    assert set(found) <= {"checkpoints/5"}, (file, found)
    told += bool(found)
  assert told >= 2 and bad(run) == {}


@pytest.mark.parametrize("name", ["metrics.crc", "samples.crc", manifest.NAME])
def test_checksums_that_are_lost_or_damaged(run, name):
  damage.garbage(run / name)
  assert bad(run)
  (run / name).unlink()
  assert set(bad(run)) <= {
    "checkpoints/4",
    "checkpoints/5",
  }  # whose lengths of the logs say that it was there


def test_steps_that_are_not_there(run):
  lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
  (run / "metrics.jsonl").write_bytes(b"".join(lines[:2] + lines[3:]))
  found = {line.part: line for line in doctor.whole(str(run))}
  assert found["steps"].state == "missing" and "1 of 5 steps, the first 3" in found["steps"].text


def test_lines_that_were_not_written_are_not_missing(run):
  """Goes by the checksums: `log.every` may change."""
  for name in ("metrics.jsonl", "metrics.crc"):
    (run / name).unlink()
  with logs.Log(run / "metrics.jsonl") as log:
    log.write(*(json.dumps({"step": step}) for step in (1, 4, 5)))
  found = {line.part: line for line in doctor.whole(str(run))}
  assert (
    found["steps"].state == "note"
    and "no line of 2 of 5 steps, the first 2; all" in found["steps"].text
  )
  lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
  (run / "metrics.jsonl").write_bytes(lines[0] + lines[2])
  found = {line.part: line for line in doctor.whole(str(run))}
  assert found["steps"].state == "missing"
  for name in ("metrics.jsonl", "metrics.crc"):
    (run / name).unlink()
  found = {line.part: line for line in doctor.whole(str(run))}
  assert found["steps"].state == "missing" and "5 of 5 steps" in found["steps"].text


def test_checkpoints_that_are_gone(run):
  shutil.rmtree(run / "checkpoints")
  assert bad(run) == {"checkpoints": "missing"}


def test_programs_that_a_kill_cut_short(run):
  (run / "compiled" / "other-cache").write_bytes(b"\x78\x9c\x03")
  assert bad(run) == {"compiled": "damaged"}


def test_what_is_cut_off_and_what_was_set_aside_is_a_note(run):
  (run / "checkpoints" / "6.orbax-checkpoint-tmp-1").mkdir()
  (run / "damaged").mkdir()
  notes = {line.part for line in doctor.whole(str(run)) if line.state == "note"}
  assert bad(run) == {} and {"damaged", "checkpoints/6.orbax-checkpoint-tmp-1"} <= notes


def test_an_export_of_before_more_steps_is_a_note(run):
  result = json.loads((run / "result.json").read_text())
  (run / "result.json").write_text(json.dumps(result | {"steps": 4, "exported": 4}))
  manifest.record(str(run), manifest.END)
  (export,) = [line for line in doctor.whole(str(run)) if line.part == "export"]
  assert export.state == "note" and "of step 4, and the run has gone on since" in export.text


def test_data_that_changed_or_is_gone(good, run):
  data = good.parent / "data"
  kept = (data / "train.jsonl").read_text()
  try:
    (data / "train.jsonl").write_text(kept.replace("0 + 1", "0 + 2"))
    assert bad(run) == {"data.path/train.jsonl": "changed"}
    data.rename(data.with_name("away"))
    assert bad(run)["data.path/train.jsonl"] == "missing"
  finally:
    if not data.exists():
      data.with_name("away").rename(data)
    (data / "train.jsonl").write_text(kept)


def test_versions_and_code_that_changed(run):
  recorded = json.loads((run / "inputs.json").read_text())
  recorded |= {
    "version of jax": "0.0.1",
    "code of my_module": "12 bytes, 00",
    "code of /gone/reward.py": "7 bytes, 00",
  }
  recorded |= {f"code of {pathlib.Path(__file__)}": "7 bytes, 00"}
  (run / "inputs.json").write_text(json.dumps(recorded))
  manifest.record(str(run), manifest.START)
  assert bad(run) == {
    "version of jax": "changed",
    f"code of {pathlib.Path(__file__)}": "changed",
    "code of /gone/reward.py": "missing",
  }


def test_a_run_of_before_has_less_to_compare(run):
  for name in ("inputs.json", manifest.NAME, "metrics.crc", "samples.crc"):
    (run / name).unlink()
  for step in finished.steps(finished.directory(str(run))):
    (run / "checkpoints" / str(step)).rename(run / "checkpoints" / f"{step}.orbax-checkpoint-tmp-0")
  (run / "metrics.jsonl").write_text("")
  config = json.loads((run / "config.json").read_text())
  del config["log"]["bucket_seconds"]
  (run / "config.json").write_text(json.dumps(config))
  assert bad(run) == {}
  states = {
    line.part: line.state for line in [*doctor.whole(str(run)), *doctor.depends_on(str(run))]
  }
  assert states["inputs.json"] == states[manifest.NAME] == "unchecked"


def test_commands_warn_of_files_that_are_not_as_the_run_wrote_them(run, capsys):
  sources.check("--path", str(run), None)
  assert not capsys.readouterr().out
  for name, with_step in (
    ("config.json", True),
    ("model/tokenizer.json", True),
    ("export/model.safetensors", False),
  ):
    damage.flip(run / name)
    for step in (None, 5):
      sources.check("--path", str(run), step)
      assert (
        f"warning: --path='{run}': {name} is not as the run wrote it" in capsys.readouterr().out
      ) == (with_step or step is None)


def test_the_command_prints_a_table_and_its_exit_code_says_it(run, monkeypatch, capsys):
  def code(*arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["doctor", *arguments])
    with pytest.raises(SystemExit) as ended:
      doctor.main()
    return ended.value.code

  assert code(str(run)) == 0
  out = capsys.readouterr().out
  assert (
    out.endswith("all of it is whole, and nothing has changed\n")
    and max(map(len, out.splitlines())) <= doctor.WIDTH
  )
  damage.flip(run / "export" / "model.safetensors")
  assert code(str(run)) == 1
  assert "damaged    export/model.safetensors" in capsys.readouterr().out
  (run.parent / "empty").mkdir()
  for wrong in ([], [str(run / "none")], [str(run.parent / "empty")], ["s3://bucket/run"]):
    assert code(*wrong) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
