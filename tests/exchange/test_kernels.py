"""16-bit and 8-bit conversions and the split by owner, each against a plain version."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from satrap.exchange import kernels
from satrap.store import bucket_of
from satrap.store.arrays import address
from satrap.store.hashes import index_salt

ANY_FLOAT32 = arrays(np.uint32, st.integers(0, 70), elements=st.integers(0, 2**32 - 1))


def narrow(bits: np.ndarray, kind: int, scale: float = 1.0) -> tuple[np.ndarray, bool]:
    out = np.empty(len(bits), np.uint32 if kind == kernels.FLOAT32 else np.uint16)
    finite = kernels.narrow(
        kind, address(bits), address(out), np.uint64(1), np.uint64(len(bits)), np.float32(scale)
    )
    return out, bool(finite)


@settings(deadline=None)
@given(ANY_FLOAT32)
def test_float16_rounds_as_numpy_does(bits: np.ndarray) -> None:
    got, finite = narrow(bits, kernels.FLOAT16)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = bits.view(np.float32).astype(np.float16)
    np.testing.assert_array_equal(got.view(np.float16), expected)
    assert finite == bool(np.isfinite(expected).all())


@settings(deadline=None)
@given(ANY_FLOAT32)
def test_bfloat16_rounds_as_torch_does(bits: np.ndarray) -> None:
    got, finite = narrow(bits, kernels.BFLOAT16)
    expected = torch.from_numpy(bits.view(np.float32).copy()).to(torch.bfloat16)
    assert finite == bool(torch.isfinite(expected).all())
    number = ~torch.isnan(expected).numpy()
    np.testing.assert_array_equal(got[number], expected.view(torch.int16).numpy().view(np.uint16)[number])


@settings(deadline=None)
@given(ANY_FLOAT32)
def test_float32_keeps_every_bit(bits: np.ndarray) -> None:
    finite_bits = bits[np.isfinite(bits.view(np.float32))]
    got, finite = narrow(finite_bits, kernels.FLOAT32)
    np.testing.assert_array_equal(got, finite_bits)
    assert finite
    assert narrow(bits, kernels.FLOAT32)[1] == (len(finite_bits) == len(bits))


@settings(deadline=None)
@given(arrays(np.uint16, st.integers(0, 70), elements=st.integers(0, 2**16 - 1)))
def test_widening_is_exact(bits: np.ndarray) -> None:
    out = np.empty(len(bits), np.float32)
    kernels.widen(kernels.FLOAT16, address(bits), address(out), np.uint64(1), np.uint64(len(bits)))
    np.testing.assert_array_equal(out, bits.view(np.float16).astype(np.float32))
    kernels.widen(kernels.BFLOAT16, address(bits), address(out), np.uint64(1), np.uint64(len(bits)))
    np.testing.assert_array_equal(out.view(np.uint32), bits.astype(np.uint32) << np.uint32(16))


NUMBERS = st.one_of(
    st.floats(width=32), st.floats(-1, 1, width=32), st.floats(-(2.0**-140), 2.0**-140, width=32)
)


@settings(deadline=None)
@given(
    arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(1, 40)), elements=NUMBERS),
    st.sampled_from([1.0, 0.5, np.finfo(np.float32).max]),
)
@example(np.full((1, 17), np.finfo(np.float32).max, np.float32), 1.0)
@example(np.full((1, 17), 1e-44, np.float32), 1.0)
@np.errstate(all="ignore")
def test_int8_rounds_each_row_to_multiples_of_its_127th_part(rows: np.ndarray, scale: float) -> None:
    count, dim = rows.shape
    raw, back = np.empty((count, dim + 4), np.uint8), np.empty_like(rows)
    shape, factor = (np.uint64(count), np.uint64(dim)), np.float32(scale)
    assert kernels.row_bytes(kernels.INT8, dim) * count == raw.size
    finite = kernels.narrow(kernels.INT8, address(rows), address(raw), *shape, factor)
    kernels.widen(kernels.INT8, address(raw), address(back), *shape)
    exact = rows * factor
    known = np.isfinite(exact).all(1)
    assert finite == known.all()
    assert np.isnan(back[~known]).all()
    assert np.isfinite(back[known]).all()
    raw, back, exact = raw[known], back[known], exact[known]
    tops = np.abs(exact).max(1, keepdims=True, initial=0)
    largest = np.finfo(np.float32).max
    steps = np.where(tops == largest, np.nextafter(largest, np.float32(0)), tops) / np.float32(127)
    np.testing.assert_array_equal(np.ascontiguousarray(raw[:, :4]).view(np.float32), steps)
    multiples = np.where(steps == 0, 0, np.rint(np.clip(exact / steps, -127, 127)))
    np.testing.assert_array_equal(back, multiples * steps)
    np.testing.assert_array_equal(raw[:, 4:].view(np.int8) * (steps > 0), multiples)
    normal = steps[:, 0] >= np.finfo(np.float32).smallest_normal
    error = np.abs(back.astype(np.float64) - exact)[normal]
    assert (error <= tops[normal].astype(np.float64) / 254 * (1 + 1e-5)).all()


@pytest.mark.parametrize("dim", [1, 7, 16, 40])
@pytest.mark.parametrize("code", kernels.FORMATS)
def test_rows_are_gathered_and_placed_by_position(dim: int, code: int) -> None:
    rows = np.random.default_rng(dim).standard_normal((9, dim)).astype(np.float32)
    positions, width = np.array([4, 0, 8, 2], np.int32), np.uint64(dim)
    chosen, one = rows[positions] * 2, np.float32(1)
    out, expected = np.empty((2, 4, kernels.row_bytes(code, dim)), np.uint8)
    assert kernels.narrow_rows(code, address(rows), width, positions, address(out), np.float32(2.0))
    assert kernels.narrow(code, address(chosen), address(expected), np.uint64(4), width, one)
    np.testing.assert_array_equal(out, expected)
    back, plain = np.zeros((9, dim), np.float32), np.empty((4, dim), np.float32)
    kernels.widen_rows(code, address(out), width, positions, address(back))
    kernels.widen(code, address(out), address(plain), np.uint64(4), width)
    np.testing.assert_array_equal(back[positions], plain)
    np.testing.assert_allclose(plain, chosen, atol=0.03)
    assert not back[[1, 3, 5, 6, 7]].any()


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=30), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sets(st.integers(0, 3)),
)
def test_split_keeps_order_inside_owner_and_table(
    tables: list[list[int]], shards: int, everywhere: set[int]
) -> None:
    ids = np.array([i for t in tables for i in t], np.uint64)
    splits = np.cumsum([0, *map(len, tables)]).astype(np.int64)
    names = [f"t{i}" for i in range(len(tables))]
    owners = np.stack([(np.arange(4096) * shards // 4096).astype(np.uint16) for _ in names])
    owners[[t for t in everywhere if t < len(names)]] = kernels.EVERYWHERE
    copies = len(ids) + (shards - 1) * sum(len(tables[t]) for t in everywhere if t < len(names))
    bounds = np.zeros((shards, len(tables) + 1), np.int64)
    grouped, positions = np.empty(copies, np.uint64), np.empty(copies, np.int32)
    salts = np.array([index_salt(n) for n in names], np.uint64)
    kernels.split(ids, splits, salts, owners, np.empty(len(ids), np.uint16), bounds, grouped, positions)
    np.testing.assert_array_equal(grouped, ids[positions])
    for t, name in enumerate(names):
        own = owners[t, bucket_of(name, ids[splits[t] : splits[t + 1]])]
        for s in range(shards):
            expected = splits[t] + np.flatnonzero((own == s) | (own == kernels.EVERYWHERE))
            np.testing.assert_array_equal(positions[bounds[s, t] : bounds[s, t + 1]], expected)


@pytest.mark.parametrize("dim", [1, 16, 21])
@pytest.mark.parametrize("code", kernels.FORMATS)
def test_rows_are_added_by_position(dim: int, code: int) -> None:
    rng = np.random.default_rng(dim)
    rows, out = rng.standard_normal((9, dim), dtype=np.float32), np.ones((20, dim), np.float32)
    places = rng.permutation(20)[:9].astype(np.int32)
    raw = np.empty(9 * kernels.row_bytes(code, dim), np.uint8)
    kernels.narrow(code, address(rows), address(raw), np.uint64(9), np.uint64(dim), np.float32(1))
    wide, wanted = np.empty_like(rows), out.copy()
    kernels.widen(code, address(raw), address(wide), np.uint64(9), np.uint64(dim))
    wanted[places] += wide * np.float32(0.25)
    kernels.add_rows(code, address(raw), places, out, np.empty(dim, np.float32), np.float32(0.25))
    np.testing.assert_array_equal(out, wanted)


def test_peak_is_the_largest_magnitude() -> None:
    values = np.array([1.5, -7.25, 3.0], np.float32)
    assert np.uint32(kernels.peak(values.view(np.uint32))).view(np.float32) == 7.25
    values[1] = np.nan
    assert kernels.peak(values.view(np.uint32)) > 0x7F800000
