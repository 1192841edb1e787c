"""Ranks as threads of this process, and several exchanges that are asked as one."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from satrap.errors import ExchangeError
from satrap.exchange import Exchange, Lookup, LookupRequest
from satrap.exchange.collective import CollectiveExchange, Placement
from satrap.exchange.protocol import SnapshotCut, StepVerdict
from satrap.exchange.row_sources import CombinedRows
from satrap.exchange.servers import Wire
from satrap.store import RowChunk, StoreConfig

T = TypeVar("T")
EXACT = Wire("float32", "float32")
MIXED = Placement("row_wise", {"a": "replicated", "c": "table_wise"})
"""Of the tables a, b (of one group) and c: each another."""


class Meeting:
    """Where ranks lay what they send."""

    def __init__(self, size: int) -> None:
        self.size, self.slots = size, dict[int, Sequence[np.ndarray]]()
        self.barrier = threading.Barrier(size, timeout=60)
        self.others = defaultdict[int, Meeting](lambda: Meeting(size))
        self.lock = threading.Lock()


class ThreadRanks:
    """One of several ranks that are threads."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.size, self._meeting, self._others = rank, meeting.size, meeting, 0

    def another(self) -> ThreadRanks:
        self._others += 1
        with self._meeting.lock:
            return ThreadRanks(self._meeting.others[self._others], self.rank)

    def all_to_all(self, given: np.ndarray, lengths: Sequence[int], sizes: Sequence[int]) -> list[np.ndarray]:
        assert sum(lengths) == len(given)
        try:
            self._meeting.slots[self.rank] = np.split(given, np.cumsum(lengths)[:-1])
            self._meeting.barrier.wait()
            found = [self._meeting.slots[r][self.rank].copy() for r in range(self.size)]
            self._meeting.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise ExchangeError("a rank is lost") from error
        assert [len(part) for part in found] == list(sizes)
        return found

    def close(self) -> None:
        """Nothing: others may still be on their way out of the last meeting."""


def together(work: Sequence[Callable[[], T]]) -> list[T]:
    """Run one function for each rank, all at the same time; raise what the first raised."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(one) for one in work]]


def members(
    ranks: int,
    tables: Sequence[Any],
    store: StoreConfig = StoreConfig(),
    placement: Placement = Placement(),
    wire: Wire = EXACT,
) -> list[CollectiveExchange]:
    """Return the exchanges of all ranks."""
    meeting = Meeting(ranks)

    def one(rank: int) -> CollectiveExchange:
        return CollectiveExchange(
            ThreadRanks(meeting, rank),
            tables,
            store=store,
            wire=wire,
            placement=placement,
        )

    return together([lambda rank=rank: one(rank) for rank in range(ranks)])  # type: ignore[misc]


class Together:
    """Several ranks, of which the last one alone has batches, asked as one exchange."""

    collective = False

    def __init__(self, ranks: Sequence[CollectiveExchange]) -> None:
        self.ranks, self.asking = ranks, ranks[-1]
        self.groups, self.telemetry = self.asking.groups, self
        self.rows = _RanksRows(*(rank.rows for rank in ranks))

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[np.ndarray]:
        for other in self.ranks[:-1]:
            other.lookup([], create=create)
        return self.asking.lookup(requests, create=create)

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        self.asking.prefetch(requests)

    def apply(
        self, lookup: Any, gradients: Any, *, lr_scale: float, verdict: StepVerdict | None = None
    ) -> None:
        given = [np.asarray(g) * np.float32(len(self.ranks)) for g in gradients]
        self.asking.apply(lookup, given, lr_scale=lr_scale, verdict=verdict)
        for other in self.ranks[:-1]:
            other.apply(Lookup(()), [], lr_scale=lr_scale)

    def flush(self) -> None:
        together([rank.flush for rank in self.ranks])

    def close(self) -> None:
        together([rank.close for rank in self.ranks])

    # -- telemetry

    def statistics(self) -> Any:
        together([getattr(rank, "replicas", rank).share for rank in self.ranks])
        return self.asking.telemetry.statistics()

    def traffic(self) -> Any:
        return self.asking.telemetry.traffic()


class _RanksRows(CombinedRows):
    """The rows of all ranks, table after table."""

    def cut(self, **kind: Any) -> SnapshotCut:
        cut = super().cut(**kind)
        return replace(cut, chunks=self._by_name(cut))

    def _by_name(self, cut: SnapshotCut) -> Iterator[tuple[str, RowChunk]]:
        yield from sorted(cut.chunks, key=lambda chunk: chunk[0])

    def load(self, table: str, chunk: RowChunk) -> None:
        for source in self._sources:
            source.load(table, chunk)


@contextmanager
def collective(
    ranks: int,
    tables: Sequence[Any],
    store: StoreConfig = StoreConfig(),
    placement: Placement = Placement(),
    wire: Wire = EXACT,
) -> Iterator[Exchange]:
    """Several ranks that are asked as one."""
    made = Together(members(ranks, tables, store, placement, wire))
    yield made  # type: ignore[misc]
    made.close()
