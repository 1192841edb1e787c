"""Workers in processes of their own: what they do together, and how they notice that one is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.dense.processes import Process, started

DEADLINE = 3.0


class Peers:
    """Two worker processes that do what they are told."""

    def __init__(self, processes: list[Process]) -> None:
        self.all = processes
        assert [self.hear(rank) for rank in range(2)] == ["ready", "ready"]

    def tell(self, rank: int, command: str) -> None:
        stdin = self.all[rank].stdin
        assert stdin is not None
        stdin.write(command + "\n")

    def hear(self, rank: int) -> str:
        stdout = self.all[rank].stdout
        assert stdout is not None
        return stdout.readline().strip()

    def both(self, command: str) -> list[str]:
        for rank in range(2):
            self.tell(rank, command)
        return [self.hear(rank) for rank in range(2)]


@pytest.fixture
def peers() -> Iterator[Peers]:
    with started("tests.dense.peers", 2, "2", str(DEADLINE)) as processes:
        yield Peers(processes)


@pytest.mark.cluster
def test_what_workers_do_together_and_how_they_notice_a_stopped_and_a_killed_one(peers: Peers) -> None:
    assert peers.both("sum") == ["[3.0, 1.0]"] * 2
    assert peers.both("count") == ["[2.0, 11.0]"] * 2
    assert peers.both("broadcast") == ["[[0.0, 0.0], [0]]"] * 2
    assert peers.both("share") == ["b'of rank 0'"] * 2
    assert peers.both("gather") == ["[b'', b'x']", "[]"]
    # Work of one may take longer than the deadline: the others see that it is alive.
    assert peers.both(f"solo {DEADLINE + 1}") == ["True", "True"]
    assert peers.both("sum") == ["[3.0, 1.0]"] * 2

    os.kill(peers.all[0].pid, signal.SIGSTOP)
    start = time.monotonic()
    peers.tell(1, "solo 0")
    answer = peers.hear(1)
    assert "worker 0 has shown no sign of life for 3 s" in answer
    assert "stage: waiting, in worker 1" in answer
    assert DEADLINE * 0.9 < time.monotonic() - start < DEADLINE + 3
    peers.tell(1, "sum")
    answer = peers.hear(1)
    assert "worker 1 lost worker 0: " in answer
    assert "stage: sum of dense gradients" in answer
    assert time.monotonic() - start < 2 * DEADLINE + 4


@pytest.mark.cluster
def test_a_killed_worker_is_noticed_at_once(peers: Peers) -> None:
    assert peers.both("sum") == ["[3.0, 1.0]"] * 2
    peers.all[0].kill()
    start = time.monotonic()
    peers.tell(1, "sum")
    assert "worker 1 lost worker 0: " in peers.hear(1)
    assert time.monotonic() - start < 2


def test_who_is_called_notices_before_coming(peers: Peers) -> None:
    for _ in range(2):
        peers.tell(0, "called")
        assert peers.hear(0) == "False"
        peers.tell(1, "meet")
        limit, heard = time.monotonic() + 5, "False"
        while heard == "False" and time.monotonic() < limit:
            peers.tell(0, "called")
            heard = peers.hear(0)
        assert heard == "True"
        time.sleep(0.2)
        peers.tell(0, "meet")
        peers.hear(0)
        assert peers.hear(1) == "True"
