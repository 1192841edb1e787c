"""Columns of lists: splitting text, lengths and values, and lists with one value per event."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from satrap.batch import Offsets
from satrap.data.formats.columns import is_text
from satrap.data.source import Origin
from satrap.errors import DataError


def as_lists(
    array: pa.Array, separator: str | None, missing: pa.Array, *, brackets: bool = True
) -> pa.Array | None:
    """Return a column as lists, text split at the separator; None if it has neither lists nor text to split.

    `brackets`: strip brackets and blanks around a text, because numbers may be written `[1, 2]`.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if separator is None or not is_text(array.type):
        return array if is_list(array.type) else None
    array = array.cast(pa.string())
    return split_words(pc.utf8_trim(array, "[]() \t\r\n") if brackets else array, separator, missing)


def split_words(array: pa.Array, separator: str, missing: pa.Array) -> pa.Array:
    """Return the words of each text as lists; null if the text is empty or missing."""
    array = array.cast(pa.string())
    nothing = pc.or_(pc.equal(array, ""), pc.is_in(array, missing))
    array = pc.if_else(nothing, pa.scalar(None, pa.string()), array)
    return pc.utf8_split_whitespace(array) if separator == " " else pc.split_pattern(array, separator)


def cut_weights(words: pa.Array, separator: str) -> tuple[pa.Array, pa.Array]:
    """Return the parts of each text before and after its last separator; the second is null without one.

    Pairs, as written by `satrap prepare`, are already split.
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
    """Return (lengths of the lists, int64[n], 0 where null; their values, concatenated)."""
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return counts.astype(np.int64), pc.list_flatten(lists)


def no_lists(kind: pa.DataType, where: str) -> DataError:
    """Return the error for a column that should hold lists."""
    text = is_text(kind) or (pa.types.is_dictionary(kind) and is_text(kind.value_type))
    return DataError(
        f"a column of type {kind} has no lists",
        where=where,
        why="the schema expects several numbers or values per row",
        fix="set a separator for the feature" if text else "write the column as lists",
    )


def check_values(kind: pa.DataType, weight_separator: str | None, where: str) -> None:
    """Raise `DataError` for nested lists, except the pairs that `cut_weights` accepts."""
    pairs = weight_separator is not None and pa.types.is_struct(kind.value_type)
    if pairs or not pa.types.is_nested(kind.value_type):
        return
    raise DataError(
        f"a column of type {kind} holds lists of nested values",
        where=where,
        why="each value of a list must be one id",
        fix="write one list of numbers or texts per row",
    )


def is_list(kind: pa.DataType) -> bool:
    """Return whether values are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def within(
    offsets: Offsets, limit: int | None, *, last: bool
) -> tuple[npt.NDArray[np.bool_] | None, Offsets]:
    """Return a mask of the values among the first (or last) `limit` of their list, and the new offsets.

    The mask is None if all values are.
    """
    counts = np.diff(offsets)
    if limit is None or not counts.size or counts.max() <= limit:
        return None, offsets
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    mask = place >= np.repeat(counts - limit, counts) if last else place < limit
    return mask, np.append(0, np.cumsum(np.minimum(counts, limit)))


def align(
    sequence: str, columns: Mapping[str, tuple[str, pa.Array]], origin: Origin
) -> tuple[Offsets, dict[str, pa.Array]]:
    """Return the number of events in each row, int64[n], and each feature's values, concatenated.

    Args:
        sequence: name of the sequence.
        columns: feature -> its column and lists. Null means no event; if another feature has one event in the
            row, null means a missing value, because text cannot express the difference.
        origin: of the rows.

    Raises:
        DataError: lists of different lengths in the same row.
    """
    parts = {name: flattened(lists) for name, (_, lists) in columns.items()}
    most = np.maximum.reduce([counts for counts, _ in parts.values()])
    values = {}
    for name, (column, lists) in columns.items():
        counts, values[name] = parts[name]
        lone = (counts == 0) & (most == 1) & lists.is_null().to_numpy(zero_copy_only=False)
        if lone.any():
            places = np.insert(np.arange(len(values[name])), (np.cumsum(counts) - counts)[lone], -1)
            values[name] = values[name].take(pa.array(places, mask=places < 0))
            counts = counts + lone
        if (counts != most).any():
            row = int(np.argmax(counts != most))
            other = next(c for n, (c, _) in columns.items() if parts[n][0][row] == most[row])
            raise DataError(
                f"the list has {counts[row]} values, but {most[row]} in column {other!r}",
                where=origin.at(row, column),
                why=f"sequence {sequence!r} needs one value per event in each of its columns",
                fix="write missing values as empty ones: a||b, or null in a list",
            )
    return most, values
