"""The exchange of processes that train the same batches: one looks up rows, and broadcasts them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from satrap.dense.comm.workers import WorkerGroup
from satrap.errors import ConfigError
from satrap.exchange import Exchange, ExchangeStatistics, Lookup, LookupRequest, TableGroup
from satrap.exchange.protocol import AtomicStep, Durability, Snapshot, SnapshotCut, Telemetry
from satrap.exchange.routed import RoutedExchange
from satrap.exchange.traffic import RequestTotals, Traffic
from satrap.schema import Table
from satrap.store import RowChunk


class PeerExchange:
    """Lets the first of a group of peers use an exchange, and broadcasts rows to the others.

    Peers train the same batches, so they make the same calls in the same order. Only the first one pushes
    gradients of rows: tensor peers have equal gradients, and in a pipeline only the first stage has any. Rows
    are broadcast when a lookup is waited for, by the waiting thread. So these broadcasts and the network's
    collectives have the same order in all peers.

    Args:
        inner: the exchange, in the first process; None elsewhere.
        tensor: the peers.

    Attributes:
        collective: `collective` of `inner`.
        groups: table groups of `inner`.
        durability, telemetry: durability and telemetry of `inner`; elsewhere nothing is saved, restored or
            counted.

    Raises:
        ConfigError: `inner` is a `RoutedExchange`, which is then closed.
    """

    def __init__(self, inner: Exchange | None, tensor: WorkerGroup) -> None:
        self._inner, self._tensor = inner, tensor
        header: list[Any] = []
        if inner is not None:
            groups = [asdict(group) for group in inner.groups]
            header = [inner.collective, groups, isinstance(inner, RoutedExchange)]
        self.collective, groups, joined = json.loads(tensor.share(json.dumps(header).encode()))
        if joined:
            self.close()
            raise ConfigError(
                "replicated tables next to shard servers cannot be combined with a mesh that splits one copy",
                why="a snapshot would wait forever for the rows of lookups in flight",
                fix="let shard servers hold all tables, or use a mesh without tensor and pipeline",
            )
        self.groups: Sequence[TableGroup] = [
            TableGroup(group["index"], tuple(group["tables"]), group["dim"], group["frozen"])
            for group in groups
        ]
        nothing = _Nothing()
        self.durability: Durability = nothing if inner is None else inner.durability
        self.telemetry: Telemetry = nothing if inner is None else inner.telemetry

    def lookup(
        self, requests: Sequence[LookupRequest], *, create: bool, known: Sequence[Any] | None = None
    ) -> Lookup[Any]:
        """See `Exchange.lookup`."""
        lookup = None if self._inner is None else self._inner.lookup(requests, create=create, known=known)
        shapes = [(request.rows, self.groups[request.group].dim) for request in requests]
        return _Shared(requests, _BroadcastRows(lookup, shapes, self._tensor), exchange=self, inner=lookup)

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        """See `Exchange.prefetch`."""
        if self._inner is not None:
            self._inner.prefetch(requests)

    def update(
        self,
        lookup: Lookup[Any] | None,
        gradients: Sequence[Any],
        *,
        lr_scale: float,
        finite: bool = False,
    ) -> None:
        """See `Exchange.update`."""
        if lookup is not None:
            lookup.check(self)
        if self._inner is not None:
            inner = lookup.inner if isinstance(lookup, _Shared) else None
            self._inner.update(inner, gradients, lr_scale=lr_scale, finite=finite)

    def refuse(self) -> None:
        """See `AtomicStep.refuse`."""
        if isinstance(self._inner, AtomicStep):
            self._inner.refuse()
        else:
            self.update(None, [], lr_scale=1.0)

    def flush(self) -> None:
        """See `Exchange.flush`."""
        if self._inner is not None:
            self._inner.flush()

    def close(self) -> None:
        """See `Exchange.close`."""
        if self._inner is not None:
            self._inner.close()


def for_group(
    peers: WorkerGroup, exchange: Callable[[Sequence[Table]], Exchange]
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

    def __init__(
        self, found: Lookup[Any] | None, shapes: Sequence[tuple[int, int]], tensor: WorkerGroup
    ) -> None:
        super().__init__()
        self._found, self._shapes, self._group = found, shapes, tensor

    def result(self, timeout: float | None = None) -> list[Any]:
        """Return the rows; all processes of the group call it."""
        if not self.done():
            self.set_result(self._fetch(timeout))
        return super().result()

    def _fetch(self, timeout: float | None) -> list[Tensor]:
        if self._found is None:
            rows = [torch.empty(shape) for shape in self._shapes]
        else:
            rows = [
                torch.as_tensor(rows_of_request).contiguous()
                for rows_of_request in self._found.result(timeout)
            ]
        self._group.broadcast(rows)
        return rows


class _Nothing:
    """Durability and telemetry of a process without an exchange of its own."""

    def snapshot(self) -> Snapshot:
        return Snapshot(iter(()), lambda storage, folder: {})

    def cut(self, *, delta: bool | None = None, feed: str | None = None) -> SnapshotCut:
        return SnapshotCut({}, lambda storage, folder: {})

    def read(self, url: str, *, follow: bool = False, feed: bool = False, exact: bool = False) -> None:
        return

    def assist(self, *, feed: bool = False) -> bool:
        return True

    def release(self, *, kept: bool, feed: bool = False) -> None:
        return

    def load(self, table: str, chunk: RowChunk) -> None:
        return

    def clear(self) -> None:
        return

    def statistics(self) -> ExchangeStatistics:
        raise AssertionError("only process 0 reads the store's counters")

    def traffic(self) -> Traffic:
        return Traffic({}, {}, RequestTotals(), RequestTotals())
