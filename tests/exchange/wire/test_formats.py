"""Rows and gradients as 16-bit and 8-bit numbers: what is lost and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.exchange.wire.formats import CODES, gather_gradients, scale_of, to_wire
from satrap.exchange.wire.rows import from_wire
from satrap.exchange.wire.sections import Section


def section(raw: np.ndarray, code: int, rows: int, dim: int, scale: float = 1.0) -> Section:
    return Section(0, np.array([0, rows], np.int64), None, code, dim, scale, raw)


@pytest.mark.parametrize(("name", "error"), [("float32", 0.0), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_rows_come_back_within_half_a_unit(name: str, error: float) -> None:
    rows = np.random.default_rng(1).standard_normal((50, 12)).astype(np.float32)
    code = CODES[name]
    back = from_wire(section(to_wire(rows, code), code, 50, 12), np.empty_like(rows))
    np.testing.assert_allclose(back, rows, rtol=error, atol=0)


def test_int8_rows_come_back_within_a_254th_of_their_largest() -> None:
    rows = np.random.default_rng(1).standard_normal((50, 12)).astype(np.float32)
    rows *= np.logspace(-20, 20, 50, dtype=np.float32)[:, None]
    raw = to_wire(rows, CODES["int8"])
    assert raw.size == 50 * 16
    error = np.abs(from_wire(section(raw, CODES["int8"], 50, 12), np.empty_like(rows)) - rows)
    assert (error <= np.abs(rows).max(1, keepdims=True) / 253.9).all()
    assert error.any()


@settings(deadline=None)
@given(st.integers(-120, 120))
def test_scaled_float16_keeps_gradients_of_any_size(exponent: int) -> None:
    gradients = np.random.default_rng(3).standard_normal((8, 5)).astype(np.float32)
    gradients = np.ldexp(gradients, exponent).astype(np.float32)
    code = CODES["float16"]
    scale = scale_of(gradients, code)
    raw, finite = gather_gradients(gradients, None, code, scale)
    assert finite
    back = from_wire(section(raw, code, 8, 5, scale), np.empty_like(gradients))
    top = np.abs(gradients).max()
    np.testing.assert_allclose(back, gradients, rtol=2.0**-10, atol=top * 2.0**-22)


def test_parts_are_gathered_scaled_and_put_back_in_place() -> None:
    gradients = np.arange(12, dtype=np.float32).reshape(6, 2)
    code = CODES["bfloat16"]
    positions = np.array([5, 1], np.int32)
    raw, finite = gather_gradients(gradients, positions, code, 0.5)
    assert finite
    out = np.full((6, 2), -1, np.float32)
    from_wire(section(raw, code, 2, 2), out, positions)
    np.testing.assert_array_equal(out[[5, 1]], gradients[[5, 1]] / 2)
    assert (out[[0, 2, 3, 4]] == -1).all()


@pytest.mark.parametrize("name", list(CODES))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_gradients_that_are_not_finite_are_noticed(name: str, value: float) -> None:
    gradients = np.zeros((3, 20), np.float32)
    gradients[1, 18] = value
    code = CODES[name]
    assert not gather_gradients(gradients, None, code, scale_of(gradients, code))[1]
    assert not gather_gradients(gradients, np.array([1], np.int32), code, 1.0)[1]
    assert gather_gradients(gradients, np.array([0, 2], np.int32), code, 1.0)[1]
