"""Runs and masks of fixed buckets say the same."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from satrap.store.buckets import mask_of, runs_of


@given(st.sets(st.integers(0, 4095)))
def test_runs_and_masks_hold_exactly_the_numbers(numbers: set[int]) -> None:
    ascending = sorted(numbers)
    runs = runs_of(ascending)
    assert [number for run in runs for number in run] == ascending
    assert all(a.stop < b.start for a, b in pairwise(runs))
    assert np.flatnonzero(mask_of(ascending)).tolist() == ascending


def test_a_range_is_a_run() -> None:
    assert runs_of(range(5, 9)) == [range(5, 9)]
    assert runs_of(range(3, 3)) == []
    assert mask_of(range(2)).sum() == 2
