"""What enters the store is as it must be, or is refused with what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.store.arrays import (
    address,
    check_out,
    check_rows,
    check_splits,
    describe,
    not_finite,
    per_table,
    plain,
)


def test_an_array_that_fits_is_taken_as_it_is_and_others_are_copied() -> None:
    ids = np.arange(6, dtype=np.uint64)
    assert plain(ids, np.uint64, 1, "ids") is ids
    locked = ids.copy()
    locked.flags.writeable = False
    for given in (ids[::2], locked, np.asfortranarray(np.ones((2, 3), np.uint64))):
        made = plain(given, np.uint64, given.ndim, "ids")
        assert made.flags.carray
        assert made.tolist() == given.tolist()
    assert address(ids) == ids.__array_interface__["data"][0]


@pytest.mark.parametrize(
    ("given", "ndim", "found"),
    [
        (np.zeros((2, 3), np.float32), 2, "float32[2, 3]"),
        (np.zeros((2, 3), np.uint64), 1, "uint64[2, 3]"),
        ([1, 2], 1, "list"),
    ],
)
def test_another_array_is_refused(given: Any, ndim: int, found: str) -> None:
    assert describe(given) == found
    with pytest.raises(StoreError) as caught:
        plain(given, np.uint64, ndim, "ids")
    assert caught.value.what == f"ids must be uint64 with {ndim} axes, got {found}"


def test_splits_ascend_from_0_to_the_number_of_ids() -> None:
    good = np.array([0, 2, 2, 5])
    for segments in (3, None):
        assert check_splits(good, segments, 5) is good
    assert check_splits(np.array([0]), None, 0).tolist() == [0]
    for wrong, segments, what in (
        ([0, 2, 2, 5], 2, "one entry more than the group has tables, got 4"),
        ([0, 2, 2, 5], 4, "one entry more than the group has tables, got 4"),
        ([], None, "one entry more than the group has tables, got 0"),
        ([1, 2, 2, 5], 3, r"ascend from 0 to the number of ids \(5\)"),
        ([0, 2, 2, 4], 3, r"ascend from 0 to the number of ids \(5\)"),
        ([0, 3, 2, 5], 3, r"ascend from 0 to the number of ids \(5\)"),
    ):
        with pytest.raises(StoreError, match=what):
            check_splits(np.array(wrong, np.int64), segments, 5)
    assert per_table(np.array([0, 1, 4]), good).tolist() == [2, 0, 1]


def test_rows_have_a_shape() -> None:
    rows = np.zeros((2, 3), np.float32)
    assert check_rows(rows, 2, 3, "weights") is rows
    for count, dim in ((3, 3), (2, 2)):
        with pytest.raises(
            StoreError, match=rf"weights must be float32\[{count}, {dim}\], got float32\[2, 3\]"
        ):
            check_rows(rows, count, dim, "weights")
    assert not_finite("table 'a'").where == "update of table 'a'"


def test_an_output_has_contiguous_rows() -> None:
    made = check_out(None, 2, 3)
    assert (made.dtype, made.shape) == (np.float32, (2, 3))
    block = np.zeros((3, 8), np.float32)
    for fits, rows, dim in (
        (block[:, 2:5], 3, 3),
        (block[:, 1:2], 3, 1),
        (block[:2, ::8], 2, 1),
        (block[:0, ::2], 0, 4),
    ):
        assert check_out(fits, rows, dim) is fits
    locked = np.zeros((3, 8), np.float32)
    locked.flags.writeable = False
    for wrong in (block.astype(np.float64), block[:2], locked):
        with pytest.raises(StoreError, match=r"out must be a writable float32\[3, 8\], got float"):
            check_out(wrong, 3, 8)
    with pytest.raises(StoreError, match="contiguous rows"):
        check_out(block[:, ::4], 3, 2)
