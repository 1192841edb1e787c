"""Rows, gradients, tensors and chunks arrive as they were sent; what does not fit is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import ExchangeError, StoreError
from satrap.exchange import LookupRequest, kernels
from satrap.exchange.split import ShardPart
from satrap.exchange.telemetry import Rounding
from satrap.exchange.wire.rows import (
    GradientEncoder,
    RowReplies,
    from_wire,
    pack_chunk,
    pack_gradients,
    pack_tensors,
    row_section,
    unpack_chunk,
    unpack_tensors,
)
from satrap.exchange.wire.sections import Section, pack, unpack
from satrap.rpc.wire.frames import FrameError
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.store import RowChunk
from tests.contract.parties import request
from tests.exchange.collective.work import GROUPS
from tests.support.examples import examples

SHAPES = [(3, 2, 5), (4, 1), (0, 7)]


def drawn(scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(shape) * scale).astype(np.float32) for shape in SHAPES]


def test_float32_arrives_to_the_bit() -> None:
    tensors = drawn()
    tensors[0] = np.asfortranarray(tensors[0])
    for pack_ in (pack_tensors, pack_gradients):
        found = unpack_tensors(pack_(tensors, "float32"), SHAPES)
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
    for pack_ in (pack_tensors, pack_gradients):
        found = unpack_tensors(pack_(tensors, "int8"), SHAPES)
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
    found = unpack_tensors(pack_tensors(tensors, "float32"))
    assert [rows.shape for rows in found] == [(6, 5), (4, 1), (0, 7)]
    for mine, theirs in zip(tensors, found, strict=True):
        np.testing.assert_array_equal(mine, theirs)


BOUND = {kernels.FLOAT32: 0.0, kernels.FLOAT16: 2**-11, kernels.BFLOAT16: 2**-8, kernels.INT8: 1 / 254}


@pytest.mark.parametrize("code", kernels.FORMATS)
@settings(deadline=None, max_examples=examples(25))
@given(seed=st.integers(0, 2**32), holders=st.integers(1, 4), shuffled=st.booleans())
def test_rows_come_to_their_places_from_all_holders(
    code: int, seed: int, holders: int, shuffled: bool
) -> None:
    rng = np.random.default_rng(seed)
    requests, parts, rows = [], [], []
    messages: list[list[Section]] = [[] for _ in range(holders)]
    for group in GROUPS:
        n = int(rng.integers(0, 40))
        holder = rng.integers(0, holders, n)
        wanted = rng.uniform(-1, 1, (n, group.dim)).astype(np.float32)
        places = [np.flatnonzero(holder == number).astype(np.int32) for number in range(holders)]
        for message, own in zip(messages, places, strict=True):
            message.append(row_section(group.index, wanted, code, own))
        splits = np.concatenate([[0], np.full(len(group.tables), n)]).astype(np.int64)
        requests.append(LookupRequest(group.index, np.arange(n, dtype=np.uint64), splits))
        parts.append([ShardPart(np.empty(0, np.uint64), splits, own, own) for own in places])
        rows.append(wanted)
    if shuffled:
        requests, parts, rows = requests[::-1], parts[::-1], rows[::-1]
    replies = RowReplies(requests, parts, [GROUPS[r.group].dim for r in requests], "shard")
    for number, message in enumerate(messages):
        replies.put(number, unpack(pack(message)))
    for mine, theirs in zip(replies.rows, rows, strict=True):
        assert np.abs(mine - theirs).max(initial=0) <= BOUND[code]


@pytest.mark.parametrize("rows", [(3, 4), (2, 5)])
def test_other_rows_than_requested_are_refused(rows: tuple[int, int]) -> None:
    wanted = request(0, [1, 2])
    replies = RowReplies([wanted], [[ShardPart(wanted.ids, wanted.splits, None, None)]], [4], "shard")
    for sections in ([row_section(0, np.ones(rows, np.float32), kernels.FLOAT32)], []):
        with pytest.raises(ExchangeError, match="shard 0 answered with other rows"):
            replies.put(0, sections)


WANTED: list[LookupRequest] = [request(1, [7, 8, 9]), request(0, [1, 2], [3])]  # not in order of groups
GIVEN = [np.arange(n * dim, dtype=np.float32).reshape(n, dim) for n, dim in ((3, 17), (3, 4))]


def parts_of(one: LookupRequest) -> list[ShardPart]:
    """Holder 1 has the last id."""
    n, last = len(one.ids), one.splits.copy()
    last[last < n] = 0
    last[last == n] = 1
    places = np.arange(n, dtype=np.int32)
    return [
        ShardPart(one.ids[: n - 1], np.minimum(one.splits, n - 1), places[: n - 1], places[: n - 1]),
        ShardPart(one.ids[n - 1 :], last, places[n - 1 :], places[n - 1 :]),
    ]


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("code", [kernels.FLOAT32, kernels.BFLOAT16])
def test_gradients_of_each_holder_are_divided_by_the_workers(ids: bool, code: int) -> None:
    encoder = GradientEncoder(GROUPS, code, 2, Rounding())
    messages = encoder.sections(WANTED, [parts_of(one) for one in WANTED], GIVEN, 2, ids=ids)
    for message, own in zip(messages, (slice(2), slice(2, 3)), strict=True):
        sections = unpack(pack(message))
        assert [s.group for s in sections] == [1, 0]
        for section, wanted, whole in zip(sections, WANTED, GIVEN, strict=True):
            assert (section.ids is not None) == ids
            if section.ids is not None:
                np.testing.assert_array_equal(section.ids, wanted.ids[own])
            arrived = from_wire(section, np.empty_like(whole[own]))
            np.testing.assert_allclose(arrived, whole[own] / 2, rtol=0 if code == kernels.FLOAT32 else 0.01)


def test_frozen_rows_get_no_gradients() -> None:
    groups = [GROUPS[0], replace(GROUPS[1], frozen=True)]
    encoder = GradientEncoder(groups, kernels.FLOAT32, 1, Rounding())
    [first, _] = encoder.sections(WANTED, [parts_of(one) for one in WANTED], GIVEN, 2)
    assert [section.group for section in first] == [0]


@pytest.mark.parametrize("wrong", [np.full((3, 17), np.nan, np.float32), np.ones((2, 17), np.float32)])
def test_what_is_wrong_with_gradients_is_said(wrong: np.ndarray) -> None:
    encoder = GradientEncoder(GROUPS, kernels.FLOAT32, 2, Rounding())
    with pytest.raises(StoreError, match=r"NaN|float32"):
        encoder.sections(WANTED, [parts_of(one) for one in WANTED], [wrong, GIVEN[1]], 2)


def chunk(rows: int = 3) -> RowChunk:
    rng = np.random.default_rng(rows)
    weights, state = (rng.random((rows, width), np.float32) for width in (4, 2))
    return RowChunk("a", np.arange(rows, dtype=np.uint64), weights, state)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_chunk_of_rows_arrives_whole(rows: int) -> None:
    mine, theirs = chunk(rows), unpack_chunk(pack_chunk(chunk(rows)))
    assert mine.table == theirs.table
    for name in ("ids", "weights", "state"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


@pytest.mark.parametrize(
    "change",
    [
        {"table": 7},
        {"arrays": {}},
        {"arrays": {"ids": ["<u8", [3]], "weights": ["<f4", [12]], "state": ["<f4", [3, 2]]}},
        {"arrays": {"ids": ["<u8", [3]], "weights": ["<f4", [6, 2]], "state": ["<f4", [3, 2]]}},
        {"arrays": {"ids": ["<u8", [3]], "weights": ["<f4", [3, 4]], "other": ["<f4", [3, 2]]}},
    ],
)
def test_a_chunk_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    first, *parts = pack_chunk(chunk())
    with pytest.raises(FrameError):
        unpack_chunk([pack_text(unpack_text(first) | change), *parts])
    with pytest.raises(FrameError):
        unpack_chunk([])
