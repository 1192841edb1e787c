"""Workers in processes of their own: what they do together, and how they notice that one is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from satrap.dense import ConnectedWorkers, Mesh, Workers
from satrap.errors import ConfigError
from satrap.exchange.servers import Wire
from tests.dense.peers import terms
from tests.dense.processes import Process, started
from tests.dense.threads import together

DEADLINE = 3.0


class Peers:
    """Worker processes, usually two, that do what they are told."""

    def __init__(self, processes: list[Process]) -> None:
        self.all = processes
        assert [self.hear(rank) for rank in range(len(processes))] == ["ready"] * len(processes)

    def tell(self, rank: int, command: str) -> None:
        stdin = self.all[rank].stdin
        assert stdin is not None
        stdin.write(command + "\n")

    def hear(self, rank: int) -> str:
        stdout = self.all[rank].stdout
        assert stdout is not None
        return stdout.readline().strip()

    def both(self, command: str) -> list[str]:
        for rank in range(len(self.all)):
            self.tell(rank, command)
        return [self.hear(rank) for rank in range(len(self.all))]


@pytest.fixture
def peers(request: pytest.FixtureRequest) -> Iterator[Peers]:
    dense = getattr(request, "param", "float32")
    with started("tests.dense.peers", 2, "2", str(DEADLINE), dense) as processes:
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
@pytest.mark.parametrize("peers", ["float32", "int8"], indirect=True)
def test_a_killed_worker_is_noticed_at_once(peers: Peers) -> None:
    peers.both("sum 2")  # loads machine code
    peers.all[0].kill()
    start = time.monotonic()
    peers.tell(1, "sum 2")
    assert "worker 1 lost worker 0: " in peers.hear(1)
    assert time.monotonic() - start < 2


@pytest.mark.cluster
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dense", ["float32", "bfloat16", "float16", "int8"])
def test_a_sum_in_fewer_bits_is_that_of_threads_to_the_bit(dense: str, size: int) -> None:
    with started("tests.dense.peers", size, str(size), str(DEADLINE), dense) as processes:
        peers = Peers(processes)
        said = [json.loads(one.replace("None", "null")) for one in peers.both("sum 2")]
        assert peers.both("sum") == [str([1.5 * size, sum(map(float, range(size)))])] * size  # not rounded
    sums = [one for one, _ in said]
    assert sums == [sums[0]] * size

    def work(workers: Workers) -> list[float]:
        mine = torch.from_numpy(terms(size)[workers.rank].copy())
        workers.sum(mine, exact=2)
        return mine.tolist()

    exact = dense == "float32" and size > 2  # whose order of terms is gloo's
    np.testing.assert_allclose(
        sums[0], together(size, work, dense=dense)[0], rtol=0, atol=1e-6 if exact else 0
    )
    assert all((rounding == 0) == (dense == "float32") and rounding < 0.02 for _, rounding in said)


def test_a_short_format_is_refused_on_cuda() -> None:
    with pytest.raises(ConfigError, match="gradients on cuda cannot travel as int8"):
        ConnectedWorkers("127.0.0.1:1", 0, 2, device="cuda", wire=Wire(dense="int8"))


@pytest.mark.parametrize("mesh", [Mesh(1, 2), Mesh(2, sharded=True)], ids=str)
def test_compressed_gradients_are_refused_where_the_network_is_divided(mesh: Mesh) -> None:
    with pytest.raises(ConfigError, match=r"wire\.dense sign does not go with a mesh that divides"):
        ConnectedWorkers("127.0.0.1:1", 0, 2, mesh=mesh, wire=Wire(dense="sign"))


@pytest.mark.cluster
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


LEFT_OPEN = """
import time
import torch.distributed as dist
from satrap.dense import connected

connected.BEAT_SECONDS = 0.0  # always in PyTorch's C++ code
store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
workers = connected.ConnectedWorkers(f"127.0.0.1:{store.port}", 0, 1)
time.sleep(0.2)
"""


@pytest.mark.cluster
def test_a_process_that_ends_without_leaving_ends_cleanly() -> None:
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stderr) == (0, "")


LEFT = """
import pathlib
import torch.distributed as dist
from satrap.dense import ConnectedWorkers
from satrap.exchange.collective.torch_ranks import TorchRanks

def threads():
    found = 0
    for path in pathlib.Path("/proc/self/task").iterdir():
        try:
            found += "gloo" in path.joinpath("comm").read_text()
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has just ended
    return found

store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
workers = ConnectedWorkers(f"127.0.0.1:{store.port}", 0, 1)
ranks = TorchRanks()
workers.count([1.0])
print(threads() > 0)
ranks.close()
workers.close()
print(threads())
"""


@pytest.mark.cluster
def test_no_thread_of_gloo_outlives_the_workers() -> None:
    """One that frees a tensor while the interpreter ends aborts the process, in one run of many."""
    ended = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n0\n", "")
