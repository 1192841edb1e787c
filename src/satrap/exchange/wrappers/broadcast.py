"""The exchange of processes that train the same batches: one looks up rows, and broadcasts them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from satrap.errors import ConfigError
from satrap.exchange.lookup import Lookup, LookupRequest
from satrap.exchange.protocol import Exchange, StepVerdict, TableGroup
from satrap.exchange.row_sources import CombinedRows
from satrap.exchange.telemetry import ExchangeStatistics, Telemetry
from satrap.exchange.wrappers.replay import LooksUp, with_replays
from satrap.exchange.wrappers.routed import RoutedExchange
from satrap.schema import Table


class Peers(Protocol):
    """Processes that make the same calls in the same order, see `satrap.dense.comm.workers.WorkerGroup`.

    Attributes:
        rank, size: number of this process, and number of processes.
    """

    rank: int
    size: int

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the values of each tensor from rank 0 to all ranks."""

    def share(self, data: bytes) -> bytes:
        """Return the bytes given by rank 0."""


class PeerExchange(Exchange):
    """Lets the first of a group of peers use an exchange, and broadcasts rows to the others.

    Peers train the same batches, so they make the same calls in the same order. Only the first one pushes
    gradients of rows: tensor peers have equal gradients, and in a pipeline only the first stage has any. Rows
    are broadcast when a lookup is waited for, by the waiting thread. So these broadcasts and the network's
    collectives have the same order in all peers.

    Args:
        inner: the exchange, in the first process; None elsewhere.
        peers: the peers.

    Attributes:
        collective: `collective` of `inner`.
        groups: table groups of `inner`.
        rows, telemetry: rows and telemetry of `inner`; elsewhere nothing is saved, restored or counted.

    Raises:
        ConfigError: `inner` is a `RoutedExchange`, which is then closed.
    """

    def __init__(self, inner: Exchange | None, peers: Peers) -> None:
        self._inner, self._peers = inner, peers
        self._source: LooksUp | None = inner
        header: list[Any] = []
        if inner is not None:
            groups = [asdict(group) for group in inner.groups]
            header = [inner.collective, groups, isinstance(inner, RoutedExchange)]
        self.collective, groups, joined = json.loads(peers.share(json.dumps(header).encode()))
        if joined:
            self.close()
            raise ConfigError(
                "replicated tables next to shard servers cannot be combined with a mesh that splits one copy",
                why="a snapshot would wait forever for the rows of lookups in flight",
                fix="let shard servers hold all tables, or use a mesh without tensor and pipeline",
            )
        self.groups = [
            TableGroup(group["index"], tuple(group["tables"]), group["dim"], group["frozen"])
            for group in groups
        ]
        self.rows = CombinedRows(ignored=True) if inner is None else inner.rows
        self.telemetry = Telemetry(ExchangeStatistics) if inner is None else inner.telemetry

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[Any]:
        """See `Exchange.lookup`."""
        lookup = None if self._source is None else self._source.lookup(requests, create=create)
        shapes = [(request.rows, self.groups[request.group].dim) for request in requests]
        return _Shared(requests, _BroadcastRows(lookup, shapes, self._peers), exchange=self, inner=lookup)

    def replay(self, lookups: Iterable[Sequence[Any]]) -> None:
        """See `CanReplay.replay`."""
        if self._inner is not None:
            self._source = with_replays(self._inner, lookups)

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        """See `Exchange.prefetch`."""
        if self._inner is not None:
            self._inner.prefetch(requests)

    def apply(
        self,
        lookup: Lookup[Any],
        gradients: Sequence[Any],
        *,
        lr_scale: float,
        verdict: StepVerdict | None = None,
    ) -> None:
        """See `Exchange.apply`."""
        lookup.check(self)
        if self._inner is not None:
            inner = lookup.inner if isinstance(lookup, _Shared) and lookup.inner is not None else lookup
            self._inner.apply(inner, gradients, lr_scale=lr_scale, verdict=verdict)

    def flush(self) -> None:
        """See `Exchange.flush`."""
        if self._inner is not None:
            self._inner.flush()

    def close(self) -> None:
        """See `Exchange.close`."""
        if self._inner is not None:
            self._inner.close()


def for_group(
    peers: Peers, exchange: Callable[[Sequence[Table]], Exchange]
) -> Callable[[Sequence[Table]], Exchange]:
    """Return a factory of each peer's exchange, given the factory of the first peer's exchange."""
    if peers.size == 1:
        return exchange
    return lambda tables: PeerExchange(None if peers.rank else exchange(tables), peers)


@dataclass(eq=False, slots=True)
class _Shared(Lookup[Any]):
    inner: Lookup[Any] | None = field(default=None, kw_only=True)


class _BroadcastRows(Future[list[Any]]):
    """The rows of a lookup, broadcast when they are first waited for."""

    def __init__(self, lookup: Lookup[Any] | None, shapes: Sequence[tuple[int, int]], peers: Peers) -> None:
        super().__init__()
        self._lookup, self._shapes, self._peers = lookup, shapes, peers

    def result(self, timeout: float | None = None) -> list[Any]:
        """Return the rows; all processes of the group call it."""
        if not self.done():
            if self._lookup is None:
                rows = [torch.empty(shape) for shape in self._shapes]
            else:
                rows = [torch.as_tensor(each).contiguous() for each in self._lookup.result(timeout)]
            self._peers.broadcast(rows)
            self.set_result(rows)
        return super().result()
