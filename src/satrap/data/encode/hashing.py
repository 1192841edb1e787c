"""Ids: one 64-bit number per value, the same for an integer, text, float, date or truth value.

The rules (changing one orphans the trained rows of the values it concerns):

1. Every value is first converted to its canonical form, see `satrap.data.encode.canonical`.
2. An integer has the id `mix(value + mix(salt + G))` modulo 2**64, where `value` is in two's complement,
   G = 0x9E3779B97F4A7C15 and `mix` is the finalizer of SplitMix64 with Stafford's constants "Mix13", a
   bijection of 64-bit numbers. So integers never collide, except -k with 2**64 - k, which have the same 64
   bits.
3. Text has the id XXH64(UTF-8 bytes, seed = salt modulo 2**64).
4. Null, NaN, empty text and the texts that mean missing are `MISSING_ID` (0). A value whose hash is 0 gets
   the id G.
5. A column of ids, as written by `satrap prepare`, is used unchanged.
6. A combination of columns folds their ids from left to right: `id = mix(id * G + next)`.

XXH64 is the 64-bit xxHash by Yann Collet (specification in the xxHash repository, doc/xxhash_spec.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.batch import Ids, Offsets
from satrap.data.encode import canonical
from satrap.data.encode.ids import IdType, ids_of
from satrap.data.formats.columns import as_array, bytes_of, is_text
from satrap.errors import DataError
from satrap.runtime.arguments import checked
from satrap.runtime.numba_cache import compiled
from satrap.schema import MISSING_ID

U = np.uint64
_GOLDEN = U(0x9E3779B97F4A7C15)
_P1, _P2, _P3 = U(0x9E3779B185EBCA87), U(0xC2B2AE3D27D4EB4F), U(0x165667B19E3779F9)
_P4, _P5 = U(0x85EBCA77C2B2AE63), U(0x27D4EB2F165667C5)
_MISSING = U(MISSING_ID)
_F, _T = 102, 116
_jit = compiled(nogil=True)
Bytes = npt.NDArray[np.uint8]
NOTHING: Ids = np.empty(0, np.uint64)
"""No id means missing."""
_WHOLE = {2: (-(2.0**11), 2.0**11), 4: (-(2.0**24), 2.0**24), 8: (-(2.0**63), 2.0**64)}
"""Bytes of a float -> the range in which whole floats count as integers."""


@compiled(nogil=True, inline="always")
def _mix(z: Any) -> Any:
    z = (z ^ (z >> U(30))) * U(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U(27))) * U(0x94D049BB133111EB)
    return z ^ (z >> U(31))


@compiled(nogil=True, inline="always")
def _real(h: Any) -> Any:
    return _GOLDEN if h == _MISSING else h


@compiled(nogil=True, inline="always")
def _rotl(x: Any, r: int) -> Any:
    return (x << U(r)) | (x >> U(64 - r))


@compiled(nogil=True, inline="always")
def _round(acc: Any, lane: Any) -> Any:
    return _rotl(acc + lane * _P2, 31) * _P1


@compiled(nogil=True, inline="always")
def _load32(d: Bytes, i: int) -> Any:
    return U(d[i]) | U(d[i + 1]) << U(8) | U(d[i + 2]) << U(16) | U(d[i + 3]) << U(24)


@compiled(nogil=True, inline="always")
def _load64(d: Bytes, i: int) -> Any:
    return _load32(d, i) | _load32(d, i + 4) << U(32)


@_jit
def _xxh64_long(d: Bytes, i: int, end: int, seed: Any) -> Any:
    """Consume whole stripes of 32 bytes; return the merged accumulator."""
    a, b, c, e = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
    while i + 32 <= end:
        a, b = _round(a, _load64(d, i)), _round(b, _load64(d, i + 8))
        c, e = _round(c, _load64(d, i + 16)), _round(e, _load64(d, i + 24))
        i += 32
    h = _rotl(a, 1) + _rotl(b, 7) + _rotl(c, 12) + _rotl(e, 18)
    for lane in (a, b, c, e):
        h = (h ^ _round(U(0), lane)) * _P1 + _P4
    return h


@_jit
def _xxh64(d: Bytes, start: int, end: int, seed: Any) -> Any:
    i, n = start, end - start
    if n >= 32:
        h = _xxh64_long(d, i, end, seed)
        i += n // 32 * 32
    else:
        h = seed + _P5
    h += U(n)
    while i + 8 <= end:
        h = _rotl(h ^ _round(U(0), _load64(d, i)), 27) * _P1 + _P4
        i += 8
    if i + 4 <= end:
        h = _rotl(h ^ (_load32(d, i) * _P1), 23) * _P2 + _P3
        i += 4
    while i < end:
        h = _rotl(h ^ (U(d[i]) * _P5), 11) * _P1
        i += 1
    h = (h ^ (h >> U(33))) * _P2
    h = (h ^ (h >> U(29))) * _P3
    return h ^ (h >> U(32))


@_jit
def _text_id(d: Bytes, start: int, end: int, key: Any, seed: Any) -> Any:
    first = d[start]
    if first <= 57 and (first >= 48 or first == 45):
        kind, value = canonical.integer(d, start, end)
        if kind == canonical.INTEGER:
            return _real(_mix(value + key))
        if kind == canonical.UNDECIDED:
            return _canonical_id(d, start, end, key, seed)
    elif first | 32 == _T or first | 32 == _F:
        truth = canonical.truth(d, start, end)
        if truth >= 0:
            return _real(_mix(U(truth) + key))
    return _real(_xxh64(d, start, end, seed))


@_jit
def _canonical_id(d: Bytes, start: int, end: int, key: Any, seed: Any) -> Any:
    """Return the id of a text that may be a number or a time in another form."""
    out = np.empty(canonical.BUFFER, np.uint8)
    kind, value, length = canonical.number(d, start, end, out)
    if kind == canonical.INTEGER:
        return _real(_mix(value + key))
    if kind == canonical.TEXT:
        length = canonical.stamp(d, start, end, out)
    if length:
        return _real(_xxh64(out, 0, length, seed))
    return _real(_xxh64(d, start, canonical.clock(d, start, end) or end, seed))


@_jit
def _hash_text(d: Bytes, offsets: Any, key: Any, seed: Any, out: Ids) -> None:
    for i in range(len(out)):
        start, end = offsets[i], offsets[i + 1]
        out[i] = _text_id(d, start, end, key, seed) if end > start else _MISSING


@_jit
def _forget(ids: Ids, missing: Ids) -> None:
    for i in range(len(ids)):
        for missing_id in missing:
            if ids[i] == missing_id:
                ids[i] = _MISSING


@_jit
def _hash_integers(values: Any, key: Any, out: Ids) -> None:
    for i in range(len(out)):
        out[i] = _real(_mix(U(values[i]) + key))


@_jit
def _hash_words(
    text: tuple[Bytes, Any],
    valid: Any,
    sep: Bytes,
    limit: int,
    key: Any,
    missing: Ids,
    ends: Offsets,
    out: Ids,
) -> int:
    """Hash the words that are not missing; return their number, or -1 if `out` is too short."""
    count, width = 0, len(sep)
    d, offsets = text
    for row in range(len(offsets) - 1):
        i, end, first = offsets[row], offsets[row + 1], count
        if not valid[row]:
            i = end
        start = i
        while i <= end and count - first < limit:
            match = i == end
            if not match and i + width <= end:
                match = True
                for k in range(width):
                    match = match and d[i + k] == sep[k]
            if not match:
                i += 1
                continue
            if i > start:
                if count == len(out):
                    return -1
                out[count] = _text_id(d, start, i, *key)
                _forget(out[count : count + 1], missing)
                count += out[count] != _MISSING
            i += width
            start = i
        ends[row + 1] = count
    return count


@cache
def salt_key(salt: int) -> tuple[np.uint64, np.uint64]:
    """Return (the offset added to integers, the XXH64 seed) of a salt."""
    mask = 2**64 - 1
    return U(_mix(U((salt + int(_GOLDEN)) & mask))), U(salt & mask)


@checked()
def hash_ids(values: Any, salt: int = 0, missing: Ids = NOTHING) -> Ids:
    """Return the ids of values; the module docstring has the rules.

    Args:
        values: pyarrow array (integer, float, boolean, text, bytes, dictionary, date, time, time stamp,
            decimal, ids), one-dimensional NumPy array, pandas Series or list.
        salt: mixed into every id, see `Schema.salt`.
        missing: ids of texts that mean missing, in addition to empty text.

    Returns:
        uint64[n]; `MISSING_ID` where a value is missing.

    Raises:
        DataError: a type that cannot be an id (lists, structs, durations, mixed), or ids with another salt.
    """
    array = as_array(values)
    if pa.types.is_dictionary(array.type):
        return _hash_dictionary(array, salt, missing)
    if pa.types.is_null(array.type):
        return np.full(len(array), _MISSING, np.uint64)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if isinstance(array.type, IdType):
        out = ids_of(array, salt)
    elif pa.types.is_floating(array.type):
        out = _hash_floats(array.to_numpy(zero_copy_only=False), salt)  # null becomes NaN
    elif pa.types.is_integer(array.type):
        out = np.empty(len(array), np.uint64)
        filled = array.fill_null(0) if array.null_count else array
        _hash_integers(filled.to_numpy(zero_copy_only=False), salt_key(salt)[0], out)
    else:
        array = array if is_text(array.type) else _as_text(array)
        out = np.empty(len(array), np.uint64)
        _hash_text(*bytes_of(array), *salt_key(salt), out)
    if array.null_count:
        out[array.is_null().to_numpy(zero_copy_only=False)] = _MISSING
    if len(missing):
        _forget(out, missing)
    return out


def hash_integers(values: npt.NDArray[np.int64], salt: int, missing: Ids) -> Ids:
    """Return the same as `hash_ids` for int64[n]; three times as fast for short arrays."""
    out = np.empty(len(values), np.uint64)
    _hash_integers(values, salt_key(salt)[0], out)
    if len(missing):
        _forget(out, missing)
    return out


def hash_numbers(values: npt.NDArray[np.float64]) -> Ids:
    """Return a hash of numbers, uint64[n], equal for equal ones; missing for NaN."""
    ids: Ids = _mix((values + 0.0).view(np.uint64) + _GOLDEN)  # -0 becomes 0
    return np.where(np.isnan(values), _MISSING, ids)


def _as_text(array: pa.Array) -> pa.Array:
    """Return dates, times, decimals and the like as text."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return array.storage if is_text(array.storage.type) else _as_text(array.storage)
    if pa.types.is_nested(kind):
        raise DataError(
            f"a column of type {kind} cannot be one id per row",
            why="a single-valued feature needs exactly one value per sample",
            fix="declare the feature with multi: true"
            if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
            else "write the column as lists or as several single-valued columns",
        )
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        array = array.cast(pa.timestamp(kind.unit))  # the same instant in UTC
    if pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    if not pa.types.is_duration(kind):
        with suppress(pa.ArrowNotImplementedError):  # the type has no conversion to text
            return array.cast(pa.string())
    raise DataError(
        f"a column of type {kind} cannot be an id",
        why="files write such values differently, so the same value could get several ids",
        fix="convert the column to numbers or text",
    )


def _hash_dictionary(array: pa.DictionaryArray, salt: int, missing: Ids) -> Ids:
    """Hash each unique value once, then expand."""
    table = np.append(hash_ids(array.dictionary, salt, missing), _MISSING)
    indices = array.indices.cast(pa.int64()).fill_null(len(table) - 1)
    ids: Ids = table[indices.to_numpy(zero_copy_only=False)]
    return ids


def _hash_floats(values: npt.NDArray[Any], salt: int) -> Ids:
    out = np.full(len(values), _MISSING, np.uint64)
    wide = values.astype(np.float64, copy=False)
    # Beyond this range, the shortest text of a float may be another whole number.
    low, high = _WHOLE[values.itemsize]
    whole = (np.trunc(wide) == wide) & (wide >= low) & (wide < high)
    key = salt_key(salt)[0]
    # Numbers of 2**63 and more fit only uint64, negative ones only int64.
    for chosen, kind in ((whole & (wide < 2.0**63), np.int64), (whole & (wide >= 2.0**63), np.uint64)):
        if chosen.any():
            part = np.empty(int(chosen.sum()), np.uint64)
            _hash_integers(wide[chosen].astype(kind), key, part)
            out[chosen] = part
    other = ~whole & ~np.isnan(wide)
    if other.any():
        distinct, inverse = np.unique(values[other], return_inverse=True)
        # str of a NumPy scalar is the shortest text that parses to the same number of that width.
        out[other] = hash_ids(pa.array([str(v) for v in distinct], pa.string()), salt)[inverse]
    return out


def split_ids(
    array: pa.Array, separator: str, limit: int, salt: int, missing: Ids = NOTHING
) -> tuple[Ids, Offsets]:
    """Return the ids of the words of each text, uint64[words], and the row offsets, int64[n + 1].

    Missing words are dropped: empty words, and words whose id is in `missing`. Only the first `limit` words
    of a row count.
    """
    text, key = bytes_of(array), salt_key(salt)
    sep = np.frombuffer(separator.encode(), np.uint8)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    ends = np.zeros(len(array) + 1, np.int64)
    size, most = len(array) * 4 + 16, int(text[1][-1] - text[1][0]) + 1
    while True:
        out = np.empty(min(size, most), np.uint64)
        count = _hash_words(text, valid, sep, limit, key, missing, ends, out)
        if count >= 0:
            return out[:count].copy(), ends
        size *= 4


def cross_ids(columns: Sequence[Ids]) -> Ids:
    """Return one id per combination, uint64[n]; order matters; missing only if every part is missing."""
    ids = columns[0]
    missing = ids == _MISSING
    for column in columns[1:]:
        ids = _mix(ids * _GOLDEN + column)
        missing &= column == _MISSING
    return np.where(missing, _MISSING, np.where(ids == _MISSING, _GOLDEN, ids))
