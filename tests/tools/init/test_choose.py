from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.config.source import MAX_NODES
from satrap.data.encode.transforms import compile_steps
from satrap.schema import Numeric
from satrap.tools.init.choose import (
    Features,
    bins_for,
    boundaries_of,
    dim_of,
    has_long_tail,
    is_curved,
    transform_of,
)
from tests.support.examples import examples

RANDOM = np.random.default_rng(5)


def test_bins_hold_equally_many_rows() -> None:
    values = RANDOM.lognormal(size=20_000)
    cuts = boundaries_of(values, 16)
    assert len(cuts) == 15
    counts = np.bincount(np.searchsorted(cuts, values, side="right"), minlength=16)
    assert counts.max() / counts.min() < 1.05


def test_few_values_have_a_bin_each() -> None:
    values = RANDOM.choice([1.0, 5.0, 7.0, 100.0], 1000)
    assert boundaries_of(values, 32) == [5, 7, 100]


def test_a_frequent_value_does_not_take_the_bins_of_the_others() -> None:
    values = np.concatenate([np.zeros(9000), RANDOM.uniform(1, 2, 1000)])
    cuts = boundaries_of(values, 20)
    assert len(cuts) >= 12
    assert 0 < cuts[0] < 1.2


def test_close_numbers_have_bins_too() -> None:
    """Seconds since 1970 of one day differ in their last five digits only."""
    values = 1_700_000_000 + RANDOM.integers(0, 86_400, 20_000).astype(float)
    cuts = boundaries_of(values, 16)
    counts = np.bincount(np.searchsorted(cuts, values, side="right"), minlength=16)
    assert counts.max() / counts.min() < 1.05


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300), st.integers(2, 32))
def test_boundaries_ascend_and_are_not_too_many(values: list[float], bins: int) -> None:
    cuts = boundaries_of(np.array(values), bins)
    assert cuts == sorted(set(cuts))
    assert len(cuts) < max(2 * bins, 4)


@pytest.mark.parametrize(
    "values",
    [
        RANDOM.normal(1e6, 3, 4000),
        RANDOM.lognormal(0, 3, 4000),
        np.append(RANDOM.normal(size=4000), 1e12),
        np.append(np.zeros(4000), 99999.0),
        np.full(10, 3.0),
    ],
)
def test_transformed_numbers_are_moderate(values: np.ndarray) -> None:
    steps = transform_of(values, logarithm=has_long_tail(values))
    steps = steps if isinstance(steps, list) else [steps]
    before = compile_steps(Numeric(transform=steps), "x", steps.index("standardize"))(values)
    measured = {"standardize": {"mean": float(before.mean()), "std": float(before.std())}}
    full = [measured if step == "standardize" else step for step in steps]
    assert np.abs(compile_steps(Numeric(transform=full), "x")(values)).max() <= 5


def test_a_logarithm_that_says_something_new() -> None:
    assert is_curved(RANDOM.lognormal(3, 1, 4000))
    assert is_curved(RANDOM.uniform(0, 100, 4000))
    assert not is_curved(RANDOM.uniform(1990, 2025, 4000))
    assert not is_curved(RANDOM.normal(size=4000))  # negative numbers have none
    assert not is_curved(np.append(np.full(9, 7.0), np.nan))


@given(st.integers(0, 10**9))
def test_widths_grow_with_the_ids(distinct: int) -> None:
    assert 2 <= dim_of(distinct) <= dim_of(2 * distinct) <= 64


def test_all_bins_together_fit_into_a_recipe() -> None:
    assert bins_for(10**6, 20, 10) == (128, 10)
    assert bins_for(800, 20, 10) == (4, 10)
    for columns in 100, 500, 1000, 2000:
        bins, binned = bins_for(10**6, columns, columns)
        assert 7 * columns + binned * (8 + bins) < MAX_NODES
        assert binned >= 1  # a store needs a table


def test_features_of_one_name_stay_apart() -> None:
    found = Features()
    found.add("a", {"dim": 4}, "")
    found.add("a", {"dim": 8, "column": "b"}, "")
    found.add("a", {"numeric": True}, "")
    assert {name: keys for name, (keys, _) in found.lines.items()} == {
        "a": {"dim": 4},
        "a_2": {"dim": 8, "column": "b"},
        "a_3": {"numeric": True, "column": "a"},
    }
    assert found.width == 13


def test_widths_by_the_ids() -> None:
    widths = {0: 4, 1: 4, 32: 4, 33: 8, 127: 8, 128: 16, 10**6: 16}
    assert {distinct: dim_of(distinct) for distinct in widths} == widths


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((1999, 20, 10), (9, 10)),
        ((2000, 20, 10), (10, 10)),
        ((10**6, 20, 0), (128, 0)),
        ((10**6, 500, 500), (15, 500)),
        ((10**6, 1884, 1884), (4, 151)),
        ((10**6, 1879, 1879), (4, 153)),
        ((10**6, 3000, 3000), (4, 8)),
    ],
)
def test_bins_and_how_many_numbers_have_them(given: tuple[int, int, int], found: tuple[int, int]) -> None:
    """Of 15,000 parts each column needs 7, a number with bins 8 and one for each bin; 100 are always left."""
    assert bins_for(*given) == found


def test_a_tail_is_long_from_a_skewness_of_two() -> None:
    """Of zeros and a share p of ones it is (1 - 2p) / sqrt(p (1 - p)): 2.07 for 14 %, 1.96 for 15 %."""
    assert has_long_tail(np.repeat([0.0, 1.0, np.nan], [86, 14, 50]))
    assert not has_long_tail(np.repeat([0.0, 1.0], [85, 15]))
    assert not has_long_tail(np.repeat([-1.0, 1.0], [86, 14]))
    assert not has_long_tail(np.ones(5))
    assert is_curved(np.array([0.0, 1.0, 10.0, 100.0]))


def test_far_numbers_are_cut_off() -> None:
    """A one among n zeros is sqrt(n) deviations from the mean."""
    assert transform_of(np.append(np.zeros(24), 1.0), logarithm=False) == ["standardize"]
    far = np.append(np.zeros(26), [1.0, np.nan])
    assert transform_of(far, logarithm=False) == ["standardize", {"clip": [-5, 5]}]
    assert transform_of(far, logarithm=True) == ["log1p", "standardize", {"clip": [-5, 5]}]
    assert transform_of(np.ones(3), logarithm=True) == "standardize"


@pytest.mark.parametrize(
    ("values", "bins", "cuts"),
    [
        (range(3), 1, [1, 2]),
        (range(4), 1, []),
        (range(8), 4, [1, 2, 3, 4, 5, 6, 7]),
        (range(9), 4, [2, 4, 6]),
        (range(12), 4, [3, 6, 9]),
        (range(80), 40, list(range(1, 80))),
        (range(81), 40, [i * 81 // 40 for i in range(1, 40)]),
        (range(128), 100, list(range(1, 128))),
        (range(129), 100, [i * 129 // 100 for i in range(1, 100)]),
        ([7, 7, 7], 4, []),
        ([0, 1 / 3, 2 / 3], 4, [0.333333, 0.666667]),
        ([1e6, 1e6 + 1 / 3, 1e6 + 2 / 3], 4, [1000000.33333, 1000000.66667]),
    ],
)
def test_boundaries(values: Sequence[float], bins: int, cuts: list[float]) -> None:
    assert boundaries_of(np.array(values, np.float64), bins) == cuts
