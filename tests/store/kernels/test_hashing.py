"""Initial rows and buckets against the same formulas in NumPy: they must never change with a release."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Shard, bucket_of
from satrap.store.hashes import index_salt, row_seed

IDS = np.array([0, 1, 2, 77, 2**32, 2**63 + 5, 2**64 - 1], np.uint64)
FACTOR = np.uint64(0xD6E8FEB86659FD93)


def mix(x: np.ndarray) -> np.ndarray:
    half = np.uint64(32)
    for _ in range(2):
        x = (x ^ (x >> half)) * FACTOR
    return x ^ (x >> half)


def scrambled(x: np.ndarray) -> np.ndarray:
    """The finalizer of 32-bit numbers that turns a count into a random number."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def initial(ids: np.ndarray, seed: np.uint64, dim: int, scale: float) -> np.ndarray:
    """Weight k of a row is random number k + 1 of a sequence that the id and the seed determine."""
    h = mix(ids ^ seed)[:, None]
    low, high = h.astype(np.uint32), (h >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    x = scrambled(low + high * np.arange(1, dim + 1, dtype=np.uint32))
    return ((x >> np.uint32(9)).astype(np.float32) * 2 - 8388607) * np.float32(scale * 2.0**-23)


@pytest.mark.parametrize("dim", [1, 15, 16, 17, 48, 63])
def test_initial_rows_are_a_function_of_seed_table_and_id(dim: int) -> None:
    store = Shard([Table("a", dim=dim, optimizer=SGD(lr=1.0), initial_scale=0.25)], seed=9)
    expected = initial(IDS, row_seed(9, "a"), dim, 0.25)
    assert np.abs(expected).max() < 0.25
    rows, found = store.peek("a", IDS)
    assert not found.any()
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(store.lookup("a", IDS), expected)
    store.close()


def test_buckets_are_the_top_bits_of_the_mix() -> None:
    expected = mix(IDS ^ index_salt("a")) >> np.uint64(52)
    np.testing.assert_array_equal(bucket_of("a", IDS), expected)
