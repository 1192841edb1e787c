"""Reads the columns of a request from its JSON text: numbers as arrays, without a Python object for each.

A request is mostly lists of numbers. Creating, checking and converting one Python object per number takes
longer than the network for a few items. Here a kernel checks the text and writes the numbers of each column
to one array. orjson parses every column that is not a plain list of numbers, and the whole text if it has
another form. The results are equal to orjson's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from satrap.runtime.numba_cache import compiled

LEAST_BYTES = 2048
"""Shorter texts are left to orjson; the kernel would not be faster."""
_MOST_COLUMNS = 4096
"""Texts with more columns are left to orjson."""
_OTHER, _WHOLE, _REAL = 0, 1, 2
_MOST_DIGITS = 18
"""Number of decimal digits that always fit in 64 bits."""
_EXACT = 1 << 53
_POWERS = 10.0 ** np.arange(23)
"""Powers of ten that are exact as float64. The product or quotient of a whole number below 2**53 and such a
power is rounded only once, so it is correct (W. D. Clinger, How to read floating point numbers accurately,
1990)."""

Text = npt.NDArray[np.uint8]
_jit = compiled(nogil=True, error_model="numpy")
_inline = compiled(nogil=True, error_model="numpy", inline="always")


def scanned(body: bytes) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return context and items of a request: column -> value, and column -> values.

    Lists of whole numbers are int64[items], lists of numbers float64[items], other lists as orjson returns
    them. None: the text has another form or is not JSON; use orjson.
    """
    text = np.frombuffer(body + b"\0", np.uint8)  # the zero ends every loop
    values = np.empty(len(body) // 2 + 1, np.int64)
    places = np.empty((min(len(body) // 6 + 1, _MOST_COLUMNS), 5), np.int64)
    reals, context_at = values.view(np.float64), np.zeros(2, np.int64)
    count = _scan(text, values, reals, places, context_at)
    if count < 0:
        return None
    view, items = memoryview(body), dict[str, Any]()
    try:
        start, end = context_at.tolist()
        context = orjson.loads(view[start:end]) if end else {}
        for start, end, kind, first, last in places[:count].tolist():
            if kind == _WHOLE:
                column: Any = values[first:last]
            elif kind == _REAL:
                column = reals[first:last]
            else:
                column = orjson.loads(view[first:last])
            items[body[start:end].decode()] = column
    except ValueError:  # from orjson, or the name of a column is not UTF-8
        return None
    return context, items


@_inline
def _space(text: Text, at: int) -> int:
    """Return the place after white space."""
    while text[at] <= 32 and (text[at] == 32 or text[at] == 10 or text[at] == 13 or text[at] == 9):
        at += 1
    return at


@_jit
def _name(text: Text, at: int) -> int:
    """Return the end of a name that begins at a place; -1 if the name has escapes or control characters."""
    while text[at] != 34:
        if text[at] < 32 or text[at] == 92:  # a backslash
            return -1
        at += 1
    return at


@_jit
def _skip(text: Text, at: int) -> int:
    """Return the end of a list or object that begins at a place, by its brackets; -1 if it has no end."""
    depth = 0
    while text[at] != 0:
        letter = text[at]
        if letter == 34:
            at += 1
            while text[at] != 34:
                at += 1 if text[at] == 92 else 0
                if text[at] == 0:
                    return -1
                at += 1
        elif letter == 91 or letter == 123:
            depth += 1
        elif letter == 93 or letter == 125:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return -1


@_inline
def _number(text: Text, at: int) -> tuple[int, bool, int, float]:
    """Return the end of a number, or -1 if it is not plain; whether it is a float; its value."""
    negative = text[at] == 45
    at += 1 if negative else 0
    begin, whole, power, real = at, 0, 0, False
    while 48 <= text[at] <= 57 and at - begin <= _MOST_DIGITS:  # one more digit fits unless the first is 9
        whole = whole * 10 + int(text[at] - 48)
        at += 1
    digits = at - begin
    if digits == 0 or (digits > _MOST_DIGITS and text[begin] == 57) or (digits > 1 and text[begin] == 48):
        return -1, False, 0, 0.0
    if text[at] == 46:
        at, begin, real = at + 1, at + 1, True
        most = begin + _MOST_DIGITS - digits
        while 48 <= text[at] <= 57 and at <= most:
            whole = whole * 10 + int(text[at] - 48)
            at += 1
        if at == begin or at > most:
            return -1, False, 0, 0.0
        power = begin - at
    if text[at] == 69 or text[at] == 101:
        return -1, False, 0, 0.0
    if not real:
        return at, False, -whole if negative else whole, 0.0
    if whole > _EXACT or power < -22:
        return -1, False, 0, 0.0
    value = whole / _POWERS[-power]
    return at, True, 0, -value if negative else value


@_jit
def _to_reals(values: Any, reals: Any, first: int, last: int) -> bool:
    """Convert whole numbers to floats in place; return whether all of them are exact."""
    for i in range(first, last):
        if abs(values[i]) > _EXACT:
            return False
        reals[i] = np.float64(values[i])
    return True


@_jit
def _numbers(text: Text, at: int, values: Any, reals: Any, first: int) -> tuple[int, int, int]:
    """Write the numbers of a list whose "[" is just before a place.

    Returns the end of the list, or -1 if it holds other values; its kind; the end of the written numbers.
    """
    kind, last = _WHOLE, first
    at = _space(text, at)
    while True:
        end, real, whole, value = _number(text, at)
        if end < 0:
            return -1, _OTHER, first
        if real:
            if kind == _WHOLE and not _to_reals(values, reals, first, last):
                break
            kind, reals[last] = _REAL, value
        else:
            values[last] = whole
            if kind == _REAL and not _to_reals(values, reals, last, last + 1):
                break
        last += 1
        at = _space(text, end)
        if text[at] == 93:
            return at + 1, kind, last
        if text[at] != 44:
            break
        at = _space(text, at + 1)
    return -1, _OTHER, first


@_jit
def _key(text: Text, at: int) -> tuple[int, int, int]:
    """Return the begin and end of the next name of an object, and the begin of its value, or -1."""
    at = _space(text, at)
    if text[at] != 34:
        return 0, 0, -1
    end = _name(text, at + 1)
    if end < 0:
        return 0, 0, -1
    colon = _space(text, end + 1)
    return at + 1, end, _space(text, colon + 1) if text[colon] == 58 else -1


@_jit
def _items(text: Text, at: int, values: Any, reals: Any, places: Any) -> tuple[int, int]:
    """Write the columns of an object whose "{" is just before a place; return its end or -1, and a count."""
    count = last = 0
    while True:
        name, end, at = _key(text, at)
        if at < 0 or text[at] != 91 or count == len(places):
            return -1, 0
        stop, kind, behind = _numbers(text, at + 1, values, reals, last)
        places[count, 0], places[count, 1], places[count, 2] = name, end, kind
        if stop < 0:
            stop = _skip(text, at)
            if stop < 0:
                return -1, 0
            places[count, 3], places[count, 4] = at, stop
        else:
            places[count, 3], places[count, 4], last = last, behind, behind
        count, at = count + 1, _space(text, stop)
        if text[at] == 125:
            return at + 1, count
        if text[at] != 44:
            return -1, 0
        at += 1


@_jit
def _is(text: Text, start: int, end: int, word: Any) -> bool:
    same = end - start == len(word)
    for i in range(len(word)):
        same = same and text[start + i] == word[i]
    return same


_ITEMS, _CONTEXT = np.frombuffer(b"items", np.uint8), np.frombuffer(b"context", np.uint8)


@_jit
def _scan(text: Text, values: Any, reals: Any, places: Any, context: Any) -> int:
    """Write the places of the columns; return their number, or -1 if the text has another form."""
    count, at = -1, _space(text, 0)
    if text[at] != 123:
        return -1
    while True:
        name, end, at = _key(text, at + 1)
        if at < 0 or text[at] != 123:
            return -1
        if _is(text, name, end, _ITEMS) and count < 0:
            at, count = _items(text, at + 1, values, reals, places)
        elif _is(text, name, end, _CONTEXT) and context[1] == 0:
            context[0], at = at, _skip(text, at)
            context[1] = at
        else:
            return -1
        if at < 0:
            return -1
        at = _space(text, at)
        if text[at] == 125:
            return count if _space(text, at + 1) == len(text) - 1 else -1
        if text[at] != 44:
            return -1
