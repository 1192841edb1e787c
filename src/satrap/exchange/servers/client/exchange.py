"""The exchange of a worker whose rows are on shard servers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Any

from satrap.errors import ConfigError, ExchangeError, SatrapError, StoreError
from satrap.exchange.kernels import FLOAT32, row_bytes
from satrap.exchange.lookup import Array, Lookup, LookupRequest, answered
from satrap.exchange.protocol import Exchange, TableGroup
from satrap.exchange.resharding.bucket_moves import Moves
from satrap.exchange.servers.client.rows import ServerRows
from satrap.exchange.servers.config import ShardConfig, WorkerId, without_tables
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.split import Splitter
from satrap.exchange.telemetry import ExchangeStatistics, ShardStatistics, Telemetry
from satrap.exchange.wire.formats import CODES
from satrap.exchange.wire.rows import GradientEncoder, RowReplies, sections_of
from satrap.exchange.wire.sections import pack, unpack
from satrap.rpc import Key, is_loopback, split_address
from satrap.rpc.client.call import Call, told
from satrap.rpc.client.client import Client, ClientOptions
from satrap.rpc.wire.frames import SPLIT, Buffer, MessageKind
from satrap.schema import Table
from satrap.settings.wire import Wire
from satrap.store import StoreConfig
from satrap.store.statistics import merged

Fetched = tuple[list[Array], list[list[int]]]
"""Rows with their optimizer state, float32[n, dim + width] for each request; for each shard, the number of
updates that each request's group had seen."""


class ServersExchange(Exchange):
    """Lookups and updates on shard servers, each of which owns a part of every table.

    ```python
    exchange = ServersExchange(["127.0.0.1:5000", "127.0.0.1:5001"], tables, store=StoreConfig(seed=2))
    ```

    Requests are split by bucket, sent to all shards at once and answered in the order issued, as `Exchange`
    guarantees. With `Wire("float32", "float32")` the rows are equal to a `LocalExchange`'s to the bit, for
    any number of shards. If a connection breaks, it is re-established and lost messages are sent again; every
    update is applied exactly once. A shard that does not respond within the deadline ends the exchange with
    an `ExchangeError` that names it.

    Args:
        addresses: HOST:PORT per shard, in the order of their numbers, the same for all workers.
        tables: the tables, each with an optimizer.
        store: initialization and limits of rows. Its memory, the memory of a table and the size of its tier
            are totals over `shares` shards; the tier's folder is on the shards' machines. The memory of its
            admission is per shard.
        wire: number formats, default float16 rows and bfloat16 gradients.
        mode: "hybrid" (default): updates are applied as they arrive. "sync": the shards sum the gradients of
            all ranks of a step and take one optimizer step; every rank must then issue one update per step
            (an empty one if it has no batch), and lookups wait for the steps before them.
        ordered: in "sync", lookups of a step are served in the order of ranks, so that eviction, and
            admission by chance, do not depend on which worker is faster. Every rank must then issue one
            lookup per step (an empty one if it has no batch). Default False.
        worker: rank and run of this worker. Gradients are multiplied by 1 / world.
        epoch: epoch of the default map, default 1.
        map: owner of each bucket; default: an even split.
        shares: number of shards over which the memory is split; default: the number of addresses.
        options: key, deadline and heartbeat; see `ClientOptions`.

    Attributes:
        tables, seed, wire, mode, world: of the arguments.
        map: owner of each row; `moves` may change it.
        moves: moves buckets between the shards.
        splitter: splits requests among the shards.

    Raises:
        ConfigError: invalid arguments, or shards with another configuration.
        ExchangeError: a shard cannot be reached or rejects the key.
    """

    collective = False

    def __init__(
        self,
        addresses: Sequence[str],
        tables: Sequence[Table],
        *,
        store: StoreConfig = StoreConfig(),
        wire: Wire = Wire(),
        mode: str = "hybrid",
        ordered: bool = False,
        worker: WorkerId = WorkerId(),
        epoch: int = 1,
        map: ShardMap | None = None,
        shares: int | None = None,
        options: ClientOptions = ClientOptions(),
    ) -> None:
        self.map = ShardMap(max(1, len(addresses)), epoch) if map is None else map
        _check(addresses, tables, self.map, mode, options)
        self.tables, self.seed, self.mode = tables, store.seed, mode
        self.wire, self.world = wire, worker.world
        shares = shares or len(addresses)
        self._parts = [table.part(shares) for table in tables], store.part(shares)
        formats = {"forward": wire.forward, "backward": wire.backward}
        self._about = {**formats, "mode": mode, "ordered": ordered, **asdict(worker)}
        self._shards = Client(
            "shard {}",
            dict(zip(self.map.members, addresses, strict=True)),
            {shard: self._hello(shard, self.map) for shard in self.map.members},
            epoch=self.map.epoch,
            options=options,
        )
        first, *others = self._shards.greetings.values()
        if any((o["groups"], o["completed"]) != (first["groups"], first["completed"]) for o in others):
            self._shards.close()
            raise ExchangeError(
                "the shards disagree on the number of complete steps",
                fix="restart all shards, or restore all from one snapshot",
            )
        self._shards.step = int(first["completed"])
        self._tiered = [s for s, answer in self._shards.greetings.items() if answer.get("tier")]
        frozen = {table.name for table in tables if table.frozen}
        self.groups = [
            TableGroup(g["index"], tuple(g["tables"]), g["dim"], g["tables"][0] in frozen)
            for g in first["groups"]
        ]
        self.splitter = Splitter(self.groups, self.map)
        self.telemetry = Telemetry(self._statistics, self._shards.transfer)
        rounding = self.telemetry.meter.backward
        self._gradients = GradientEncoder(self.groups, CODES[wire.backward], self.world, rounding)
        self.rows = ServerRows(self._shards, self.groups, lambda: self.splitter)
        self.moves = self._mover(evicts="eviction" in store.bounds(tables).values())

    def _statistics(self) -> ExchangeStatistics:
        answers = self._shards.ask_all(MessageKind.STATISTICS)
        shards = tuple(ShardStatistics.of(told(parts)) for parts in answers)
        sums = merged(shards)
        sums["refused"] += self.telemetry.refused
        return ExchangeStatistics(**sums, shards=shards)

    def _mover(self, *, evicts: bool) -> Moves:
        return Moves(
            self._shards,
            self.rows,
            tiered=bool(self._tiered),
            evicts=evicts,
            backward=self.wire.backward,
            hello=lambda shard, map: self._hello(shard, map) | {"completed": self._shards.step},
            turn=self._turn,
            map=lambda: self.map,
        )

    def _hello(self, shard: int, map: ShardMap) -> dict[str, Any]:
        """Return the hello to a shard, under a map."""
        return ShardConfig(*self._parts, shard, map).to_dict() | self._about

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[Array]:
        """See `Exchange.lookup`. Its rows raise `ExchangeError` when a shard does not respond in time."""
        if not requests and self.mode == "hybrid":  # no shard waits for this worker's lookup
            return answered((), ())
        call: Call[list[Array]] = self._shards.call(limited=True)
        call.future.add_done_callback(self.telemetry.meter.issue("lookup"))
        lookup = Lookup(list(requests), call.future, self)
        kind = MessageKind.LOOKUP if create else MessageKind.PEEK
        self._shards.post(partial(self._send_lookup, kind, lookup, call, self._shards.step))
        return lookup

    def fetch(self, requests: Sequence[LookupRequest], widths: Sequence[int]) -> Future[Fetched]:
        """Look up rows together with their optimizer state, all in float32.

        Args:
            requests: as for `lookup`.
            widths: numbers per row of each request: its dim plus the width of the state.
        """
        call: Call[Fetched] = self._shards.call(limited=True)
        call.future.add_done_callback(self.telemetry.meter.issue("lookup"))
        lookup = Lookup[Array](list(requests))
        self._shards.post(
            partial(self._send_lookup, MessageKind.FETCH, lookup, call, self._shards.step, widths)
        )
        return call.future

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        """See `Exchange.prefetch`; ids are sent to the shards that have a tier, and may get lost."""
        if self._tiered:
            self._shards.post(partial(self._send_ahead, list(requests)))

    def _raise_failed(self) -> None:
        self._shards.raise_error()

    def _issue_update(
        self, lookup: Lookup[Any], gradients: Sequence[Array], lr_scale: float, *, checked: bool
    ) -> None:
        """See `Exchange._issue_update`. Shards check gradients on arrival, even if the caller has."""
        call: Call[None] = self._shards.call(limited=True)
        call.future.add_done_callback(self._shards.note)
        call.future.add_done_callback(self.telemetry.meter.issue("push", lookup))
        step, self._shards.step = self._shards.step, self._shards.step + 1
        self._shards.post(partial(self._send_update, lookup, list(gradients), lr_scale, call, step))

    def flush(self) -> None:
        """See `Exchange.flush`."""
        self._shards.flush()

    def close(self) -> None:
        """See `Exchange.close`. Closing twice is fine."""
        self._shards.close()

    # -- in the client loop's thread

    def _turn(self, map: ShardMap) -> None:
        """Use another map from now on. No request that was split by the old map may be open."""
        assert not any(peer.open(SPLIT) for peer in self._shards.peers.values())
        self.map, self.splitter = map, Splitter(self.groups, map)

    def _send_ahead(self, requests: Sequence[LookupRequest]) -> None:
        with contextlib.suppress(StoreError):  # the lookup itself will report the error
            splits = [self.splitter.split(r) for r in requests]
            for shard in self._tiered:
                sections = sections_of(requests, splits, shard)
                if any(section.count for section in sections):
                    self._shards.peers[shard].hint(MessageKind.PREFETCH, pack(sections))

    def _send_lookup(
        self,
        kind: MessageKind,
        lookup: Lookup[Array],
        call: Call[Any],
        step: int,
        fetched: Sequence[int] | None = None,
    ) -> None:
        """Send each shard its part of a lookup; if it is invalid, or too large for a response, `call` fails.

        `fetched`: widths of the rows of a FETCH, whose result is `Fetched`.
        """
        fetch, updates = fetched is not None, list[list[int]]()
        peers, code = self._shards.peers, FLOAT32 if fetch else CODES[self.wire.forward]
        try:
            lookup.places = [self.splitter.split(request) for request in lookup.requests]
            lookup.shard_map = self.map
            widths = fetched or [self.groups[r.group].dim for r in lookup.requests]
            pairs = list(zip(lookup.places, widths, strict=True))
            for shard, peer in peers.items():
                sizes = (len(parts[shard].ids) * row_bytes(code, width) for parts, width in pairs)
                if refusal := peer.refusal(kind, sum(sizes), answer=True):
                    raise refusal
        except StoreError as error:
            call.fail(error)
            return
        replies = RowReplies(lookup.requests, lookup.places, widths, "shard")
        call.expect(len(peers), (replies.rows, updates) if fetch else replies.rows)

        def answered(shard: int, parts: Sequence[Buffer], error: SatrapError | None) -> None:
            if error is None:
                if fetch:
                    updates.append(told(parts)["updates"])
                    parts = parts[1:]
                elif kind == MessageKind.LOOKUP:
                    self.telemetry.meter.looked_up(lookup, shard, self._shards.peers[shard].seen)
                replies.put(shard, unpack(parts, most=len(widths)))
            call.count(parts, error)

        for shard in peers:
            parts = pack(sections_of(lookup.requests, lookup.places, shard))
            self._shards.send(shard, kind, parts, partial(answered, shard), step=step)

    def _send_update(
        self, lookup: Lookup[Any], gradients: Sequence[Array], lr_scale: float, call: Call[None], step: int
    ) -> None:
        if self._shards.error is not None:  # a rejected update also stops all updates behind it
            call.fail(self._shards.error)
            return
        try:
            splits = lookup.places
            if not splits or lookup.shard_map is not self.map:  # rows may have moved since the lookup
                splits = [self.splitter.split(request) for request in lookup.requests]
            # Nothing is sent before all gradients are known to be finite.
            sections = self._gradients.sections(lookup.requests, splits, gradients, self.map.shards)
            messages = {shard: pack(sections[shard]) for shard in self._shards.peers}
            for shard, parts in messages.items():
                size = sum(memoryview(part).nbytes for part in parts)
                if refusal := self._shards.peers[shard].refusal(MessageKind.UPDATE, size):
                    raise refusal  # before any part is sent: all shards get their part, or none
        except StoreError as error:
            self.telemetry.refused += 1
            call.fail(error)
            return
        call.expect(len(messages), None)

        def answered(shard: int, parts: Sequence[Buffer], error: SatrapError | None) -> None:
            if error is None:
                self.telemetry.meter.applied(lookup, shard, self._shards.peers[shard].seen)
            call.count(parts, error)

        for shard, parts in messages.items():
            on_answer = partial(answered, shard)
            self._shards.send(shard, MessageKind.UPDATE, parts, on_answer, step=step, lr_scale=lr_scale)


def _check(
    addresses: Sequence[str], tables: Sequence[Table], map: ShardMap, mode: str, options: ClientOptions
) -> None:
    if not tables:
        raise without_tables()
    if mode not in ("sync", "hybrid"):
        raise ConfigError(f"mode {mode!r} is unknown", fix="use sync or hybrid")
    if not options.deadline > 0:
        raise ConfigError(f"the deadline must be > 0 seconds, got {options.deadline}")
    if not addresses or len(set(addresses)) != len(addresses):
        raise ConfigError(f"addresses must name each shard once, got {list(addresses)}")
    if len(addresses) != len(map.members):
        raise ConfigError(f"got {len(addresses)} addresses for the shards {map.members} of the map")
    check_reach(addresses, options.key)


def check_reach(addresses: Sequence[str], key: Key | None) -> None:
    """Raise `ConfigError` for an invalid address, or an address of another machine without a key."""
    for address in addresses:
        host, _ = split_address(address)
        if key is None and not is_loopback(host):
            raise ConfigError(
                f"shard {address} is on another machine and needs a key",
                why="without a key, rows and gradients are not encrypted, and others can modify them",
                fix="give the cluster's key file",
            )
