"""Counters of the stores behind an exchange, and of the requests of one caller: staleness and times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from satrap.exchange import kernels
from satrap.exchange.lookup import Array, Lookup, Seen
from satrap.rpc.server.statistics import ServerStatistics
from satrap.store import Statistics
from satrap.store.arrays import address
from satrap.store.statistics import TableStatistics, TierStatistics, summed

T = TypeVar("T")
_LOOKS = 61
"""One message in this number is measured; a prime, so that it is not always of the same table group."""
_ROWS = 256
"""At most this many rows of a message are measured, at equal distances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatistics(Statistics):
    """Counters of a shard server; store counters are 0 before the first hello.

    Args:
        shard: its number, None before the first hello.
        steps: complete optimizer steps of `sync` with several workers.
        server: counters of its server.
    """

    shard: int | None = None
    steps: int = 0
    server: ServerStatistics = field(default_factory=ServerStatistics)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ShardStatistics:
        """Build it from `dataclasses.asdict` data; accepts lists for tuples, as in JSON."""
        fields = dict(values)
        fields["load_factor"] = tuple(fields["load_factor"])
        fields["tables"] = {name: TableStatistics(**counts) for name, counts in fields["tables"].items()}
        fields["tier"] = fields["tier"] and TierStatistics(**fields["tier"])
        return cls(**{**fields, "server": ServerStatistics(**fields["server"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeStatistics(Statistics):
    """Counters of all stores of an exchange together.

    Args:
        shards: counters of each shard server; empty without servers.
        peeked, unseen: by table, ids of lookups that create nothing, and the number of these without a row;
            empty unless all rows are in this process.
    """

    shards: tuple[ShardStatistics, ...] = ()
    peeked: Mapping[str, int] = field(default_factory=dict)
    unseen: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class RequestTotals:
    """Requests of one kind: number completed, their total seconds, and number issued."""

    count: int = 0
    seconds: float = 0.0
    issued: int = 0

    @property
    def in_flight(self) -> int:
        """Number of requests without a response."""
        return self.issued - self.count

    @property
    def mean_seconds(self) -> float:
        """Seconds until a response came, 0 without responses."""
        return self.seconds / max(self.count, 1)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Measurements of the requests of one caller.

    Args:
        own, others: staleness: number of updates (the caller's own, other callers') that a lookup did not see
            -> number of lookups that missed this number.
        lookups, pushes: their response times.
        sent, received: bytes of payload.
        resent: requests that were sent again.
        waiting: requests without a response.
        rounding_forward, rounding_backward: relative root-mean-square error of rows and gradients in the
            number format in which they were sent, from a sample; None: unknown.
    """

    own: Mapping[int, int]
    others: Mapping[int, int]
    lookups: RequestTotals
    pushes: RequestTotals
    sent: int = 0
    received: int = 0
    resent: int = 0
    waiting: int = 0
    rounding_forward: float | None = None
    rounding_backward: float | None = None


class Rounding:
    """Measures the rounding of sent numbers: in the first message, then now and then.

    It samples a few hundred rows of a message: measuring all takes longer than rounding them.
    """

    def __init__(self) -> None:
        self._messages, self._squares = 0, np.zeros(2)

    def note(
        self,
        rows: Array,
        raw: npt.NDArray[np.uint8],
        code: int,
        positions: npt.NDArray[np.int32] | None = None,
        scale: float = 1.0,
    ) -> None:
        """Record that rows `positions` (None: all) times `scale` were sent as `raw`."""
        if not len(raw):
            return
        self._messages += 1
        if self._messages % _LOOKS == 1:
            count = len(rows if positions is None else positions)
            some = np.arange(0, count, -(-count // _ROWS))
            exact = rows[some if positions is None else positions[some]] * np.float32(scale)
            sent, taken = np.empty_like(exact), raw.reshape(count, -1)[some]
            kernels.widen(code, address(taken), address(sent), *map(np.uint64, exact.shape))
            both = np.stack([sent - exact, exact]).astype(np.float64) / scale
            squares = np.square(both).sum((1, 2))
            if np.isfinite(squares).all():
                self._squares += squares

    @property
    def error(self) -> float | None:
        """The relative root-mean-square error, None if only zeros were measured."""
        error, exact = self._squares.tolist()
        return None if exact == 0 else float((error / exact) ** 0.5)


class Meter:
    """Measures staleness and times of the requests of one caller of an exchange.

    Every response of a shard carries the number of updates it had applied. A lookup did not see the updates
    that a shard applied between the lookup and its own update. With several shards the largest number counts.

    One thread issues requests, one handles responses, and any thread may call `report`.

    Attributes:
        forward, backward: rounding of rows and gradients that the caller sends.
    """

    def __init__(self) -> None:
        self._own: Counter[int] = Counter()
        self._others: Counter[int] = Counter()
        self._totals = {"lookup": RequestTotals(), "push": RequestTotals()}
        self.forward, self.backward = Rounding(), Rounding()

    def issue(self, kind: str, lookup: Lookup[Any] | None = None) -> Callable[..., None]:
        """Count a "lookup", or a "push" with its lookup; return a function to call when it is done."""
        self._totals[kind].issued += 1
        return partial(self._done, self._totals[kind], lookup, time.perf_counter())

    def timed(self, kind: str, work: Callable[[], T], lookup: Lookup[Any] | None = None) -> Callable[[], T]:
        """Count a request as `issue` does; return its work, after which it is done."""
        done = self.issue(kind, lookup)

        def run() -> T:
            try:
                return work()
            finally:
                done()

        return run

    def _done(
        self, totals: RequestTotals, lookup: Lookup[Any] | None, issued: float, _: object = None
    ) -> None:
        totals.seconds += time.perf_counter() - issued
        totals.count += 1
        if lookup is not None and lookup.missed[0] >= 0:
            self._own[lookup.missed[0]] += 1
            self._others[lookup.missed[1]] += 1
            lookup.seen, lookup.missed = {}, (-1, -1)

    def looked_up(self, lookup: Lookup[Any], shard: int, seen: Seen) -> None:
        """Record the updates that a shard had applied when it ran a lookup."""
        if lookup.requests:
            lookup.seen[shard] = seen

    def applied(self, lookup: Lookup[Any] | None, shard: int, seen: Seen) -> None:
        """Record the updates that a shard had applied just before the update of a lookup."""
        if lookup is None or (then := lookup.seen.get(shard)) is None:
            return
        own_updates = seen[0] - then[0]
        if own_updates >= 0:  # a shard that was reset counts from 0 again
            others = seen[1] - then[1] - own_updates
            lookup.missed = max(lookup.missed[0], own_updates), max(lookup.missed[1], others)

    def measured(self, own: Mapping[int, int], others: Mapping[int, int]) -> None:
        """Replace the staleness by the counts of a process that issues this caller's requests for it."""
        self._own, self._others = Counter(own), Counter(others)

    def report(self, **transfer: int) -> Traffic:
        """Return the counts so far; `transfer` has the fields of `Traffic` that the caller counts.

        Without `waiting` in `transfer`, it is the number of requests in flight.
        """
        lookups, pushes = (replace(totals) for totals in self._totals.values())
        waiting = {"waiting": lookups.in_flight + pushes.in_flight}
        return Traffic(
            dict(self._own),
            dict(self._others),
            lookups,
            pushes,
            rounding_forward=self.forward.error,
            rounding_backward=self.backward.error,
            **(waiting | transfer),
        )


class Telemetry:
    """Counters of the stores and of this caller's requests: trees of counters, which are summed by name.

    Args:
        statistics: returns the counters of all stores together.
        transfer: returns fields of `Traffic` that the connections count; any thread may call it.
        meter: measures this caller's requests; default: a new one.

    Attributes:
        statistics, transfer, meter: of the arguments.
        refused: updates that this caller rejected before it sent them; `statistics` includes them.
    """

    def __init__(
        self,
        statistics: Callable[[], ExchangeStatistics],
        transfer: Callable[[], Mapping[str, int]] = dict,
        meter: Meter | None = None,
    ) -> None:
        self.statistics, self.transfer, self.meter = statistics, transfer, meter or Meter()
        self.refused = 0

    @classmethod
    def of(cls, first: Telemetry, *others: Telemetry) -> Telemetry:
        """Return the counters of several exchanges, with the staleness, times and rounding of the first."""
        parts = first, *others
        return cls(
            lambda: summed(part.statistics() for part in parts),
            lambda: summed(part.transfer() for part in parts),
            first.meter,
        )

    def traffic(self) -> Traffic:
        """Return the traffic of this caller's requests, without any communication; any thread may call it."""
        return self.meter.report(**self.transfer())
