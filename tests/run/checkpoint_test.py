"""A run's folder: what is saved comes back bit for bit, and nothing that was saved is ever lost."""

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, environment

from grpo_jax.errors import CheckpointError, StorageError
from grpo_jax.io import storage
from grpo_jax.learning import optimizer, state
from grpo_jax.run import checkpoint, reasons
from grpo_jax.setup import defaults

TX = optimizer.make_optimizer(defaults.get_config().learner, 10)


def make_state(seed: float = 0.0, width: int = 4) -> state.TrainState:
  odd = jnp.array([jnp.nan, -0.0, 1e-45, -jnp.inf, 1 / 3, seed], jnp.float32)
  weight = jnp.arange(3.0 * width, dtype=jnp.float32).reshape(3, width) / 7 + seed
  s = state.create({"policy": {"odd": odd, "w": {"weight": weight}}}, TX)
  # Moments that are not zero, and counters that differ.
  s = jax.tree.map(lambda x: x + jnp.asarray(seed + 1, x.dtype), s)
  return state.TrainState(jnp.int32(5), s.params, s.opt_state, jnp.int32(1), jnp.int32(2))


def abstract(s: state.TrainState) -> state.TrainState:
  return state.abstract(s.params, TX)


def equal(a, b) -> bool:
  """Bitwise, NaNs and signs of zeros included."""
  return jax.tree.structure(a) == jax.tree.structure(b) and all(
    x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))
  )


@pytest.fixture
def saved(tmp_path):
  """Checkpoints of a workdir, closed at the end."""
  checkpoints = checkpoint.Checkpoints(str(tmp_path), keep=2)
  yield checkpoints
  checkpoints.close()


@pytest.fixture
def small_disk():
  """A disk that takes no file over 20 kB: `with small_disk(): ...` (a full disk in its first
  bytes).
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

  class Limit:
    def __enter__(self):
      resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))

    def __exit__(self, *_):
      resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

  return Limit


def test_a_checkpoint_comes_back_bit_for_bit(saved):
  s = make_state(0.1)
  data, extra = {"index": 7, "nested": {"a": [1, 2]}}, {"reference": "some/folder"}
  assert saved.restore_latest({"policy": abstract(s)}) is None
  saved.save(3, {"policy": s}, data, extra, wait=True)
  got = saved.restore_latest({"policy": abstract(s)})
  assert (got.step, got.data, got.extra) == (3, data, extra)
  assert equal(got.states["policy"], s)
  assert all(
    a.sharding == b.sharding
    for a, b in zip(jax.tree.leaves(got.states["policy"]), jax.tree.leaves(s))
  )


def test_the_last_ones_are_kept_and_a_step_is_saved_once(saved):
  for step in (1, 2, 3):
    saved.save(step, {"policy": make_state(step)}, {"step": step}, {})
  saved.save(3, {"policy": make_state(99)}, {"step": 99}, {})
  saved.wait()
  assert sorted(p.name for p in saved.directory.iterdir()) == ["2", "3"]
  assert saved.latest() == 3
  assert saved.restore_latest({"policy": abstract(make_state())}).data == {"step": 3}


def test_lines_written_after_a_checkpoint_are_cut(tmp_path):
  metrics, samples, other = (
    tmp_path / name for name in ("metrics.jsonl", "samples.jsonl", "notes.txt")
  )
  metrics.write_text('{"step": 0}\n')
  other.write_text("kept")
  checkpoints = checkpoint.Checkpoints(str(tmp_path), keep=1)
  assert checkpoints.restore_latest({"policy": abstract(make_state())}) is None
  assert metrics.read_text() == ""  # of a process that was killed before its first checkpoint
  for step in (0, 1):
    metrics.write_text('{"step": 0}\n' * (step + 1))
    checkpoints.save(step, {"policy": make_state()}, {}, {}, wait=True)
  with metrics.open("a") as f:
    f.write('{"step": 1}\n{"st')
  samples.write_text('{"step": 1}\n')
  checkpoints.restore_latest({"policy": abstract(make_state())})
  checkpoints.close()
  assert metrics.read_text() == '{"step": 0}\n' * 2
  assert (samples.read_text(), other.read_text()) == ("", "kept")
  metrics.write_text("")  # shorter than it was: left as it is
  checkpoint.Checkpoints(str(tmp_path), keep=1).restore_latest({"policy": abstract(make_state())})
  assert metrics.read_text() == ""


def test_only_the_logs_of_the_run_are_ever_cut(tmp_path):
  """A user's own data may lie in the workdir, under any other name."""
  data = [tmp_path / name for name in ("train.jsonl", "test.jsonl", "metrics.jsonl.bak")]
  for path in data:
    path.write_text('{"question": "1+1", "answer": "2"}\n')
  log = tmp_path / "metrics.jsonl"
  log.write_text('{"step": 0}\n')
  for step in (None, 1):
    checkpoints = checkpoint.Checkpoints(str(tmp_path), keep=1)
    if step:
      checkpoints.save(step, {"policy": make_state()}, {}, {}, wait=True)
      for path in (*data, log):
        path.write_text(path.read_text() + '{"more": 1}\n')
    checkpoints.restore_latest({"policy": abstract(make_state())})
    checkpoints.close()
    assert log.read_text() == ""
    assert [path.read_text().count("\n") for path in data] == [2 if step else 1] * 3


def test_arrays_may_be_donated_as_soon_as_save_returns(tmp_path):
  overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
  # long enough to be written that the writes overlap
  big = jnp.arange(12_000_000, dtype=jnp.float32) + 0
  checkpoints = checkpoint.Checkpoints(str(tmp_path), keep=1)
  checkpoints.save(1, {"policy": {"params": {"big": big}}}, {}, {})
  running = checkpoints._manager.is_saving_in_progress()
  for _ in range(3):
    big = overwrite(big)
  big.block_until_ready()
  checkpoints.wait()
  assert running, "the save was over too soon for this test to show anything"
  params = {"big": jax.ShapeDtypeStruct(big.shape, big.dtype, sharding=big.sharding)}
  got = checkpoint.restore_params(str(tmp_path), params)
  assert np.array_equal(got["big"], np.arange(12_000_000, dtype=np.float32))
  checkpoints.close()


def test_a_failed_save_loses_nothing_and_says_what_is_safe(tmp_path, small_disk, capfd, caplog):
  noise = jax.random.normal(jax.random.key(0), (100, 100))  # 40 kB that do not compress
  s = state.create({"policy": {"weight": noise}}, TX)
  checkpoints = checkpoint.Checkpoints(str(tmp_path), keep=1)
  checkpoints.save(1, {"policy": s}, {"step": 1}, {}, wait=True)
  for fail in (  # found at once, at the next save, at the end
    lambda: checkpoints.save(2, {"policy": s}, {"step": 2}, {}, wait=True),
    lambda: [checkpoints.save(i, {"policy": s}, {"step": i}, {}) for i in (3, 4)],
    lambda: [checkpoints.save(5, {"policy": s}, {"step": 5}, {}), checkpoints.wait()],
  ):
    with (
      small_disk(),
      pytest.raises(StorageError, match="File too large.*step 1 is complete") as error,
    ):
      fail()
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
    assert checkpoints.latest() == 1
  checkpoints.close()
  assert "Traceback" not in capfd.readouterr().err
  assert not [record for record in caplog.records if record.levelname == "ERROR"]
  checkpoints = checkpoint.Checkpoints(str(tmp_path), keep=1)
  got = checkpoints.restore_latest({"policy": abstract(s)})
  assert got.data == {"step": 1} and equal(got.states["policy"], s)
  checkpoints.save(6, {"policy": s}, {"step": 6}, {}, wait=True)
  checkpoints.close()
  # Threads of this process may still write for the save that failed: such a folder has no final
  # name, and goes later.
  assert [p.name for p in checkpoints.directory.iterdir() if p.name.isdigit()] == ["6"]


def test_saving_where_the_folder_has_gone_read_only(saved, monkeypatch):
  saved.save(1, {"policy": make_state()}, {}, {}, wait=True)

  def refuse(*_, **__):
    raise OSError(30, os.strerror(30))

  monkeypatch.setattr(saved._manager, "save", refuse)
  with pytest.raises(StorageError, match="Read-only file system.*step 1 is complete"):
    saved.save(2, {"policy": make_state()}, {}, {})


def test_what_an_interrupted_save_left_is_not_a_checkpoint(tmp_path):
  checkpoints = checkpoint.Checkpoints(str(tmp_path), keep=2)
  checkpoints.save(1, {"policy": make_state()}, {"step": 1}, {}, wait=True)
  checkpoints.close()
  left = checkpoints.directory / "2.orbax-checkpoint-tmp" / "state"
  left.mkdir(parents=True)
  (left / "half").write_text("x")
  params = abstract(make_state()).params
  # by a reader, meanwhile
  assert equal(checkpoint.restore_params(str(tmp_path), params), make_state().params)
  checkpoints = checkpoint.Checkpoints(str(tmp_path), keep=2)
  assert not left.exists()
  assert checkpoints.restore_latest({"policy": abstract(make_state())}).step == 1
  checkpoints.save(2, {"policy": make_state()}, {"step": 2}, {}, wait=True)
  assert checkpoints.restore_latest({"policy": abstract(make_state())}).data == {"step": 2}
  checkpoints.close()


def test_a_damaged_checkpoint_is_passed_over_and_set_aside(saved, tmp_path):
  for step in (1, 2):
    saved.save(step, {"policy": make_state(step)}, {"step": step}, {}, wait=True)
  about = saved.directory / "2" / "about" / "metadata"
  about.write_text(about.read_text().replace('"step": 2', '"step": 3', 1))
  got = saved.restore_latest({"policy": abstract(make_state())})
  assert got.step == 1 and got.data == {"step": 1} and equal(got.states["policy"], make_state(1))
  assert got.passed_over == ["checkpoint 2 is damaged (about/metadata is not what was saved)"]
  assert (tmp_path / "damaged" / "2" / "state").is_dir() and saved.latest() == 1
  saved.save(2, {"policy": make_state(5)}, {}, {}, wait=True)  # the step is saved anew
  assert equal(
    saved.restore_latest({"policy": abstract(make_state())}).states["policy"], make_state(5)
  )


@pytest.mark.parametrize(
  "error, kind, said",
  [
    (OSError(errno.ESTALE, "stale"), StorageError, "cannot be read now .*nothing was changed"),
    (ValueError("x os_error_code='116' y"), StorageError, "cannot be read now"),
    (TimeoutError(), StorageError, "cannot be read now"),
    (PermissionError(errno.EACCES, "denied"), StorageError, "cannot be read now"),
    (MemoryError(), CheckpointError, "not enough memory to restore it"),
    (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GB"), CheckpointError, "not enough memory"),
  ],
)
def test_a_checkpoint_that_may_be_whole_is_not_set_aside(saved, monkeypatch, error, kind, said):
  for step in (1, 2):
    saved.save(step, {"policy": make_state(step)}, {}, {}, wait=True)

  def fails(*_):
    raise error

  monkeypatch.setattr(checkpoint, "_restore", fails)
  with pytest.raises(kind, match=said):
    saved.restore_latest({"policy": abstract(make_state())})
  assert saved.latest() == 2 and not saved.directory.with_name("damaged").exists()


@pytest.mark.parametrize(
  ("error", "later"),
  [
    (type("HttpError", (Exception,), {"__module__": "gcsfs.retry"})("503"), True),
    (ValueError("UNAVAILABLE: Error reading gs://b/c"), True),
    (ConnectionResetError(), True),
    (ValueError("DATA_LOSS: Error decoding"), False),
    (FileNotFoundError(), False),
    (json.JSONDecodeError("x", "y", 0), False),
  ],
)
def test_a_bucket_that_does_not_answer_damages_nothing(error, later):
  assert reasons.may_answer_later(storage.place("gs://bucket/run/1"), error) == later


def test_a_save_for_which_there_is_no_memory_blames_no_disk(tmp_path, monkeypatch):
  checkpoints = checkpoint.Checkpoints(str(tmp_path), keep=1)

  def fails(_):
    raise MemoryError

  monkeypatch.setattr(checkpoint, "checksums", fails)
  with pytest.raises(MemoryError):
    checkpoints.save(1, {"policy": make_state(0)}, {}, {})


def test_nothing_is_moved_where_nothing_can_be_restored(saved):
  for step in (1, 2):
    saved.save(step, {"policy": make_state()}, {}, {}, wait=True)
  why = r"policy.w.weight is \(3, 4\) there and \(3, 5\) here"
  with pytest.raises(
    CheckpointError,
    match=f"nothing in .*checkpoint 2: {why}; checkpoint 1: {why}.*another --workdir",
  ):
    saved.restore_latest({"policy": abstract(make_state(width=5))})
  assert saved.latest() == 2


def test_checkpoints_that_vanished_are_no_fresh_start(tmp_path, saved):
  (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 12, "loss": 1}\n{"st')
  with pytest.raises(
    CheckpointError, match="metrics.jsonl tells of 12 steps and there is no checkpoint"
  ):
    saved.restore_latest({"policy": abstract(make_state())})
  assert (tmp_path / "metrics.jsonl").stat().st_size > 12


def test_parameters_of_another_run(tmp_path, saved):
  s = make_state(0.3)
  with pytest.raises(CheckpointError, match="init_from=.*no complete checkpoint"):
    checkpoint.restore_params(str(tmp_path), abstract(s).params)
  saved.save(4, {"policy": s}, {}, {}, wait=True)
  assert equal(checkpoint.restore_params(str(tmp_path), abstract(s).params), s.params)
  with pytest.raises(
    CheckpointError, match=r"init_from=.*policy.w.weight is \(3, 4\) there and \(3, 5\) here"
  ):
    checkpoint.restore_params(str(tmp_path), abstract(make_state(width=5)).params)
  with pytest.raises(CheckpointError, match="init_from=.*it has no critic.odd"):
    checkpoint.restore_params(str(tmp_path), {"critic": abstract(s).params["policy"]})


ON_EIGHT = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from grpo_jax.setup import defaults
from grpo_jax.run import checkpoint
from grpo_jax.learning import optimizer as optim
from grpo_jax.learning import state
assert jax.device_count() == 8
tx = optim.make_optimizer(defaults.get_config().learner, 10)
mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
cut, whole = NamedSharding(mesh, P("fsdp", "tensor")), NamedSharding(mesh, P())
weight = jax.random.normal(jax.random.key(0), (8, 6))
params = {"policy": {"weight": jax.device_put(weight, cut), "bias": jax.device_put(weight[0], whole)}}
s = state.create(params, tx)
for _ in range(2):
  s, _ = jax.jit(optim.apply_if_finite, static_argnums=0)(tx, s.params, jnp.float32(0), s)
checkpoints = checkpoint.Checkpoints(sys.argv[1], keep=1)
checkpoints.save(2, {"policy": s}, {}, {}, wait=True)
got = checkpoints.restore_latest({"policy": state.abstract(params, tx)}).states["policy"]
assert all(a.sharding == b.sharding for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(s)))
checkpoints.close()
np.savez(sys.argv[2], *map(np.asarray, jax.tree.leaves(s)))
"""


def test_eight_devices_save_and_one_restores(tmp_path):
  leaves = tmp_path / "leaves.npz"
  subprocess.run(
    [sys.executable, "-c", ON_EIGHT, tmp_path / "run", leaves],
    env=environment(8),
    cwd=ROOT,
    check=True,
  )
  one = jax.sharding.SingleDeviceSharding(jax.devices()[0])

  def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=one)

  params = {"policy": {"weight": struct(8, 6), "bias": struct(6)}}
  checkpoints = checkpoint.Checkpoints(str(tmp_path / "run"), keep=1)
  got = checkpoints.restore_latest({"policy": state.abstract(params, TX)}).states["policy"]
  checkpoints.close()
  assert all(leaf.sharding == one for leaf in jax.tree.leaves(got))
  assert got.step == 2
  with np.load(leaves) as expected:
    assert equal(jax.tree.leaves(got), [expected[name] for name in expected.files])


HOST = """
import sys, time
import jax, jax.numpy as jnp, numpy as np
(workdir, port), (pause, rank) = sys.argv[1:3], map(int, sys.argv[3:])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=rank)
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from grpo_jax.setup import defaults
from grpo_jax.run import checkpoint
from grpo_jax.run import signals
from grpo_jax.learning import optimizer as optim
from grpo_jax.learning import state
from grpo_jax.run.workdir import claim
claim(workdir, {})
mesh = jax.make_mesh((2,), ("fsdp",), axis_types=(AxisType.Auto,))
make = lambda: {"policy": {"weight": jnp.arange(8.0).reshape(2, 4)}}
params = jax.jit(make, out_shardings=NamedSharding(mesh, P("fsdp")))()
tx = optim.make_optimizer(defaults.get_config().learner, 10)
checkpoints = checkpoint.Checkpoints(workdir, keep=1)
got = checkpoints.restore_latest({"policy": state.abstract(params, tx)})
first, s = (got.step, got.states["policy"]) if got else (0, state.create(params, tx))
shard = s.params["policy"]["weight"].addressable_shards[0]
assert np.array_equal(shard.data, np.arange(8.0).reshape(2, 4)[shard.index])
with signals.stop_signals() as stopping:
  if not pause:
    print("ready", flush=True)
  for step in range(first + 1, first + 1000):
    time.sleep(0.02)
    if step == first + pause:
      checkpoints.save(step - 1, {"policy": s}, {}, {}, wait=True)
      print("ready", flush=True)
      time.sleep(3)  # jax looks for a signal once a second
    if name := stopping():
      checkpoints.save(step, {"policy": s}, {}, {}, wait=True)
      break
checkpoints.close()
print(f"from {first} to {step} by {name}", flush=True)
"""


@pytest.mark.slow
def test_a_signal_to_one_of_two_hosts_stops_both_at_one_step(tmp_path):
  """Stops a first run; then a resumed one in its first step, and one just after it has saved."""
  first = 0
  for number, pause in ((signal.SIGTERM, 0), (signal.SIGTERM, 1), (signal.SIGINT, 4)):
    with socket.socket() as s:
      s.bind(("localhost", 0))
      port = str(s.getsockname()[1])
    command = [sys.executable, "-c", HOST, str(tmp_path), port, str(pause)]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    hosts = [
      subprocess.Popen([*command, str(rank)], cwd=ROOT, env=environment(1), **pipe)
      for rank in range(2)
    ]
    try:
      assert all(any(line == "ready\n" for line in host.stdout) for host in hosts)
      hosts[1].send_signal(number)
      outs = [host.communicate(timeout=60) for host in hosts]
    finally:
      for host in hosts:
        host.kill()
    assert outs[0][0] == outs[1][0].replace(number.name, "SIGTERM"), outs
    words = outs[0][0].split()  # from A to B by NAME
    start, step = int(words[1]), int(words[3])
    assert start == first and (step == start + pause if pause else step > start), outs
    assert outs[1][0].split()[5] == number.name
    first = step
