"""Messages in a stream of bytes; no input or output.

A message is a list of 1 to `MAX_PARTS` parts. On the wire, little-endian:

```
bytes  field
    4  magic "SATR"
    2  version of this layout
    2  number of parts, n
  8 n  size of each part
       the parts, one after another
```

Sizes are checked before anything is allocated, and memory for a part is only allocated once its turn comes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from satrap.errors import ExchangeError

Buffer = Any  # bytes, memoryview or array: anything with a contiguous buffer
Message = list[memoryview]

MAGIC = b"SATR"
VERSION = 1
MAX_PARTS = 8192
LARGE = 1 << 14
"""A part that lacks at least this many bytes is received in place."""
_FIXED = struct.Struct("<4sHH")
_SIZE = 8
_NOTHING = memoryview(b"")


class FramingError(ExchangeError):
    """The received bytes are not a message, or a larger one than is accepted."""


def prefix(sizes: Sequence[int]) -> bytes:
    """Return the bytes before a message's parts, of which there are 1 to `MAX_PARTS`; sizes in bytes."""
    if not 1 <= len(sizes) <= MAX_PARTS:
        raise ValueError(f"a message has 1 to {MAX_PARTS} parts, not {len(sizes)}")
    return _FIXED.pack(MAGIC, VERSION, len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)


class Reader:
    """Assembles messages from a stream that may be cut anywhere.

    Bytes are copied with `feed`. Where `space` returns memory, they are received there and reported to
    `filled`.

    Attributes:
        max_bytes: largest message accepted, all parts together; may be changed between messages.
        held: bytes in memory for the unfinished message; 0 between messages.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._begin()

    def _begin(self) -> None:
        self._head, self._wanted, self.held = bytearray(), _FIXED.size, 0
        self._sizes: tuple[int, ...] | None = None
        self._parts: Message = []
        self._rest = _NOTHING

    def feed(self, data: memoryview) -> Iterator[Message]:
        """Copy bytes; yield the messages they complete, or raise a `FramingError` if they are invalid."""
        while len(data):
            if self._sizes is None:
                data = self._collect(data)
            else:
                rest = self._lacking()
                count = min(len(rest), len(data))
                rest[:count] = data[:count]
                self._rest, data = rest[count:], data[count:]
            if self._complete():
                yield self._take()

    def space(self) -> memoryview | None:
        """Return the memory for the next bytes, or None if `feed` should get them."""
        rest = _NOTHING if self._sizes is None else self._lacking()
        return rest if len(rest) >= LARGE else None

    def filled(self, count: int) -> Iterator[Message]:
        """Record that `count` bytes of `space` were received; yield the message if they complete it."""
        self._rest = self._rest[count:]
        if self._complete():
            yield self._take()

    def _collect(self, data: memoryview) -> memoryview:
        """Consume bytes of the prefix; return the others."""
        lacks = self._wanted - len(self._head)
        self._head += data[:lacks]
        self.held += min(lacks, len(data))
        if self._wanted == _FIXED.size:
            self._check_start()
        if len(self._head) == self._wanted:
            self._read_sizes()
        return data[lacks:]

    def _check_start(self) -> None:
        """Check the start of the prefix as far as it has arrived, to detect foreign protocols at once."""
        if not MAGIC.startswith(self._head[: len(MAGIC)]):
            raise FramingError("the received data is not a satrap message")
        if len(self._head) < _FIXED.size:
            return
        _, version, parts = _FIXED.unpack(self._head)
        if version != VERSION:
            raise FramingError(
                f"the other side sends messages of layout {version}, but this side uses layout {VERSION}: "
                "install the same satrap on both sides"
            )
        if not 1 <= parts <= MAX_PARTS:
            raise FramingError(f"a message has 1 to {MAX_PARTS} parts, not {parts}")
        self._wanted += parts * _SIZE

    def _read_sizes(self) -> None:
        sizes = struct.unpack_from(f"<{(self._wanted - _FIXED.size) // _SIZE}Q", self._head, _FIXED.size)
        if sum(sizes) > self.max_bytes:
            raise FramingError(f"a message of {sum(sizes)} bytes is over the limit of {self.max_bytes}")
        self._sizes = sizes

    def _lacking(self) -> memoryview:
        """Return the rest of the current part; a part is allocated when its first byte is expected."""
        assert self._sizes is not None
        while not len(self._rest):
            self._rest = _allocate(self._sizes[len(self._parts)])
            self._parts.append(self._rest)
            self.held += len(self._rest)
        return self._rest

    def _complete(self) -> bool:
        if self._sizes is None or len(self._rest):
            return False
        while len(self._parts) < len(self._sizes) and not self._sizes[len(self._parts)]:
            self._parts.append(_NOTHING)
        return len(self._parts) == len(self._sizes)

    def _take(self) -> Message:
        parts = self._parts
        self._begin()
        return parts


def _allocate(size: int) -> memoryview:
    try:
        return np.empty(size, np.uint8).data
    except MemoryError:
        raise FramingError(f"not enough memory for a part of {size} bytes") from None
