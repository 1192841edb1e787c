"""A shard's part in moving buckets: counting rows, changing maps, and the rehearsal before it joins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from satrap.errors import ConfigError, StoreError
from satrap.exchange.kernels import row_bytes
from satrap.exchange.servers.config import ShardConfig, Worker
from satrap.exchange.servers.shard.gradient_barrier import GradientBarrier
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.states import counts_of, take_counts
from satrap.exchange.wire.formats import CODES
from satrap.exchange.wire.rows import pack_chunk
from satrap.exchange.wire.sections import Section, pack
from satrap.rpc.server.handler import Job, SerialHandler
from satrap.rpc.server.session import Session
from satrap.rpc.server.turns import execute
from satrap.rpc.wire.frames import FAILURE, Buffer, FrameError, Header, MessageKind
from satrap.rpc.wire.text import pack_text, shortened, unpack_text
from satrap.store import BUCKETS, RowChunk, Shard
from satrap.store.buckets import mask_of

REHEARSED_ROWS = 20_000
"""Rows of a rehearsal in each table group: a request of this size is split over threads."""


class RehearsalTarget(SerialHandler, Protocol):
    """The parts of a shard's service that a rehearsal needs."""

    board: GradientBarrier
    config: ShardConfig | None

    @property
    def store(self) -> Shard:
        """The store."""


def buckets_of(asked: Mapping[str, Any]) -> Sequence[int]:
    """Return the buckets of the runs in a request, [[first, end], ...]; all by default.

    Raises:
        FrameError: a run is invalid.
    """
    runs = asked.get("buckets", [[0, BUCKETS]])
    if not isinstance(runs, list) or len(runs) > BUCKETS:
        raise FrameError("a request has an invalid list of buckets")
    buckets: list[int] = []
    for run in runs:
        match run:
            case [int(first), int(end)] if 0 <= first < end <= BUCKETS:
                buckets += range(first, end)
            case _:
                raise FrameError(f"a request has an invalid run of buckets: {shortened(run)}")
        if len(buckets) > BUCKETS:
            raise FrameError("a request names a bucket twice")
    return buckets


def census(store: Shard, buckets: Sequence[int]) -> dict[str, Any]:
    """Count the contents of some buckets.

    Returns:
        The "rows" in each of them, in their order, the "bytes" of weights and optimizer state of these rows,
        and the "counts" of the store's updates.
    """
    rows = store.rows_by_bucket(buckets)[:, list(buckets)]
    size = np.array([group.row_bytes for group in store.groups]) @ rows
    return {"counts": counts_of(store), "rows": rows.sum(axis=0).tolist(), "bytes": size.tolist()}


def map_change(config: ShardConfig, store: Shard, asked: Mapping[str, Any]) -> Callable[[], ShardConfig]:
    """Check a MAP request: from now on the shard owns its buckets in this map, and drops all other rows.

    `counts`, if given, are the counters of the other shards: a new shard continues from them. The shard's
    present map makes it drop rows that were loaded for an abandoned move.

    Returns:
        A function that carries it out, and returns the shard's new configuration.

    Raises:
        ConfigError: an invalid map.
        StoreError: an older map, a different map of the same epoch, or one without this shard.
    """
    map = ShardMap.from_dict(asked.get("map") or {})
    if map.epoch < config.map.epoch or (map.epoch == config.map.epoch and map != config.map):
        raise StoreError(f"the shard is at epoch {config.map.epoch} of the shard map, not at {map.epoch}")
    if config.shard not in map.members:
        raise StoreError(f"the map of epoch {map.epoch} has no shard {config.shard}")
    take = take_counts(store, asked["counts"]) if "counts" in asked else lambda: None

    def change() -> ShardConfig:
        drop = ~mask_of(map.buckets(config.shard))
        if map.epoch > config.map.epoch:
            drop &= mask_of(config.map.buckets(config.shard))  # a scan of these buckets alone is cheap
        store.discard(np.flatnonzero(drop).tolist())
        take()
        return replace(config, map=map)

    return change


def rehearse(service: RehearsalTarget, hello: Mapping[str, Any]) -> None:
    """Run each kind of request that a shard serves after it has joined, on rows that are then dropped.

    This loads or compiles machine code, and starts threads. Without it, the first requests take half a
    second, and training stands still for that time.

    Args:
        service: a service for this purpose, without tables; it is closed.
        hello: hello of the run; its "rehearsal" is the number format of gradients.

    Raises:
        ConfigError: an unknown number format.
        SatrapError: a request failed.
    """
    code, worker = CODES.get(str(hello["rehearsal"])), Worker.from_dict(hello)
    if code is None:
        raise ConfigError(f"a hello has an unknown wire format: {shortened(hello['rehearsal'])}")
    ranks = range(2 if worker.gated else 1)  # two ranks' gradients are merged before they are applied
    sessions = [Session(rank + 1, None) for rank in ranks]
    numbers = itertools.count()

    def do(rank: int, kind: MessageKind, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        header = Header(kind, service.epoch or 0, rank + 1, next(numbers), step=service.board.completed)
        answer = execute(service, Job(sessions[rank], header, parts, 0, 0.0))
        if answer.header.kind == FAILURE:
            error = unpack_text(answer.parts[0])
            about = {name: error[name] for name in ("where", "why", "fix")}
            raise StoreError(f"a rehearsal failed: {error['what']}", **about)
        return answer.parts

    try:
        for rank in ranks:
            about = {"rank": rank, "world": len(ranks), "completed": 0}
            served = {name: value for name, value in hello.items() if name != "rehearsal"}
            do(rank, MessageKind.HELLO, [pack_text({**served, **about})])
        store, rows = service.store, list(_some_rows(service.store))
        lookups = pack([Section(g, splits, ids) for g, ids, splits in rows])
        for kind in (MessageKind.LOOKUP, MessageKind.UPDATE, MessageKind.LOOKUP, MessageKind.UPDATE):
            for rank in ranks:
                do(rank, kind, lookups if kind == MessageKind.LOOKUP else _gradients(store, rows, code))
        do(0, MessageKind.PEEK, lookups)
        # With admission, some of the ids have no row yet.
        if all(group.gate is None for group in store.groups):
            do(0, MessageKind.FETCH, lookups)
        _carry(store, rows, do, service.config)
    finally:
        service.close()


def _some_rows(store: Shard) -> Iterator[tuple[int, Any, Any]]:
    """Yield (group, ids, splits) of lookups of the first table of each group."""
    for group in store.groups:
        count = min(REHEARSED_ROWS, group.directory.room // 4)
        ids = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # in all buckets
        yield group.index, ids, np.array([0] + [count] * len(group.tables), np.int64)


def _gradients(store: Shard, rows: Sequence[tuple[int, Any, Any]], code: int) -> list[Buffer]:
    sections = []
    for g, ids, splits in rows:
        if not store.groups[g].frozen:
            dim = store.groups[g].dim
            zeros = np.zeros(len(ids) * row_bytes(code, dim), np.uint8)
            sections.append(Section(g, splits, ids, code, dim, 1.0, zeros))
    return pack(sections)


def _carry(
    store: Shard,
    rows: Sequence[tuple[int, Any, Any]],
    do: Callable[..., Sequence[Buffer]],
    config: ShardConfig | None,
) -> None:
    """Move rows out of a rehearsed store, and into it, as another shard and this one would."""
    assert config is not None
    buckets = {"buckets": [[0, BUCKETS // 2]]}
    do(0, MessageKind.STATISTICS, [pack_text(buckets)])
    for g, ids, _ in rows:
        group = store.groups[g]
        weights, state = (np.zeros((len(ids), width), np.float32) for width in (group.dim, group.plan.width))
        do(0, MessageKind.LOAD, pack_chunk(RowChunk(group.tables[0], ids, weights, state)))
    do(0, MessageKind.EXPORT, [pack_text({"table": None, **buckets})])
    owners = config.map.owners
    owners[: BUCKETS // 2] = next((s for s in config.map.members if s != config.shard), config.shard)
    new = config.map.after(owners, config.map.members)
    do(0, MessageKind.MAP, [pack_text({"map": new.to_dict(), "counts": counts_of(store)})])
    do(0, MessageKind.CLEAR, [])
    do(0, MessageKind.FLUSH, [])
    do(0, MessageKind.BYE, [])
