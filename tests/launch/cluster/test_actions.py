"""What is known about a role after its reports."""

from __future__ import annotations

from satrap.launch.cluster.actions import TAIL_LINES, RoleState
from satrap.launch.launchers.launcher import Ended, Launched, Logged
from satrap.runtime.events import Ready


def test_a_role_is_what_it_reported() -> None:
    role = RoleState("embedding worker 3")
    assert (role.kind, role.ready, role.aside, role.ending) == (
        "embedding worker",
        False,
        False,
        "is running",
    )
    for event in (Launched("process 7"), Ready("h:1"), *(Logged(f"line {n}") for n in range(9))):
        role.heard(event)
    assert (role.ready, role.address, role.moved) == (True, "h:1", False)
    role.heard(Ready("h:2"))
    role.heard(Ended(-9))
    assert (role.moved, role.killed, role.ending) == (True, True, "was killed by SIGKILL")
    assert role.traces == "process 7; last lines: " + " | ".join(
        f"line {n}" for n in range(9 - TAIL_LINES, 9)
    )


def test_a_role_that_has_said_little() -> None:
    role = RoleState("shard 0", "h:1")
    assert (role.killed, role.moved, role.traces) == (False, False, "; no log lines")
    role.heard(Ready("h:1"))
    assert (role.ready, role.moved) == (True, False)
    role.heard(Launched("process 7"))
    role.heard(Logged(""))
    assert role.traces == "process 7; no log lines"
    for code, killed in ((0, False), (1, False), (-1, True)):
        role.heard(Ended(code))
        assert role.killed == killed
        assert role.ending == ("was killed by SIGHUP" if killed else f"ended with exit code {code}")
