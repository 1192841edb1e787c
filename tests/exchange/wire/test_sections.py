"""Sections: round trips, and bytes that pretend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from satrap.exchange.kernels import FORMATS, row_bytes
from satrap.exchange.lookup import Bags
from satrap.exchange.wire.sections import NO_ROWS, Section, pack, unpack
from satrap.rpc.wire.frames import FrameError, as_bytes


@st.composite
def bags(draw: st.DrawFn, table: int, ids: int) -> Bags:
    lengths = draw(st.lists(st.integers(0, 3 if ids else 0), max_size=4))
    n = sum(lengths)
    inverse = np.array(draw(st.lists(st.integers(0, max(ids - 1, 0)), min_size=n, max_size=n)), np.int32)
    weights = inverse.astype(np.float32) / 7 if draw(st.booleans()) else None
    offsets = np.cumsum([0, *lengths]).astype(np.int64)
    return Bags(table, inverse, offsets, weights, draw(st.sampled_from(["sum", "mean", "sqrtn"])))


@st.composite
def sections(draw: st.DrawFn) -> Section:
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    n, dim = sum(counts), draw(st.integers(1, 5))
    top = draw(st.sampled_from([2**32 - 1, 2**64 - 1]))
    ids = draw(st.lists(st.integers(0, top), min_size=n, max_size=n))
    kind = draw(st.sampled_from([*FORMATS, NO_ROWS]))
    if kind == NO_ROWS:
        dim = 0
    made = Section(
        draw(st.integers(0, 9)),
        np.cumsum([0, *counts]).astype(np.int64),
        None if draw(st.booleans()) else np.array(ids, np.uint64),
        kind,
        dim,
        draw(st.sampled_from([1.0, 0.25, 1024.0])),
        bags=[draw(bags(t, count)) for t, count in enumerate(counts) if draw(st.booleans())],
    )
    return replace(made, rows=np.zeros(made.row_count * row_bytes(kind, dim), np.uint8))


def same(a: Section, b: Section) -> None:
    assert (a.group, a.format, a.dim, a.scale) == (b.group, b.format, b.dim, b.scale)
    np.testing.assert_array_equal(a.splits, b.splits)
    np.testing.assert_array_equal(as_bytes(a.rows), as_bytes(b.rows))
    assert (a.ids is None) == (b.ids is None)
    if a.ids is not None:
        np.testing.assert_array_equal(a.ids, b.ids)
    for mine, theirs in zip(a.bags, b.bags, strict=True):
        assert (mine.table, mine.mode) == (theirs.table, theirs.mode)
        np.testing.assert_array_equal(mine.offsets, theirs.offsets)
        np.testing.assert_array_equal(mine.inverse, theirs.inverse)
        assert (mine.weights is None) == (theirs.weights is None)
        if mine.weights is not None:
            np.testing.assert_array_equal(mine.weights, theirs.weights)


@settings(deadline=None)
@given(st.lists(sections(), max_size=4))
def test_round_trip(made: list[Section]) -> None:
    parts = [bytes(memoryview(p)) for p in pack(made)]
    for a, b in zip(made, unpack(parts), strict=True):
        same(a, b)


@settings(deadline=None)
@given(arrays(np.uint64, st.integers(0, 20), elements=st.integers(0, 2**64 - 1)))
def test_ids_are_sent_with_32_bits_if_these_are_enough(ids: np.ndarray) -> None:
    _, sent = pack([Section(0, np.array([0, len(ids)]), ids)])
    assert (sent.dtype == np.uint32) == bool((ids < 2**32).all())


@settings(deadline=None)
@given(st.lists(sections(), min_size=1, max_size=3), st.data())
def test_altered_indexes_are_refused_or_consistent(made: list[Section], data: st.DataObject) -> None:
    parts = [bytearray(memoryview(p)) for p in pack(made)]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(parts[0]) - 1))
        parts[0][at] = data.draw(st.integers(0, 255))
    try:
        found = unpack(parts)
    except FrameError:
        return
    for s in found:
        assert s.splits[0] == 0
        assert (np.diff(s.splits) >= 0).all()
        assert s.ids is None or len(s.ids) == s.count
        assert len(as_bytes(s.rows)) == (s.format != NO_ROWS) * s.row_count * row_bytes(s.format, s.dim)
        for bag in s.bags:
            assert bag.table < len(s.splits) - 1
            assert len(bag.inverse) == bag.offsets[-1]


def test_small_ids_take_half_the_bytes() -> None:
    ids = np.array([1, 2**32 - 1], np.uint64)
    splits = np.array([0, 2], np.int64)
    assert memoryview(pack([Section(0, splits, ids)])[1]).nbytes == 8
    ids[1] += np.uint64(1)
    assert memoryview(pack([Section(0, splits, ids)])[1]).nbytes == 16


def test_announced_numbers_alone_allocate_nothing() -> None:
    splits = np.array([0, 1], np.int64)
    parts = pack([Section(0, splits, np.array([7], np.uint64))])
    index = bytearray(parts[0])
    index[8:12] = b"\xff\xff\xff\xff"  # tables
    with pytest.raises(FrameError, match="index part has the wrong size"):
        unpack([bytes(index), *parts[1:]])
    with pytest.raises(FrameError, match="too short"):
        unpack([b"\xff\xff\xff\xff"])


@settings(deadline=None)
@given(st.lists(sections(), max_size=4), st.integers(0, 4))
def test_more_sections_than_there_may_be_are_refused(made: list[Section], most: int) -> None:
    parts = pack(made)
    if len(made) <= most:
        assert len(unpack(parts, most=most)) == len(made)
    else:
        with pytest.raises(FrameError, match=f"{len(made)} sections, over the limit of {most}"):
            unpack(parts, most=most)


def test_an_index_of_endless_sections_or_splits_is_refused_before_it_is_read() -> None:
    million = (1 << 20).to_bytes(4, "little") + bytes(26 << 20)
    with pytest.raises(FrameError, match="over the limit"):
        unpack([million])
    with pytest.raises(FrameError, match="100000 sections, over the limit of 4095"):
        unpack([(100_000).to_bytes(4, "little") + bytes(2_500_000)])
    with pytest.raises(FrameError, match="cannot have 4096 sections"):
        pack([Section(0, np.zeros(2, np.int64), None)] * 4096)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"table": 1}, "unknown table"),
        ({"offsets": np.array([1, 2], np.int64)}, "offsets of a bag"),
        ({"offsets": np.array([0, 3, 2], np.int64)}, "offsets of a bag"),
        ({"inverse": np.array([0, 2], np.int32)}, "not among the ids"),
        ({"inverse": np.array([-1, 0], np.int32)}, "not among the ids"),
        ({"weights": np.ones(1, np.float32)}, "bytes, but the index announces"),
    ],
)
def test_bags_that_do_not_fit_their_ids_are_refused(change: dict[str, Any], error: str) -> None:
    bag = Bags(0, np.array([0, 1], np.int32), np.array([0, 2], np.int64), None, "sum")
    section = Section(0, np.array([0, 2], np.int64), np.array([7, 8], np.uint64))
    assert unpack(pack([replace(section, bags=[bag])]))[0].row_count == 1
    with pytest.raises(FrameError, match=error):
        unpack(pack([replace(section, bags=[replace(bag, **change)])]))
