"""Control messages: JSON texts, named arrays behind them, and checks of the values in them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError
from satrap.rpc.wire.frames import Buffer, FrameError, as_bytes

MAX_TEXT = 4 << 20
"""Longest control text that a server reads, 4 MiB: thousands of tables."""
MAX_ANSWER = 256 << 20
"""Longest control text that a client reads, or a server from its own journal, 256 MiB."""
LARGEST = 1 << 50
"""Largest count or size in bytes in a request: a pebibyte."""
MAX_WORLD = 65536
"""Most workers in a request."""
_DTYPES = ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8")
_SHOWN = 40
"""Characters of a value in an error."""


def pack_text(content: Mapping[str, Any]) -> bytes:
    """Return a control text."""
    return json.dumps(content).encode()


def pack_hello(content: Mapping[str, Any]) -> bytes:
    """Return the control text of a hello; raise a `ConfigError` if it is longer than a server reads."""
    text = pack_text(content)
    if len(text) > MAX_TEXT:
        raise ConfigError(
            f"the description of tables and features takes {len(text)} bytes, but a server reads {MAX_TEXT}",
            why="a server must hold the whole description before it can serve the first lookup",
            fix="let features share tables, or give them shorter names",
        )
    return text


def unpack_text(part: Buffer, *, most: int | None = None) -> dict[str, Any]:
    """Return the content of a control text of at most `most` bytes, default `MAX_TEXT`.

    It raises a `FrameError` if the text is too long or not a JSON object.
    """
    data = memoryview(part)
    most = MAX_TEXT if most is None else most
    if data.nbytes > most:
        raise FrameError(f"a control text of {data.nbytes} bytes is over the limit of {most}")
    raw = bytes(data)
    try:
        content = json.loads(raw)
        if b"\\ud" in raw.lower():  # half of a surrogate pair cannot be encoded
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FrameError("a control text is not JSON") from error
    if not isinstance(content, dict):
        raise FrameError("a control text is not a JSON object")
    return content


def pack_arrays(
    arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any] | None = None
) -> list[Buffer]:
    """Return a control text that also names arrays, then the arrays; contiguous ones are not copied.

    `about`: content of the text, with other keys than "arrays".
    """
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    layouts = {name: [array.dtype.str, list(array.shape)] for name, array in plain.items()}
    raw = (array.reshape(-1).view(np.uint8) for array in plain.values())
    return [pack_text({**(about or {}), "arrays": layouts}), *raw]


def unpack_arrays(text: Mapping[str, Any], parts: Sequence[Buffer]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that a control text names, as views of the parts behind it that are aligned.

    Raises:
        FrameError: the parts do not fit the text.
    """
    layouts = text.get("arrays")
    if not isinstance(layouts, dict) or len(layouts) != len(parts):
        raise FrameError("a message has arrays without names")
    pairs = zip(layouts.items(), parts, strict=True)
    return {name: _array(name, layout, part) for (name, layout), part in pairs}


def _array(name: str, layout: Any, part: Buffer) -> npt.NDArray[Any]:
    match layout:
        case [str(dtype), list(shape)] if dtype in _DTYPES and all(type(n) is int and n >= 0 for n in shape):
            data, size = as_bytes(part), np.dtype(dtype).itemsize
            if len(data) == math.prod(shape) * size:
                aligned = data if data.ctypes.data % size == 0 else data.copy()
                return aligned.view(dtype).reshape(shape)
    raise FrameError(f"array {name!r} does not have the number of bytes of its dtype and shape")


def shortened(value: object) -> str:
    """Return a value as text for an error, shortened if it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def only(parts: Sequence[Buffer]) -> Buffer:
    """Return the one part of a control message; raise a `FrameError` if there are more, or none."""
    if len(parts) != 1:
        raise FrameError(f"a control message has one part, got {len(parts)}")
    return parts[0]


def whole(data: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Return an integer of plain data; raise a `ConfigError` unless `least <= it <= most`."""
    value = data.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(
            f"a request has an invalid {name}: {shortened(value)}",
            fix=f"give a whole number from {least} to {most}",
        )
    return value
