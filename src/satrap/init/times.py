"""What a column of times is good for: a split of the data, and features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from satrap.data.encode import MISSING
from satrap.data.times import PARTS, Doubles, to_seconds
from satrap.init.profile import flat
from satrap.init.write import scalar


def proposals(column: str, sample: pa.Array) -> list[str]:
    """Return features of a column of times, as lines of a recipe; none if its times cannot be read."""
    seconds = _seconds(sample)
    found = {}
    if np.any(PARTS["hour"](seconds) > 0):
        found[f"{column}_hour"] = {"dim": 4, "column": column, "time": "hour"}
    if len(seconds):
        found[f"{column}_weekday"] = {"dim": 4, "column": column, "time": "weekday"}
        days = {"numeric": True, "column": column, "time": "age", "transform": "standardize"}
        found[f"{column}_age"] = days
    return [f"{scalar(name)}: {scalar(keys)}" for name, keys in found.items()]


def _seconds(sample: pa.Array) -> Doubles:
    try:
        seconds = to_seconds(flat(sample), pa.array(MISSING))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # pyarrow's words for no such conversion
        return np.empty(0)
    return seconds[~np.isnan(seconds)]


def split_by_time(column: str, sample: pa.Array, parts: Sequence[str]) -> dict[str, Any] | None:
    """Return `data.split` by a column of times, of which `sample` has some; each part gets a tenth of it.

    `parts` are in the order of time; the rows before them are for training. None if the column holds other
    things, or no more different times, in seconds, than parts.
    """
    seconds = np.sort(np.floor(_seconds(sample)))
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
