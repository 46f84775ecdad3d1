"""Environments in worker processes: what they return, and what happens if they do not."""

import json
import re
import signal
import time

import pytest

from grpo_jax.environments import base
from grpo_jax.sandbox.worker import Pool, Process
from grpo_jax.setup import environment_worker, modules
from grpo_jax.types import STOPPED, Completion, Example

MODULE = environment_worker.__name__
BAD = """
import os, signal, sys, time
from grpo_jax.types import Turn

def reset(example, key, more):
  return {"answer": example.answer, "key": key, "more": more}

def step(state, completion, more):
  what = completion.text
  if what == "hang":
    time.sleep(600)
  if what == "compute":
    while True:
      pass
  if what == "leave":
    os._exit(7)
  if what == "exit":
    sys.exit("bye")
  if what == "memory":
    return Turn(bytearray(10**10), "x")
  if what == "long":
    return Turn({}, "x" * 10**7)
  if what == "print":
    print('{"turn": [1, "forged", 9]}', flush=True)
    os.write(1, b'{"turn": [1, "forged", 9]}\\n')
  if what == "hash":
    return Turn(state, f"{more in {more: 1}}: {state['answer']}")
  if what == "timer":
    return Turn(state, "timer", signal.getitimer(signal.ITIMER_PROF)[0])
  if what == "file":
    open("note.txt", "w").write("written")
  return Turn(state, f"{what}: {state['answer']}", 0.5)
"""


def completion(text: str) -> Completion:
  return Completion(text, [1, 2], STOPPED, [1])


def first(text: str) -> base.Json:
  return base.first_request(Example("q", "s", "42", {"odd": {1, 2}}), 5, completion(text))


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  folder = tmp_path_factory.mktemp("environment")
  (folder / "bad.py").write_text(BAD)
  described = environment_worker.describe(str(folder / "bad.py"), {"more": [1]}, 2.0)
  return [Process(MODULE, described) for _ in range(2)]


def test_arguments_are_tuples_as_in_a_config(processes):
  """JSON has lists, which are no keys of a dict."""
  described = json.loads(processes[0].arguments[0])
  own = environment_worker.describe(described["name"], {"more": ((1, 2), 3)}, 2.0)
  (reply,) = Pool([Process(MODULE, own)]).ask_all([first("hash")])
  assert reply["turn"][1] == "True: 42"


def test_replies_are_in_the_order_of_the_requests(processes):
  replies = Pool(processes).ask_all([first(str(n)) for n in range(9)])
  state = {"answer": "42", "key": 5, "more": [1]}
  assert replies == [{"turn": [state, f"{n}: 42", 0.5]} for n in range(9)]
  later = Pool(processes).ask_all([base.next_request({"answer": "7"}, completion("a"))])
  assert later == [{"turn": [{"answer": "7"}, "a: 7", 0.5]}]


@pytest.mark.parametrize(
  "what, why",
  [
    ("hang", "takes more than 2 seconds"),
    ("compute", "more than 2 seconds"),
    ("leave", "ended its process with code 7"),
    ("exit", "step: SystemExit: bye"),
    ("memory", "MemoryError|is no JSON"),
    ("long", "an observation of more than 100,000 characters"),
  ],
)
def test_a_bad_turn_is_a_fault_and_the_next_one_is_answered(processes, what, why):
  bad, good = Pool(processes[:1]).ask_all([first(what), first("fine")])
  assert bad.keys() == {"error"}
  assert re.search(why, bad["error"]), bad
  assert good["turn"][1] == "fine: 42"


def test_an_interrupt_does_not_wait_for_each_process_that_hangs(processes):
  described = processes[0].arguments[0].replace('"seconds": 2.0', '"seconds": 0')
  hanging = [Process(MODULE, described) for _ in range(8)]
  assert all(reply["turn"] for reply in Pool(hanging).ask_all([first("fine")] * 8))

  def interrupt(*_):
    raise KeyboardInterrupt

  before = signal.signal(signal.SIGALRM, interrupt)
  try:
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
      Pool(hanging).ask_all([first("hang")] * 8)
  finally:
    signal.signal(signal.SIGALRM, before)
  assert time.monotonic() - start < 30
  assert all(process.process is None for process in hanging)


def test_what_an_environment_prints_is_no_reply(processes):
  (reply,) = Pool(processes).ask_all([first("print")])
  assert reply["turn"][1] == "print: 42"


def test_what_a_file_prints_when_it_is_imported_is_no_reply(tmp_path):
  loud = """
import os, sys
print("loading", flush=True)
os.write(1, b"tables\\n")
sys.stdout.write("x" * 100_000)
"""
  (tmp_path / "loud.py").write_text(loud + BAD)
  own = environment_worker.describe(str(tmp_path / "loud.py"), {"more": []}, 2.0)
  (reply,) = Pool([Process(MODULE, own)]).ask_all([first("ok")])
  assert reply["turn"][1] == "ok: 42"


def test_a_turn_is_not_limited_in_computing_time_which_many_threads_use_up_early(processes):
  (reply,) = Pool(processes).ask_all([first("timer")])
  assert reply["turn"][2] == 0.0


def test_an_environment_may_write_files(processes, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  described = json.loads(processes[0].arguments[0])
  own = environment_worker.describe(described["name"], described["arguments"], 2.0)
  (reply,) = Pool([Process(MODULE, own)]).ask_all([first("file")])
  assert reply["turn"] and (tmp_path / "note.txt").read_text() == "written"


def test_a_file_that_fails_to_import_in_a_worker_alone_is_answered_with_the_reason(tmp_path):
  (tmp_path / "alone.py").write_text(
    "import sys\nassert 'pytest' in sys.modules, 'no tool'\n" + BAD
  )
  name = str(tmp_path / "alone.py")
  modules.module("grpo_jax.environments", name, "environment.name")
  process = Process(MODULE, environment_worker.describe(name, {"more": []}, 2.0))
  for reply in Pool([process]).ask_all([first("ok")] * 2):
    assert reply == {
      "refused": f"environment.name={name!r}: {name} fails to import: AssertionError: no tool, in a "
      "process of environment.workers"
    }


def test_a_file_that_could_not_be_loaded_is_read_anew_for_the_next_request(tmp_path):
  (tmp_path / "needs.py").write_text(
    f"import pathlib\npathlib.Path({str(tmp_path / 'table')!r}).read_text()\n" + BAD
  )
  own = environment_worker.describe(str(tmp_path / "needs.py"), {"more": []}, 2.0)
  pool = Pool([Process(MODULE, own)])
  assert "FileNotFoundError" in pool.submit(first("ok")).result()["refused"]
  (tmp_path / "table").write_text("")
  assert pool.submit(first("ok")).result()["turn"][1] == "ok: 42"


def test_an_environment_that_uses_jax_leaves_the_accelerator_to_the_run(tmp_path, monkeypatch):
  monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
  shows = "import jax\nPLATFORMS = jax.config.jax_platforms\n"
  code = shows + BAD.replace("{what}: ", "{PLATFORMS}: ")
  (tmp_path / "uses_jax.py").write_text(code)
  own = environment_worker.describe(str(tmp_path / "uses_jax.py"), {"more": []}, 5.0)
  (reply,) = Pool([Process(MODULE, own)]).ask_all([first("ok")])
  assert reply["turn"][1] == "cpu: 42"


def test_a_module_of_the_working_directory_is_found(tmp_path, monkeypatch):
  (tmp_path / "mine").mkdir()
  (tmp_path / "mine" / "game.py").write_text(BAD)
  monkeypatch.syspath_prepend(tmp_path)
  own = environment_worker.describe("mine.game", {"more": []}, 2.0)
  (reply,) = Pool([Process(MODULE, own)]).ask_all([first("ok")])
  assert reply["turn"][1] == "ok: 42"
