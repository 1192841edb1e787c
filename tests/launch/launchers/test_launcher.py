"""What every launcher does: that of this machine and that of Ray."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from secrets import token_hex

import pytest

from satrap.config.keys.cluster import ClusterKeys, ResourcesKeys, RoleResourcesKeys
from satrap.launch.cluster.supervisor import RoleState
from satrap.launch.launchers.launcher import Ended, Launched, Launcher, Logged, Role, Stop
from satrap.launch.launchers.local_launcher import LocalLauncher
from satrap.launch.launchers.ray_launcher import RayLauncher
from satrap.runtime.events import Event, Notice, Ready
from tests.support.roles import SERVER, hear

LITTLE = RoleResourcesKeys(shard=ResourcesKeys(cpu=0.1), worker=ResourcesKeys(cpu=0.1))

ECHO = """
import sys
from satrap.runtime.events import Notice, encode
print(encode(Notice("out " + sys.stdin.readline().strip())), flush=True)
for i in range(5):
    print("log", i, file=sys.stderr, flush=True)
sys.stdin.read()
print("end of input", file=sys.stderr, flush=True)
sys.exit(4)
"""


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    if request.param == "local":
        made: Launcher = LocalLauncher()
    else:
        request.getfixturevalue("nodes")
        keys = ClusterKeys(exchange="servers", launcher="ray", shards=2, workers=8, resources=LITTLE)
        made = RayLauncher(keys, run=token_hex(8), folder="/", needs=(), notice=print)
    with closing(made):
        yield made


def state_of(heard: list[tuple[str, Event]]) -> RoleState:
    """Return what is known of the role that has reported."""
    state = RoleState(heard[0][0])
    for _, event in heard:
        state.heard(event)
    return state


def test_events_of_a_role_begin_with_its_place_and_end_with_its_code(launcher: Launcher) -> None:
    launcher.start(Role("worker 7", ["-c", ECHO], "do this"))
    heard = hear(launcher, lambda heard: ("worker 7", Logged("log 4")) in heard)
    assert isinstance(heard[0][1], Launched)
    assert (state_of(heard).code, state_of(heard).ending) == (None, "is running")
    launcher.stop("worker 7", Stop.RELEASE)
    heard += hear(launcher, lambda heard: ("worker 7", Ended(4)) in heard)
    assert {name for name, _ in heard} == {"worker 7"}
    events = [event for _, event in heard]
    assert events[-1] == Ended(4)
    assert Notice("out do this") in events
    logged = [event.line for event in events if isinstance(event, Logged)]
    assert logged == [*(f"log {i}" for i in range(5)), "end of input"]
    role = state_of(heard)
    assert (role.code, role.ending) == (4, "ended with exit code 4")
    assert role.traces == f"{heard[0][1].place}; last lines: log 3 | log 4 | end of input"
    launcher.stop("worker 7", Stop.KILL)  # of one that has ended: nothing
    assert launcher.events(0.1) == []


def test_a_server_is_told_where_to_listen(launcher: Launcher) -> None:
    launcher.start(Role("shard 0", ["-c", SERVER], listen=""))
    launcher.start(Role("shard 1", ["-c", SERVER], listen="127.0.0.1:5000"))
    heard = hear(launcher, lambda heard: sum(isinstance(event, Ready) for _, event in heard) == 2)
    assert sorted(name for name, event in heard if event == Logged("no event")) == ["shard 0", "shard 1"]
    addresses = {name: event.address for name, event in heard if isinstance(event, Ready)}
    assert addresses["shard 0"].startswith("--listen ")
    assert addresses["shard 0"].endswith(":0")
    assert addresses["shard 1"] == "--listen 127.0.0.1:5000"


def test_roles_are_asked_to_save_and_killed_by_name(launcher: Launcher) -> None:
    for name in ("worker 0", "worker 1"):
        launcher.start(Role(name, ["-c", SERVER]))
    hear(launcher, lambda heard: sum(isinstance(event, Ready) for _, event in heard) == 2)
    launcher.stop("worker 0", Stop.SAVE)
    launcher.stop("worker 1", Stop.KILL)
    heard = hear(launcher, lambda heard: len(heard) >= 2)
    assert sorted(heard, key=lambda one: one[0]) == [
        ("worker 0", Notice("saves")),
        ("worker 1", Ended(-signal.SIGKILL)),
    ]
    launcher.start(Role("worker 1", ["-c", SERVER]))  # the name is free again
    hear(launcher, lambda heard: ("worker 1", Ready("")) in heard)
