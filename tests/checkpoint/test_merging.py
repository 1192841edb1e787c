"""Merged rows against a dict that the same changes were applied to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.checkpoint.merging import merge
from satrap.errors import CheckpointError
from satrap.store import RowChunk, bucket_of
from tests.support.examples import examples

Table = dict[int, float]

IDS = st.integers(0, 30)
CHANGES = st.tuples(st.dictionaries(IDS, st.floats(0, 9, width=32), max_size=12), st.sets(IDS, max_size=6))


def canonical(ids: list[int]) -> list[int]:
    array = np.array(ids, np.uint64)
    return [int(i) for i in array[np.lexsort((array, bucket_of("t", array)))]]


def chunks(rows: Table, size: int) -> Iterator[RowChunk]:
    ids = canonical(list(rows))
    for i in range(0, len(ids), size):
        part = ids[i : i + size]
        values = np.array([[rows[k]] for k in part], np.float32).reshape(-1, 1)
        yield RowChunk("t", np.array(part, np.uint64), values, -values)


@settings(max_examples=examples(200), deadline=None)
@given(
    base=st.dictionaries(IDS, st.floats(0, 9, width=32)),
    deltas=st.lists(CHANGES, max_size=4),
    size=st.integers(1, 7),
)
def test_each_row_is_the_newest_in_order(
    base: Table, deltas: list[tuple[Table, set[int]]], size: int
) -> None:
    model, sources, deleted = dict(base), [chunks(base, size)], [np.empty(0, np.uint64)]
    for changed, gone in deltas:
        lost = {i for i in gone if i in model and i not in changed}
        model = {k: v for k, v in model.items() if k not in lost} | changed
        sources.append(chunks(changed, size))
        deleted.append(np.array(sorted(lost), np.uint64))
    got = list(merge(sources, deleted))
    ids = [int(i) for chunk in got for i in chunk.ids]
    assert ids == canonical(list(model))
    assert [float(v) for chunk in got for v in chunk.weights[:, 0]] == [model[i] for i in ids]
    assert [float(v) for chunk in got for v in chunk.state[:, 0]] == [-model[i] for i in ids]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_rows_out_of_order_are_refused(size: int) -> None:
    rows = {i: float(i) for i in range(5)}
    swapped = next(chunks(rows, 5))
    order = np.array([1, 0, 2, 3, 4])
    wrong = RowChunk("t", swapped.ids[order], swapped.weights[order], swapped.state[order])
    parts = (
        RowChunk("t", wrong.ids[i : i + size], wrong.weights[i : i + size], wrong.state[i : i + size])
        for i in range(0, 5, size)
    )
    with pytest.raises(CheckpointError, match="not in order"):
        list(merge([parts, chunks({1: 2.0}, 1)], [np.empty(0, np.uint64)] * 2))
