from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.data.encode.hashing import hash_ids
from satrap.tools.init.sketch import RowSample, UniqueCounter
from tests.support.examples import examples


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), max_size=30), max_size=6))
def test_up_to_the_bound_the_count_is_that_of_a_set(parts: list[list[int]]) -> None:
    distinct = UniqueCounter(bound=64)
    for part in parts:
        distinct.add(hash_ids(np.array(part, np.int64)))
    assert distinct.exact
    assert distinct.count == len({value for part in parts for value in part})


def test_as_many_values_as_the_bound_are_counted_and_one_more_is_estimated() -> None:
    distinct, hashes = UniqueCounter(bound=64), hash_ids(np.arange(65))
    distinct.add(hashes[:64])
    assert (distinct.exact, distinct.count) == (True, 64)
    distinct.add(hashes)
    kept = np.sort(hashes)[:64]
    assert not distinct.exact
    assert distinct.count == round(63 * 2**64 / (int(kept[-1]) + 1))


@pytest.mark.parametrize("real", [2_000, 50_000])
def test_beyond_the_bound_the_estimate_is_within_four_deviations(real: int) -> None:
    distinct = UniqueCounter(bound=1024)
    values = np.random.default_rng(real).integers(0, real, 2 * real)
    for part in np.array_split(values, 7):
        distinct.add(hash_ids(part))
    assert not distinct.exact
    assert distinct.count == pytest.approx(len(np.unique(values)), rel=4 / np.sqrt(1024))


@settings(max_examples=examples(20), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 9))
def test_neither_order_nor_repetition_matters(random: object, pieces: int) -> None:
    hashes = hash_ids(np.arange(300))
    straight, mixed = UniqueCounter(bound=100), UniqueCounter(bound=100)
    straight.add(hashes)
    order = np.random.default_rng(pieces).permutation(np.concatenate([hashes, hashes]))
    for part in np.array_split(order, pieces):
        mixed.add(part)
    assert straight.count == mixed.count


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=8), st.integers(1, 300))
def test_a_sample_is_a_bounded_part_of_the_rows_in_their_order(sizes: list[int], most: int) -> None:
    sample, whole, start = RowSample(most), RowSample(most), 0
    for size in sizes:
        sample.add(pa.table({"row": np.arange(start, start + size)}))
        start += size
    whole.add(pa.table({"row": np.arange(start)}))
    rows = sample.table().column("row").to_pylist()
    assert rows == sorted(set(rows))
    assert len(rows) == start if start <= most else len(rows) <= most
    assert rows == whole.table().column("row").to_pylist()  # the pieces do not matter
    assert rows == sample.numbers().tolist()


def test_each_row_has_the_same_chance_to_be_kept() -> None:
    sample = RowSample(5_000)
    for start in range(0, 100_000, 10_000):
        sample.add(pa.table({"row": np.arange(start, start + 10_000)}))
    rows = sample.table().column("row").to_numpy()
    assert 2_000 < len(rows) <= 5_000
    assert abs(rows.mean() - 50_000) < 4 * 100_000 / np.sqrt(12 * len(rows))
