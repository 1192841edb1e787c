"""One canonical form per value: the same number, truth value or time, however a file writes it.

Files lose types: CSV files have only text, and programs write the same value in many ways ("4", "4.0",
"4e+00"). Each text is therefore interpreted on its own, independent of its column, so that it means the same
in every file.

| value | canonical form | accepted texts |
| --- | --- | --- |
| whole number, -2**63 to 2**64 - 1 | the 64-bit integer | `4`, `4.0`, `4.00`, `4e+00`; of 0 also `-0` |
| truth value | the integers 1 and 0 | `true`, `True`, `TRUE`; `false` likewise |
| other number | its digits, below 0.0001 as `1e-05` | `1.5`, `1.50`, `15e-1` |
| date, time stamp | `YYYY-MM-DD[ HH:MM:SS[.f]]` in UTC | `T` for the blank, an offset or `Z`, more zeros |
| time of day | `HH:MM:SS[.f]` | more zeros |
| anything else | the text itself | |

A number in text has no leading zeros, "+" or blanks, has digits on both sides of its point, and its exponent
has a sign unless the number has a point. So `007`, `1e5` and `12e45678` stay text, because codes look like
that. A time stamp without a zone is UTC, and a time stamp at midnight equals its date. A whole number from
2**53 on that is written with an exponent becomes the nearest float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.runtime.numba_cache import compiled

U = np.uint64
Bytes = npt.NDArray[np.uint8]
TEXT, INTEGER, REWRITTEN, UNDECIDED = 0, 1, 2, 3
"""Kinds of a text: canonical as it stands, an integer, rewritten to canonical text, or not decided yet."""

BUFFER = 1024
"""Bytes reserved for canonical text."""
_LONGEST = 400
"""Longest number in bytes, and the largest exponent; anything larger stays text."""
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _COLON, _SPACE, _T, _Z, _E = 45, 43, 46, 48, 57, 58, 32, 84, 90, 101
_jit = compiled(nogil=True)


@_jit
def _first_guess(d: Bytes, i: int, start: int, end: int) -> int:
    """Return UNDECIDED if the first non-digit byte allows a number or a time, else TEXT."""
    byte = d[i]
    if byte | 32 == _E:
        undecided = i + 1 < end and (d[i + 1] == _PLUS or d[i + 1] == _MINUS)
    else:
        undecided = byte in (_POINT, _COLON) or (byte == _MINUS and end - start >= 16)
    return UNDECIDED if undecided else TEXT


@compiled(nogil=True, inline="always")
def integer(d: Bytes, start: int, end: int) -> tuple[int, Any]:
    """Parse a text that begins like a number: the fast path for integers and for plain text.

    Returns:
        (INTEGER, its 64 bits), (TEXT, 0) for plain text, or (UNDECIDED, 0); see `number` and `stamp`.
    """
    first = start + 1 if d[start] == _MINUS else start
    value = U(0)
    for i in range(first, end):
        digit = U(d[i]) - U(_ZERO)
        if digit > U(9):
            return _first_guess(d, i, start, end), U(0)
        value = value * U(10) + digit
    digits = end - first
    if digits < 20:
        fits = digits == 1 or (digits > 1 and d[first] != _ZERO)
    else:  # 10**19 or more; a value of 2**64 or more that begins with 1 has wrapped around
        fits = digits == 20 and d[first] == _ZERO + 1 and value >= U(10**19)
    if first == start:
        return (INTEGER, value) if fits else (TEXT, U(0))
    return (INTEGER, U(0) - value) if fits and value <= U(1) << U(63) else (TEXT, U(0))


@_jit
def truth(d: Bytes, start: int, end: int) -> int:
    """Return 1 or 0 for true, True, TRUE, false, False, FALSE; else -1."""
    n = end - start
    if n != 4 and n != 5:
        return -1
    word = b"true" if n == 4 else b"false"
    upper = d[start + 1] == word[1] - 32
    if d[start] != word[0] - 32 and (upper or d[start] != word[0]):
        return -1
    for k in range(1, n):
        if d[start + k] != (word[k] - 32 if upper else word[k]):
            return -1
    return 1 if n == 4 else 0


@_jit
def _digits(d: Bytes, i: int, end: int) -> int:
    while i < end and _ZERO <= d[i] <= _NINE:
        i += 1
    return i


@_jit
def _exponent(d: Bytes, i: int, end: int, signed: bool) -> tuple[bool, int]:
    """Parse the exponent after "e"; `signed`: a sign is required."""
    negative = i < end and d[i] == _MINUS
    if negative or (i < end and d[i] == _PLUS):
        i += 1
    elif signed:
        return False, 0
    if i == end or end - i > 4 or _digits(d, i, end) != end:
        return False, 0
    value = 0
    for k in range(i, end):
        value = value * 10 + int(d[k]) - _ZERO
    return value <= _LONGEST, -value if negative else value


@_jit
def _whole(digits: Bytes, negative: bool, rounded: bool) -> tuple[bool, Any]:
    """Return (whether it fits, 64 bits) of a number without leading zeros, optionally rounded to float64."""
    kind, value = integer(digits, 0, len(digits))
    if rounded and value > U(1) << U(53):
        nearest = np.float64(value)
        if nearest >= 2.0**64:
            return False, U(0)
        value = U(nearest)
    fits = kind == INTEGER and not (negative and value > U(1) << U(63))
    return fits, U(0) - value if negative else value


@_jit
def _fraction(out: Bytes, n: int, point: int, negative: bool) -> int:
    """Write digits out[:n], times 10**(point - n), as text; return its length."""
    digits, k = out[:n].copy(), 0
    if negative:
        out[0], k = _MINUS, 1
    if point > 0 or point < -3:
        before = point if point > 0 else 1
        out[k : k + before] = digits[:before]
        k += before
        if n > before:
            out[k] = _POINT
            out[k + 1 : k + 1 + n - before] = digits[before:]
            k += 1 + n - before
        if point < -3:
            power = 1 - point
            out[k], out[k + 1] = _E, _MINUS
            k += 2
            if power > 99:
                out[k] = _ZERO + power // 100
                k += 1
            out[k], out[k + 1] = _ZERO + power // 10 % 10, _ZERO + power % 10
            k += 2
        return k
    out[k], out[k + 1] = _ZERO, _POINT
    out[k + 2 : k + 2 - point] = _ZERO
    out[k + 2 - point : k + 2 - point + n] = digits
    return k + 2 - point + n


@_jit
def _scan(d: Bytes, first: int, end: int) -> tuple[int, int, int]:
    """Return (index of the point, end of the digits, exponent); zeros if the text is not a number."""
    point = _digits(d, first, end)
    if point == first or (d[first] == _ZERO and point - first > 1):
        return 0, 0, 0
    stop = point
    if point < end and d[point] == _POINT:
        stop = _digits(d, point + 1, end)
        if stop == point + 1:
            return 0, 0, 0
    if stop == end:
        return point, stop, 0
    right, power = False, 0
    if d[stop] | 32 == _E:
        right, power = _exponent(d, stop + 1, end, stop == point)
    return (point, stop, power) if right else (0, 0, 0)


@_jit
def _significant(d: Bytes, first: int, point: int, stop: int, out: Bytes) -> tuple[int, int]:
    """Copy the digits without zeros at both ends; return (count, leading zeros)."""
    n, zeros = 0, 0
    for k in range(first, stop):
        if k != point:
            if n == 0 and d[k] == _ZERO:
                zeros += 1
            else:
                out[n] = d[k]
                n += 1
    while n and out[n - 1] == _ZERO:
        n -= 1
    return n, zeros


@_jit
def number(d: Bytes, start: int, end: int, out: Bytes) -> tuple[int, Any, int]:
    """Return (kind, integer, length of the text written to `out`) of a text that may be a number.

    `integer` handles plain 64-bit integers.
    """
    negative = d[start] == _MINUS
    first = start + 1 if negative else start
    point, stop, power = _scan(d, first, end) if end - start <= _LONGEST else (0, 0, 0)
    plain = stop == point and stop == end
    if stop == 0 or (plain and d[first] != _ZERO):
        return TEXT, U(0), 0  # not a number, or an integer of more than 64 bits
    n, zeros = _significant(d, first, point, stop, out)
    shift = point - first - zeros + power
    if n == 0:
        return INTEGER, U(0), 0
    if shift < n:
        if stop == end and d[end - 1] != _ZERO and shift > -4:
            return TEXT, U(0), 0  # canonical as it stands
        return REWRITTEN, U(0), _fraction(out, n, shift, negative)
    out[n:shift] = _ZERO
    if shift <= 20:  # numbers with more digits exceed 64 bits
        fits, value = _whole(out[:shift], negative, stop < end)
        if fits:
            return INTEGER, value, 0
    if negative:
        out[1 : shift + 1] = out[:shift].copy()
        out[0] = _MINUS
    return REWRITTEN, U(0), shift + negative


@_jit
def _two(d: Bytes, i: int) -> int:
    """Return the value of two digits, or 1000 (beyond every limit) if they are not digits."""
    tens, ones = int(d[i]) - _ZERO, int(d[i + 1]) - _ZERO
    return tens * 10 + ones if 0 <= tens <= 9 and 0 <= ones <= 9 else 1000


@_jit
def _put(out: Bytes, i: int, value: int) -> None:
    out[i], out[i + 1] = _ZERO + value // 10, _ZERO + value % 10


@_jit
def _days_in(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


@_jit
def _zone(d: Bytes, i: int, end: int) -> tuple[bool, int]:
    """Return (whether the rest of a time stamp is empty or a UTC offset, the offset in minutes)."""
    if i == end or (end == i + 1 and d[i] == _Z):
        return True, 0
    n = end - i
    if (d[i] != _PLUS and d[i] != _MINUS) or n not in (3, 5, 6) or (n == 6 and d[i + 3] != _COLON):
        return False, 0
    hours, minutes = _two(d, i + 1), 0 if n == 3 else _two(d, end - 2)
    total = hours * 60 + minutes
    return hours < 24 and minutes < 60, -total if d[i] == _MINUS else total


@_jit
def _decimals(d: Bytes, i: int, end: int) -> tuple[int, int]:
    """Return (end of a fraction's digits, start of its trailing zeros); both are i without a fraction."""
    if i == end or d[i] != _POINT:
        return i, i
    stop = _digits(d, i + 1, end)
    if stop == i + 1:
        return i, i
    last = stop
    while last > i + 1 and d[last - 1] == _ZERO:
        last -= 1
    return stop, last if last > i + 1 else i


@_jit
def _date(d: Bytes, start: int) -> tuple[int, int, int]:
    """Return year, month and day of YYYY-MM-DD; zeros if the day does not exist."""
    year = _two(d, start) * 100 + _two(d, start + 2)
    month, day = _two(d, start + 5), _two(d, start + 8)
    if d[start + 4] != _MINUS or d[start + 7] != _MINUS or not (1 <= year <= 9999 and 1 <= month <= 12):
        return 0, 0, 0
    return (year, month, day) if 1 <= day <= _days_in(year, month) else (0, 0, 0)


@_jit
def _moved(year: int, month: int, day: int, days: int) -> tuple[int, int, int]:
    """Return the date shifted by -1, 0 or 1 days."""
    day += days
    if day == 0:
        year, month = (year - 1, 12) if month == 1 else (year, month - 1)
        day = _days_in(year, month)
    elif day > _days_in(year, month):
        year, month, day = (year + 1, 1, 1) if month == 12 else (year, month + 1, 1)
    return year, month, day


@_jit
def stamp(d: Bytes, start: int, end: int, out: Bytes) -> int:
    """Write a time stamp with at least date, hour and minute canonically; return its length, or 0."""
    n = end - start
    if n < 16 or n > 40 or d[start + 13] != _COLON or (d[start + 10] != _SPACE and d[start + 10] != _T):
        return 0
    year, month, day = _date(d, start)
    hour, minute, second = _two(d, start + 11), _two(d, start + 14), 0
    fraction = stop = last = start + 16
    if end - fraction >= 3 and d[fraction] == _COLON:
        second = _two(d, fraction + 1)
        fraction += 3
        stop, last = _decimals(d, fraction, end)
    right, offset = _zone(d, stop, end)
    if not right or day == 0 or hour > 23 or minute > 59 or second > 59:
        return 0
    minutes = hour * 60 + minute - offset
    year, month, day = _moved(year, month, day, minutes // 1440)
    minutes %= 1440
    if not 1 <= year <= 9999:
        return 0
    for i, value in ((0, year // 100), (2, year % 100), (5, month), (8, day)):
        _put(out, i, value)
    out[4], out[7] = _MINUS, _MINUS
    if minutes == 0 and second == 0 and last == fraction:
        return 10
    for i, value in ((11, minutes // 60), (14, minutes % 60), (17, second)):
        _put(out, i, value)
    out[10], out[13], out[16] = _SPACE, _COLON, _COLON
    out[19 : 19 + last - fraction] = d[fraction:last]
    return 19 + last - fraction


@_jit
def clock(d: Bytes, start: int, end: int) -> int:
    """Return the end of a time of day without its fraction's trailing zeros; 0 for any other text."""
    if end - start < 10 or d[start + 2] != _COLON or d[start + 5] != _COLON:
        return 0
    if _two(d, start) > 23 or _two(d, start + 3) > 59 or _two(d, start + 6) > 59:
        return 0
    stop, last = _decimals(d, start + 8, end)
    return last if stop == end and stop > start + 9 else 0
