"""Pools of worker processes."""

import gc
import time

from conftest import ROOT

from grpo_jax.sandbox import worker

NAPS = """
import sys, time
sys.path.insert(0, {root!r})
from grpo_jax.sandbox import serving

def answer(request):
  time.sleep(request["seconds"])
  return {{"slept": request["seconds"]}}

if __name__ == "__main__":
  serving.serve(answer, 128 * 2**20, 30.0)
"""


def naps(tmp_path, monkeypatch, count):
  (tmp_path / "naps.py").write_text(NAPS.format(root=str(ROOT)))
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  return worker.Pool([worker.Process("naps") for _ in range(count)])


def test_a_slow_request_of_a_pool_holds_up_no_other(tmp_path, monkeypatch):
  pool, ended = naps(tmp_path, monkeypatch, 2), []
  replies = {}
  for seconds in (3.0, 0.0, 0.1, 0.2):
    replies[seconds] = pool.submit({"seconds": seconds})
    replies[seconds].add_done_callback(lambda _, seconds=seconds: ended.append(seconds))
  assert [reply.result() for reply in replies.values()] == [{"slept": s} for s in replies]
  assert ended == [0.0, 0.1, 0.2, 3.0]


def test_replies_that_are_dropped_end_their_processes_and_answer_nothing_later(
  tmp_path, monkeypatch
):
  pool = naps(tmp_path, monkeypatch, 2)
  assert pool.ask_all([{"seconds": 0.0}] * 2) == [{"slept": 0.0}] * 2
  replies, start = [pool.submit({"seconds": 20.0}) for _ in range(4)], time.monotonic()
  while not any(reply.running() for reply in replies):
    time.sleep(0.01)
  pool.drop(replies)
  assert time.monotonic() - start < 10 and all(reply.done() for reply in replies)
  assert pool.ask_all([{"seconds": 0.1}] * 3) == [{"slept": 0.1}] * 3


def test_a_shared_pool_is_kept_until_its_code_changes_and_its_processes_while_it_is_used(
  tmp_path, monkeypatch
):
  (tmp_path / "naps.py").write_text(NAPS.format(root=str(ROOT)))
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  first = worker.shared("naps", "", 2, "1 byte")
  assert worker.shared("naps", "", 2, "1 byte") is first
  assert first.ask_all([{"seconds": 0.0}] * 2) == [{"slept": 0.0}] * 2
  processes = [process for process in first.processes if process.process]
  second = worker.shared("naps", "", 2, "2 bytes")
  assert second is not first and worker.shared("naps", "", 2, "2 bytes") is second
  gc.collect()
  assert first.ask_all([{"seconds": 0.1}] * 2) == [{"slept": 0.1}] * 2
  ids = {process.process.pid for process in processes if process.process}
  assert ids and ids <= worker.started
  del first
  gc.collect()
  end = time.monotonic() + 20
  while ids & worker.started and time.monotonic() < end:
    time.sleep(0.01)
  assert not ids & worker.started
  assert second.ask_all([{"seconds": 0.0}]) == [{"slept": 0.0}]
