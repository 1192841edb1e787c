from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import ConfigError, StoreError
from satrap.store import (
    distinct,
    gather_features,
    gather_features_backward,
    pool,
    pool_backward,
    segment_sum,
    sum_features,
)
from tests.support.examples import examples

MODES = ["sum", "mean", "sqrtn", "max"]
DIMS = st.sampled_from([1, 2, 15, 16, 17, 33])
PROFILE = settings(max_examples=examples(60), deadline=None)


@PROFILE
@given(st.lists(st.lists(st.integers(0, 40) | st.integers(2**64 - 3, 2**64 - 1), max_size=60), max_size=5))
def test_distinct_is_first_appearance_per_segment(segments):
    ids = np.array([x for s in segments for x in s], np.uint64)
    splits = np.cumsum([0, *(len(s) for s in segments)]).astype(np.int64)
    unique, unique_splits, inverse = distinct(ids, splits)
    np.testing.assert_array_equal(unique[inverse], ids)
    expected = [list(dict.fromkeys(s)) for s in segments]
    assert unique.tolist() == [x for s in expected for x in s]
    assert np.diff(unique_splits).tolist() == [len(s) for s in expected]
    assert (inverse.dtype, unique_splits.dtype) == (np.int32, np.int64)


def test_distinct_of_many_ids_equals_numpy():
    ids = np.random.default_rng(0).zipf(1.2, 200_000).astype(np.uint64)
    unique, _, inverse = distinct(ids, np.array([0, len(ids)]))
    np.testing.assert_array_equal(np.sort(unique), np.unique(ids))
    np.testing.assert_array_equal(unique[inverse], ids)
    bounds = np.array([0, 5, 22, 22, 120_000, 200_000])
    unique, splits, inverse = distinct(ids, bounds)
    expected = [list(dict.fromkeys(ids[a:b].tolist())) for a, b in pairwise(bounds)]
    assert [unique[a:b].tolist() for a, b in pairwise(splits)] == expected
    np.testing.assert_array_equal(unique[inverse], ids)


@PROFILE
@given(st.integers(0, 50), st.integers(1, 8), DIMS, st.integers(0, 2**32 - 1))
def test_segment_sum_adds_in_order(n, u, dim, seed):
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((n, dim)).astype(np.float32)
    inverse = rng.integers(0, u, n).astype(np.int32)
    expected = np.zeros((u, dim), np.float32)
    for i in range(n):
        expected[inverse[i]] += gradients[i]
    np.testing.assert_array_equal(segment_sum(gradients, inverse, u), expected)


@st.composite
def bags(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = draw(st.lists(st.integers(0, 6), max_size=12))
    offsets = np.cumsum([0, *counts]).astype(np.int64)
    u, dim = draw(st.integers(1, 10)), draw(DIMS)
    rows = rng.standard_normal((u, dim)).astype(np.float32)
    inverse = rng.integers(0, u, offsets[-1]).astype(np.int32)
    weights = rng.uniform(0.5, 2, offsets[-1]).astype(np.float32) if draw(st.booleans()) else None
    return rows, inverse, offsets, weights


def torch_pool(rows, inverse, offsets, weights, mode):
    """The definition, in PyTorch operations that autograd differentiates."""
    out = []
    for low, high in pairwise(offsets):
        factor = torch.ones(high - low) if weights is None else torch.from_numpy(weights[low:high])
        picked = rows[torch.from_numpy(inverse[low:high]).long()] * factor[:, None]
        if high == low:
            out.append(torch.zeros(rows.shape[1]))
        elif mode == "max":
            out.append(picked.amax(0))
        else:
            divisor = {"sum": torch.tensor(1.0), "mean": factor.sum(), "sqrtn": factor.square().sum().sqrt()}
            out.append(picked.sum(0) / divisor[mode])
    return torch.stack(out) if out else torch.zeros(0, rows.shape[1])


@PROFILE
@given(bags(), st.sampled_from(MODES))
def test_pool_and_its_gradient_equal_autograd(case, mode):
    rows, inverse, offsets, weights = case
    leaf = torch.from_numpy(rows).requires_grad_()
    expected = torch_pool(leaf, inverse, offsets, weights, mode)
    out, argmax = pool(rows, inverse, offsets, mode=mode, weights=weights)
    np.testing.assert_allclose(out, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    gradients = np.random.default_rng(0).standard_normal(out.shape).astype(np.float32)
    result = pool_backward(gradients, inverse, offsets, len(rows), mode=mode, weights=weights, argmax=argmax)
    if len(inverse):
        (expected * torch.from_numpy(gradients)).sum().backward()
        wanted = leaf.grad.numpy()
    else:
        wanted = np.zeros_like(rows)
    if (
        mode == "max"
    ):  # equal values (an id twice in a bag) may pass their gradient either way, but to one row
        np.testing.assert_allclose(result.sum(), wanted.sum(), rtol=1e-3, atol=1e-4)
    else:
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_pool_equals_embedding_bag(mode):
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((50, 24)).astype(np.float32)
    offsets = np.array([0, 3, 3, 10, 11], np.int64)
    inverse = rng.permutation(50)[:11].astype(np.int32)
    leaf = torch.from_numpy(rows).requires_grad_()
    expected = torch.nn.functional.embedding_bag(
        torch.from_numpy(inverse).long(), leaf, torch.from_numpy(offsets), mode=mode, include_last_offset=True
    )
    out, argmax = pool(rows, inverse, offsets, mode=mode)
    np.testing.assert_allclose(out, expected.detach().numpy(), rtol=1e-6, atol=1e-7)
    expected.sum().backward()
    ones = np.ones((4, 24), np.float32)
    result = pool_backward(ones, inverse, offsets, 50, mode=mode, argmax=argmax)
    np.testing.assert_allclose(result, leaf.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_pool_reads_and_writes_strided_blocks(mode):
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((5, 16)).astype(np.float32)
    inverse, offsets = np.array([0, 1, 4], np.int32), np.array([0, 1, 3], np.int64)
    block = np.full((2, 3, 16), 7, np.float32)
    out, argmax = pool(rows, inverse, offsets, mode=mode, out=block[:, 1])
    np.testing.assert_array_equal(out, pool(rows, inverse, offsets, mode=mode)[0])
    assert (block[:, [0, 2]] == 7).all()
    into = np.ones((5, 16), np.float32)
    result = pool_backward(block[:, 1], inverse, offsets, 5, mode=mode, argmax=argmax, into=into)
    assert result is into
    plain = pool_backward(block[:, 1].copy(), inverse, offsets, 5, mode=mode, argmax=argmax)
    np.testing.assert_allclose(into, plain + 1, rtol=1e-6)


def test_a_bag_of_one_each_needs_no_offsets():
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    inverse = np.array([3, 0, 3], np.int32)
    np.testing.assert_array_equal(pool(rows, inverse, None, mode="mean")[0], rows[inverse])


@pytest.mark.parametrize("dim", [8, 16, 64, 100, 128])
def test_gradients_of_rows_in_order_of_appearance(dim):
    rng = np.random.default_rng(dim)
    ids = rng.integers(0, 50, 4 * 30).astype(np.uint64)
    unique, _, inverse = distinct(ids, np.array([0, 60, 120]))
    gradients = rng.standard_normal((30, 4, dim)).astype(np.float32)
    wanted = np.zeros((len(unique), dim), np.float32)
    for i, row in enumerate(inverse):
        wanted[row] += gradients[i % 30, i // 30]
    for u in (len(unique), len(unique) + 2):  # rows that no id names have no gradient
        found = gather_features_backward(gradients, inverse, u)
        np.testing.assert_array_equal(found[: len(unique)], wanted)
        assert not found[len(unique) :].any()
    start = np.ones_like(wanted)
    gather_features_backward(gradients, inverse, len(unique), into=start)
    np.testing.assert_allclose(start, wanted + 1, rtol=1e-5, atol=1e-5)


@PROFILE
@given(DIMS, st.booleans(), st.integers(0, 2**32 - 1), st.sampled_from([np.nan, np.inf, -np.inf, 3e38]))
def test_sums_tell_whether_they_are_finite(dim, in_order, seed, value):
    rng = np.random.default_rng(seed)
    inverse = distinct(rng.integers(0, 9, 3 * 7).astype(np.uint64), np.array([0, 21]))[2]
    u = int(inverse.max()) + 1
    if not in_order:
        inverse = (u - 1 - inverse).astype(np.int32)
    gradients = rng.standard_normal((7, 3, dim)).astype(np.float32)
    sums, finite = sum_features(gradients, inverse, u)
    np.testing.assert_array_equal(sums, gather_features_backward(gradients, inverse, u))
    assert finite
    for _ in range(2):  # two of 3e38 add up to infinity only where they meet; infinities may cancel to NaN
        gradients[rng.integers(7), rng.integers(3), rng.integers(dim)] = value
    sums, finite = sum_features(gradients, inverse, u)
    assert finite == np.isfinite(sums).all()


@pytest.mark.parametrize("dim", [16, 48, 64])
def test_large_blocks_are_written_past_the_caches(monkeypatch, dim):
    rng = np.random.default_rng(dim)
    rows, inverse = rng.standard_normal((20, dim)).astype(np.float32), rng.integers(0, 20, 3 * 7, np.int32)
    expected = gather_features(rows, inverse, 3)
    np.testing.assert_array_equal(expected, rows[inverse.reshape(3, 7).T])
    monkeypatch.setattr("satrap.store.kernels.batch.ASIDE", 0)
    words = np.zeros(7 * 3 * dim + 32, np.float32)
    for shift in (-words.ctypes.data % 64 // 4, -words.ctypes.data % 64 // 4 + 1):  # aligned, and not
        out = words[shift:][: 7 * 3 * dim].reshape(7, 3, dim)
        out[:] = 0
        np.testing.assert_array_equal(gather_features(rows, inverse, 3, out=out), expected)


@PROFILE
@given(st.integers(1, 4), st.integers(0, 20), st.integers(1, 9), DIMS, st.integers(0, 2**32 - 1))
def test_gather_features_and_its_gradient(features, batch, u, dim, seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((u, dim)).astype(np.float32)
    inverse = rng.integers(0, u, features * batch).astype(np.int32)
    block = np.zeros((batch, features + 2, dim), np.float32)
    out = gather_features(rows, inverse, features, out=block[:, 1:-1])
    expected = rows[inverse.reshape(features, batch).T]
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(gather_features(rows, inverse, features), expected)
    assert not block[:, [0, -1]].any()
    gradients = rng.standard_normal(block.shape).astype(np.float32)
    by_feature = np.ascontiguousarray(gradients[:, 1:-1].transpose(1, 0, 2).reshape(-1, dim))
    wanted = segment_sum(by_feature, inverse, u)
    np.testing.assert_array_equal(gather_features_backward(gradients[:, 1:-1], inverse, u), wanted)


ROWS = np.zeros((3, 4), np.float32)
INVERSE = np.array([0, 2], np.int32)
CASES = {
    "inverse must be in 0..2": lambda: pool(ROWS, np.array([0, 3], np.int32), None),
    "inverse must be in 0..1": lambda: segment_sum(ROWS[:2], np.array([0, -1], np.int32), 2),
    "inverse must be int32": lambda: pool(ROWS, np.array([0, 1]), None),
    "inverse must have 3 entries": lambda: segment_sum(ROWS, INVERSE, 3),
    "splits must ascend": lambda: pool(ROWS, INVERSE, np.array([0, 3])),
    "2 ids but 1 weights": lambda: pool(ROWS, INVERSE, None, weights=np.ones(1, np.float32)),
    "mode 'median' is unknown": lambda: pool(ROWS, INVERSE, None, mode="median"),
    "needs the argmax": lambda: pool_backward(ROWS[:2], INVERSE, None, 3, mode="max"),
    r"gradients must be float32\[2, dim\]": lambda: pool_backward(ROWS, INVERSE, None, 3),
    "cannot be divided into 3 features": lambda: gather_features(ROWS, INVERSE, 3),
    "of contiguous blocks": lambda: gather_features(ROWS, INVERSE, 2, out=np.zeros((1, 2, 4))),
    "into must be C-contiguous": lambda: pool_backward(
        ROWS[:2], INVERSE, None, 3, into=np.zeros((3, 8), np.float32)[:, ::2]
    ),
    "ids must be uint64": lambda: distinct(np.arange(3), np.array([0, 3])),
}


@pytest.mark.parametrize("message", CASES)
def test_a_bad_argument_is_one_clear_error(message):
    with pytest.raises((ConfigError, StoreError), match=message):
        CASES[message]()
