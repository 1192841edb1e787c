from __future__ import annotations

import signal
import sys
import time

from satrap.events import Event, Notice
from satrap.launch.roles import Logged, Role

ECHO = """
import sys
from satrap.events import Notice, encode
print(encode(Notice("out " + sys.stdin.readline().strip())), flush=True)
for i in range(5):
    print("log", i, file=sys.stderr, flush=True)
sys.stdin.read()
print("end of input", file=sys.stderr, flush=True)
sys.exit(4)
"""


def test_a_role_is_heard_and_ends_when_it_is_released() -> None:
    heard: list[Event] = []
    role = Role("worker 7", [sys.executable, "-c", ECHO], lambda _, event: heard.append(event), "do this")
    assert (role.code, role.ending) == (None, "is running")
    role.release()
    role.end(20)
    assert Notice("out do this") in heard
    assert [event.line for event in heard if isinstance(event, Logged)] == [
        *(f"log {i}" for i in range(5)),
        "end of input",
    ]
    assert (role.code, role.ending) == (4, "ended with exit code 4")
    assert role.traces == f"process {role.pid}; its last lines: log 3 | log 4 | end of input"


def test_a_role_that_does_not_end_is_killed() -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        'print(\'{"event": "Notice", "text": "1"}\', flush=True); time.sleep(60)'
    )
    heard: list[Event] = []
    role = Role("shard 0", [sys.executable, "-c", code], lambda _, event: heard.append(event))
    limit = time.monotonic() + 20
    while not heard and time.monotonic() < limit:
        time.sleep(0.01)
    role.send(signal.SIGTERM)
    start = time.monotonic()
    role.end(0.3)
    assert time.monotonic() - start < 5
    assert role.ending == "was killed by SIGKILL"
    assert role.traces == f"process {role.pid}; it logged nothing"
    role.send(signal.SIGTERM)  # of one that has ended: nothing
