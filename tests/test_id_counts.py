"""Counts of ids against pandas."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.id_counts import MOST_FOLDS, IdCounts
from tests.support.examples import examples


def made(rows, folds: int = 3) -> IdCounts:
    """Counts of (id, fold, label) rows."""
    ids = np.unique(np.array([row[0] for row in rows], np.uint64))
    counts = np.zeros((2, len(ids), folds), np.uint32)
    for id_, fold, label in rows:
        counts[:, np.searchsorted(ids, id_), fold] += np.array([1, label], np.uint32)
    return IdCounts(ids, *counts)


some_rows = st.lists(
    st.tuples(st.integers(1, 9) | st.just(2**64 - 1), st.integers(0, 2), st.integers(0, 1)),
    min_size=2,
    max_size=60,
).filter(lambda rows: 0 < sum(row[2] for row in rows) < len(rows))


@settings(max_examples=examples(60), deadline=None)
@given(some_rows, st.floats(0.1, 50))
def test_counts_and_log_odds_are_those_of_pandas(rows, smoothing):
    table = pd.DataFrame(rows, columns=["id", "fold", "label"])
    counts, mean = made(rows), table["label"].mean()
    probe = np.array([*table["id"].unique(), 77], np.uint64)
    expected = table.groupby("id")["label"].size().reindex(probe, fill_value=0)
    np.testing.assert_array_equal(counts.counts(probe), expected)
    for fold in (None, 0, 1, 2):
        kept = table if fold is None else table[table["fold"] != fold]
        by_id = kept.groupby("id")["label"].agg(["sum", "size"]).reindex(probe, fill_value=0)
        share = (by_id["sum"] + smoothing * mean) / (by_id["size"] + smoothing)
        folds = None if fold is None else np.full(len(probe), fold)
        np.testing.assert_allclose(counts.log_odds(probe, smoothing, folds), np.log(share / (1 - share)))


@settings(max_examples=examples(30), deadline=None)
@given(some_rows)
def test_bytes_and_text_hold_everything(rows):
    counts = made(rows)
    again, read = IdCounts.from_text(counts.text), IdCounts.from_bytes(counts.to_bytes())
    assert counts == again == read
    assert hash(counts) == hash(again)
    assert repr(counts) == repr(again)
    alone = IdCounts(counts.ids, counts.rows)
    assert IdCounts.from_text(alone.text) == alone != counts
    with pytest.raises(AssertionError):
        alone.log_odds(counts.ids, 1.0)


def test_an_id_is_forgotten():
    counts = made([(1, 0, 1), (5, 1, 0), (5, 2, 1)])
    assert counts.without(5).ids.tolist() == [1]
    assert counts.without(7) == counts
    alone = made([(5, 1, 0), (5, 2, 1)]).without(5)
    assert (alone.ids.tolist(), alone.rows.tolist()) == ([1], [[0, 1, 1]])


ONE = np.ones((1, 2), np.uint32)


@pytest.mark.parametrize(
    "arrays",
    [
        (np.array([2, 1], np.uint64), np.ones((2, 1), np.uint32)),
        (np.array([1, 1], np.uint64), np.ones((2, 1), np.uint32)),
        (np.array([], np.uint64), np.ones((0, 1), np.uint32)),
        (np.array([1], np.int64), ONE),
        (np.array([[1]], np.uint64), ONE),
        (np.array([1], np.uint64), ONE.astype(np.int64)),
        (np.array([1], np.uint64), ONE[0]),
        (np.array([1], np.uint64), ONE[:, :0]),
        (np.array([1], np.uint64), np.ones((1, MOST_FOLDS + 1), np.uint32)),
        (np.array([1], np.uint64), ONE, 2 * ONE),
        (np.array([1], np.uint64), ONE, ONE[:, :1]),
    ],
)
def test_wrong_arrays_are_refused(arrays):
    with pytest.raises(ValueError, match="counts"):
        IdCounts(*arrays)


@pytest.mark.parametrize("text", ["", "?", "AAAA", "eJwDAAAAAAE="])
def test_wrong_texts_are_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011
        IdCounts.from_text(text)
