"""Which rows are the latest: a split of the data by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from satrap.data.encode import MISSING
from satrap.data.times import to_seconds
from satrap.init.profile import flat


def split_by_time(column: str, sample: pa.Array, parts: Sequence[str]) -> dict[str, Any] | None:
    """Return `data.split` by a column of times, of which `sample` has some; each part gets a tenth of it.

    `parts` are in the order of time; the rows before them are for training. None if the column holds other
    things, or no more different times, in seconds, than parts.
    """
    try:
        seconds = to_seconds(flat(sample), pa.array(MISSING))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # pyarrow's words for no such conversion
        return None
    seconds = np.sort(np.floor(seconds[~np.isnan(seconds)]))
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
