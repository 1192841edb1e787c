import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from satrap.data.shuffle import permutation


@given(st.integers(0, 500), st.lists(st.integers(-(2**40), 2**64), min_size=1, max_size=3))
def test_it_is_a_permutation_and_a_pure_function(count, seeds):
    order = permutation(count, *seeds)
    assert np.array_equal(np.sort(order), np.arange(count))
    assert np.array_equal(order, permutation(count, *seeds))


def test_seeds_and_their_order_matter():
    orders = {permutation(100, *seeds).tobytes() for seeds in [(0, 1), (1, 0), (0,), (0, 0), (1, 1)]}
    assert len(orders) == 5


def test_golden_order_never_changes():
    assert permutation(8, 1, 2).tolist() == [6, 7, 1, 0, 5, 3, 4, 2]


def test_positions_are_uniform():
    places = np.stack([permutation(10, seed) for seed in range(4000)])
    counts = np.stack([np.bincount(places[:, k], minlength=10) for k in range(10)])
    # Each cell is binomial(4000, 0.1): mean 400, deviation 19.
    assert np.abs(counts - 400).max() < 5 * 19
