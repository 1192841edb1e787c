import threading

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.optim import SGD, Adam
from satrap.schema import Table
from satrap.store import Eviction, Shard

U = np.uint64


def shard(**arguments):
    tables = [Table("a", dim=3), Table("b", dim=3), Table("c", dim=5)]
    return Shard(tables, optimizer=Adam(lr=0.1), seed=3, **arguments)


def content(chunks):
    """Return {table: (ids, weights, state)} with the chunks of a table joined."""
    joined = {}
    for chunk in chunks:
        joined.setdefault(chunk.table, []).append(chunk)
    return {
        table: tuple(np.concatenate([getattr(c, f) for c in parts]) for f in ("ids", "weights", "state"))
        for table, parts in joined.items()
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for table in one:
        for mine, its in zip(one[table], other[table], strict=True):
            np.testing.assert_array_equal(mine, its)


def change(store, rng, rounds=1, ids=6000):
    for _ in range(rounds):
        for table in "abc":
            keys = rng.integers(0, ids, 800).astype(U)
            store.lookup(table, keys)
            dim = 5 if table == "c" else 3
            store.update(table, keys, rng.standard_normal((800, dim)).astype(np.float32))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"memory": 1 << 20, "eviction": Eviction()},
        {"memory": 1 << 20, "eviction": Eviction("ttl", ttl=9)},
    ],
    ids=["plain", "lru", "ttl"],
)
def test_a_snapshot_is_the_moment_it_was_taken(arguments):
    store, rng = shard(**arguments), np.random.default_rng(0)
    change(store, rng, 8, ids=20_000)
    expected = content(store.snapshot(chunk_rows=700))
    seen = []
    for chunk in store.snapshot(chunk_rows=700):
        seen.append(chunk)
        change(store, rng, ids=20_000)
    assert_same(content(seen), expected)
    assert len(store.groups[0]._cuts) == 0
    now = content(store.snapshot())
    assert any(len(now[t][0]) != len(expected[t][0]) or (now[t][1] != expected[t][1]).any() for t in now)


def test_every_chunk_but_the_last_is_full():
    store, rng = shard(), np.random.default_rng(0)
    change(store, rng, 6)
    rows = store.statistics()["tables"]["a"]["rows"]
    lengths = [len(chunk.ids) for chunk in store.export("a", chunk_rows=300)]
    assert lengths == [300] * (rows // 300) + [rows % 300]
    some = [len(chunk.ids) for chunk in store.export("a", buckets=range(500, 1900), chunk_rows=300)]
    assert set(some[:-1]) == {300}
    assert len(some) > 2


def test_two_snapshots_at_different_moments_at_the_same_time():
    store, rng = shard(), np.random.default_rng(0)
    change(store, rng, 3)
    first, expected_first = store.snapshot(chunk_rows=300), content(store.snapshot())
    change(store, rng, 3)
    second, expected_second = store.snapshot(chunk_rows=450), content(store.snapshot())
    change(store, rng, 3)
    seen_second = content(second)
    change(store, rng, 3)
    assert_same(content(first), expected_first)
    assert_same(seen_second, expected_second)


def test_export_is_a_cut_of_its_table_and_loads_do_not_touch_it():
    store, rng = shard(), np.random.default_rng(0)
    change(store, rng, 3)
    expected, before = content(store.export("a")), store.export("a", chunk_rows=100)
    wide = next(store.export("a"))
    store.load("a", type(wide)("a", wide.ids, wide.weights + 1, wide.state))
    store.load("a", type(wide)("a", wide.ids + U(2**50), wide.weights, wide.state))
    assert_same(content(before), expected)


def test_a_snapshot_in_another_thread_beside_training():
    store, rng = shard(), np.random.default_rng(0)
    change(store, rng, 5)
    expected, snapshot, found = content(store.snapshot()), store.snapshot(chunk_rows=200), {}
    reader = threading.Thread(target=lambda: found.update(content(snapshot)))
    reader.start()
    while reader.is_alive():
        change(store, rng)
    reader.join()
    assert_same(found, expected)


def test_an_abandoned_snapshot_costs_nothing():
    store, rng = shard(), np.random.default_rng(0)
    change(store, rng)
    for begun in (False, True):
        snapshot = store.snapshot(chunk_rows=100)
        if begun:
            next(snapshot)
        assert len(store.groups[0]._cuts) == 1
        del snapshot
        assert len(store.groups[0]._cuts) == 0


def test_clearing_ends_a_snapshot_with_an_error():
    store = Shard([Table("a", dim=1)], optimizer=SGD(lr=1))
    store.lookup("a", np.arange(5000, dtype=U))
    snapshot = store.snapshot(chunk_rows=1000)
    next(snapshot)
    store.clear()
    with pytest.raises(StoreError, match="cleared or closed"):
        list(snapshot)


def test_equal_content_has_equal_bytes_whatever_its_history():
    rng = np.random.default_rng(0)
    first = Shard([Table("a", dim=2)], optimizer=SGD(lr=1))
    change_ids = rng.permutation(30_000).astype(U)
    for part in np.array_split(change_ids, 40):
        first.lookup("a", part)
    second = Shard([Table("a", dim=2)], optimizer=SGD(lr=1))
    second.lookup("a", np.sort(change_ids))
    assert_same(content(first.snapshot(chunk_rows=777)), content(second.snapshot(chunk_rows=5000)))
