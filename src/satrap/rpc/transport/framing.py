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
from collections.abc import Generator, Iterator, Sequence
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
        self.clear()

    def clear(self) -> None:
        """Free the memory of the unfinished message; the next bytes begin a message."""
        self.held, self._reading = 0, self._read()
        self._rest = next(self._reading)

    def feed(self, data: memoryview) -> Iterator[Message]:
        """Copy bytes; yield the messages they complete, or raise a `FramingError` if they are invalid."""
        while left := len(data):
            count = min(len(self._rest), left)
            self._rest[:count] = data[:count]
            data = data[count:]
            if message := self.filled(count):
                yield message[0]

    def space(self) -> memoryview | None:
        """Return the memory for the next bytes, or None if `feed` should get them."""
        return self._rest if len(self._rest) >= LARGE else None

    def filled(self, count: int) -> Sequence[Message]:
        """Record that `count` bytes of `space` were received; return the message if they complete it."""
        try:
            self._rest = self._reading.send(count)
        except StopIteration as end:
            self.clear()
            return [end.value]
        return []

    def _read(self) -> Generator[memoryview, int, Message]:
        """Return one message; yield the memory for its next bytes, and get the number of those received."""
        rest = start = memoryview(bytearray(_FIXED.size))
        while len(rest):
            rest = rest[(yield rest) :]
            self.held = len(start) - len(rest)
            # checked as far as it has arrived, to detect foreign protocols at once
            if not MAGIC.startswith(start[: min(self.held, len(MAGIC))]):
                raise FramingError("the received data is not a satrap message")
        _, version, count = _FIXED.unpack(start)
        if version != VERSION:
            raise FramingError(
                f"the other side sends messages of layout {version}, but this side uses layout {VERSION}: "
                "install the same satrap on both sides"
            )
        if not 1 <= count <= MAX_PARTS:
            raise FramingError(f"a message has 1 to {MAX_PARTS} parts, not {count}")
        rest = raw = memoryview(bytearray(8 * count))
        self.held += len(raw)
        while len(rest):
            rest = rest[(yield rest) :]
        sizes = struct.unpack(f"<{count}Q", raw)
        if sum(sizes) > self.max_bytes:
            raise FramingError(f"a message of {sum(sizes)} bytes is over the limit of {self.max_bytes}")
        parts: Message = []
        for size in sizes:
            parts.append(rest := _allocate(size))
            self.held += size
            while len(rest):
                rest = rest[(yield rest) :]
        return parts


def _allocate(size: int) -> memoryview:
    try:
        return np.empty(size, np.uint8).data
    except MemoryError:
        raise FramingError(f"not enough memory for a part of {size} bytes") from None
