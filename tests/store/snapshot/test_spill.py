"""Rows of a tier that a cut reads in the order of the file, and sorts on disk."""

import gc
import os
import resource
import threading
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import StoreError
from satrap.optim import RowWiseAdagrad
from satrap.schema import Table
from satrap.store import BUCKETS, Eviction, Tier, bucket_of
from satrap.store.hashes import canonical_order
from satrap.store.row_spec import RowSpec
from satrap.store.snapshot.copy_on_write import CopyOnWrite
from satrap.store.snapshot.spill import Spill
from tests.store.shards import assert_same, change, content, shard
from tests.support.examples import examples

U = np.uint64
IDS = 10_000
KIND = RowSpec([Table("a", dim=2), Table("b", dim=2)], RowWiseAdagrad(lr=1), 3)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 200)), max_size=12),
    st.integers(1, 90),
    st.integers(1, 6000),
    st.integers(1, 500),
    st.integers(0, BUCKETS),
)
def test_rows_come_out_in_canonical_order(tmp_path_factory, blocks, chunk_rows, piece, expected, last):
    wanted, known = np.arange(BUCKETS) < last, {"a": [], "b": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("satrap.store.snapshot.spill.PIECE", piece)
        with Spill(str(tmp_path_factory.getbasetemp()), KIND, expected, wanted) as spill:
            for step, (seed, n) in enumerate(blocks):
                rng = np.random.default_rng((seed, step))  # no row twice
                tables, ids = rng.integers(0, 2, n).astype(np.int32), rng.integers(0, 2**64, n, U)
                rows = rng.standard_normal((n, 3)).astype(np.float32)
                spill.put(tables, ids, rows[:, :2], rows[:, 2:])
                for t, key, row in zip(tables.tolist(), ids, rows, strict=True):
                    known["ab"[t]].append((key, row))
            found = [list(spill.chunks(t, chunk_rows)) for t in range(2)]
    for table, chunks in zip("ab", found, strict=True):
        ids = np.array([key for key, _ in known[table]], U)
        rows = np.array([row for _, row in known[table]], np.float32).reshape(-1, 3)
        buckets = bucket_of(table, ids)
        order = canonical_order(ids, buckets)
        order = order[wanted[buckets[order]]]
        assert [len(c.ids) for c in chunks[:-1]] == [chunk_rows] * (len(chunks) - 1)
        assert sum(len(c.ids) for c in chunks) == len(order)
        if chunks:
            np.testing.assert_array_equal(np.concatenate([c.ids for c in chunks]), ids[order])
            np.testing.assert_array_equal(np.concatenate([c.weights for c in chunks]), rows[order, :2])
            np.testing.assert_array_equal(np.concatenate([c.state for c in chunks]), rows[order, 2:])


@pytest.fixture
def tiered(tmp_path):
    store = shard(memory=900_000, eviction=Eviction(), tier=Tier(tmp_path, 800_000))
    change(store, np.random.default_rng(5), 15, ids=IDS)
    assert store.statistics().tier.rows > 4 * (store.statistics().rows - store.statistics().tier.rows)
    yield store
    store.close()


@pytest.fixture
def spilled(monkeypatch):
    """Let every cut of a store with a tier read its file in order, in many small steps."""
    monkeypatch.setattr("satrap.store.snapshot.cut.SMALL_FILE", 0)
    monkeypatch.setattr("satrap.store.snapshot.cut.PAGE", 1 << 40)
    monkeypatch.setattr("satrap.store.snapshot.cut.LISTED", 400)
    monkeypatch.setattr("satrap.store.snapshot.spill.PIECE", 1 << 14)
    made = []

    class Counted(Spill):
        def __init__(self, *arguments):
            made.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr("satrap.store.snapshot.cut.Spill", Counted)
    return made


def test_tables_without_rows_have_no_chunks(tmp_path, spilled):
    with closing(shard(memory=2 << 20, eviction=Eviction(), tier=Tier(tmp_path, 3 << 20))) as store:
        for ids in np.arange(20_000, dtype=U).reshape(10, -1):
            store.lookup("a", ids)
        assert store.statistics().tier.rows > 0
        found = content(store.snapshot())
    assert list(found) == ["a"]
    assert sorted(found["a"][0].tolist()) == list(range(20_000))
    assert len(spilled) == 1


def test_both_ways_yield_the_same_chunks(tiered, request):
    whole = list(tiered.snapshot(chunk_rows=200))
    some = list(tiered.export("b", buckets=range(900, 3000, 3), chunk_rows=80))
    made = request.getfixturevalue("spilled")
    for slow, fast in (
        (whole, tiered.snapshot(chunk_rows=200)),
        (some, tiered.export("b", buckets=range(900, 3000, 3), chunk_rows=80)),
    ):
        for one, other in zip(slow, fast, strict=True):
            assert one.table == other.table
            for name in ("ids", "weights", "state"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert len(made) == 3  # one for each of the two groups of the snapshot


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
@pytest.mark.parametrize("delta", [False, True], ids=["all", "delta"])
def test_it_is_the_moment_of_the_cut_whatever_changes_during_the_sweep(
    tiered, spilled, monkeypatch, seed, delta
):
    rng = np.random.default_rng(seed)
    before = content(tiered.snapshot()) if delta else None
    if delta:
        tiered.changes.follow()
        change(tiered, rng, 1, ids=IDS)
    expected = content(tiered.snapshot())
    chunks = tiered.changes.take(chunk_rows=150).chunks if delta else tiered.snapshot(chunk_rows=150)
    put, take, changes, taken = Spill.put, CopyOnWrite.take, [0], []

    def interrupted(self, *rows):
        if rng.random() < 0.3:
            change(tiered, rng, 1, ids=IDS, rows=200)
            changes[0] += 1
        put(self, *rows)

    def counted(self):
        taken.append(take(self))
        return taken[-1]

    monkeypatch.setattr(Spill, "put", interrupted)
    monkeypatch.setattr(CopyOnWrite, "take", counted)
    found = content(chunks)
    assert changes[0] > 5
    if not delta:
        assert sum(len(ids) > 0 for _, ids, _, _ in taken) > 2  # not only once at the end
        assert_same(found, expected)
        return
    for table, (ids, weights, state) in found.items():
        all_ids, all_weights, all_state = expected[table]
        at = {int(key): i for i, key in enumerate(all_ids)}
        places = [at[int(key)] for key in ids]
        np.testing.assert_array_equal(weights, all_weights[places])
        np.testing.assert_array_equal(state, all_state[places])
        old_ids, old_weights, _ = before[table]
        old = {int(key): old_weights[i].tobytes() for i, key in enumerate(old_ids)}
        changed = {key for key, i in at.items() if old.get(key) != all_weights[i].tobytes()}
        assert changed <= set(ids.tolist())


def test_beside_threads_that_train(tiered, spilled):
    expected, snapshot, found = content(tiered.snapshot()), tiered.snapshot(chunk_rows=50), {}
    reader = threading.Thread(target=lambda: found.update(content(snapshot)))
    reader.start()
    rounds = 0
    while reader.is_alive():
        change(tiered, np.random.default_rng(rounds), ids=IDS)
        rounds += 1
    reader.join()
    assert rounds > 1
    assert_same(found, expected)


def test_its_file_and_its_cut_are_gone_afterwards(tiered, spilled, tmp_path):
    for whole in (False, True):
        snapshot = tiered.snapshot(chunk_rows=100)
        next(snapshot)
        assert tiered.groups[0]._cuts == []  # nothing is copied any more
        if whole:
            list(snapshot)
        del snapshot
        gc.collect()
        assert all(group._cuts == [] for group in tiered.groups)
        assert all(spill._file.closed for spill in spilled)
    assert list(tmp_path.iterdir()) == []


def test_clearing_ends_it_with_an_error(tiered, spilled, monkeypatch):
    put = Spill.put

    def cleared(self, *rows):
        put(self, *rows)
        tiered.clear()

    monkeypatch.setattr(Spill, "put", cleared)
    with pytest.raises(StoreError, match="cleared or closed"):
        list(tiered.snapshot(chunk_rows=100))


def test_a_full_disk_ends_it_with_an_error_and_loses_nothing(tiered, spilled):
    before, limits = content(tiered.snapshot()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(StoreError, match="free disk space in this folder"):
            list(tiered.snapshot())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_same(content(tiered.snapshot()), before)


def test_a_file_that_lost_its_end_is_noticed(tiered, spilled):
    snapshot = tiered.snapshot(chunk_rows=100)
    next(snapshot)
    os.ftruncate(spilled[0]._file.fileno(), 1000)
    with pytest.raises(StoreError, match="shorter than expected"):
        list(snapshot)


def test_small_files_and_few_rows_are_read_in_place(tiered, monkeypatch):
    monkeypatch.setattr("satrap.store.snapshot.cut.Spill", None)
    assert content(tiered.snapshot())
    monkeypatch.setattr("satrap.store.snapshot.cut.SMALL_FILE", 0)
    tiered.changes.follow()
    tiered.lookup("a", np.arange(3, dtype=U))
    assert "a" in content(tiered.changes.take().chunks)
    with pytest.raises(TypeError):
        content(tiered.snapshot())
