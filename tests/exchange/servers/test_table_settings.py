"""Shard servers whose tables have their own memory, admission and eviction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.checkpoint import Checkpoint, write_checkpoint
from satrap.errors import ConfigError
from satrap.exchange import Exchange, LookupRequest
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.states import COUNTS
from satrap.optim import Adagrad
from satrap.schema import Table
from satrap.store import Admission, Eviction, Shard, StoreConfig, bucket_of
from tests.contract.parties import SEED, connect, contents, threads

DIM = 4
LRU, LFU = Eviction("lru"), Eviction("lfu")
CHOOSY = Admission(min_count=2, probability=0.8, memory=1 << 14)
MEMORY, OWN = 3 << 18, 1 << 18


def tables(own: int = OWN, admission: Admission | None = CHOOSY) -> list[Table]:
    common: dict[str, Any] = {"dim": DIM, "optimizer": Adagrad(lr=0.1), "dtype": "bfloat16"}
    return [
        Table("small", memory=own, eviction=LFU, **common),
        Table("choosy", admission=admission, eviction=None, **common),
        Table("plain", **common),
    ]


def requests(rng: np.random.Generator, ids: int) -> list[LookupRequest]:
    """Return ids of each table; each is a group of its own."""
    keys = [
        rng.choice(most, ids // 2, replace=False).astype(np.uint64) for most in (ids * 40, ids * 2, ids * 5)
    ]
    return [LookupRequest(g, one, np.array([0, len(one)])) for g, one in enumerate(keys)]


def gradients(rng: np.random.Generator, asked: list[LookupRequest]) -> list[np.ndarray]:
    return [rng.standard_normal((len(r.ids), DIM)).astype(np.float32) for r in asked]


def use(exchange: Exchange, seed: int, rounds: int, ids: int = 300) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        lookup = exchange.lookup(asked := requests(rng, ids), create=True)
        lookup.result()
        exchange.apply(lookup, gradients(rng, asked), lr_scale=1.0)
    exchange.flush()


def write(exchange: Exchange, place: Path) -> str:
    cut = exchange.rows.cut()
    write_checkpoint(str(place), Checkpoint({COUNTS: dict(cut.counts)}, {}, {}, (), rows=cut.write))
    return str(place)


def test_each_shard_keeps_what_a_store_of_its_share_keeps() -> None:
    with threads(2) as servers:
        exchange = connect([s.address for s in servers], tables=tables(), memory=MEMORY, eviction=LRU)
        use(exchange, 1, 60)
        found, counted = contents(exchange), exchange.telemetry.statistics().tables
        exchange.close()
    stores = [Shard(tables(OWN // 2), seed=SEED, memory=MEMORY // 2, eviction=LRU) for _ in range(2)]
    rng, owners = np.random.default_rng(1), ShardMap(2).owners
    for _ in range(60):
        asked = requests(rng, 300)
        for request, gradient in zip(asked, gradients(rng, asked), strict=True):
            name = ("small", "choosy", "plain")[request.group]
            of = owners[bucket_of(name, request.ids)]
            for shard, store in enumerate(stores):
                own = np.flatnonzero(of == shard)
                splits = np.array([0, len(own)])
                store.lookup_group(request.group, request.ids[own], splits)
                store.update_group(request.group, request.ids[own], splits, gradient[own])
    for table, columns in found.items():
        chunks = [chunk for store in stores for chunk in store.export(table)]
        for column, field in zip(columns, ("ids", "weights", "state"), strict=True):
            np.testing.assert_array_equal(column, np.concatenate([getattr(chunk, field) for chunk in chunks]))
    expected = [store.statistics().tables for store in stores]
    for name in found:
        for count in ("rows", "evicted", "unadmitted"):
            assert getattr(counted[name], count) == sum(getattr(one[name], count) for one in expected)
    assert counted["small"].evicted > 1000
    assert counted["choosy"].evicted == 0
    assert {name for name in found if counted[name].unadmitted} == {"choosy"}
    for store in stores:
        store.close()


def gone_on(folder: Path, before: int, after: int, steps: int, **bounds: Any) -> tuple[Any, Any, Any]:
    """Return the rows of shards that go on, those of others that began with their snapshot, and counters."""
    with threads(before) as servers:
        exchange = connect([s.address for s in servers], **bounds)
        use(exchange, 1, 2 * steps)
        place = write(exchange, folder)
        use(exchange, 2, steps)
        expected = contents(exchange)
        exchange.close()
    with threads(after) as servers:
        exchange = connect([s.address for s in servers], **bounds)
        exchange.rows.read(place, exact=True)
        use(exchange, 2, steps)
        found, counted = contents(exchange), exchange.telemetry.statistics().tables
        exchange.close()
    return expected, found, counted


def test_going_on_from_a_snapshot_evicts_and_admits_the_same(tmp_path: Path) -> None:
    bounds: dict[str, Any] = {"tables": tables(), "memory": MEMORY, "eviction": LRU}
    expected, found, _ = gone_on(tmp_path / "x", 2, 2, 20, **bounds)
    for table, columns in expected.items():
        for mine, its in zip(columns, found[table], strict=True):
            np.testing.assert_array_equal(mine, its)


def test_other_numbers_of_shards_go_on_with_the_same_rows(tmp_path: Path) -> None:
    """While all rows fit: the order of eviction is that of the shards that wrote it."""
    bounds: dict[str, Any] = {"tables": tables(4 * OWN, None), "memory": 4 * MEMORY, "eviction": LRU}
    expected, found, counted = gone_on(tmp_path / "x", 1, 2, 5, **bounds)
    assert sum(table.evicted for table in counted.values()) == 0
    for table, columns in expected.items():
        order = np.argsort(found[table][0])
        for mine, its in zip(columns, found[table], strict=True):
            np.testing.assert_array_equal(mine[np.argsort(columns[0])], its[order])


def test_a_hello_tells_the_settings_of_tables() -> None:
    config = ShardConfig(tables(), StoreConfig(SEED), 0, ShardMap(1))
    plain = json.loads(json.dumps(config.to_dict()))
    assert not config.difference(ShardConfig.from_dict(plain))
    other = ShardConfig(tables(own=OWN + 1), StoreConfig(SEED), 0, ShardMap(1))
    assert config.difference(other).startswith("table 'small': ")
    for key in ("memory", "admission", "eviction"):  # a journal from before there were such settings
        del plain["tables"][2][key]
    assert not config.difference(ShardConfig.from_dict(plain))


@pytest.mark.parametrize("key", ["memory", "admission", "eviction"])
@pytest.mark.parametrize("value", [0, -1, 1 << 70, "lru", [], {}, {"policy": "x", "ttl": None}, 1.5, True])
def test_impossible_settings_of_tables_are_refused(key: str, value: Any) -> None:
    plain = ShardConfig(tables(), StoreConfig(SEED), 0, ShardMap(1)).to_dict()
    plain["tables"][0] = {**plain["tables"][0], key: value}
    with pytest.raises(ConfigError):
        ShardConfig.from_dict(plain)
