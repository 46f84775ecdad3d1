"""Which checkpoints of a folder are complete."""

import subprocess
import sys

from grpo_jax.run import finished


def test_names_say_what_is_complete(tmp_path):
  places = finished.directory(str(tmp_path))
  assert finished.steps(places) == [] and finished.latest(places) is None
  assert finished.incomplete(places) == []
  for name in ("10", "9", "11.orbax-checkpoint-tmp-0", "notes"):
    (places / name).mkdir(parents=True)
  assert finished.steps(places) == [9, 10] and finished.latest(places) == 10
  assert [path.name for path in finished.incomplete(places)] == ["11.orbax-checkpoint-tmp-0"]
  assert sorted(path.name for path in finished.folders(places)) == ["10", "9"]


def test_a_folder_on_a_disk_is_looked_into_without_jax(tmp_path):
  code = (
    "import sys; from grpo_jax.run import finished; "
    "finished.latest(finished.directory(sys.argv[1])); assert 'jax' not in sys.modules"
  )
  subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
