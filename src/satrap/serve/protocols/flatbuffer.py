"""Whether the buffers of an Arrow message are compressed, a field that pyarrow does not expose.

Sources of the layout: "Internals" in the documentation of FlatBuffers, and Arrow's `Message.fbs`.
"""

from __future__ import annotations

from struct import error as StructError
from struct import unpack_from
from typing import Any

_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY, _RECORDS = 2, 3
_DATA = 1
"""Field of a dictionary: its record batch."""
_COMPRESSION = 3
"""Field of a record batch."""


def is_compressed(metadata: Any) -> bool:
    """Return whether the buffers of a message are compressed.

    Raises:
        ValueError: the bytes are not a message.
    """
    data = bytes(metadata)
    try:
        message = _table(data, 0)
        kind = _field(data, message, _HEADER_TYPE)
        if kind is None or data[kind] not in (_DICTIONARY, _RECORDS):
            return False
        batch = _inner(data, message, _HEADER)
        if data[kind] == _DICTIONARY:
            batch = _inner(data, batch, _DATA)
        return _field(data, batch, _COMPRESSION) is not None
    except (StructError, IndexError) as error:
        raise ValueError("a message of the stream is damaged") from error


def _table(data: bytes, at: int) -> int:
    """Return the position of the table that the offset at position `at` refers to."""
    return at + int(unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a table; None if the field is absent."""
    layout = table - int(unpack_from("<i", data, table)[0])
    if layout < 0:
        raise ValueError("a table of a message begins before the message")
    if 4 + 2 * number >= unpack_from("<H", data, layout)[0]:
        return None
    offset = int(unpack_from("<H", data, layout + 4 + 2 * number)[0])
    return table + offset if offset else None


def _inner(data: bytes, table: int, number: int) -> int:
    """Return the position of the table that a field refers to."""
    at = _field(data, table, number)
    if at is None:
        raise ValueError("a field of a message is missing")
    return _table(data, at)
