"""Compiled programs are kept from one process to the next, where the setting says."""

import os
import shutil
import subprocess
import sys

import conftest
import damage
import jax
import pytest

from grpo_jax.errors import SettingError
from grpo_jax.run import compile_cache

# Compiles a program in DIR, by its argument, and prints the numbers that it gives and what was
# kept.
COMPILES = """
import sys, jax, jax.numpy as jnp
from grpo_jax.run import compile_cache as compiled
with compiled.kept("workdir", sys.argv[1]) as programs:
  x = jax.jit(lambda x: jnp.tanh(x @ x.T).sum(1))(jnp.arange(12.0).reshape(3, 4) / 7)
  print(x.tobytes().hex(), programs.added, programs.read)
"""


def compiles(workdir):
  """Numbers, how many programs were added and how many were read."""
  env = conftest.environment(JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")
  command = [sys.executable, "-c", COMPILES, str(workdir)]
  done = subprocess.run(
    command, cwd=conftest.ROOT, env=env, text=True, capture_output=True, timeout=120
  )
  assert done.returncode == 0, done.stderr
  numbers, added, read = done.stdout.split()
  return numbers, int(added), int(read), done.stderr


@pytest.mark.slow
def test_a_restart_compiles_nothing_and_gives_the_same_numbers(tmp_path):
  fresh, added, read, _ = compiles(tmp_path)
  assert added > 0 and read == 0
  again, added_again, read_again, _ = compiles(tmp_path)
  assert again == fresh and added_again == 0 and read_again == added
  entries = sorted((tmp_path / "compiled").glob("*-cache"), key=lambda path: path.stat().st_size)
  whole = entries[-1].read_bytes()
  for crc in (
    True,
    False,
  ):  # with the checksum that the process before has kept, and of a process that was killed
    if not crc:
      (tmp_path / "compiled" / compile_cache.SUMS).unlink()
    entries[-1].write_bytes(whole[: len(whole) // 2])
    mended, added_then, read_then, said = compiles(tmp_path)
    assert (mended, added_then, read_then) == (fresh, 1, read_again - 1) and "Error" not in said
    last, added_last, read_last, said = compiles(tmp_path)
    assert (last, added_last, read_last) == (fresh, 0, read_again) and "Error" not in said


def test_an_entry_that_is_not_what_was_compiled_is_compiled_anew(tmp_path):
  """Of one changed byte the packing itself says nothing."""
  fresh, added, _, _ = compiles(tmp_path)
  for seed, entry in enumerate(sorted((tmp_path / "compiled").glob("*-cache"))):
    damage.flip(entry, seed)
  again, added_again, read, said = compiles(tmp_path)
  assert (again, added_again, read) == (fresh, added, 0) and "Error" not in said


def test_only_entries_are_removed_and_none_that_is_being_written(tmp_path):
  folder = tmp_path / "shared"
  folder.mkdir()
  for name in ("half-cache", "mine.txt", "old-cache", "old-atime"):
    (folder / name).write_bytes(b"half")
  os.utime(folder / "old-cache", (0, 0))
  for text in ("{", '["half-cache"]', '{"half-cache": 7}'):
    (folder / compile_cache.SUMS).write_text(text)
    with compile_cache.kept(str(folder), "run"):
      assert sorted(p.name for p in folder.iterdir()) == [
        compile_cache.SUMS,
        "half-cache",
        "mine.txt",
        "old-atime",
      ]
      assert not compile_cache.examine(str(folder))["half-cache"][0]
  (tmp_path / "run").mkdir()
  shutil.copytree(folder, tmp_path / "run" / "compiled")
  with compile_cache.kept("workdir", str(tmp_path / "run")):  # the lock keeps other processes out
    assert sorted(p.name for p in (tmp_path / "run" / "compiled").iterdir()) == [
      compile_cache.SUMS,
      "mine.txt",
      "old-atime",
    ]


def test_the_folder_is_a_setting_and_ends_with_the_block(tmp_path):
  before = jax.config.jax_compilation_cache_dir
  for setting, folder in (
    ("workdir", tmp_path / "run" / "compiled"),
    (str(tmp_path / "own"), tmp_path / "own"),
  ):
    with compile_cache.kept(setting, f"{tmp_path}/run/") as programs:
      assert programs.folder == jax.config.jax_compilation_cache_dir == str(folder)
      assert folder.is_dir()
    assert jax.config.jax_compilation_cache_dir == before
  with compile_cache.kept("", str(tmp_path / "none")) as programs:
    assert jax.config.jax_compilation_cache_dir == before and str(programs) == ""
  assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_is_refused(tmp_path):
  (tmp_path / "file").touch()
  for setting, said in (
    (f"{tmp_path}/file/in", "cannot be written .*; use another folder"),
    ("s3://bucket/x", "s3:// is not supported"),
  ):
    with (
      pytest.raises(SettingError, match=f"^compilation_cache='{setting}': .*{said}"),
      compile_cache.kept(setting, "x"),
    ):
      pass
  with pytest.raises(SettingError, match="^compilation_cache='workdir': "):
    with compile_cache.kept("workdir", os.fspath(tmp_path / "file")):
      pass


@pytest.mark.parametrize(
  ("setting", "shown"), [("programs", "programs"), (compile_cache.IN_WORKDIR, "runs/1/compiled")]
)
def test_a_folder_is_shown_as_it_was_given(setting, shown, tmp_path, monkeypatch):
  """Keeps folders of the machine that ran a notebook out of its outputs."""
  monkeypatch.chdir(tmp_path)
  with compile_cache.kept(setting, "runs/1") as programs:
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / shown)
  assert str(programs) == f"; programs: 0 compiled for {shown}, 0 read from it"
