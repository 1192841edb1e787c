from __future__ import annotations

import os
import signal
import time
from contextlib import closing

import pytest

from satrap.launch.cluster.supervisor import RoleState
from satrap.launch.launchers.launcher import Ended, Launched, Role, Stop
from satrap.launch.launchers.local_launcher import LocalLauncher
from satrap.runtime.events import Ready
from tests.cluster.runs import alive
from tests.support.roles import SERVER, hear

DEAF = """
import time
from satrap.runtime.events import Ready, encode
print(encode(Ready("")), flush=True)
time.sleep(300)
"""


def pid_of(launcher: LocalLauncher, code: str) -> int:
    """Start a role, wait until it is ready, and return the number of its process."""
    launcher.start(Role("shard 0", ["-c", code]))
    heard = hear(launcher, lambda heard: any(isinstance(event, Ready) for _, event in heard))
    event = heard[0][1]
    assert isinstance(event, Launched)
    word, pid = event.place.split()
    assert word == "process"
    return int(pid)


@pytest.mark.cluster
def test_what_was_released_has_time_to_end() -> None:
    launcher = LocalLauncher(60)
    pid = pid_of(launcher, SERVER + "import time; time.sleep(1)")
    launcher.stop("shard 0", Stop.RELEASE)
    assert alive(pid)
    start = time.monotonic()
    launcher.close()
    assert time.monotonic() - start > 0.5
    assert not alive(pid)


def test_a_released_role_that_does_not_end_is_killed() -> None:
    launcher = LocalLauncher(0.3)
    pid = pid_of(launcher, DEAF)
    launcher.stop("shard 0", Stop.RELEASE)
    start = time.monotonic()
    launcher.close()
    assert time.monotonic() - start < 5
    assert not alive(pid)


def test_what_was_not_released_is_killed_at_once() -> None:
    launcher = LocalLauncher(60)
    pid = pid_of(launcher, DEAF)
    start = time.monotonic()
    launcher.close()
    assert time.monotonic() - start < 5
    assert not alive(pid)


CHILD = """
import subprocess, sys
from satrap.runtime.events import Ready, encode
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print(encode(Ready(str(child.pid))), flush=True)
sys.exit(7)
"""


@pytest.mark.cluster
def test_a_child_of_a_role_that_has_ended_holds_nothing_up() -> None:
    """It still has the other end of the pipes."""
    with closing(LocalLauncher()) as launcher:
        launcher.start(Role("shard 0", ["-c", CHILD], listen=""))
        heard = hear(launcher, lambda heard: ("shard 0", Ended(7)) in heard)
        [child] = [event.address for _, event in heard if isinstance(event, Ready)]
        assert alive(int(child))
        os.kill(int(child), signal.SIGKILL)


def test_a_killed_role_that_logged_nothing() -> None:
    with closing(LocalLauncher()) as launcher:
        role, pid = RoleState("shard 0"), pid_of(launcher, DEAF)
        role.heard(Launched(f"process {pid}"))
        launcher.stop("shard 0", Stop.KILL)
        for _, event in hear(launcher, lambda heard: ("shard 0", Ended(-signal.SIGKILL)) in heard):
            role.heard(event)
    assert role.ending == "was killed by SIGKILL"
    assert role.traces == f"process {pid}; no log lines"


def test_waiting_for_reports_ends_in_time_even_if_it_begins_late() -> None:
    with closing(LocalLauncher(1)) as launcher:
        for number in range(20_000):
            launcher._heard.put(("shard 0", Ready("")))
            assert launcher.events(1.0) == [("shard 0", Ready(""))]
            assert (
                launcher.events((1 + number % 5) * 1e-6) == []
            )  # over before it begins, as on a busy machine
