"""Damaged lines of a run's logs are noticed, counted and read past; what is whole is read as it was
written.
"""

import io
import json
import pathlib

import damage
import pytest
import rich.console
from ml_collections import ConfigDict

from grpo_jax.io import storage
from grpo_jax.reports import inspector, jsonl
from grpo_jax.run import logs, workdir
from grpo_jax.run.writer import LOGS, Writer

LINES = 8


def write(folder: pathlib.Path, lines: int = LINES, first: int = 0) -> None:
  """What a run writes in so many steps."""
  log = ConfigDict(
    {"every": 1, "samples_every": 0, "samples": 1, "writers": (), "bucket_seconds": 60.0}
  )
  with Writer(
    str(folder), log, lines, first, console=rich.console.Console(file=io.StringIO())
  ) as writer:
    for step in range(first, first + lines):
      writer.step(step, {"reward/mean": 0.5, "loss": 0.25, "text": "漢字"})
      writer.samples(
        step + 1, [{"question": "1 + 1?", "completion": "half a pair \ud83d", "reward": 1.0}]
      )


def steps(folder: pathlib.Path, name: str = "metrics.jsonl") -> list[int]:
  return [line["step"] for line in jsonl.read(storage.place(folder) / name)]


def test_a_log_is_json_and_nothing_else(tmp_path):
  write(tmp_path)
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert lines[0] == {"step": 1, "reward/mean": 0.5, "loss": 0.25, "text": "漢字"}
  found = logs.read(storage.place(tmp_path / "metrics.jsonl"))
  assert (found.damaged, found.lines, found.checked, found.sums) == ([], LINES, LINES, 0)
  assert [line for _, line in found.objects] == lines


@pytest.mark.parametrize("name", LOGS)
def test_whatever_byte_changes_one_line_is_left_out_with_a_warning(tmp_path, capsys, name):
  """Of a newline it is the two lines that it stood between, which have become one."""
  write(tmp_path)
  file = tmp_path / name
  content = file.read_bytes()
  for place in range(len(content)):
    for bit in (1, 64):
      changed = bytearray(content)
      changed[place] ^= bit
      file.write_bytes(changed)
      hit = content[:place].count(b"\n") + 1
      merged = content[place : place + 1] == b"\n"
      left = [
        step for step in range(1, LINES + 1) if step != hit and not (merged and step == hit + 1)
      ]
      assert steps(tmp_path, name) == left, (place, bit)
      said = capsys.readouterr().err
      lines = LINES - (merged and hit < LINES)
      split = changed[place : place + 1] == b"\n"
      if not split:
        assert (
          said == f"warning: {file}: 1 line of {lines} is damaged (line {hit}); it is left out\n"
        )
      else:
        assert said.startswith(f"warning: {file}: ") and "damaged (line" in said


def test_a_line_in_the_middle_does_not_end_the_report(tmp_path, capsys):
  """Also where there are no checksums: in a log that was written before there were any."""
  write(tmp_path)
  lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
  lines[2] = b"\xff" + lines[2][1:]
  (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
  (tmp_path / "metrics.crc").unlink()
  assert steps(tmp_path) == [1, 2, 4, 5, 6, 7, 8]
  assert (
    f"{tmp_path}/metrics.jsonl: 1 line of 8 is damaged (line 3); it is left out"
    in capsys.readouterr().err
  )


def test_a_last_line_that_a_kill_cut_off_is_no_damage(tmp_path, capsys):
  write(tmp_path)
  with (tmp_path / "metrics.jsonl").open("ab") as file:
    file.write(b'{"step": 9, "re')
  assert steps(tmp_path) == [*range(1, 9)] and not capsys.readouterr().err


def test_a_log_of_before_is_gone_on_with_and_read_without_a_word(tmp_path, capsys):
  write(tmp_path, 3)
  (tmp_path / "metrics.crc").unlink()
  write(tmp_path, 3, 3)
  found = logs.read(storage.place(tmp_path / "metrics.jsonl"))
  assert (found.lines, found.checked, found.damaged) == (6, 3, [])
  assert steps(tmp_path) == [1, 2, 3, 4, 5, 6] and not capsys.readouterr().err


def test_checksums_that_are_damaged_themselves_damage_no_line(tmp_path, capsys):
  write(tmp_path)
  sums = (tmp_path / "metrics.crc").read_bytes()
  for place in range(0, len(sums), 7):
    changed = bytearray(sums)
    changed[place] ^= 1
    (tmp_path / "metrics.crc").write_bytes(changed)
    assert steps(tmp_path) == [*range(1, 9)]
    assert logs.read(storage.place(tmp_path / "metrics.jsonl")).sums in (1, 2)
  for kind in (damage.truncate, damage.empty, damage.garbage, damage.delete):
    (tmp_path / "metrics.crc").write_bytes(sums)
    kind(tmp_path / "metrics.crc")
    assert steps(tmp_path) == [*range(1, 9)]
  assert not capsys.readouterr().err


def test_a_line_that_a_person_deleted_leaves_the_others_right(tmp_path, capsys):
  write(tmp_path)
  lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
  (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines[:2] + lines[3:]))
  assert steps(tmp_path) == [1, 2, 4, 5, 6, 7, 8] and not capsys.readouterr().err


def test_checksums_are_cut_back_with_their_log(tmp_path):
  write(tmp_path, 3)
  lengths = workdir.log_lengths(str(tmp_path))
  assert set(lengths) == {"metrics.jsonl", "metrics.crc", "samples.jsonl", "samples.crc"}
  before = {name: (tmp_path / name).read_bytes() for name in lengths}
  write(tmp_path, 3, 3)
  assert workdir.cut_back(str(tmp_path), lengths) == {}
  assert {name: (tmp_path / name).read_bytes() for name in lengths} == before
  # A checkpoint of before there were checksums knows of none.
  old = {name: length for name, length in lengths.items() if name.endswith("jsonl")}
  assert workdir.cut_back(str(tmp_path), old) == {}
  write(tmp_path, 3, 3)
  found = logs.read(storage.place(tmp_path / "metrics.jsonl"))
  assert (found.lines, found.checked, found.damaged) == (6, 3, [])


def test_what_is_lost_of_a_log_and_written_again_is_whole(tmp_path):
  write(tmp_path, 3)
  lengths = workdir.log_lengths(str(tmp_path))
  damage.truncate(tmp_path / "metrics.jsonl")
  assert "metrics.jsonl" in workdir.cut_back(str(tmp_path), lengths)
  write(tmp_path, 3, 3)
  assert logs.read(storage.place(tmp_path / "metrics.jsonl")).damaged == [] and steps(tmp_path) == [
    1,
    4,
    5,
    6,
  ]


def test_steps_are_counted_past_a_damaged_line(tmp_path):
  write(tmp_path)
  file = tmp_path / "metrics.jsonl"
  file.write_bytes(file.read_bytes().replace(b'{"step": 8,', b'{"step": 9,'))
  assert workdir.steps_logged(str(tmp_path)) == 7


def test_many_damaged_lines_are_counted_and_the_first_named():
  assert logs.told([], 9) == ""
  assert logs.told([3], 8) == "1 line of 8 is damaged (line 3)"
  assert logs.told([1, 4], 8) == "2 lines of 8 are damaged (lines 1, 4)"
  assert (
    logs.told([*range(1, 9)], 20) == "8 lines of 20 are damaged (lines 1, 2, 3, 4, 5 and 3 more)"
  )


def test_the_page_has_the_samples_that_are_whole(tmp_path, capsys):
  write(tmp_path)
  file = tmp_path / "samples.jsonl"
  file.write_bytes(file.read_bytes().replace(b'"reward": 1.0', b'"reward": 7.0', 1))
  text = inspector.write(str(tmp_path)).read_text()
  assert text.count('"reward":1.0') == LINES - 1 and '"reward":7.0' not in text
  assert "1 line of 8 is damaged (line 1)" in capsys.readouterr().err


def test_the_end_of_a_log_can_be_read_alone(tmp_path):
  write(tmp_path)
  path = storage.place(tmp_path / "metrics.jsonl")
  lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
  for count in (0, 1, 3, LINES):
    size = sum(map(len, lines[LINES - count :]))
    for more in (0, len(lines[0]) - 1) if count < LINES else (0, 10**6):
      found = logs.read(path, size + more)
      assert [line["step"] for _, line in found.objects] == [*range(LINES - count + 1, LINES + 1)]
      assert [number for number, _ in found.objects] == [*range(LINES - count + 1, LINES + 1)]
      assert (found.checked, found.damaged, found.lost) == (count, [], 0)


def test_damage_is_found_without_keeping_what_is_whole(tmp_path):
  write(tmp_path)
  file = tmp_path / "metrics.jsonl"
  file.write_bytes(file.read_bytes().replace(b'"loss": 0.25', b'"loss": 0.75', 1))
  found = logs.read(storage.place(file), keep=False)
  assert (found.objects, found.damaged, found.lines, found.checked) == ([], [1], LINES, LINES - 1)
  assert logs.damage(storage.place(file)) == "1 line of 8 is damaged (line 1)"


def test_lines_that_are_lost_at_the_end_are_counted(tmp_path):
  write(tmp_path)
  file = tmp_path / "metrics.jsonl"
  lines = file.read_bytes().splitlines(keepends=True)
  file.write_bytes(b"".join(lines[:5]))
  assert logs.read(storage.place(file)).lost == 3
  file.unlink()
  assert logs.read(storage.place(file)).lost == LINES
