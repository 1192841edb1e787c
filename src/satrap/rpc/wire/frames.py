"""The frames on the network: a fixed header and raw buffers, checked before anything is used.

A message is a list of parts: part 0 is the header (`HEADER_BYTES`, little-endian), the others are payload.

```
offset  bytes  field
     0      4  magic "STRP"
     4      2  protocol version
     6      1  kind (`MessageKind`; responses have bit 7 set)
     7      1  reserved, 0
     8      4  epoch of the shard map
    12      4  parts of payload
    16      8  client
    24      8  sequence: number of the request, repeated in its response
    32      8  acknowledged: every sequence below it has had its response (in a PONG: the next to be executed;
              in another response: updates of this client that had been applied before the request)
    40      8  step: optimizer steps that must be complete before this request (`sync`); in a response:
              updates of all clients that had been applied before the request
    48      8  lr_scale, float64
    56      8  bytes of payload
    64      8  xxHash64 of the payload, part after part, each seeded with the hash so far
    72      4  CRC-32 of the 72 bytes before it
```
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from xxhash import xxh64_intdigest

from satrap.errors import ExchangeError
from satrap.rpc.transport.framing import Buffer as Buffer

MAGIC = b"STRP"
VERSION = 4
"""Version of the protocol; both sides must use the same."""

_LAYOUT = struct.Struct("<4sHBBIIQQQQdQQ")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _LAYOUT.size + _CHECK.size
MAX_PARTS = 8191
"""Most parts of a payload: an index, then ids and rows of thousands of table groups."""
MAX_BYTES = 1 << 30
"""Default limit of a message's payload, 1 GiB."""

Bytes = npt.NDArray[np.uint8]


class MessageKind(IntEnum):
    """The kind of a message.

    Kinds below PING are numbered requests, executed exactly once and in order. A PREFETCH names ids that will
    be looked up: it has no number and no response, changes no content, and may be lost, duplicated or
    omitted.
    """

    HELLO = 1
    LOOKUP = 2
    PEEK = 3
    UPDATE = 4
    FLUSH = 5
    STATISTICS = 6
    EXPORT = 7
    LOAD = 8
    CLEAR = 9
    BYE = 10
    CUT = 11
    FETCH = 12
    WRITE = 13
    READ = 14
    JOB = 15
    PUT_BACK = 17
    SAVE = 18
    MAP = 19
    OPEN = 20
    NEXT = 21
    RECALL = 22
    PING = 32
    PREFETCH = 33


SPLIT = frozenset((MessageKind.LOOKUP, MessageKind.PEEK, MessageKind.UPDATE, MessageKind.FETCH))
"""Requests whose ids were split by the shard map: under another map, they name rows of other shards."""


def name_of(kind: int) -> str:
    """Return the name of a kind of request, for errors."""
    return MessageKind(kind).name.lower()


class Code(IntEnum):
    """The reason why a request was rejected."""

    MALFORMED = 1
    VERSION = 2
    EPOCH = 3
    UNKNOWN_CLIENT = 4
    STORE = 5
    CONFIG = 6
    BUSY = 7
    SEQUENCE = 8
    FENCED = 9
    DEADLINE = 10
    RECOVERING = 11


NO_SEQUENCE = 2**64 - 1
"""Sequence of a message without a number, so that an error in response to it matches no request."""
ANSWER, FAILURE = 0x80, 0xFF
"""Bit that marks a response; the kind of a response that carries an error."""


class FrameError(ExchangeError):
    """A message that is rejected. `code` is the reason, `header` the part of it that could be read."""

    def __init__(self, what: str, code: Code = Code.MALFORMED, header: Header | None = None) -> None:
        super().__init__(what)
        self.code, self.header = code, header


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a header that are not checks; see the module's table."""

    kind: int
    epoch: int = 0
    client: int = 0
    sequence: int = 0
    acknowledged: int = 0
    step: int = 0
    lr_scale: float = 1.0

    def answer(self, kind: int | None = None, *, acknowledged: int = 0, step: int = 0) -> Header:
        """Return the header of a response to this one."""
        return replace(
            self, kind=self.kind | ANSWER if kind is None else kind, acknowledged=acknowledged, step=step
        )


@dataclass(frozen=True, slots=True)
class Digest:
    """Number of parts, size and hash of a payload: computed once, even if it is sent several times."""

    parts: int
    size: int
    value: int


def as_bytes(part: Buffer) -> Bytes:
    """Return a part as uint8[n], without a copy."""
    return np.frombuffer(part, np.uint8) if memoryview(part).nbytes else np.empty(0, np.uint8)


def size_of(parts: Iterable[Buffer]) -> int:
    """Return the total bytes of parts."""
    return sum(memoryview(part).nbytes for part in parts)


def digest(parts: Sequence[Buffer]) -> Digest:
    """Return the digest of a payload."""
    value = 0
    for part in parts:
        value = xxh64_intdigest(part, value)
    return Digest(len(parts), size_of(parts), value)


def encode(header: Header, payload: Digest) -> bytes:
    """Return the header's bytes."""
    h, d = header, payload
    places = h.client, h.sequence, h.acknowledged, h.step
    fixed = _LAYOUT.pack(MAGIC, VERSION, h.kind, 0, h.epoch, d.parts, *places, h.lr_scale, d.size, d.value)
    return fixed + _CHECK.pack(zlib.crc32(fixed))


def decode(data: bytes, parts: Sequence[Buffer], *, max_bytes: int = MAX_BYTES) -> Header:
    """Check every byte of a message; return its header.

    Args:
        data: part 0.
        parts: the payload, of at most `max_bytes`.
        max_bytes: default 1 GiB.

    Raises:
        FrameError: the message is invalid; the error has the header if part 0 was complete.
    """
    if len(data) != HEADER_BYTES or data[:4] != MAGIC:
        raise FrameError("the message is not a satrap message")
    fields = _LAYOUT.unpack_from(data)
    _, version, kind, _, epoch, announced, client, sequence, acknowledged, step, scale, total, value = fields
    if _CHECK.unpack_from(data, _LAYOUT.size)[0] != zlib.crc32(data[: _LAYOUT.size]):
        raise FrameError("the checksum of the header does not match")
    header = Header(kind, epoch, client, sequence, acknowledged, step, scale)
    if version != VERSION:
        raise FrameError(
            f"the other side uses protocol version {version}, this side version {VERSION}: "
            "install the same satrap on both sides",
            Code.VERSION,
            header,
        )
    size = size_of(parts)
    if size > max_bytes:
        raise FrameError(f"a message of {size} bytes is over the limit of {max_bytes}", header=header)
    if (len(parts), size) != (announced, total):
        what = f"the header announces {total} bytes in {announced} parts, not {size} in {len(parts)}"
        raise FrameError(what, header=header)
    if digest(parts).value != value:
        raise FrameError("the checksum of the payload does not match", header=header)
    return header
