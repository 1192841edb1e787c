"""Several workers as threads of this process: the same promises, no processes to start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from satrap.dense import WorkerGroup, Workers
from satrap.dense.comm.quantized_allreduce import Bytes, ShortSum
from satrap.dense.comm.workers import Compression
from satrap.exchange.wire.formats import CODES

T = TypeVar("T")


class Board:
    """Where threads lay what they have, and see what the others have; `dense` is the format of sums.

    Whoever waits for another one in an exchange gives up after `patience` seconds: compiling may take long.
    """

    patience = 60.0

    def __init__(self, world: int, dense: str = "float32") -> None:
        self.world, self.dense = world, dense
        self._barriers: dict[str, threading.Barrier] = {}
        self._slots: dict[str, dict[int, Any]] = {}
        self._lock = threading.Lock()
        self._places: dict[str, int] = {}
        self.aborted = False
        self.posted, self.news = dict[str, bytes](), threading.Condition()

    def post(self, key: str, data: bytes) -> None:
        with self.news:
            self.posted[key] = data
            self.news.notify_all()

    def exchange(self, channel: str, rank: int, item: Any) -> list[Any]:
        with self._lock:
            barrier = self._barriers.setdefault(channel, threading.Barrier(self.world))
            slots = self._slots.setdefault(channel, {})
        slots[rank] = item
        barrier.wait(self.patience)
        items = [slots[r] for r in range(self.world)]
        barrier.wait(self.patience)
        return items

    def arrive(self, place: str) -> None:
        with self._lock:
            self._places[place] = self._places.get(place, 0) + 1

    def arrived(self, place: str) -> int:
        return self._places.get(place, 0)

    def abort(self) -> None:
        self.aborted = True
        with self.news:
            self.news.notify_all()
        for barrier in self._barriers.values():
            barrier.abort()


class ThreadGroup(WorkerGroup):
    """Threads that compute together; sums are taken in order of rank."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.size = board, rank, board.world
        kind, _, of_products = board.dense.partition(" ")
        if kind == "powersgd":
            self.compression = Compression(int(of_products or 4))
        short = board.dense != "float32" and self.compression is None
        self._short = ShortSum(CODES[board.dense], self.size, self._swap) if short else None

    def _exchange(self, channel: str, item: Any) -> list[Any]:
        return self.board.exchange(channel, self.rank, item)

    def _swap(self, given: Bytes) -> Bytes:
        parts = self._exchange("swap", given.reshape(self.size, -1))
        return np.concatenate([part[self.rank] for part in parts])

    @property
    def rounding(self) -> float | None:
        if self.compression is not None:
            return self.compression.error
        return 0.0 if self._short is None else self._short.rounding.error

    def sum(self, tensor: Tensor, *, exact: int | None = None) -> None:
        if exact is not None and self._short is not None:
            self._short(tensor.numpy(), exact)
            return
        parts = self._exchange("sum", tensor.clone())
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        tensor.copy_(total)

    def count(self, values: Sequence[float]) -> list[float]:
        parts = self._exchange("count", list(values))
        return [float(sum(column)) for column in zip(*parts, strict=True)]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        copies = self._exchange("broadcast", [t.detach().clone() for t in tensors])[0]
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)

    def share(self, data: bytes) -> bytes:
        return self._exchange("share", data)[0]

    def gather(self, data: bytes) -> list[bytes]:
        items = self._exchange("gather", data)
        return items if self.rank == 0 else []


class ThreadWorkers(ThreadGroup, Workers):
    """One of several threads, each a process of its own to the code."""

    def __init__(self, board: Board, rank: int, data: ThreadGroup | None = None) -> None:
        super().__init__(board, rank)
        self._data = data or self
        self._met: dict[str, int] = {}

    @property
    def data(self) -> WorkerGroup:
        return self._data

    def meet(self, stage: str, *, meanwhile: Callable[[], object] | None = None) -> None:
        turn = self._met[stage] = self._met.get(stage, 0) + 1
        self.board.arrive(f"{stage}/{turn}")
        limit = time.monotonic() + 60
        while self.board.arrived(f"{stage}/{turn}") < self.size:
            time.sleep(0.001)
            if self.board.aborted or time.monotonic() > limit:
                raise threading.BrokenBarrierError
            if meanwhile is not None:
                meanwhile()

    def post(self, key: str, data: bytes) -> None:
        self.board.post(key, data)

    def posted(self, key: str, *, readers: int = 1) -> bytes:
        board = self.board
        with board.news:
            board.news.wait_for(lambda: board.aborted or key in board.posted, 60)
            if key not in board.posted:
                raise threading.BrokenBarrierError
            return board.posted[key]

    def called(self, stage: str) -> bool:
        return self.board.arrived(f"{stage}/{self._met.get(stage, 0) + 1}") > 0


def together(
    size: int, work: Callable[[Workers], T], *, copies: int | None = None, dense: str = "float32"
) -> list[T]:
    """Run the work of each worker in a thread; return what they return, or raise what one raised.

    Args:
        size: number of workers.
        work: of each.
        copies: of the network, default one per worker; neighbours hold a copy and read the same batches.
        dense: number format of gradients, see `Wire`; "powersgd 2" has rank 2.
    """
    copies = copies or size
    parts = size // copies
    board, data = Board(size, dense), [Board(copies, dense) for _ in range(parts)]
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        group = None if copies == size else ThreadGroup(data[rank % parts], rank // parts)
        try:
            results[rank] = work(ThreadWorkers(board, rank, group))
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            errors.append(error)
            for each in (board, *data):
                each.abort()

    threads = [threading.Thread(target=one, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]
