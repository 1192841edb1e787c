import numpy as np
import pytest

from satrap.store.kernels.jit import helper
from satrap.store.kernels.simd import (
    broadcast,
    finite,
    larger,
    load_like,
    load_u32,
    load_u64,
    match8,
    root,
    store,
    store_u32,
    store_u64,
    total,
    trailing_zeros,
)


@helper
def arithmetic(a, b, out):
    like = broadcast(np.float32(0))
    x, y = load_like(like, a), load_like(like, b)
    store(out, root(x * y + x - y / x))


@helper
def scalar_arithmetic(a, b, out):
    like = np.float32(0)
    x, y = load_like(like, a), load_like(like, b)
    store(out, root(x * y + x - y / x))


@helper
def sum_of(a):
    return total(load_like(broadcast(np.float32(0)), a))


@helper
def largest_of(a, b, out):
    like = broadcast(np.float32(0))
    both = larger(larger(like, load_like(like, a)), load_like(like, b))
    store(out, both)
    one = larger(larger(np.float32(0), load_like(np.float32(0), a)), load_like(np.float32(0), b))
    return finite(both), finite(one)


@helper
def find_key(address, key):
    return match8(address, key)


@helper
def first_bit(bits):
    return trailing_zeros(bits)


@helper
def copy_words(source, target):
    store_u64(target, load_u64(source))
    store_u32(target + np.uint64(8), load_u32(source + np.uint64(8)))


def at(array):
    return np.uint64(array.ctypes.data)


def test_lanes_compute_exactly_what_numpy_and_a_scalar_do():
    rng = np.random.default_rng(0)
    a = rng.uniform(1, 2, 17).astype(np.float32)[1:]  # not aligned to 64 bytes
    b = rng.uniform(0, 1, 16).astype(np.float32)
    out, single = np.zeros(16, np.float32), np.zeros(16, np.float32)
    arithmetic(at(a), at(b), at(out))
    for k in range(16):
        scalar_arithmetic(at(a[k:]), at(b[k:]), at(single[k:]))
    np.testing.assert_array_equal(out, np.sqrt(a * b + a - b / a))
    np.testing.assert_array_equal(single, out)


@pytest.mark.parametrize("lane", [0, 7, 15])
@pytest.mark.parametrize("value", [3e38, -3e38, 1e-45, np.inf, -np.inf, np.nan, -np.nan])
def test_one_lane_that_is_not_finite_is_seen(lane, value):
    a, b, out = (
        np.linspace(-2, 2, 16).astype(np.float32),
        np.zeros(16, np.float32),
        np.zeros(16, np.float32),
    )
    b[lane] = value
    every, first = largest_of(at(a), at(b), at(out))
    assert (every, first) == (np.isfinite(value), lane > 0 or np.isfinite(value))
    np.testing.assert_array_equal(out, np.maximum(abs(a), abs(b)))


def test_total_adds_halves_pairwise():
    x = np.random.default_rng(1).standard_normal(16).astype(np.float32)
    expected = x
    while len(expected) > 1:
        half = len(expected) // 2
        expected = expected[:half] + expected[half:]
    assert sum_of(at(x)) == expected[0]


@pytest.mark.parametrize("key", [0, 5, 2**64 - 1])
def test_match8_marks_every_equal_key(key):
    keys = np.array([5, 0, 2**64 - 1, 5, 7, 0, 2**64 - 1, 5], np.uint64)
    bits = find_key(at(keys), np.uint64(key))
    assert [bool(bits >> i & 1) for i in range(8)] == (keys == np.uint64(key)).tolist()


def test_trailing_zeros():
    assert [int(first_bit(np.uint32(1 << i))) for i in range(32)] == list(range(32))


def test_words_are_copied():
    source, target = np.arange(1, 5, dtype=np.uint32), np.zeros(4, np.uint32)
    copy_words(at(source), at(target))
    assert target.tolist() == [1, 2, 3, 0]
