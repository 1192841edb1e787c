"""The exchange of processes that hold the rows together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from satrap.errors import ConfigError, StoreError
from satrap.exchange import kernels
from satrap.exchange.collective.asks import Ask, Positions, joined, pack, unpack
from satrap.exchange.collective.durability import CollectiveDurability
from satrap.exchange.collective.early import EarlyLookups
from satrap.exchange.collective.messages import Channel, Operation
from satrap.exchange.collective.owner import Owner, Push, merge
from satrap.exchange.collective.placement import Holders, Placement
from satrap.exchange.collective.ranks import Bytes, Ranks
from satrap.exchange.collective.telemetry import CollectiveTelemetry
from satrap.exchange.lookup import Array, Lookup, Request
from satrap.exchange.protocol import TableGroup
from satrap.exchange.servers.sections import ITEM
from satrap.exchange.servers.wire import CODES, Wire, gather_gradients, scale_of, to_wire
from satrap.schema import Table
from satrap.store import StoreConfig
from satrap.store.types import address, check_rows, not_finite

_NO_BYTES = np.empty(0, np.uint8)
_NOTHING, _WITH_IDS = -1, -2
"""In place of the number of the lookup that an update is for."""
_SHARED = 20
"""Updates between two times that the ranks tell each other their counters."""


class CollectiveExchange:
    """Lookups and updates among processes that train together and own a part of every table each.

    ```python
    workers = satrap.dense.ConnectedWorkers("127.0.0.1:29500", rank, size)  # joins torch.distributed
    exchange = lambda tables: CollectiveExchange(TorchRanks(), TorchRanks(86400), tables)
    trainer = satrap.Trainer(..., place=satrap.train.Place(exchange, workers))
    ```

    All ranks issue the same calls in the same order, with whatever they need in each, which may be nothing;
    a rank that does something else is an `ExchangeError` on all, with its number. A step of all ranks is one
    update: gradients are averaged over the ranks, summed in order of rank, and each row takes one optimizer
    step. So a lookup sees every update before it but the latest ones that the schedule lets it miss.

    Args:
        ranks: the processes.
        aside: the same processes, for the thread that writes snapshots.
        tables: the tables, each with an optimizer; equal on all ranks.
        store: how rows start and how many are kept. Its memory and the size of its tier are those of all
            ranks together; the memory of its admission is that of each.
        wire: number formats of rows and gradients on their way, default float16 and bfloat16. With float32
            for both, rows are those of a `LocalExchange` to the bit.
        placement: which ranks hold the rows of a table, default row-wise: each those of its buckets.
        pools: a rank that holds a whole table pools its rows for the others, where that sends less. For
            `sync` only, since rows of lookups in flight could not be saved.

    Attributes:
        collective: each call is one of all ranks.
        pooled: tables whose rows may come pooled, see `Request.bags`.

    Raises:
        ConfigError: the ranks have different tables or settings.
        ExchangeError: a rank is lost.
    """

    collective = True

    def __init__(
        self,
        ranks: Ranks,
        aside: Ranks,
        tables: Sequence[Table],
        *,
        store: StoreConfig = StoreConfig(),
        wire: Wire = Wire(),
        placement: Placement = Placement(),
        pools: bool = False,
    ) -> None:
        placement.check([table.name for table in tables], store)
        self._ranks, self._aside = ranks, aside
        self.shard = store.part(ranks.size).open(tables)
        self.groups: Sequence[TableGroup] = [TableGroup(g.index, g.tables, g.dim) for g in self.shard.groups]
        self._channel, self._holders = Channel(ranks), Holders(self.groups, placement, ranks)
        alone = [t.name for t in tables if placement.of(t.name) == "table_wise"]
        self.pooled = frozenset(alone if pools and ranks.size > 1 else ())
        self._owner = Owner(self.shard, self.groups, self._holders)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="satrap-exchange")
        self._last_update: Future[None] | None = None
        self._looked = self._applied = 0
        self._early: EarlyLookups | None = None
        self.telemetry = CollectiveTelemetry(self.shard, self._channel, self._holders)
        self.durability = CollectiveDurability(
            self.shard, self._holders, self._run, self._channel, Channel(aside), self.flush
        )
        self._forward, self._backward = CODES[wire.forward], CODES[wire.backward]
        self._greet(tables, store, wire, placement)

    def _greet(self, tables: Sequence[Table], store: StoreConfig, wire: Wire, placement: Placement) -> None:
        own: dict[str, Any] = {"store": repr(store), "wire": repr(wire)}
        own["tables"] = [f"{t!r} {placement.of(t.name)} {placement.owners.get(t.name)}" for t in tables]
        said = self._run(lambda: self._channel.tell(Operation.HELLO, own))
        for rank, other in enumerate(said):
            for name, value in own.items():
                if other[name] != value:
                    self.close()
                    raise ConfigError(
                        f"rank {rank} has other {name} than rank {self._ranks.rank}",
                        why="ranks hold the tables together, so they must agree",
                        fix="start all ranks with the same program and recipe",
                    )

    def look_ahead(self) -> None:
        """From now on, let lookups see the updates of all lookups before them; see `with_lookahead`."""
        assert not self.pooled
        self._early = EarlyLookups(self._owner, self._channel, self.groups, self._forward)

    def _run(self, work: Callable[[], Any]) -> Any:
        return self._thread.submit(work).result()

    def lookup(
        self, requests: Sequence[Request], *, create: bool, known: Sequence[Array] | None = None
    ) -> Lookup[Array]:
        """See `Exchange.lookup`. Rows that are known are not asked for, while the other ranks may ask."""
        lookup = Lookup[Array](requests, exchange=self)
        done = self.telemetry.meter.issue("lookup")
        if create and self._early is not None:
            self._thread.submit(self._look_ahead, lookup, done).add_done_callback(lookup.told)
            return lookup
        asked = lookup if known is None else Lookup[Array](())
        rows = self._thread.submit(self._look_up, asked, create, done)
        if known is None:
            lookup.rows = rows
        else:
            lookup.rows.set_result(list(known))
        return lookup

    def _look_up(self, lookup: Lookup[Array], create: bool, done: Callable[[], None]) -> list[Array]:
        try:
            rows, _ = self._found(lookup, create=create)
            self._seen(lookup)
            return rows
        finally:
            done()

    def _look_ahead(self, lookup: Lookup[Array], done: Callable[[], None]) -> None:
        try:
            assert self._early is not None
            rows, asks = self._found(lookup, create=True)
            if self._early.add(lookup, rows, asks, self._looked):
                self._seen(lookup)
                self._early.hand_out()
        finally:
            done()

    def _seen(self, lookup: Lookup[Array]) -> None:
        self.telemetry.meter.looked_up(lookup, 0, (self._applied, self._applied))

    def _found(self, lookup: Lookup[Array], *, create: bool) -> tuple[list[Array], list[list[Ask]]]:
        """Return the rows of a lookup as they are now, and of each request what each rank was asked for."""
        asks: list[list[Ask]] = []
        try:
            asks = [self._holders.asks(request, everywhere=create) for request in lookup.requests]
            messages: Sequence[Bytes] | StoreError = self._by_rank(lookup.requests, asks)
        except StoreError as error:  # the others must hear of it: they wait
            messages = error
        asked = self._channel.talk(Operation.LOOKUP if create else Operation.PEEK, messages)
        requests = [unpack(self.groups, message)[0] for message in asked]
        lookup.active = sum(any(ask is not None for ask in one) for one in requests)
        self._looked += 1
        given = self._channel.talk(Operation.ROWS, self._serve(requests, create=create))
        lookup.places = (self._looked, asks) if create else ()
        return self._placed(lookup.requests, asks, given), asks

    def _by_rank(self, requests: Sequence[Request], asks: Sequence[Sequence[Ask]]) -> list[Bytes]:
        """Return the message that asks each rank for its ids."""
        by_rank: list[list[Ask | None]] = [[None] * len(self.groups) for _ in range(self._ranks.size)]
        for request, of_request in zip(requests, asks, strict=True):
            for own, ask in zip(by_rank, of_request, strict=True):
                own[request.group] = ask
        return [pack(self.groups, own) for own in by_rank]

    def _serve(self, asked: Sequence[Sequence[Ask | None]], *, create: bool) -> Sequence[Bytes] | StoreError:
        """Return the rows that each rank asks this one for."""
        wanted = merge(self.groups, asked)
        try:
            answers = self._owner.look_up(self._looked, wanted, create=create)
            return [joined(to_wire(one, self._forward) for one in rows) for rows in answers]
        except StoreError as error:
            return error

    def _placed(
        self, requests: Sequence[Request], asks: Sequence[Sequence[Ask]], given: Sequence[Bytes]
    ) -> list[Array]:
        """Return the rows of each request from what the ranks have sent, which is in order of groups."""
        found: dict[int, Array] = {}
        at = [0] * len(given)
        for request, of_request in sorted(zip(requests, asks, strict=True), key=lambda pair: pair[0].group):
            dim = self.groups[request.group].dim
            found[request.group] = out = np.empty((request.rows, dim), np.float32)
            for rank, ask in enumerate(of_request):
                count = len(out) if ask.rows is None else len(ask.rows)
                raw = given[rank][at[rank] : (end := at[rank] + ITEM[self._forward] * dim * count)]
                at[rank] = end
                if ask.rows is None:
                    kernels.widen(self._forward, address(raw), address(out), np.uint64(out.size))
                else:
                    kernels.widen_rows(self._forward, address(raw), np.uint64(dim), ask.rows, address(out))
        return [found[request.group] for request in requests]

    def prefetch(self, requests: Sequence[Request]) -> None:
        """See `Exchange.prefetch`; only rows of this rank are read ahead."""
        if self.shard.ahead.useful:
            with suppress(StoreError):  # what is wrong with it is said when it is looked up
                for request in requests:
                    own = self._holders.asks(request, everywhere=False)[self._ranks.rank]
                    self.shard.ahead.prefetch(request.group, own.ids, own.splits)

    def update(
        self,
        lookup: Lookup[Any] | None,
        gradients: Sequence[Array],
        *,
        lr_scale: float,
        finite: bool = False,
    ) -> None:
        """See `Exchange.update`. If the gradients of one rank are refused, so are those of all."""
        self._raise_failed()
        lookup = Lookup.given(lookup, self)
        done = self.telemetry.meter.issue("push", lookup)
        self._last_update = self._thread.submit(
            self._update, lookup, gradients, lr_scale, self._last_update, done
        )
        if self._early is not None:
            self._last_update.add_done_callback(self._early.refuse)

    def _update(
        self,
        lookup: Lookup[Any],
        gradients: Sequence[Array],
        lr_scale: float,
        before: Future[None] | None,
        done: Callable[[], None],
    ) -> None:
        try:
            if before is not None:
                before.result()  # a refused update stops the ones behind it, on all ranks
            try:
                messages: Sequence[Bytes] | StoreError = self._pushed(lookup, gradients)
            except StoreError as error:
                self.telemetry.refused += 1
                messages = error
            pushed = self._channel.talk(Operation.UPDATE, messages)
            stepped = self._owner.update([self._received(message) for message in pushed], lr_scale)
            self.telemetry.meter.applied(lookup, 0, (self._applied, self._applied))
            self._applied += 1
            if self._early is not None and (following := self._early.updated(stepped)) is not None:
                self._seen(following)
                self._early.hand_out()
            if self._applied % _SHARED == 0:  # so that rank 0 can report them while it trains
                self.telemetry.share()
        finally:
            done()

    def _pushed(self, lookup: Lookup[Any], gradients: Sequence[Array]) -> list[Bytes]:
        """Return what each rank gets of an update: the number of its lookup or ids, then gradients."""
        number, asks = lookup.places or (_NOTHING, [])
        if not lookup.requests:
            return [np.array([_NOTHING], np.int64).view(np.uint8)] * self._ranks.size
        if number == _NOTHING or not self._owner.knows(number):
            number = _WITH_IDS
            asks = [self._holders.asks(request, everywhere=True) for request in lookup.requests]
        scales = np.ones(len(self.groups))
        rows: list[list[Bytes]] = [[] for _ in range(self._ranks.size)]
        given = sorted(zip(lookup.requests, asks, gradients, strict=True), key=lambda one: one[0].group)
        for request, of_request, one in given:
            group = self.groups[request.group]
            own = check_rows(one, request.rows, group.dim, "gradients")
            scales[group.index] = scale_of(own, self._backward)
            for message, ask in zip(rows, of_request, strict=True):
                message.append(self._gathered(own, ask.gradients, group, scales[group.index]))
        ids = self._by_rank(lookup.requests, asks) if number == _WITH_IDS else [_NO_BYTES] * len(rows)
        head = joined([np.array([number], np.int64).view(np.uint8), scales.view(np.uint8)])
        return [joined([head, asked, *own]) for asked, own in zip(ids, rows, strict=True)]

    def _gathered(self, rows: Array, positions: Positions | None, group: TableGroup, scale: float) -> Bytes:
        """Return the gradients for a rank, divided by the number of ranks, times a scale."""
        found, finite = gather_gradients(rows, positions, self._backward, scale / self._ranks.size)
        if not finite:
            raise not_finite(f"{len(rows)} rows of {', '.join(group.tables)}")
        return found

    def _received(self, message: Bytes) -> Push:
        """Return what a rank sent as its part of an update."""
        number, rest = int(message[:8].view(np.int64)[0]), message[8:]
        if number == _NOTHING:
            return Push()
        scales, rest = rest[: 8 * len(self.groups)].view(np.float64), rest[8 * len(self.groups) :]
        if number != _WITH_IDS:
            return Push(number, (), rest, scales, self._backward)
        asks, rest = unpack(self.groups, rest)
        return Push(None, asks, rest, scales, self._backward)

    def _raise_failed(self) -> None:
        if self._last_update is not None and self._last_update.done():
            self._last_update.result()

    def flush(self) -> None:
        """Wait until everything issued on any rank has been applied, and share the counters."""
        self.share()
        self._raise_failed()

    def share(self) -> None:
        """Share the counters; a call of all ranks."""
        self._run(self.telemetry.share)

    def close(self) -> None:
        """Apply what was issued, then release the store and leave the other ranks."""
        self._thread.shutdown(wait=True)
        self.shard.close()
        self._ranks.close()
        self._aside.close()
