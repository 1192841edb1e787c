import tempfile
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import StoreError
from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import BUCKETS, Eviction, RowChunk, Shard, Tier, bucket_of
from tests.store.shards import U, assert_same, change, content, shard
from tests.support.examples import examples


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
    rows = store.statistics().tables["a"].rows
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


def rows_of(store):
    """Return {(table, id): (weights, state)} as a dictionary, read row by row."""
    return {
        (table, int(key)): (weights[i].tobytes(), state[i].tobytes())
        for table, (ids, weights, state) in content(store.snapshot()).items()
        for i, key in enumerate(ids)
    }


STEPS = st.lists(
    st.tuples(st.sampled_from(["read", "train", "load", "peek"]), st.integers(0, 2**32 - 1)), max_size=25
)


@pytest.mark.parametrize("kind", ["plain", "lru", "tier"])
@settings(max_examples=examples(15), deadline=None)
@given(STEPS, st.integers(1, 200), st.booleans())
def test_a_cut_equals_a_dict_whatever_happens_between_its_chunks(kind, steps, chunk_rows, delta):
    with tempfile.TemporaryDirectory() as folder:
        more = {} if kind == "plain" else {"memory": 400_000, "eviction": Eviction()}
        if kind == "tier":
            more |= {"memory": 620_000, "tier": Tier(folder, 260_000)}
        store, rng = shard(**more), np.random.default_rng(5)
        trained = partial(change, store, ids=2200, rows=200)
        trained(rng, 5)
        before = rows_of(store) if delta else {}
        if delta:
            store.changes.follow()
            trained(rng)
        expected = rows_of(store)
        take = store.changes.take if delta else store.snapshot
        taken, seen = take(chunk_rows=chunk_rows), []
        chunks = taken.chunks if delta else taken
        for step, number in steps:
            draw = np.random.default_rng(number)
            if step == "read":
                seen += [chunk for chunk in [next(chunks, None)] if chunk is not None]
            elif step == "train":
                trained(draw)
            elif step == "load":
                ids = draw.choice(2200, 100, replace=False).astype(U)
                weights, state = draw.random((100, 3), np.float32), np.ones((100, 7), np.float32)
                store.load("a", RowChunk("a", ids, weights, state))
            else:
                store.peek("b", draw.integers(0, 2200, 100).astype(U))
        seen += list(chunks)
        found = {
            (c.table, int(key)): (c.weights[i].tobytes(), c.state[i].tobytes())
            for c in seen
            for i, key in enumerate(c.ids)
        }
        assert len(found) == sum(len(c.ids) for c in seen)
        if delta:
            changed = {key for key, row in expected.items() if before.get(key) != row}
            assert changed <= found.keys() <= expected.keys()
            assert found == {key: expected[key] for key in found}
        else:
            assert found == expected
        store.close()


@pytest.fixture
def narrow(monkeypatch):
    """Let a cut copy no more than a quarter of its rows."""
    monkeypatch.setattr("satrap.store.snapshot.copy_on_write.SMALLEST", 1)


def test_requests_wait_for_the_reader_of_a_cut_rather_than_copy_without_bound(narrow):
    store, rng = shard(), np.random.default_rng(0)
    store.lookup("a", np.arange(20_000, dtype=U))
    expected, snapshot = content(store.export("a")), store.export("a", chunk_rows=100)
    cut, most, seen = next(iter(store.groups[0]._cuts)), [0], []
    writer = threading.Thread(target=lambda: seen.extend(snapshot))
    keys = rng.permutation(20_000).astype(U)
    started = False
    for part in np.array_split(keys, 40):
        if not started and cut._aside.count + len(part) > cut._aside.limit:
            writer.start()  # only now, so that the next request has to wait
            started = True
        store.update("a", part, np.ones((len(part), 3), np.float32))
        most.append(0 if cut._aside is None else cut._aside.count)
    writer.join()
    assert started
    assert not cut.given_up
    assert 4500 <= max(most) <= 5000
    assert_same(content(seen), expected)


def test_requests_wait_at_the_last_copy_that_fits(narrow):
    """Of 20,000 rows, 5,000 may be copied; a request counts as half of that at most."""
    store = shard()
    store.lookup("a", np.arange(20_000, dtype=U))
    cut = store.groups[0].cut([0])

    def changed(first, last):
        store.update("a", np.arange(first, last, dtype=U), np.ones((last - first, 3), np.float32))

    assert not cut.waits(10**6)
    changed(0, 2500)
    assert (cut._aside.count, cut.waits(2500), cut.waits(10**6)) == (2500, False, False)
    changed(2499, 2501)
    assert (cut._aside.count, cut.waits(2499), cut.waits(2500)) == (2501, False, True)
    cut.give_up()
    assert (cut.given_up, cut.waits(10**6)) == (True, False)


def test_nobody_waits_where_all_rows_may_be_copied():
    store = shard()
    store.lookup("a", np.arange(10, dtype=U))
    cut = store.groups[0].cut([0])
    store.update("a", np.arange(10, dtype=U), np.ones((10, 3), np.float32))
    assert (cut._aside.count, cut.waits(10), cut.given_up) == (10, False, False)


def test_a_cut_that_nobody_reads_is_given_up_and_training_goes_on(narrow, monkeypatch):
    monkeypatch.setattr("satrap.store.snapshot.cut.PATIENCE", 0.05)
    store = shard()
    store.lookup("a", np.arange(20_000, dtype=U))
    snapshot = store.export("a", chunk_rows=100)
    next(snapshot)
    for part in np.array_split(np.arange(20_000, dtype=U), 40):
        store.update("a", part, np.ones((len(part), 3), np.float32))
    with pytest.raises(StoreError, match="abandoned: too many rows changed"):
        next(snapshot)
    whole = content(store.export("a"))
    assert len(whole["a"][0]) == 20_000
    snapshot = store.export("a", chunk_rows=100)
    next(snapshot)
    store.update("a", np.arange(20_000, dtype=U), np.ones((20_000, 3), np.float32))  # more than may be copied
    with pytest.raises(StoreError, match="abandoned"):
        next(snapshot)


@pytest.mark.parametrize("bound", [1, 2, 63, 2048, 4094, 4095])
def test_adjoining_ranges_of_buckets_make_up_the_whole(bound):
    store = shard()
    store.lookup("a", np.arange(30_000, dtype=U))
    whole = content(store.export("a"))["a"]
    parts = [store.export("a", buckets=r) for r in (range(bound), range(bound, BUCKETS))]
    lower, upper = (content(part)["a"] for part in parts)
    assert set(bucket_of("a", lower[0]).tolist()) <= set(range(bound))
    assert set(bucket_of("a", upper[0]).tolist()) <= set(range(bound, BUCKETS))
    for mine, its, all_of_it in zip(lower, upper, whole, strict=True):
        np.testing.assert_array_equal(np.concatenate([mine, its]), all_of_it)
    for bucket in (0, bound, BUCKETS - 1):
        only = content(store.export("a", buckets=[bucket]))["a"][0]
        np.testing.assert_array_equal(only, whole[0][bucket_of("a", whole[0]) == bucket])


def test_lookups_that_could_evict_more_than_may_be_copied_but_do_not_end_no_cut(narrow):
    store = shard(memory=1 << 20, eviction=Eviction())
    ids = np.arange(2000, dtype=U)
    for first in range(0, 8000, 2000):
        store.lookup("a", ids + U(first))
    expected, snapshot = content(store.export("a")), store.export("a", chunk_rows=500)
    cut = next(iter(store.groups[0]._cuts))
    assert cut._aside.limit < 2 * len(ids)
    for _ in range(3):
        store.lookup("a", ids)
    assert_same(content(snapshot), expected)
