"""Workers in processes of their own: what they do together, and how they notice that one is lost."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist

from satrap.dense import ConnectedWorkers, Mesh, Workers
from satrap.dense.comm import torch_workers
from satrap.dense.comm.torch_workers import ConnectedWorkerGroup
from satrap.errors import ConfigError, ExchangeError
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


def beside_a_stopped_one(peers: Peers, command: str) -> str:
    """Stop worker 0; return the error of worker 1, which names it once its deadline is over."""
    os.kill(peers.all[0].pid, signal.SIGSTOP)
    start = time.monotonic()
    peers.tell(1, command)
    answer = peers.hear(1)
    assert "worker 0 has sent no heartbeat for 3 s" in answer
    assert DEADLINE * 0.9 < time.monotonic() - start < DEADLINE + 3
    return answer


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

    start = time.monotonic()
    assert "stage: waiting, in worker 1" in beside_a_stopped_one(peers, "solo 0")
    peers.tell(1, "sum")
    answer = peers.hear(1)
    assert "worker 1 lost worker 0: " in answer
    assert "stage: sum of dense gradients" in answer
    assert time.monotonic() - start < 2 * DEADLINE + 4


@pytest.mark.cluster
def test_ranks_that_may_wait_long_do_so_only_for_a_worker_that_shows_signs_of_life(peers: Peers) -> None:
    """They belong to replicas beside shards, and to the writing of rows."""
    assert peers.both(f"ranks 0 {DEADLINE + 1}") == ["[[0], [1]]"] * 2
    answer = beside_a_stopped_one(peers, "ranks")
    assert "stage: all-to-all of ids, rows or gradients, in worker 1" in answer
    peers.tell(1, "ranks leave")  # the other one is still silent
    assert peers.hear(1) == "[]"


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
    with pytest.raises(ConfigError, match=r"wire\.dense: int8 cannot be combined with device: cuda"):
        ConnectedWorkers("127.0.0.1:1", 0, 2, device="cuda", wire=Wire(dense="int8"))


@pytest.mark.parametrize("mesh", [Mesh(1, 2), Mesh(2, sharded=True)], ids=str)
def test_compressed_gradients_are_refused_where_the_network_is_divided(mesh: Mesh) -> None:
    with pytest.raises(ConfigError, match=r"wire\.dense cannot be combined with mesh\."):
        ConnectedWorkers("127.0.0.1:1", 0, 2, mesh=mesh, wire=Wire(dense="powersgd"))


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


class Time:
    """A clock that moves only while one sleeps; `then` is called after each sleep."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.now, self.then = 100.0, then

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


class Lone(ConnectedWorkers):
    """Worker 1 of some: all that it sees of the others is what the store holds."""

    def __init__(self, size: int = 3) -> None:
        self.rank, self.size, self._process, self.deadline = 1, size, 1, 3.0
        self._met, self._axes, self._store = {}, {}, dist.HashStore()
        self.looks: list[tuple[float, str]] = []

    def beat(self, *ranks: int) -> None:
        for rank in ranks:
            self._store.add(f"beat/{rank}", 1)


class Watching(Lone):
    """Notes when it looks for signs of life."""

    def _look_for_life(self, seen: dict[int, tuple[int, float]], stage: str) -> None:
        self.looks.append((torch_workers.time.monotonic() - 100.0, stage))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(torch_workers, "time", clock)
    monkeypatch.setattr(torch_workers, "_POLL_SECONDS", 0.125)
    return clock


@pytest.mark.parametrize(
    ("alive", "lost", "took"),
    [([0, 1], [2], 1.25), ([1], [0, 2], 1.0), ([], [0, 2], 1.0), ([0, 2], [], 0.25)],
)
def test_the_first_who_notices_tells_the_others_who_was_lost(
    alive: list[int], lost: list[int], took: float, clock: Time
) -> None:
    workers = Lone()
    workers.beat(0, 1, 2)
    clock.then = lambda: workers.beat(*alive)
    assert workers.silent() == lost
    assert clock.now == 100.0 + took
    assert workers._store.check(["lost"]) == bool(lost)
    assert workers.silent() == lost
    assert clock.now == 100.0 + (took if lost else 2 * took)


def test_a_worker_whose_sign_of_life_comes_late_is_not_lost(clock: Time) -> None:
    """Where many processes share a core: worker 0 is heard after 0.75 s, worker 3 after 2.75 s."""
    workers, sleeps = Lone(size=4), itertools.count(1)
    workers.beat(0, 1, 2, 3)

    def late() -> None:
        workers.beat(*{3: [0], 11: [3]}.get(next(sleeps), []))

    clock.then = late
    assert workers.silent() == [2]
    assert clock.now == 100.0 + 2.75 + 3 * 2.75


@pytest.mark.parametrize(("stage", "limit"), [("end", 3.0), ("start", 120.0)])
def test_a_worker_is_lost_when_its_signs_of_life_end(stage: str, limit: float, clock: Time) -> None:
    workers, seen = Lone(), dict[int, tuple[int, float]]()
    workers.beat(2)
    for seconds in (0.0, limit, 0.5):
        clock.sleep(seconds)
        workers.beat(0, 1)
        if seconds != 0.5:
            workers._look_for_life(seen, stage)
    with pytest.raises(ExchangeError) as raised:
        workers._look_for_life(seen, stage)
    assert raised.value.what == f"worker 2 has sent no heartbeat for {limit:g} s"
    assert raised.value.where == f"stage: {stage}, in worker 1"


def test_who_waits_looks_for_signs_of_life(clock: Time) -> None:
    workers, done = Watching(), list[float]()

    def come() -> None:
        if clock.now == 101.0:
            workers._store.add("here/1", 2)
            workers._store.set("post/letter", "text")

    clock.then = come
    workers.meet("here", meanwhile=lambda: done.append(clock.now - 100.0))
    assert done == [0.125 * n for n in range(1, 9)]
    assert workers.looks == [(0.25 * n, "here") for n in range(1, 5)]
    assert workers.posted("letter") == b"text"
    workers.post("mine", b"\0")
    assert (clock.now, workers.posted("mine")) == (101.0, b"\0")
    assert not workers.called("here")
    workers._store.add("here/2", 1)
    assert workers.called("here")

    clock.now, workers.looks = 100.0, []
    clock.then = lambda: workers.post("late", b"1") if clock.now == 100.5 else None
    assert workers.posted("late") == b"1"
    assert workers.looks == [(0.25, "waiting for another worker"), (0.5, "waiting for another worker")]


def test_the_store_does_not_grow_with_meetings_and_letters() -> None:
    everybody, kept = [Lone() for _ in range(3)], list[int]()
    for rank, workers in enumerate(everybody):
        workers.rank, workers._store = rank, everybody[0]._store

    def work(workers: Lone) -> None:
        for turn in range(8):
            workers.meet("step")
            workers.called("step")
            if workers.rank:
                assert workers.posted(f"order/{turn}", readers=2) == b"%d" % turn
                workers.post(f"answer/{turn}/{workers.rank}", b"done")
            else:
                workers.post(f"order/{turn}", b"%d" % turn)
                assert [workers.posted(f"answer/{turn}/{rank}") for rank in (1, 2)] == [b"done"] * 2
                kept.append(workers._store.num_keys())

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, everybody))
    assert max(kept[4:]) <= max(kept[:4]) <= 3 + 4  # signs of life; two turns, a letter and its readers


@pytest.mark.parametrize(
    ("alive", "named"), [([0, 2], "another worker"), ([0], "worker 2"), ([], "workers 0, 2")]
)
def test_an_error_of_the_network_names_who_was_lost(alive: list[int], named: str, clock: Time) -> None:
    workers = Lone()
    clock.then = lambda: workers.beat(*alive)
    for error in (RuntimeError("gloo: closed\nmore"), dist.DistNetworkError("gloo: closed")):
        with pytest.raises(ExchangeError) as raised, workers.watched("sum"):
            raise error
        assert raised.value.what == f"worker 1 lost {named}: gloo: closed"
        assert raised.value.where == "stage: sum"
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), workers.watched("sum"):
        raise RuntimeError("shapes differ")
    for given, told in (("", "DistStoreError"), ("y" + "x" * 160, "x" * 160)):
        with pytest.raises(ExchangeError, match=f"lost {named}: {told}\n"), workers._watched("sum"):
            raise dist.DistStoreError(given)


def test_signs_of_life_end_when_they_are_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_workers, "BEAT_SECONDS", 0.001)
    store = dist.HashStore()
    beat = torch_workers._Beat(store, "beat/0")
    beat.start()
    while store.add("beat/0", 0) < 3:
        time.sleep(0.001)
    beat.end(60.0)
    assert not beat.is_alive()
    number = store.add("beat/0", 0)
    time.sleep(0.02)
    assert store.add("beat/0", 0) == number


def test_stages_talk_over_the_backend_of_their_device() -> None:
    workers = Lone()
    group = ConnectedWorkerGroup.__new__(ConnectedWorkerGroup)
    group._main, group._cuda = "gloo", "nccl"
    workers._axes["pipeline"] = group
    assert [workers.pipeline_group(device) for device in ("cpu", "cuda")] == ["gloo", "nccl"]


LEFT_OPEN = """
import time
import torch.distributed as dist
from satrap.dense.comm import torch_workers

torch_workers.BEAT_SECONDS = 0.0  # always in PyTorch's C++ code
store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
workers = torch_workers.ConnectedWorkers(f"127.0.0.1:{store.port}", 0, 1)
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
