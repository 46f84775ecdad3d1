"""Plans of runs: memory by part, the estimate, the page; and, slowly, small ones compiled for real
topologies.
"""

import pytest


def test_the_command_refuses_in_a_line(program):
  done = program("launch.plan", "--config=experiments/gsm8k.py:model=tiny", "--topology=v9:2x2")
  assert done.returncode == 2 and done.stdout == ""
  assert (
    done.stderr.startswith("error: --topology=v9:2x2: use FAMILY:SHAPE")
    and done.stderr.count("\n") == 1
  )


@pytest.mark.parametrize("mode, flag", [("--sweep", "--price=1"), ("--scaling", "--slices=2")])
def test_flags_that_are_not_read_are_refused(program, mode, flag):
  config = "--config=experiments/gsm8k.py:model=tiny"
  done = program("launch.plan", config, "--topology=v5e:2x2", mode, flag)
  name = flag.partition("=")[0]
  assert done.returncode == 2
  assert done.stderr == f"error: {name} with {mode}: it is not read there; leave it out\n"


@pytest.mark.parametrize("mode", [(), ("--scaling",)])
def test_the_most_plans_of_no_sweep_are_refused(program, mode):
  config = "--config=experiments/gsm8k.py:model=tiny"
  done = program("launch.plan", config, "--topology=v5e:2x2", "--most=3", *mode)
  assert done.returncode == 2
  assert done.stderr == "error: --most without --sweep: it is not read there; leave it out\n"


@pytest.mark.parametrize(
  "out, mode, says",
  [
    ("notes.md", (), "notes.md exists and is not a page of this command, or its plot"),
    ("new.md", ("--scaling",), "new.png exists and is not a page of this command"),
    ("notes.png", (), "use a name that ends with .md"),
    ("plans/new.md", (), "plans is no folder that can be written to"),
    ("", ("--scaling",), "--scaling without --out: it draws a plot beside its page"),
  ],
)
def test_a_page_takes_no_other_files_place(program, tmp_path, out, mode, says):
  """Before anything is compiled."""
  (tmp_path / "notes.md").write_text("# Plan: holidays\n")
  (tmp_path / "new.png").touch()
  config = "--config=experiments/gsm8k.py:model=tiny"
  place = [f"--out={tmp_path}/{out}"] if out else []
  done = program("launch.plan", config, "--topology=v5e:2x2", *mode, *place)
  assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
  assert says in done.stderr
  assert (tmp_path / "notes.md").read_text() == "# Plan: holidays\n"


TWO_SLICES = ("--slices=2", "--config.mesh.replica=2", "--config.mesh.group=2")


@pytest.mark.slow
@pytest.mark.parametrize(
  "where, more",
  [
    pytest.param("v5e:2x2", (), marks=pytest.mark.long),
    pytest.param("v5p:2x2x1", (), marks=pytest.mark.long),
    ("v5e:2x2", TWO_SLICES),
  ],
)
def test_a_small_run_is_planned_for_a_topology(where, more, program, tmp_path):
  pytest.importorskip("libtpu", reason="the compiler for TPUs is not installed (extra tpu)")
  arguments = (
    "--config=experiments/gsm8k.py:model=tiny",
    f"--topology={where}",
    *more,
    f"--cache={tmp_path}/cache",
  )
  page_file = tmp_path / "tiny.md"
  first = program("launch.plan", *arguments, f"--out={page_file}", timeout=600)
  assert first.returncode == 0, first.stderr
  assert "compiling the learn program" in first.stdout and "**It fits**" in first.stdout
  text = page_file.read_text()
  assert text in first.stdout and "all-gather" in text and ("GB cross slices" in text) == bool(more)
  again = program("launch.plan", *arguments, timeout=600)
  assert "compiling" not in again.stdout and text.partition("## Memory")[2] in again.stdout
