"""A store that takes over another's state and rows evicts what the other does, to the bit."""

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.optim import SGD, Adam
from satrap.schema import Table
from satrap.store import Admission, Eviction, Shard
from tests.store.shards import assert_same, content, moved
from tests.support.covering import covering

U = np.uint64
POLICIES = [Eviction("lru"), Eviction("lfu"), Eviction("ttl", ttl=30)]
DIMS = {"a": 3, "b": 3, "c": 5}


def shard(eviction, memory=3 << 18, **arguments):
    tables = [Table(name, dim=dim, dtype="bfloat16") for name, dim in DIMS.items()]
    return Shard(tables, optimizer=Adam(lr=0.1), seed=3, memory=memory, eviction=eviction, **arguments)


def change(store, rng, rounds):
    for _ in range(rounds):
        for table, dim in DIMS.items():
            keys = (rng.zipf(1.2, 700) % 60_000).astype(U)
            store.lookup(table, keys)
            store.update(table, keys, rng.standard_normal((700, dim)).astype(np.float32))


@pytest.mark.parametrize(
    ("eviction", "admission"),
    covering(POLICIES, [None, Admission(min_count=2, probability=0.9, memory=1 << 14)]),
    ids=lambda value: getattr(value, "policy", None),
)
def test_going_on_elsewhere_changes_nothing(eviction, admission):
    memory = (3 << 18) if admission is None else 7 << 16
    one, other = (shard(eviction, memory, admission=admission) for _ in range(2))
    change(one, np.random.default_rng(0), 40)
    moved(one, other)
    assert_same(content(one.snapshot()), content(other.snapshot()))
    before = {t: c.evicted for t, c in one.statistics().tables.items()}
    for store in (one, other):
        change(store, np.random.default_rng(1), 40)
    assert_same(content(one.snapshot()), content(other.snapshot()))
    after = {t: c.evicted for t, c in one.statistics().tables.items()}
    assert sum(after.values()) > sum(before.values()) + 100, (before, after)
    for mine, its in zip(one.groups, other.groups, strict=True):
        for name, array in mine.state().items():
            np.testing.assert_array_equal(array, its.state()[name], err_msg=name)


@pytest.mark.parametrize("eviction", [None, *POLICIES], ids=lambda e: e.policy if e else "none")
def test_the_state_is_the_same_once_the_rows_are_there(eviction):
    one, other = (shard(eviction, 3 << 18 if eviction else None) for _ in range(2))
    change(one, np.random.default_rng(0), 10)
    moved(one, other)
    for mine, its in zip(one.groups, other.groups, strict=True):
        for name, array in mine.state().items():
            np.testing.assert_array_equal(array, its.state()[name], err_msg=name)


def test_without_the_state_it_would_not_be_so():
    one, other = shard(POLICIES[0]), shard(POLICIES[0])
    change(one, np.random.default_rng(0), 40)
    for chunk in one.snapshot():
        other.load(chunk.table, chunk)
    for store in (one, other):
        change(store, np.random.default_rng(1), 10)
    mine, its = content(one.snapshot()), content(other.snapshot())
    assert any(not np.array_equal(mine[t][0], its[t][0]) for t in "abc")


def test_a_row_that_was_left_out_starts_anew():
    one, other = shard(POLICIES[0]), shard(POLICIES[0])
    change(one, np.random.default_rng(0), 10)
    for mine, its in zip(one.groups, other.groups, strict=True):
        its.restore(mine.state())
    [first, *_] = one.export("a")
    np.testing.assert_array_equal(other.peek("a", first.ids)[0], shard(POLICIES[0]).peek("a", first.ids)[0])


def test_overwriting_rows_is_no_use_of_them():
    store = shard(POLICIES[0])
    change(store, np.random.default_rng(0), 5)
    before = store.groups[0].state()
    for chunk in list(store.export("a")):
        store.load("a", chunk)
    for name, array in store.groups[0].state().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_state_that_does_not_fit_changes_nothing():
    one, small, filled = shard(POLICIES[0]), shard(POLICIES[0], memory=3 << 17), shard(POLICIES[0])
    change(one, np.random.default_rng(0), 40)
    filled.lookup("a", np.array([2**60], U))
    state = one.groups[0].state()
    with pytest.raises(StoreError, match="does not fit"):
        small.groups[0].restore(state)
    with pytest.raises(StoreError, match="rows differ from its saved state"):
        filled.groups[0].restore(state)
    change(small, np.random.default_rng(1), 3)
    assert filled.peek("a", np.array([2**60], U))[1].all()


def test_the_row_of_id_0_is_found_again_behind_entries_of_rows_that_went():
    arguments = {"optimizer": SGD(lr=0.1), "memory": 120_000, "eviction": Eviction("lru")}
    store, rng = Shard([Table("a", dim=3)], **arguments), np.random.default_rng(0)
    for step in range(300):
        keys = np.unique(np.append(rng.integers(0, 2**64, 60, np.uint64), np.uint64(0)))
        store.lookup("a", keys)
        if step % 3 == 0:
            other = Shard([Table("a", dim=3)], **arguments)
            other.groups[0].restore(store.groups[0].state())
            for chunk in store.snapshot():
                assert other.peek("a", chunk.ids)[1].all()
                other.load("a", chunk)
            other.close()
    store.close()
