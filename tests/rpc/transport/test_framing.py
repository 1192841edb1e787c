"""Messages come out as they went in, however the stream is cut; what is no message is refused unallocated."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satrap.rpc.transport.framing import LARGE, MAX_PARTS, FramingError, Message, Reader, prefix
from tests.rpc import plain

LIMIT = 1 << 20
parts = st.lists(st.binary(max_size=60) | st.integers(0, 3 * LARGE).map(bytes), min_size=1, max_size=6)


def read(stream: bytes, cuts: Sequence[int], *, in_place: bool = True, limit: int = LIMIT) -> list[Message]:
    """Give a reader a stream in pieces, in place where it asks for that."""
    reader, messages, data = Reader(limit), [], memoryview(stream)
    for size in [*cuts, len(stream)]:
        piece, data = data[:size], data[size:]
        while len(piece):
            space = reader.space() if in_place else None
            if space is None:
                count = 64 if in_place else len(piece)
                messages += reader.feed(piece[:count])
            else:
                count = min(len(space), len(piece))
                space[:count] = piece[:count]
                messages += reader.filled(count)
            piece = piece[count:]
    return messages


@given(
    st.lists(parts, max_size=4),
    st.lists(st.integers(1, 50_000) | st.integers(1, 20), max_size=40),
    st.booleans(),
)
def test_any_split_of_the_stream_gives_the_messages_that_went_in(
    messages: list[list[bytes]], cuts: list[int], in_place: bool
) -> None:
    stream = b"".join(prefix([len(p) for p in message]) + b"".join(message) for message in messages)
    assert stream == b"".join(plain.encode(message) for message in messages)
    found = read(stream, cuts, in_place=in_place)
    assert [[bytes(p) for p in message] for message in found] == messages


@given(parts, st.data())
def test_a_stream_that_ends_early_gives_no_message(message: list[bytes], data: st.DataObject) -> None:
    stream = plain.encode(message)
    assert read(stream[: data.draw(st.integers(0, len(stream) - 1))], [7, 100]) == []


@given(st.binary(max_size=200), st.lists(st.integers(1, 9), max_size=30))
def test_bytes_from_anyone_are_a_message_or_refused(stream: bytes, cuts: list[int]) -> None:
    try:
        found = read(stream, cuts)
    except FramingError:
        return
    assert b"".join(plain.encode([bytes(p) for p in m]) for m in found) == stream[: _length(found)]


def _length(messages: Sequence[Message]) -> int:
    return sum(8 + 8 * len(m) + sum(map(len, m)) for m in messages)


@pytest.mark.parametrize("start", [b"G", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"\xff\0\0\0", b"SATX"])
def test_what_is_no_message_is_refused_at_its_first_wrong_byte(start: bytes) -> None:
    with pytest.raises(FramingError, match="not a satrap message"):
        read(start, [])


def test_another_layout_is_refused_with_both_named() -> None:
    with pytest.raises(FramingError, match="messages of layout 9, but this side uses layout 1"):
        read(struct.pack("<4sHH", b"SATR", 9, 1), [])


@pytest.mark.parametrize("count", [0, MAX_PARTS + 1, 65535])
def test_numbers_of_parts_out_of_range_are_refused(count: int) -> None:
    with pytest.raises(FramingError, match=f"not {count}"):
        read(struct.pack("<4sHH", b"SATR", 1, count), [])
    with pytest.raises(ValueError, match=f"not {count}"):
        prefix([0] * count)


@pytest.mark.parametrize(
    "sizes", [[LIMIT + 1], [LIMIT, 1], [2**64 - 1], [2**63, 2**63], [1] + [2**64 - 1] * 99]
)
def test_sizes_over_the_limit_are_refused_before_anything_is_allocated(sizes: list[int]) -> None:
    stream = struct.pack(f"<4sHH{len(sizes)}Q", b"SATR", 1, len(sizes), *sizes)
    tracemalloc.start()
    try:
        with pytest.raises(
            FramingError, match=f"a message of {sum(sizes)} bytes is over the limit of {LIMIT}"
        ):
            read(stream, [])
        assert tracemalloc.get_traced_memory()[1] < LIMIT // 4
    finally:
        tracemalloc.stop()


def test_a_message_of_just_the_limit_passes() -> None:
    assert len(read(plain.encode([bytes(LIMIT)]), [3])[0][0]) == LIMIT


def test_memory_for_a_part_is_taken_when_its_turn_comes() -> None:
    reader = Reader(1 << 30)
    tracemalloc.start()
    try:
        assert list(reader.feed(memoryview(prefix([10, 900 << 20]) + b"12345"))) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        assert reader.held == 8 + 16 + 10
    finally:
        tracemalloc.stop()


def test_what_is_cleared_is_freed_at_once_and_a_message_may_follow() -> None:
    reader = Reader(1 << 30)
    tracemalloc.start()
    try:
        assert list(reader.feed(memoryview(prefix([10, 100 << 20]) + b"1234567890"))) == []
        assert reader.held > 100 << 20
        assert tracemalloc.get_traced_memory()[0] > 100 << 20
        reader.clear()
        assert reader.held == 0
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert [[bytes(p) for p in m] for m in reader.feed(memoryview(plain.encode([b"a"])))] == [[b"a"]]
