"""Sections: round trips, and bytes that pretend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from satrap.exchange.kernels import FORMATS, row_bytes
from satrap.exchange.servers.row_message import NO_ROWS, Section, pack, unpack
from satrap.rpc.wire.frames import FrameError, as_bytes


@st.composite
def sections(draw: st.DrawFn) -> Section:
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    n, dim = sum(counts), draw(st.integers(1, 5))
    top = draw(st.sampled_from([2**32 - 1, 2**64 - 1]))
    ids = draw(st.lists(st.integers(0, top), min_size=n, max_size=n))
    kind = draw(st.sampled_from([*FORMATS, NO_ROWS]))
    if kind == NO_ROWS:
        dim = 0
    rows = np.arange(n * row_bytes(kind, dim), dtype=np.uint8)
    return Section(
        draw(st.integers(0, 9)),
        np.cumsum([0, *counts]).astype(np.int64),
        None if draw(st.booleans()) else np.array(ids, np.uint64),
        kind,
        dim,
        draw(st.sampled_from([1.0, 0.25, 1024.0])),
        rows,
    )


def same(a: Section, b: Section) -> None:
    assert (a.group, a.format, a.dim, a.scale) == (b.group, b.format, b.dim, b.scale)
    np.testing.assert_array_equal(a.splits, b.splits)
    np.testing.assert_array_equal(as_bytes(a.rows), as_bytes(b.rows))
    assert (a.ids is None) == (b.ids is None)
    if a.ids is not None:
        np.testing.assert_array_equal(a.ids, b.ids)


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
        assert len(as_bytes(s.rows)) == (s.format != NO_ROWS) * s.count * row_bytes(s.format, s.dim)


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
    million = (1 << 20).to_bytes(4, "little") + bytes(22 << 20)
    with pytest.raises(FrameError, match="over the limit"):
        unpack([million])
    with pytest.raises(FrameError, match="100000 sections, over the limit of 4095"):
        unpack([(100_000).to_bytes(4, "little") + bytes(2_200_000)])
    with pytest.raises(FrameError, match="cannot have 4096 sections"):
        pack([Section(0, np.zeros(2, np.int64), None)] * 4096)
