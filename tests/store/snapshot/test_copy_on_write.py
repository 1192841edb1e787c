"""Copies of rows against a plain dictionary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.store.hashes import BUCKETS, bucket_of
from satrap.store.snapshot import copy_on_write
from satrap.store.snapshot.copy_on_write import CopyOnWrite
from tests.support.examples import examples

U = np.uint64
TABLES = ("a", "b")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2**32 - 1), st.integers(0, 60)),
        st.tuples(st.just("let go"), st.integers(0, 1), st.integers(1, 900)),
        st.tuples(st.just("take"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_copies_equal_those_of_a_dict(steps):
    copies, known, done, limit = CopyOnWrite(TABLES, 3, 2, 400), {}, [0, 0], 400
    for step, (kind, number, count) in enumerate(steps):
        if kind == "let go":
            done[number] = min(BUCKETS, done[number] + count)
            copies.let_go(number, done[number])
            known = {key: row for key, row in known.items() if key[0] != number or key[2] >= done[number]}
            continue
        if kind == "take":
            tables, ids, weights, state = copies.take()
            pairs = zip(tables.tolist(), ids, np.hstack([weights, state]), strict=True)
            found = {
                (t, int(key), int(bucket_of(TABLES[t], np.array([key]))[0])): row for t, key, row in pairs
            }
            assert found.keys() == known.keys()
            assert all((found[key] == row).all() for key, row in known.items())
            known = {}
            assert copies.count == 0
            continue
        rng = np.random.default_rng((number, step))  # no row twice
        tables, ids = rng.integers(0, 2, count).astype(np.int32), rng.integers(0, 2**64, count, U)
        rows = rng.standard_normal((count, 5)).astype(np.float32)
        fits = len(known) + count <= limit
        assert copies.put(tables, ids, rows[:, :3].copy(), rows[:, 3:].copy()) == fits
        for t, key, row in zip(tables.tolist(), ids, rows, strict=True):
            bucket = int(bucket_of(TABLES[t], np.array([key]))[0])
            if fits and bucket >= done[t]:
                known[t, int(key), bucket] = row
    assert copies.count == len(known)
    for t in (0, 1):
        for first, last in ((0, BUCKETS - 1), (1000, 1000), (BUCKETS - 1, BUCKETS - 1), (700, 2500)):
            mine = {key: row for key, row in known.items() if key[0] == t and first <= key[2] <= last}
            ids, _, buckets = copies.find(t, first, last)
            found = list(zip(ids.tolist(), buckets.tolist(), strict=True))
            assert sorted(found) == sorted(key[1:] for key in mine)
            if mine:
                weights, state = copies.read(t, ids, buckets)
                expected = np.array([mine[t, *key] for key in found])
                np.testing.assert_array_equal(np.hstack([weights, state]), expected)


def test_places_are_used_again(monkeypatch):
    monkeypatch.setattr(copy_on_write, "SMALLEST", 1)
    copies, ids = CopyOnWrite(("a",), 4, 0, 4000), np.arange(1000, dtype=U)
    assert copies.limit == 1000
    nothing, rows = np.zeros((1000, 0), np.float32), np.ones((1000, 4), np.float32)
    tables = np.zeros(1000, np.int32)
    assert copies.put(tables, ids, rows, nothing)
    assert not copies.put(tables[:1], ids[:1], rows[:1], nothing[:1])
    copies.let_go(0, BUCKETS // 2)
    room = 1000 - copies.count
    assert 400 < room < 600
    late = ids[bucket_of("a", ids) >= BUCKETS // 2][:room] + U(2**33)
    before = copies.count
    assert copies.put(tables[: len(late)], late, rows[: len(late)], nothing[: len(late)])
    kept = int((bucket_of("a", late) >= BUCKETS // 2).sum())
    assert copies.count == before + kept
    copies.let_go(0, BUCKETS)
    assert copies.count == 0
    assert copies.put(tables, ids, rows, nothing)
    assert copies.count == 0  # nothing is needed any more


@pytest.mark.parametrize(
    ("rows", "limit"), [(0, 1), (5, 5), (299, 299), (400, 300), (1200, 300), (1201, 301), (2000, 500)]
)
def test_a_quarter_may_be_copied_or_more_of_few(monkeypatch, rows, limit):
    """A copy takes 16 bytes beside its four numbers."""
    monkeypatch.setattr(copy_on_write, "SMALLEST", 300 * 32 + 31)
    assert CopyOnWrite(("a",), 3, 1, rows).limit == limit


def test_256_mib_of_copies_are_always_allowed():
    assert CopyOnWrite(("a",), 3, 1, 16_000_000).limit == (256 << 20) // 32
