"""What must hold whenever no request is under way, whatever moved and whoever died: checks with names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from satrap.store.hashes import bucket_of

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

Row = tuple[int, str, int, list[float]]
"""Shard, table, id, weights."""


class BrokenError(AssertionError):
    """An invariant does not hold; its text begins with the invariant's name."""


def rows_of(cluster: SimCluster) -> Iterator[Row]:
    """Yield the rows of all shards of the map."""
    for shard in cluster.exchanges[0].map.members:
        store = cluster.shards[shard].service.store
        for table in (name for group in store.groups for name in group.tables):
            for chunk in store.export(table):
                for id, row in zip(chunk.ids.tolist(), chunk.weights.tolist(), strict=True):
                    yield shard, table, id, row


def hold(name: str, condition: bool, *about: object) -> None:
    if not condition:
        raise BrokenError(f"{name}: {', '.join(map(str, about))}")


def lookups_see_what_they_must(cluster: SimCluster) -> None:
    try:
        cluster.history.check(cluster.workers, cluster.staleness, sync=cluster.sync)
    except AssertionError as error:
        raise BrokenError(f"lookups see what they must: {error}") from error


def epochs_agree_and_only_grow(cluster: SimCluster) -> None:
    maps = [exchange.map for exchange in cluster.exchanges]
    maps += [cluster.shards[shard].service.config.map for shard in maps[0].members]  # type: ignore[union-attr]
    seen = {(map.epoch, map.digest) for map in maps}
    hold("epochs agree", len(seen) == 1, seen)
    now = cluster.generation, maps[0].epoch
    hold("epochs only grow", now >= cluster.newest, now, cluster.newest)
    cluster.newest = now


def each_row_is_at_one_shard_and_at_its_owner(cluster: SimCluster) -> None:
    owners, at = cluster.exchanges[0].map.owners, dict[tuple[str, int], int]()
    for shard, table, id, _ in rows_of(cluster):
        hold("no row is at two shards", (table, id) not in at, table, id, shard, at.get((table, id)))
        at[table, id] = shard
        owner = int(owners[bucket_of(table, np.array([id], np.uint64))[0]])
        hold("each row is at its owner", owner == shard, table, id, shard, owner)


def no_row_is_lost_and_none_is_invented(cluster: SimCluster) -> None:
    found = {(table, id) for _, table, id, _ in rows_of(cluster)}
    hold("no row is lost", cluster.touched(issued=False) <= found, cluster.touched(issued=False) - found)
    hold("no row is invented", found <= cluster.touched(issued=True), found - cluster.touched(issued=True))


def each_update_is_applied_once(cluster: SimCluster) -> None:
    models = [cluster.history.seen(w, t.done) for w, t in enumerate(cluster.trainers)]
    places = {table.name: t for t, table in enumerate(cluster.tables)}
    for _, table, id, row in rows_of(cluster):
        expected = [float(model[places[table]][id]) for model in models]
        expected += [0.0] * (len(row) - len(expected))
        hold("each update is applied once", row == expected, table, id, row, expected)


INVARIANTS = (
    epochs_agree_and_only_grow,
    each_row_is_at_one_shard_and_at_its_owner,
    no_row_is_lost_and_none_is_invented,
    each_update_is_applied_once,
    lookups_see_what_they_must,
)
