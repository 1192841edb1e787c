"""A second store that is given only deltas equals the first one at every `take`."""

from functools import partial

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.optim import Adam
from satrap.schema import Table
from satrap.store import Admission, Eviction, Shard
from tests.store.shards import DIMS, Copy, assert_same, content

U = np.uint64
STORES = {
    "plain": {},
    "admission": {"admission": Admission(min_count=2)},
    "lru": {"memory": 1 << 20, "eviction": Eviction()},
    "lfu": {"memory": 1 << 20, "eviction": Eviction("lfu")},
    "ttl": {"memory": 1 << 20, "eviction": Eviction("ttl", ttl=9)},
}


def shard(**arguments):
    tables = [Table(name, dim=dim) for name, dim in DIMS.items()]
    return Shard(tables, optimizer=Adam(lr=0.1), seed=3, **arguments)


def change(store, rng, rounds=1, ids=20_000):
    for _ in range(rounds):
        for table, dim in DIMS.items():
            keys = rng.integers(0, ids, 800).astype(U)
            store.lookup(table, keys)
            store.update(table, keys, rng.standard_normal((800, dim)).astype(np.float32))


@pytest.mark.parametrize("kind", STORES)
def test_deltas_add_up_to_the_store(kind):
    store, copy, rng = shard(**STORES[kind]), Copy(), np.random.default_rng(0)
    change(store, rng, 10)
    deleted = 0
    for i in range(4):
        delta, expected = store.changes.take(chunk_rows=900), content(store.snapshot())
        deleted += sum(len(ids) for ids in delta.deleted.values())
        rows = copy.apply(delta, between=partial(change, store, rng, i % 2))
        copy.assert_equal(expected)
        assert delta.full == (i == 0)
        if i % 2:  # nothing changed while the one before was read: one round
            assert 0 < rows <= 3 * 800
        change(store, rng)
    assert (deleted > 0) == ("eviction" in STORES[kind])


def test_a_delta_holds_what_changed_and_no_more():
    store = shard()
    store.lookup("a", np.arange(1000, dtype=U))
    list(store.changes.take().chunks)
    store.lookup("a", np.arange(500, dtype=U))  # no row changes by being read
    store.peek("a", np.arange(2000, dtype=U))
    store.update("a", np.array([3, 5, 5000], U), np.ones((3, 3), np.float32))
    store.lookup("b", np.array([7], U))
    delta = store.changes.take()
    assert {c.table: c.ids.tolist() for c in delta.chunks} == {
        "a": store_order("a", [3, 5]),
        "b": [7],
    }
    assert not any(len(ids) for ids in delta.deleted.values())
    assert not list(store.changes.take().chunks)


def test_two_readers_have_their_own_changes_and_to_one_of_them_a_use_is_none():
    """Where rows are evicted, a lookup changes when a row was used last, but not its weights."""
    store = shard(memory=1 << 20, eviction=Eviction("lru"))
    store.lookup("a", np.arange(1000, dtype=U))
    for reader in (store.changes, store.weight_changes):
        assert sum(len(chunk.ids) for chunk in reader.take().chunks) == 1000
    store.lookup("a", np.arange(500, dtype=U))
    store.update("a", np.array([3, 5], U), np.ones((2, 3), np.float32))
    assert sum(len(chunk.ids) for chunk in store.changes.take().chunks) == 500
    store.update("a", np.array([5, 9], U), np.ones((2, 3), np.float32))
    delta = store.weight_changes.take()
    assert [c.ids.tolist() for c in delta.chunks] == [store_order("a", [3, 5, 9])]
    assert [c.ids.tolist() for c in store.changes.take().chunks] == [store_order("a", [5, 9])]


def store_order(table, keys):
    other = shard()
    other.lookup(table, np.array(keys, U))
    return np.concatenate([c.ids for c in other.export(table)]).tolist()


def test_a_row_made_and_evicted_between_two_deltas_is_in_neither():
    store = shard(memory=1 << 20, eviction=Eviction("ttl", ttl=2))
    store.lookup("a", np.arange(10, dtype=U))
    store.changes.take()
    store.lookup("a", np.arange(1000, 1010, dtype=U))
    for _ in range(200):
        store.lookup("b", np.array([1], U))
    delta = store.changes.take()
    assert delta.deleted["a"].tolist() == list(range(10))
    assert [c.table for c in delta.chunks] == ["b"]


def test_what_could_not_be_kept_is_in_the_next_delta_again():
    store, copy, rng = shard(memory=1 << 20, eviction=Eviction()), Copy(), np.random.default_rng(1)
    change(store, rng, 10)
    lost = store.changes.take()
    store.changes.put_back(lost)
    delta = store.changes.take()
    assert delta.full
    copy.apply(delta)
    for _ in range(4):
        change(store, rng, 2)
        lost = store.changes.take()
        change(store, rng)
        store.changes.put_back(lost)
        change(store, rng)
    store.update("a", np.arange(100, dtype=U), np.ones((100, 3), np.float32))
    delta, expected = store.changes.take(), content(store.snapshot())
    for table, ids in delta.deleted.items():
        for key in ids.tolist():
            copy.tables[table].pop(key, None)  # after put_back it may name rows that the copy never had
    copy.apply(store.changes.take())
    assert not delta.full
    copy.apply(type(delta)(False, delta.chunks, {}))
    copy.assert_equal(expected)


def test_a_delta_that_could_not_be_taken_is_followed_by_all_rows(monkeypatch):
    """Memory runs out at the second group, whose changes and the first one's are noted nowhere any more."""
    rng = np.random.default_rng(6)
    store = shard()
    copy = Copy()
    change(store, rng)
    copy.apply(store.changes.take())
    change(store, rng)
    with monkeypatch.context() as patch:

        def no_memory(*_):
            raise MemoryError

        patch.setattr(store.groups[1], "cut", no_memory)
        with pytest.raises(MemoryError):
            store.changes.take()
    change(store, rng)
    delta = store.changes.take()
    copy.apply(delta)
    copy.assert_equal(content(store.snapshot()))


def test_rows_of_a_delta_that_is_closed_are_not_copied():
    store = shard()
    change(store, np.random.default_rng(7))
    delta = store.changes.take()
    assert all(group._cuts for group in store.groups)
    delta.chunks.close()
    assert not any(group._cuts for group in store.groups)


def test_a_store_that_was_loaded_follows_from_there():
    source, store, rng = shard(), shard(), np.random.default_rng(2)
    change(source, rng)
    for chunk in source.snapshot():
        store.load(chunk.table, chunk)
    assert not store.changes.following
    store.changes.follow()
    assert store.changes.following
    chunk = next(source.export("a", chunk_rows=10))
    store.load("a", chunk)
    delta = store.changes.take()
    assert not delta.full
    assert [c.ids.tolist() for c in delta.chunks] == [chunk.ids.tolist()]


def test_after_clear_or_when_asked_everything_is_taken():
    store, rng = shard(), np.random.default_rng(3)
    change(store, rng)
    store.changes.take()
    assert store.changes.take(full=True).full
    assert not store.changes.take().full
    store.clear()
    change(store, rng)
    delta, expected = store.changes.take(), content(store.snapshot())
    assert delta.full
    assert_same(content(delta.chunks), expected)
    store.changes.stop()
    assert store.changes.take().full


def test_bad_requests_take_nothing():
    store = shard()
    store.changes.take()
    store.lookup("a", np.array([1], U))
    with pytest.raises(StoreError, match="chunk_rows"):
        store.changes.take(chunk_rows=0)
    delta = store.changes.take()
    assert [c.ids.tolist() for c in delta.chunks] == [[1]]
    store.lookup("a", np.array([2], U))
    late = store.changes.take()
    store.clear()
    with pytest.raises(StoreError, match="cleared or closed"):
        list(late.chunks)
