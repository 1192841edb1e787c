"""Splitting of text into records (rows of a CSV file) without parsing the fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.data.formats.text_stream import TextStream
from satrap.errors import DataError
from satrap.runtime.numba_cache import compiled

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
_LINE, _RETURN, _SPACE, _TAB = 10, 13, 32, 9
RIGHT, OPEN, MISPLACED = range(3)
"""State of the quotes: fine; open at the end of the data; misplaced: a quote closes on a later line and text
follows, so it probably opens another value."""
_jit = compiled(nogil=True)


@_jit
def _starts_with(data: Bytes, start: int, end: int, prefix: Bytes) -> bool:
    if len(prefix) == 0 or end - start < len(prefix):
        return False
    same = True
    for k in range(len(prefix)):
        same = same and data[start + k] == prefix[k]
    return same


@_jit
def _ends_badly(data: Bytes, start: int, stop: int, separator: int) -> bool:
    """Return whether a quoted value `data[start:stop]` spans several lines and text follows its quote."""
    after = stop + 1
    while after < len(data) and data[after] != separator and (data[after] == _SPACE or data[after] == _TAB):
        after += 1
    if after == len(data) or data[after] in (separator, _LINE, _RETURN):
        return False
    return bool((data[start:stop] == _LINE).any())


@_jit
def _quoted_line_ends(
    data: Bytes, quote: int, separator: int, comment: Bytes, out: Offsets
) -> tuple[int, int]:
    """Find line ends outside quotes, up to an `OPEN` or `MISPLACED` quote; quotes open at a field's start."""
    count, i, n = 0, 0, len(data)
    field_start, record_start = True, True
    while i < n:
        byte = data[i]
        if record_start and _starts_with(data, i, n, comment):
            while i < n and data[i] != _LINE:
                i += 1
            if i == n:
                break
            byte = data[i]
        record_start = False
        if field_start and byte == quote:
            i += 1
            start = i
            # up to the quote that ends the field; two in a row stand for one inside it
            while i < n and not (data[i] == quote and not (i + 1 < n and data[i + 1] == quote)):
                i += 2 if data[i] == quote else 1
            if i >= n:
                return count, OPEN
            if _ends_badly(data, start, i, separator):
                return count, MISPLACED
            field_start = False
        elif byte == _LINE:
            out[count] = i
            count += 1
            field_start, record_start = True, True
        else:
            field_start = byte == separator
        i += 1
    return count, RIGHT


@_jit
def _records(data: Bytes, line_ends: Offsets, comment: Bytes, starts: Offsets, ends: Offsets) -> int:
    """Drop blank lines, comments and carriage returns before line ends; return the number of records."""
    count, start = 0, 0
    for line in range(len(line_ends)):
        end = line_ends[line]
        stop = end
        while stop > start and data[stop - 1] == _RETURN:
            stop -= 1
        if stop > start and not _starts_with(data, start, stop, comment):
            starts[count], ends[count] = start, stop
            count += 1
        start = end + 1
    return count


@_jit
def _copy(data: Bytes, starts: Offsets, ends: Offsets, out: Bytes) -> int:
    position = 0
    for i in range(len(starts)):
        for k in range(starts[i], ends[i]):
            out[position] = data[k]
            position += 1
        out[position] = _LINE
        position += 1
    return position


@_jit
def _copy_stripped(
    data: Bytes, starts: Offsets, ends: Offsets, quote: int, separator: int, out: Bytes
) -> int:
    """Copy records without blanks around the fields; blanks inside quotes stay."""
    position = 0
    for i in range(len(starts)):
        k, end = starts[i], ends[i]
        while k <= end:
            while k < end and (data[k] == _SPACE or data[k] == _TAB) and data[k] != separator:
                k += 1
            floor = position  # trailing blanks are removed back to here, or to a closing quote
            if k < end and data[k] == quote:
                out[position] = quote
                position, k = position + 1, k + 1
                while k < end and not (data[k] == quote and not (k + 1 < end and data[k + 1] == quote)):
                    width = 2 if data[k] == quote else 1
                    for _ in range(width):
                        out[position] = data[k]
                        position, k = position + 1, k + 1
            while k < end and data[k] != separator:
                out[position] = data[k]
                position, k = position + 1, k + 1
            while position > floor and (out[position - 1] == _SPACE or out[position - 1] == _TAB):
                position -= 1
            out[position] = separator if k < end else _LINE
            position, k = position + 1, k + 1
    return position


def find_records(
    data: Bytes, quote: int, separator: int, comment: Bytes, *, final: bool
) -> tuple[Offsets, Offsets, int, int, int]:
    """Find the complete records in a block of bytes that starts at a line, see `blocks`.

    `final`: the data ends here, so the last line may lack a line end.

    Returns:
        (int64[records] starts, int64[records] ends without the line end, lines, bytes consumed, state of the
        quotes after these records).
    """
    quoted = RIGHT
    if quote >= 0 and (data == quote).any():
        newlines = np.empty(int(np.count_nonzero(data == _LINE)), np.int64)
        count, quoted = _quoted_line_ends(data, quote, separator, comment, newlines)
        line_ends = newlines[:count]
    else:
        line_ends = np.flatnonzero(data == _LINE)
    if final and not quoted and len(data) and (not len(line_ends) or line_ends[-1] != len(data) - 1):
        line_ends = np.append(line_ends, len(data))
    starts, ends = np.empty_like(line_ends), np.empty_like(line_ends)
    count = _records(data, line_ends, comment, starts, ends)
    consumed = min(int(line_ends[-1]) + 1, len(data)) if len(line_ends) else 0
    return starts[:count], ends[:count], len(line_ends), consumed, quoted


def copy_records(data: Bytes, starts: Offsets, ends: Offsets, strip: tuple[int, int] | None) -> Any:
    """Return the records of a block as a buffer, each followed by a line end.

    `strip`: (quote byte or -1, separator byte) to drop blanks around fields, or None.
    """
    out = np.empty(int((ends - starts).sum()) + len(starts), np.uint8)
    if strip is None:
        size = _copy(data, starts, ends, out)
    else:
        size = _copy_stripped(data, starts, ends, *strip, out)
    return out[:size]


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Consecutive records of a file, at least one.

    They span `data`, uint8[n], from `starts` to `ends`, int64[records], without their line ends. `lines` also
    counts blank lines and comments; `inner` counts lines that end inside a quoted value. `offset` is the
    position of `data` in the (decompressed) file, `row` the index of its first record.
    """

    data: Bytes
    starts: Offsets
    ends: Offsets
    lines: int
    inner: int
    offset: int
    row: int


_MAX_RECORD = 1 << 26
NO_QUOTES = (
    "if quotes have no special meaning in this file: data.quote: null in a recipe, "
    "satrap init --quote '', CsvOptions(quote=None) in Python"
)
"""Advice for text in which quotes are ordinary characters."""


def blocks(
    stream: TextStream, quote: int, separator: int, comment: Bytes, *, row: int, size: int
) -> Iterator[RecordBlock]:
    """Yield the records of a stream in blocks of about `size` bytes; blocks without records are skipped.

    The stream stands at the start of a line, before record number `row`. `quote` is a byte, or -1 for none.
    Lines that start with a non-empty `comment` are skipped. Raises `DataError` for a quote that never
    closes, a quote that closes on a later line before other text, and a row of more than 64 MiB.
    """
    # The end of a block depends only on its start, so a resumed scan yields the same blocks.
    ahead, want, final, offset = b"", size, False, stream.offset
    while not final:
        ahead += stream.read(max(0, want - len(ahead)))
        final = len(ahead) < want
        data = np.frombuffer(ahead, np.uint8, min(want, len(ahead)))
        starts, ends, lines, consumed, quoted = find_records(data, quote, separator, comment, final=final)
        if len(starts):
            ended = lines - (final and consumed == len(data) and data[-1] != _LINE)
            inner = int(np.count_nonzero(data[:consumed] == _LINE)) - ended if quote >= 0 else 0
            yield RecordBlock(data[:consumed], starts, ends, lines, inner, offset, row)
        row += len(starts)
        ahead = ahead[consumed:]
        offset += consumed
        want = size if consumed else 2 * want
        if quoted == MISPLACED:
            raise DataError(
                "a quote opens, closes on a later line, and other text follows",
                where=f"{stream.file.name}, row {row + 1}",
                why="the lines between would become one value, and their rows would be lost",
                fix=NO_QUOTES,
            )
        if (final and quoted) or want > 2 * _MAX_RECORD:
            raise DataError(
                "a quote opens and never closes" if quoted else "a row is longer than 64 MiB",
                where=f"{stream.file.name}, row {row + 1}",
                why="the rest of the file would become one value",
                fix=f"close the quote, or {NO_QUOTES}",
            )
