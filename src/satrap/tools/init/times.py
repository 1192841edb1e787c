"""Uses of a column of times: a split of the data, and features."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from satrap.data.encode.encoder import MISSING
from satrap.data.encode.times import PARTS, Doubles, to_seconds
from satrap.data.formats.columns import as_array, is_text
from satrap.data.source import Scan, Source
from satrap.tools.init.profile import flat
from satrap.tools.init.write import scalar

_UNREADABLE = pa.ArrowInvalid, pa.ArrowNotImplementedError
"""Errors of pyarrow for values that are not times."""

_YEAR_10000 = 253_402_300_800


def proposals(column: str, sample: pa.Array, odd: Collection[str] = ()) -> list[str]:
    """Return possible features of a column of times, as lines of a recipe; none if its times are unreadable.

    The texts in `odd` are missing times.
    """
    seconds = _seconds(sample, odd)
    features = {}
    if np.any(PARTS["hour"](seconds) > 0):
        features[f"{column}_hour"] = {"dim": 4, "column": column, "time": "hour"}
    if len(seconds):
        features[f"{column}_weekday"] = {"dim": 4, "column": column, "time": "weekday"}
        days = {"numeric": True, "column": column, "time": "age", "transform": "standardize"}
        features[f"{column}_age"] = days
    return [f"{scalar(name)}: {scalar(keys)}" for name, keys in features.items()]


def _seconds(sample: pa.Array, odd: Collection[str]) -> Doubles:
    try:
        seconds = to_seconds(flat(sample), pa.array([*MISSING, *odd]))
    except _UNREADABLE:
        return np.empty(0)
    return seconds[np.abs(seconds) < _YEAR_10000]


def is_later(sample: pa.Array, split: dict[str, Any], odd: Collection[str] = ()) -> npt.NDArray[np.bool_]:
    """Return which rows of a column of times are after the training rows of a split by `split_by_time`."""
    first = next(value for key, value in split.items() if key != "column")
    texts = pa.array([*MISSING, *odd])
    return to_seconds(flat(sample), texts) >= to_seconds(pa.array([first]), texts)


def split_by_time(
    column: str, sample: pa.Array, parts: Sequence[str], odd: Collection[str] = ()
) -> dict[str, Any] | None:
    """Return `data.split` by a column of times, given a sample; each part gets a tenth of the rows.

    `parts` are in order of time; rows before them are training rows. The texts in `odd` are missing times.
    None if the column has other values, or no more different times, in seconds, than parts.
    """
    seconds = np.sort(np.floor(_seconds(sample, odd)))
    times = np.unique(seconds)
    if len(times) <= len(parts):
        return None
    places = [len(seconds) * (10 - len(parts) + i) // 10 for i in range(len(parts))]
    firsts = np.unique(seconds[places])
    if len(firsts) < len(parts) or firsts[0] == times[0]:  # too many rows of the same time
        firsts = times[-len(parts) :]
    return {"column": column, **dict(zip(parts, map(_written, firsts), strict=True))}


def _written(seconds: float) -> str:
    text = str(np.datetime_as_string(np.datetime64(int(seconds), "s"))).replace("T", " ")
    return text.removesuffix(" 00:00:00")


def not_times(source: Source, column: str, rows: int) -> tuple[int, int, str]:
    """Return (texts in a column that are not times, all texts, location of the first that is not a time).

    Only the first `rows` rows count.
    """
    wrong, count, first = 0, 0, ""
    for piece in source.scan(Scan(ids=[column], numbers=()), None):
        array = flat(as_array(piece.table.column(column))).slice(0, rows)
        rows -= len(array)
        if not is_text(array.type):
            continue
        count += len(array) - array.null_count
        unreadable = pc.is_in(array, _unreadable(pc.unique(array).drop_null()))
        wrong += pc.sum(unreadable).as_py() or 0
        if wrong and not first:
            row = pc.index(unreadable, True).as_py()
            first = f"{piece.origin.at(row, column)}: {str(array[row].as_py())[:60]!r}"
        if not rows:
            break
    return wrong, count, first


def _unreadable(texts: pa.Array) -> pa.Array:
    """Return the texts that are not times, found by bisection."""
    try:
        to_seconds(texts, pa.array(MISSING))
    except _UNREADABLE:
        half = len(texts) // 2
        if half:
            return pa.concat_arrays([_unreadable(texts.slice(0, half)), _unreadable(texts.slice(half))])
        return texts
    return texts.slice(0, 0)
