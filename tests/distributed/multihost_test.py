"""Several hosts are one run: the same numbers, one end, one place to go on from. Real processes:
several_hosts.py.
"""

import pathlib
import re
import shutil
import sys

import numpy as np
import pytest
import tiny_episodes
from several_hosts import Hosts, errors, free_port, start, wait

from grpo_jax.distributed import lifeline
from grpo_jax.errors import SettingError, StorageError

MOST_SECONDS = 60  # from what happened to one host to the end of all

# What jax's C++ client says where the process that its service was in has gone.
JAX_CLIENT = re.compile(
  r"Additional GRPC error information from remote target coordination_service|:UNKNOWN:Error received from peer|"
  r"[EF]\d{4} .* (preemption_sync_manager\.cc|coordination_service_agent\.cc|client\.h):\d+\] "
)

# `python -c` this PORT PROCESS: a run's parts without a model, and a kill.
PARTS = """
import os, sys, time
import jax, numpy as np
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
from jax.sharding import PartitionSpec
import tiny
from grpo_jax.sampling import rollouts
from grpo_jax.distributed import hosts
from grpo_jax.errors import DataError, StorageError
from grpo_jax.distributed.lifeline import Lifeline
from grpo_jax.loops import groups
from grpo_jax.distributed.sharding import make_layout

here = jax.process_index()
assert hosts.gather("x" * 3000 * here) == ["", "x" * 3000]
for error, want in ((DataError("d"), "DataError: d"), (StorageError("s"), "StorageError: s"), (KeyError("k"), "Elsewhere: host 1: KeyError: 'k'")):
  def make():
    if here:
      raise error
    return here
  try:
    hosts.together(make)
    raise AssertionError("no error")
  except Exception as found:
    assert here and found is error or f"{type(found).__name__}: {found}" == want, found
assert hosts.together(lambda: here) == here

for sizes in ({"fsdp": 2}, {"fsdp": 1, "group": 2}, {"fsdp": 1, "tensor": 2}):
  layout = make_layout(tiny.section("mesh", **sizes))
  whole = np.arange(4 * 2 * 3).reshape(4, 2, 3)
  x = rollouts.to_device(layout, whole)
  share, own = hosts.share(x)
  assert sum(hosts.gather(own.sum())) == own.size and not share[~own].any()
  assert (sum(hosts.gather(share)) == whole).all()
  assert (rollouts.rows(layout, x, [(3, 1), (0, 0)]) == whole[[3, 0], [1, 0]]).all()
  chosen = rollouts.to_host(groups._take(np.array([5, -1, 0, 3], np.int32), x, x + 100))
  assert (chosen == np.stack([whole[1] + 100, 0 * whole[0], whole[0], whole[3]])).all()

with Lifeline():
  print("ready", flush=True)
  hosts.gather(None)  # both have printed it
  if here:
    os.kill(os.getpid(), 9)
  hosts.gather(None)  # waits for the other
  time.sleep(300)
"""


def test_what_a_command_ends_with():
  codes = {SettingError: 2, StorageError: 75, ValueError: 1, KeyboardInterrupt: 130}
  assert {kind: lifeline.exit_code_and_text(kind("x"))[0] for kind in codes} == codes


def test_what_each_of_two_processes_has_comes_to_both_and_a_killed_one_ends_the_other(tmp_path):
  port = free_port()
  paths = {"PYTHONPATH": "tests/helpers"}
  command = [sys.executable, "-c", PARTS, str(port)]
  first, second = wait(
    [start([*command, str(i)], tmp_path / str(i), **paths) for i in range(2)], 120
  )
  assert first.stdout.endswith("ready\n") and second.stdout.endswith("ready\n"), (
    first.stderr,
    second.stderr,
  )
  assert (first.code, second.code) == (1, -9), first.stderr
  assert first.at - second.at < 20
  (line,) = errors(first)
  assert line.startswith("error: host 1 (process ") and "gone without a word: killed" in line, line


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
  return Hosts(tmp_path_factory.mktemp("hosts"))


def finish(hosts: Hosts, processes: int, workdir: str, *more: str, **how) -> list:
  ended = hosts.run(processes, workdir, *more, **how)
  assert [each.code for each in ended] == [0] * processes, [each.stderr[-2000:] for each in ended]
  return ended


def assert_same(got: list, want: list, within: float = 1e-5) -> None:
  assert len(got) == len(want)
  for a, b in zip(got, want):
    assert a.keys() == b.keys()
    for name in a:
      np.testing.assert_allclose(a[name], b[name], rtol=within, atol=within, err_msg=name)


def numbers(lines: list) -> list:
  """Metrics without those of shards, which are as many as there are devices."""
  layout = ("padding_fraction", "prompt_padding_fraction", "slot_use")
  return [{k: v for k, v in line.items() if k not in layout} for line in lines]


@pytest.fixture(scope="module")
def expected(hosts):
  """The metrics of one process."""
  finish(hosts, 1, "one")
  metrics = hosts.metrics("one")
  assert any(line.get("grad_norm", 0) > 0 for line in metrics)
  return metrics


@pytest.mark.slow
@pytest.mark.parametrize(
  "processes, mesh",
  [(2, "group"), *(pytest.param(n, "", marks=pytest.mark.long) for n in (2, 4))],
)
def test_as_many_processes_as_you_like_have_the_losses_of_one(hosts, expected, processes, mesh):
  """With dynamic sampling; the samples of a group lie on one process, or on both, where workers of
  each process score its own.
  """
  more = [f"--config.mesh.{mesh}={processes}", "--config.rewards.workers=2"] if mesh else []
  finish(hosts, processes, f"{processes}{mesh}", *more)
  assert_same(numbers(hosts.metrics(f"{processes}{mesh}")), numbers(expected))
  samples = [
    (hosts.folder / name / "samples.jsonl").read_text() for name in (f"{processes}{mesh}", "one")
  ]
  assert samples[0].count("\n") == samples[1].count("\n") > 0


@pytest.mark.long
@pytest.mark.slow
def test_a_reward_that_fails_on_one_host_alone_is_counted_on_all(hosts):
  finish(hosts, 2, "counted", fault="value")
  assert sum(line.get("reward_faults", 0) for line in hosts.metrics("counted")) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
  "strike, fault, codes, line",
  [
    pytest.param(
      *(None, "setting", (2, 2), "error: parity: cannot work on this host; use another"),
      marks=pytest.mark.long,
    ),
    (
      None,
      "eval",
      (2, 2),
      "error: solved: cannot work on this host; use another",
    ),  # in an evaluation
    ((1, "raise", "learn", 2), "", (1, 1), "error: host 1 (process PID): ValueError: struck"),
    pytest.param(
      *((0, "raise", "sample", 2), "", (1, 1), "error: host 0 (process PID): ValueError: struck"),
      marks=pytest.mark.long,
    ),
    pytest.param(
      *((1, "interrupt", "score", 1), "", (130, 130), "error: host 1 (process PID): interrupted"),
      marks=pytest.mark.long,
    ),
    pytest.param(  # without a whole run it is a quick test, above
      *(
        (1, "SIGKILL", "learn", 2),
        "",
        (1, -9),
        "error: host 1 (process PID): it is gone without a word",
      ),
      marks=pytest.mark.long,
    ),
    pytest.param(
      *(
        (0, "SIGKILL", "sample", 2),
        "",
        (-9, 1),
        "error: host 0 (process PID): it is gone without a word",
      ),
      marks=pytest.mark.long,
    ),
  ],
)
def test_where_one_host_ends_all_end_with_its_error(hosts, strike, fault, codes, line):
  name = "-".join(map(str, strike or (fault,)))
  more = ["--config.eval.problems=6"] if fault == "eval" else []
  ended = hosts.run(2, name, *more, strike=strike, fault=fault)
  assert tuple(each.code for each in ended) == codes, [each.stderr[-2000:] for each in ended]
  if strike:
    seconds = hosts.seconds_since_strike(name, ended)
    print(f"{name}: {seconds:.1f} s")
    assert seconds < MOST_SECONDS
  # what was struck says it in its way
  told = [each for i, each in enumerate(ended) if not strike or i != strike[0]]
  for each in told:
    found = errors(each)
    if strike == (
      0,
      "SIGKILL",
      "sample",
      2,
    ):  # jax's service was there, and its client may be quicker to say so
      found = [said for said in found if not JAX_CLIENT.match(said)]
    assert len(found) == 1, each.stderr[-3000:]
    (said,) = found
    first, last = line.split("PID") if "PID" in line else (line, "")
    assert said.startswith(first) and last.strip(")") in said, said


@pytest.mark.slow
@pytest.mark.long
def test_a_signal_to_one_of_four_saves_on_all_and_any_number_goes_on(hosts):
  steps = "--config.steps=8"
  finish(hosts, 1, "whole", steps)
  expected = hosts.metrics("whole")
  stopped = finish(hosts, 4, "stopped", steps, strike=(2, "SIGTERM", "learn", 2))
  assert re.search(r"saved after step [2-7] of 8", stopped[0].stdout.replace("\n", " ")), stopped[
    0
  ].stdout
  for processes, mesh in ((1, ""), (2, "group"), (4, "")):
    again = f"again{processes}"
    shutil.copytree(hosts.folder / "stopped", hosts.folder / again)
    more = [f"--config.mesh.{mesh}={processes}"] if mesh else []
    finish(hosts, processes, again, steps, *more)
    got = hosts.metrics(again)
    for a, b in zip(got, expected, strict=True):
      same = {"step", "reward/mean", "loss", "tokens"} & a.keys()
      np.testing.assert_allclose([a[k] for k in same], [b[k] for k in same], rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.slow
def test_a_checkpoint_that_one_host_alone_cannot_read_is_passed_over_by_all(hosts):
  finish(hosts, 2, "stale", "--config.checkpoint.keep=3")
  again = finish(hosts, 2, "stale", "--config.checkpoint.keep=3", strike=(1, "stale", "", 0))
  said = " ".join(again[0].stdout.split())
  assert "checkpoint 4 is damaged (host 1: OSError: [Errno 5] Input/output error)" in said, said
  assert "going on from step 0" in said


@pytest.mark.long
@pytest.mark.slow
def test_episodes_of_several_hosts_are_those_of_one(hosts):
  """Each host plays its own share of the episodes."""
  played = [
    f"--config.environment.name={pathlib.Path(tiny_episodes.__file__)}",
    "--config.environment.arguments=(('most', 3),)",
    "--config.sampler.max_length=20",
    f"--config.sampler.stop={tiny_episodes.EPISODES['sampler.stop']!r}",
    "--config.sampler.tries=1",
    "--config.steps=2",
  ]
  finish(hosts, 1, "played", *played)
  finish(hosts, 2, "played2", *played)
  want = hosts.metrics("played")
  assert any(line.get("turns/max", 0) > 1 and line["reward_faults"] for line in want)
  assert_same(numbers(hosts.metrics("played2")), numbers(want), 1e-4)
