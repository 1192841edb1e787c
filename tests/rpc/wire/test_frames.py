"""What is encoded is decoded; what is altered anywhere is refused."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.rpc.wire.frames import (
    HEADER_BYTES,
    MAX_PARTS,
    VERSION,
    Code,
    FrameError,
    Header,
    MessageKind,
    decode,
    digest,
    encode,
)
from tests.xxh64 import xxh64

WORD = st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    Header,
    kind=st.sampled_from(list(MessageKind)).map(int),
    epoch=st.integers(0, 2**32 - 1),
    client=WORD,
    sequence=WORD,
    acknowledged=WORD,
    step=WORD,
    lr_scale=st.floats(allow_nan=False),
)
PARTS = st.lists(st.binary(max_size=80), max_size=5)


@settings(deadline=None)
@given(HEADERS, PARTS)
def test_round_trip(header: Header, parts: list[bytes]) -> None:
    data = encode(header, digest(parts))
    assert len(data) == HEADER_BYTES
    assert decode(data, parts) == header


@settings(deadline=None)
@given(HEADERS, PARTS, st.data())
def test_one_altered_byte_is_refused(header: Header, parts: list[bytes], data: st.DataObject) -> None:
    message = [encode(header, digest(parts)), *parts]
    where = data.draw(st.sampled_from([i for i, p in enumerate(message) if p]))
    at = data.draw(st.integers(0, len(message[where]) - 1))
    flip = data.draw(st.integers(1, 255))
    part = bytearray(message[where])
    part[at] ^= flip
    message[where] = bytes(part)
    with pytest.raises(FrameError):
        decode(message[0], message[1:])


@settings(deadline=None)
@given(st.binary(max_size=2 * HEADER_BYTES), PARTS)
def test_random_bytes_are_refused(data: bytes, parts: list[bytes]) -> None:
    with pytest.raises(FrameError):
        decode(data, parts)


@settings(deadline=None)
@given(HEADERS, st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=4))
def test_parts_that_are_cut_lost_swapped_or_added_are_refused(header: Header, parts: list[bytes]) -> None:
    data = encode(header, digest(parts))
    for other in (parts[:-1], [*parts, b"x"], [*parts, b""], [*parts[:-1], parts[-1][:-1]]):
        with pytest.raises(FrameError, match="the header announces"):
            decode(data, other)
    if parts != parts[::-1]:
        with pytest.raises(FrameError, match=r"announces|does not match"):
            decode(data, parts[::-1])


def test_a_payload_over_the_limit_is_refused_before_it_is_hashed() -> None:
    header = Header(MessageKind.LOOKUP)
    parts = [b"0123456789"]
    with pytest.raises(FrameError, match="10 bytes is over the limit of 9"):
        decode(encode(header, digest(parts)), parts, max_bytes=9)


@pytest.mark.parametrize("count", [127, 128, 255, 256, MAX_PARTS])
def test_a_message_has_thousands_of_parts(count: int) -> None:
    header, parts = Header(MessageKind.UPDATE, 1, 2, 3), [bytes([n % 256]) for n in range(count)]
    assert decode(encode(header, digest(parts)), parts) == header


def test_another_protocol_version_is_refused_with_both_named() -> None:
    data = bytearray(encode(Header(MessageKind.HELLO, client=5), digest([])))
    struct.pack_into("<H", data, 4, 7)
    struct.pack_into("<I", data, HEADER_BYTES - 4, zlib.crc32(bytes(data[: HEADER_BYTES - 4])))
    with pytest.raises(
        FrameError, match=f"the other side uses protocol version 7, this side version {VERSION}"
    ) as caught:
        decode(bytes(data), [])
    assert caught.value.code == Code.VERSION
    assert caught.value.header == Header(MessageKind.HELLO, client=5)


def test_an_answer_repeats_what_identifies_the_request() -> None:
    header = Header(MessageKind.LOOKUP, epoch=3, client=4, sequence=5, acknowledged=2, step=9)
    assert header.answer() == replace(header, kind=MessageKind.LOOKUP | 0x80, acknowledged=0, step=0)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_xxh64_gives_the_published_values(data: bytes, expected: int) -> None:
    assert digest([data]).value == expected == xxh64(data)


@settings(deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, 7))
def test_xxh64_follows_the_specification_at_any_address(first: bytes, second: bytes, shift: int) -> None:
    """The hash of the first part is the seed of the second, which starts `shift` bytes off any alignment."""
    memory = np.frombuffer(b"\0" * shift + second + b"\0", np.uint8).copy()
    assert digest([first, memory[shift:-1]]).value == xxh64(second, xxh64(first))
