"""The exchange of processes that hold the rows together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from satrap.errors import ConfigError, StoreError
from satrap.exchange.collective.lookahead import Early, EarlyLookups, Found
from satrap.exchange.collective.messages import Channel, Message, Operation
from satrap.exchange.collective.owner import Owner, RankUpdate, merge
from satrap.exchange.collective.placement import Holders, Placement
from satrap.exchange.collective.ranks import Ranks
from satrap.exchange.collective.telemetry import CollectiveTelemetry
from satrap.exchange.lookup import Array, Lookup, LookupRequest
from satrap.exchange.protocol import Exchange, Pooling, StepVerdict, TableGroup
from satrap.exchange.row_sources import StoreRows
from satrap.exchange.serial import Serial
from satrap.exchange.split import ShardPart
from satrap.exchange.wire.formats import CODES, wire_bytes
from satrap.exchange.wire.rows import GradientEncoder, RowReplies, sections_of
from satrap.exchange.wire.sections import pack, unpack
from satrap.schema import Table
from satrap.settings.wire import Wire
from satrap.store import StoreConfig
from satrap.store.arrays import Bytes, on_host
from satrap.store.shard import open_store

_SHARED = 20
"""Updates between two exchanges of counters among the ranks."""


class CollectiveExchange(Exchange):
    """Lookups and updates among processes that train together and hold the tables together.

    ```python
    workers = satrap.dense.ConnectedWorkers("127.0.0.1:29500", rank, size)  # joins torch.distributed
    exchange = lambda tables: CollectiveExchange(TorchRanks(), tables)
    trainer = satrap.Trainer(..., place=satrap.train.WorkerContext(exchange, workers))
    ```

    All ranks issue the same calls in the same order, each with its own ids, possibly none. A rank that makes
    another call causes an `ExchangeError` on all ranks, which names its number. A step of all ranks is one
    update: gradients are averaged over the ranks, summed in order of rank, and each row takes one optimizer
    step. So a lookup sees every earlier update except the latest ones that the schedule lets it miss.

    Args:
        ranks: the processes.
        tables: the tables, each with an optimizer; equal on all ranks.
        store: initialization and limits of rows. Its memory, the memory of a table and the size of its tier
            are totals over all ranks; the memory of its admission is per rank.
        wire: number formats in which rows and gradients are sent, default float16 and bfloat16. With float32
            for both, rows are equal to a `LocalExchange`'s to the bit.
        placement: which ranks hold the rows of a table, default row-wise: each holds its buckets.
        pools: a rank that holds a whole table pools its rows for the others, where that sends fewer bytes.
            For `sync` only, since rows of lookups in flight could not be saved; without `clip_norm` and
            lookahead.

    Attributes:
        collective: each call is a collective of all ranks.
        rank, size: number of this rank, and number of ranks.
        placement: of the arguments.
        pooled: tables whose rows may arrive pooled, see `LookupRequest.bags`.

    Raises:
        ConfigError: the ranks have different tables or settings.
        ExchangeError: a rank is lost.
    """

    collective = True

    def __init__(
        self,
        ranks: Ranks,
        tables: Sequence[Table],
        *,
        store: StoreConfig = StoreConfig(),
        wire: Wire = Wire(),
        placement: Placement = Placement(),
        pools: bool = False,
    ) -> None:
        placement.check(tables, store)
        self._ranks = ranks
        self.rank, self.size, self.placement, self.wire = ranks.rank, ranks.size, placement, wire
        self.shard = open_store(store.part(ranks.size), [table.part(ranks.size) for table in tables])
        self.groups = TableGroup.of(self.shard)
        self._channel, self._holders = Channel(ranks), Holders(self.groups, placement, ranks)
        alone = [t.name for t in tables if placement.of(t.name) == "table_wise"]
        self.pooled = frozenset(alone if pools and ranks.size > 1 else ())
        if self.pooled:
            self.pooling = Pooling("owner", self.pooled, partial(wire_bytes, wire))
        self._thread = Serial("satrap-exchange")
        self._last_update: Future[None] | None = None
        self._looked = self._applied = 0
        self._early: EarlyLookups | None = None
        self.telemetry = CollectiveTelemetry(self.shard, self._channel, self._holders)
        meter = self.telemetry.meter
        self._owner = Owner(self.shard, self.groups, self._holders, CODES[wire.forward], meter.forward)
        self._gradients = GradientEncoder(self.groups, CODES[wire.backward], ranks.size, meter.backward)
        self.rows = StoreRows(self.shard, self._run, self._drain, self._holders)
        self._greet(tables, store, wire, placement, pools)

    def _greet(
        self, tables: Sequence[Table], store: StoreConfig, wire: Wire, placement: Placement, pools: bool
    ) -> None:
        settings: dict[str, Any] = {"store": repr(store), "wire": repr(wire), "pools": pools}
        settings["tables"] = [f"{t!r} {placement.of(t.name)} {placement.owners.get(t.name)}" for t in tables]
        try:
            self._run(lambda: self._channel.agree(settings))
        except ConfigError:
            self.close()
            raise

    def look_ahead(self) -> None:
        """From now on, let lookups see the updates of all earlier lookups; see `with_lookahead`."""
        assert not self.pooled
        ahead = Channel(self._ranks.another())
        self.telemetry.channels.append(ahead)
        self._early = EarlyLookups(self._owner, ahead, self._channel, self._replies, self._seen)

    def _run(self, work: Callable[[], Any]) -> Any:
        if self._early is not None:
            self._early.settle()
        return self._thread.submit(work).result()

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[Array]:
        """See `Exchange.lookup`."""
        lookup = Lookup[Array](requests, exchange=self)
        done = self.telemetry.meter.issue("lookup")
        if create and self._early is not None:
            look_up = partial(self._found, lookup, create=True)
            here = self._early.issue(lookup, look_up, self._last_update)
            here.add_done_callback(lambda _: done())
            return lookup
        lookup.rows = self._thread.submit(self._look_up, lookup, create, done)
        return lookup

    def _look_up(self, lookup: Lookup[Array], create: bool, done: Callable[[], None]) -> list[Array]:
        try:
            parts, messages = self._found(lookup, self._channel, self._answer, create=create)
            self._seen(lookup)
            replies = self._replies(lookup.requests, parts)
            for rank, message in enumerate(messages):
                replies.put(rank, unpack(message))
            return replies.rows
        finally:
            done()

    def _replies(self, requests: Sequence[LookupRequest], parts: Sequence[Sequence[ShardPart]]) -> RowReplies:
        return RowReplies(requests, parts, [self.groups[r.group].dim for r in requests], "rank")

    def _seen(self, lookup: Lookup[Array]) -> None:
        self.telemetry.meter.looked_up(lookup, 0, (self._applied, self._applied))

    def _found(
        self,
        lookup: Lookup[Array],
        channel: Channel,
        answer: Callable[[Callable[[], Found]], list[Message]],
        *,
        create: bool,
    ) -> tuple[list[list[ShardPart]], list[list[Bytes]]]:
        """Return the part of each request that each rank serves, and the message from each rank.

        Args:
            lookup: of this rank.
            channel: to the other ranks.
            answer: given a function that finds this rank's rows, makes the message to each rank.
            create: see `lookup`.
        """
        parts: list[list[ShardPart]] = []
        try:
            parts = [self._holders.parts(request, everywhere=create) for request in lookup.requests]
            messages: Sequence[Message] | StoreError = [
                pack(sections_of(lookup.requests, parts, rank)) for rank in range(self.size)
            ]
        except StoreError as error:  # sent to the other ranks, which wait for this one
            messages = error
        received = channel.talk(Operation.LOOKUP if create else Operation.PEEK, messages)
        requests = [{section.group: section for section in unpack(message)} for message in received]
        lookup.active = sum(map(bool, requests))
        self._looked += create
        lookup.places = (self._looked, parts) if create else ()
        try:
            merged = merge(self.groups, requests)
            messages = answer(lambda: self._owner.look_up(self._looked, merged, create=create))
        except StoreError as error:
            messages = error
        return parts, channel.talk(Operation.ROWS, messages)

    def _answer(self, find: Callable[[], Found]) -> list[Message]:
        """Return the rows that each rank has requested from this one."""
        groups = find()
        return [pack([self._owner.reply(rank, m, rows) for m, rows in groups]) for rank in range(self.size)]

    def here(self, requests: Sequence[LookupRequest]) -> list[Array]:
        """Return the present rows of tables that this rank holds whole; not a collective call."""
        rows: list[Array] = self._run(
            lambda: [on_host(self.shard.peek_group(r.group, r.ids, r.splits)[0]) for r in requests]
        )
        return rows

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        """See `Exchange.prefetch`; only rows of this rank are prefetched."""
        if self.shard.ahead.useful:
            with suppress(StoreError):  # the lookup itself will report the error
                for request in requests:
                    part = self._holders.parts(request, everywhere=False)[self.rank]
                    self.shard.ahead.prefetch(request.group, part.ids, part.splits)

    def apply(
        self,
        lookup: Lookup[Any],
        gradients: Sequence[Array],
        *,
        lr_scale: float,
        verdict: StepVerdict | None = None,
    ) -> None:
        """See `Exchange.apply`. The gradients are sent without waiting for the verdict of all.

        If the gradients of one rank are rejected, the update is rejected on all.
        """
        if verdict is not None and not verdict.own:
            self._issue(Lookup[Any](()), lambda: [RankUpdate(rejected=True)] * self.size, 1.0)
        else:
            applied = lookup.for_update(self, gradients)
            self._issue(applied, lambda: self._updates(applied, gradients), lr_scale)

    def fail(self, error: StoreError) -> None:
        """Issue an update that is rejected on all ranks, with this error."""

        def updates() -> list[RankUpdate]:
            raise error

        self._issue(Lookup[Any](()), updates, 1.0)

    def _issue(self, lookup: Lookup[Any], updates: Callable[[], list[RankUpdate]], lr_scale: float) -> None:
        self._raise_failed()
        done = self.telemetry.meter.issue("push", lookup)
        early = (None, None) if self._early is None else self._early.take()
        self._last_update = self._thread.submit(
            self._update, lookup, updates, lr_scale, self._last_update, early, done
        )
        if self._early is not None:
            self._last_update.add_done_callback(self._early.refuse)

    def _update(
        self,
        lookup: Lookup[Any],
        updates: Callable[[], list[RankUpdate]],
        lr_scale: float,
        before: Future[None] | None,
        early: tuple[Early | None, Early | None],
        done: Callable[[], None],
    ) -> None:
        try:
            if before is not None:
                before.result()  # a rejected update stops the updates behind it, on all ranks
            # The lookahead thread must have run both lookups: `updated` below completes them.
            for waits in early:
                if waits is not None:
                    wait([waits.here])
            try:
                messages: Sequence[Message] | StoreError = [update.pack() for update in updates()]
            except StoreError as error:
                self.telemetry.refused += 1
                messages = error
            received = [
                RankUpdate.unpack(message) for message in self._channel.talk(Operation.UPDATE, messages)
            ]
            with nullcontext() if self._early is None else self._early.lock:
                self._apply(received, lr_scale)
            self.telemetry.meter.applied(lookup, 0, (self._applied, self._applied))
            self._applied += 1
            if self._early is not None:
                self._early.updated(*early)
            if self._applied % _SHARED == 0:  # so that rank 0 can report the counters while it trains
                self.telemetry.share()
        finally:
            done()

    def _apply(self, updates: Sequence[RankUpdate], lr_scale: float) -> None:
        if any(update.rejected for update in updates):
            return
        if self.pooled:  # an owner's sums of pooled gradients may overflow on that owner only
            self._owner.update(updates, lr_scale, self._agreed)
        else:
            self._owner.update(updates, lr_scale)

    def _agreed(self, check: Callable[[], None]) -> None:
        """Check something on all ranks; raise the error of any rank."""

        def work() -> dict[str, Any]:
            check()
            return {}

        self._channel.ask(Operation.UPDATE, work)

    def _updates(self, lookup: Lookup[Any], gradients: Sequence[Array]) -> list[RankUpdate]:
        """Return the update for each rank; without requests, it has no gradients."""
        requests = lookup.requests
        number, parts = lookup.places if requests and lookup.places else (None, [])
        if number is None or not self._owner.knows(number):
            number, parts = None, [self._holders.parts(request, everywhere=True) for request in requests]
        messages = self._gradients.sections(requests, parts, gradients, self.size, ids=number is None)
        return [RankUpdate(number, {s.group: s for s in sections}) for sections in messages]

    def _raise_failed(self) -> None:
        if self._last_update is not None and self._last_update.done():
            self._last_update.result()

    def _drain(self) -> None:
        """Wait until everything issued so far has been applied to the rows of this rank."""
        self._run(lambda: None)
        self._raise_failed()

    def flush(self) -> None:
        """Wait until everything issued on any rank has been applied, and share the counters."""
        self.share()
        self._raise_failed()

    def share(self) -> None:
        """Share the counters; a collective call of all ranks."""
        self._run(self.telemetry.share)

    def close(self) -> None:
        """Apply everything issued, then release the store and disconnect from the other ranks."""
        if self._early is not None:
            self._early.close()
        self._thread.shutdown(wait=True)
        self.shard.close()
        self._ranks.close()
