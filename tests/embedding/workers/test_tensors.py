"""Tensors arrive as they were sent; gradients that are not finite and other shapes are refused."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.embedding.workers.tensors import pack_gradients, pack_tensors, unpack_rows, unpack_tensors
from satrap.errors import StoreError
from satrap.rpc.wire.frames import FrameError

SHAPES = [(3, 2, 5), (4, 1), (0, 7)]


def drawn(scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(shape) * scale).astype(np.float32) for shape in SHAPES]


def test_float32_arrives_to_the_bit() -> None:
    tensors = drawn()
    tensors[0] = np.asfortranarray(tensors[0])
    for pack in (pack_tensors, pack_gradients):
        found = unpack_tensors(pack(tensors, "float32"), SHAPES)
        for mine, theirs in zip(tensors, found, strict=True):
            assert theirs.dtype == np.float32
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("form", "error"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_16_bits_round(form: str, error: float) -> None:
    tensors = drawn()
    for mine, theirs in zip(tensors, unpack_tensors(pack_tensors(tensors, form), SHAPES), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=error, atol=1e-7)


def test_int8_has_a_step_per_vector() -> None:
    tensors = drawn()
    tensors[0] *= np.array([[[1e-9], [1]], [[1e9], [2]], [[3], [1e-3]]], np.float32)
    for pack in (pack_tensors, pack_gradients):
        found = unpack_tensors(pack(tensors, "int8"), SHAPES)
        for mine, theirs in zip(tensors, found, strict=True):
            error = np.abs(mine - theirs)
            assert (error <= np.abs(mine).max(-1, keepdims=True) / 253.9).all()


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_gradients_in_float16_are_scaled_into_its_range(scale: float) -> None:
    tensors = drawn(scale)
    found = unpack_tensors(pack_gradients(tensors, "float16"), SHAPES)
    for mine, theirs in zip(tensors, found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2**-10, atol=scale * 1e-3)
        assert np.isfinite(theirs).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["float32", "float16", "bfloat16", "int8"])
def test_gradients_that_are_not_finite_are_refused(value: float, form: str) -> None:
    tensors = drawn()
    tensors[1][3, 0] = value
    with pytest.raises(StoreError, match="NaN or infinite") as caught:
        pack_gradients(tensors, form)
    assert "[4, 1] numbers" in str(caught.value)


@pytest.mark.parametrize(
    "shapes", [SHAPES[:2], [*SHAPES, (1, 1)], [(6, 5), (4, 1), (1, 7)], [(6, 4), (4, 1), (0, 7)]]
)
def test_other_tensors_than_expected_are_refused(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(FrameError):
        unpack_tensors(pack_tensors(drawn(), "float32"), shapes)


def test_rows_say_their_shapes_themselves() -> None:
    tensors = [tensor.reshape(-1, tensor.shape[-1]) for tensor in drawn()]
    found = unpack_rows(pack_tensors(tensors, "float32"))
    assert [rows.shape for rows in found] == [(6, 5), (4, 1), (0, 7)]
    for mine, theirs in zip(tensors, found, strict=True):
        np.testing.assert_array_equal(mine, theirs)
