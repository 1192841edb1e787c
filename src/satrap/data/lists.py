"""Columns of lists: text that a separator splits, their lengths and values, lists with a value per event."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from satrap.batch import Offsets
from satrap.data.columns import is_text
from satrap.data.source import Origin
from satrap.errors import DataError


def as_lists(
    array: pa.Array, separator: str | None, missing: pa.Array, *, brackets: bool = True
) -> pa.Array | None:
    """Return a column of lists, text split at the separator; None if it is neither.

    Brackets and blanks around a text are left out if `brackets` says so: numbers may be written `[1, 2]`.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if separator is None or not is_text(array.type):
        return array if is_list(array.type) else None
    array = array.cast(pa.string())
    return split_words(pc.utf8_trim(array, "[]() \t\r\n") if brackets else array, separator, missing)


def split_words(array: pa.Array, separator: str, missing: pa.Array) -> pa.Array:
    """Return the words of each text as lists; null where it is empty or missing."""
    array = array.cast(pa.string())
    nothing = pc.or_(pc.equal(array, ""), pc.is_in(array, missing))
    array = pc.if_else(nothing, pa.scalar(None, pa.string()), array)
    return pc.utf8_split_whitespace(array) if separator == " " else pc.split_pattern(array, separator)


def cut_weights(words: pa.Array, separator: str) -> tuple[pa.Array, pa.Array]:
    """Return what is before and after the last separator of each text; after it is null if there is none.

    Pairs, as `satrap prepare` writes them, are separate already.
    """
    if pa.types.is_struct(words.type):
        return words.field(0), words.field(1)
    counts, parts = flattened(
        pc.split_pattern(words.cast(pa.string()), separator, max_splits=1, reverse=True)
    )
    starts = np.cumsum(counts) - counts
    values = parts.take(pa.array(starts, mask=counts == 0))
    return values, parts.take(pa.array(starts + 1, mask=counts < 2))


def flattened(lists: pa.Array) -> tuple[Offsets, pa.Array]:
    """Return (int64[n] lengths of lists, 0 where null; their values one after another)."""
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return counts.astype(np.int64), pc.list_flatten(lists)


def no_lists(kind: pa.DataType, where: str) -> DataError:
    """Return the error for a column that should hold lists."""
    text = is_text(kind) or (pa.types.is_dictionary(kind) and is_text(kind.value_type))
    return DataError(
        f"a column of type {kind} holds no lists",
        where=where,
        why="the schema wants several numbers or values in each row",
        fix="give the feature a separator" if text else "give lists",
    )


def check_values(kind: pa.DataType, weight_separator: str | None, where: str) -> None:
    """Raise `DataError` for lists of lists and the like, but for the pairs that `cut_weights` takes."""
    pairs = weight_separator is not None and pa.types.is_struct(kind.value_type)
    if pairs or not pa.types.is_nested(kind.value_type):
        return
    raise DataError(
        f"a column of type {kind} holds lists of values that are no single ones",
        where=where,
        why="each value of a list is one id",
        fix="make one list of numbers or texts of each row when you write the file",
    )


def is_list(kind: pa.DataType) -> bool:
    """Tell whether values are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def within(
    offsets: Offsets, limit: int | None, *, last: bool
) -> tuple[npt.NDArray[np.bool_] | None, Offsets]:
    """Return which of the values are among the first, or last, `limit` of their list, and the new offsets.

    None: all are.
    """
    counts = np.diff(offsets)
    if limit is None or not counts.size or counts.max() <= limit:
        return None, offsets
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    kept = place >= np.repeat(counts - limit, counts) if last else place < limit
    return kept, np.append(0, np.cumsum(np.minimum(counts, limit)))


def align(
    sequence: str, columns: Mapping[str, tuple[str, pa.Array]], origin: Origin
) -> tuple[Offsets, dict[str, pa.Array]]:
    """Return the number of events in each row, int64[n], and each feature's values one after another.

    Args:
        sequence: name of the sequence.
        columns: feature -> its column and the lists there. Null is no event, or one whose value is missing
            if another feature has one there: text has only one way to write both.
        origin: of the rows.

    Raises:
        DataError: lists of different lengths in a row.
    """
    found = {name: flattened(lists) for name, (_, lists) in columns.items()}
    most = np.maximum.reduce([counts for counts, _ in found.values()])
    values = {}
    for name, (column, lists) in columns.items():
        counts, values[name] = found[name]
        lone = (counts == 0) & (most == 1) & lists.is_null().to_numpy(zero_copy_only=False)
        if lone.any():
            places = np.insert(np.arange(len(values[name])), (np.cumsum(counts) - counts)[lone], -1)
            values[name] = values[name].take(pa.array(places, mask=places < 0))
            counts = counts + lone
        if (counts != most).any():
            row = int(np.argmax(counts != most))
            other = next(c for n, (c, _) in columns.items() if found[n][0][row] == most[row])
            raise DataError(
                f"a list of {counts[row]}, beside one of {most[row]} in {other!r}",
                where=origin.at(row, column),
                why=f"sequence {sequence!r} has a value of each of its columns for each event",
                fix="write a missing value as an empty one: a||b, or null in a list",
            )
    return most, values
