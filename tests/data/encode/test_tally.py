import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.data.encode import tally
from satrap.data.encode.tally import IdTally
from satrap.schema import MeanLabel
from tests.data.helpers_data import error_of
from tests.support.examples import examples


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.integers(0, 300), max_size=6), st.integers(1, 50))
def test_pieces_make_no_difference(cuts, held):
    rng = np.random.default_rng(5)
    ids, folds = rng.integers(0, 20, 300).astype(np.uint64), rng.integers(0, 5, 300)
    labels, known = rng.integers(0, 2, 300), rng.random((300, 1)) < 0.9
    found = IdTally("m", MeanLabel())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tally, "_HELD", held)
        for piece in np.split(np.arange(300), sorted(cuts)):
            found.add(ids[piece], folds[piece], labels[piece], known[piece])
        counts = found.counts()
    used = known[:, 0] & (ids > 0)
    assert counts.ids.tolist() == sorted(set(ids[used].tolist()))
    for i, id_ in enumerate(counts.ids):
        for fold in range(5):
            there = used & (ids == id_) & (folds == fold)
            assert counts.rows[i, fold] == there.sum()
            assert counts.ones[i, fold] == labels[there].sum()


def test_a_count_needs_no_label():
    found = IdTally("n", None)
    found.add(np.array([7, 0, 7, 9], np.uint64))
    counts = found.counts()
    assert (counts.ids.tolist(), counts.rows.tolist(), counts.ones) == ([7, 9], [[2], [1]], None)


def test_what_cannot_be_counted_is_refused(monkeypatch):
    monkeypatch.setattr(tally, "MOST_IDS", 3)
    found = IdTally("n", None)
    found.add(np.arange(1, 5, dtype=np.uint64))
    assert "more than 3 ids" in error_of(found.counts).what
    found = IdTally("n", None)
    found.add(np.zeros(3, np.uint64))
    assert "no ids" in error_of(found.counts).what
    for label in 0, 1:
        found = IdTally("m", MeanLabel())
        found.add(np.ones(3, np.uint64), np.arange(3), np.full(3, label), np.ones((3, 1), bool))
        assert "the same value" in error_of(found.counts).what


@pytest.mark.parametrize("rows", [4, 8])
def test_folds_that_follow_the_ids_are_refused(rows):
    ids = np.repeat(np.arange(1, 11, dtype=np.uint64), rows)
    labels = np.tile([0, 1], 5 * rows)
    found = IdTally("m", MeanLabel())
    found.add(ids, (ids % 5).astype(np.int64), labels)
    assert "in the same fold" in error_of(found.counts).what
    found = IdTally("m", MeanLabel())
    found.add(ids, np.tile(np.arange(5), 2 * rows), labels)
    assert len(found.counts().ids) == 10
