"""Times as numbers: seconds since 1970, hour, weekday and day, and selection of rows by time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from satrap.data.formats.columns import is_text, to_floats
from satrap.errors import ConfigError
from satrap.runtime.arguments import checked
from satrap.schema import TimePart

Doubles = npt.NDArray[np.float64]
DAY = 86_400.0

_TEXT = (
    r"^(?P<year>\d{4})[-/](?P<month>\d{1,2})[-/](?P<day>\d{1,2})"
    r"(?:[T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:[.,]\d+)?))?)?"
    r" *(?:(?P<utc>Z|UTC)|(?P<sign>[-+])(?P<zone_hour>\d{2}):?(?P<zone_minute>\d{2})?)?$"
)
_UNITS = (1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (np.inf, 1e9)
"""(limit, units per second): a number below the limit is in seconds, milli-, micro- or nanoseconds."""


def to_seconds(array: pa.Array, missing: pa.Array | None = None) -> Doubles:
    """Return times as seconds since 1970-01-01 00:00, float64[n], NaN where missing.

    Times may be Arrow timestamps or dates, texts such as `2024-01-31`, `2024/1/31 8:05` and
    `2024-01-31T08:05:30.5+02:00`, or numbers since 1970: seconds below 1e11, milliseconds below 1e14,
    microseconds below 1e17, else nanoseconds. A time with a zone is converted to UTC, other times are used as
    written. Empty text and the texts in `missing` are missing. Raises `pyarrow.ArrowInvalid` for a text that
    is not a time.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        zone = array.type.tz if pa.types.is_timestamp(array.type) else None
        micros = pc.cast(pc.cast(array, pa.timestamp("us", zone), safe=False), pa.int64())
        stamps: Doubles = pc.cast(micros, pa.float64(), safe=False).to_numpy(zero_copy_only=False) / 1e6
        return stamps
    if not is_text(array.type):
        return _of_numbers(to_floats(array, missing))
    array = pc.utf8_trim_whitespace(array.cast(pa.string()))
    with suppress(pa.ArrowInvalid):  # the most frequent format, ten times as fast
        nothing = pc.equal(array, "") if missing is None else pc.is_in(array, missing)
        return to_seconds(pc.cast(pc.if_else(nothing, None, array), pa.timestamp("us")))
    parts = pc.extract_regex(array, _TEXT)
    written = pc.is_valid(parts)
    seconds = np.empty(len(array))
    there = written.to_numpy(zero_copy_only=False)
    seconds[there] = _of_parts(parts.filter(written))
    seconds[~there] = _of_numbers(to_floats(array.filter(pc.invert(written)), missing))
    return seconds


def _of_numbers(values: Doubles) -> Doubles:
    size, seconds = np.abs(values), values.copy()
    for low, (high, units) in zip((0.0, *(limit for limit, _ in _UNITS)), _UNITS, strict=False):
        inside = (size >= low) & (size < high)
        seconds[inside] = values[inside] / units
    return seconds


def _of_parts(parts: pa.Array) -> Doubles:
    """Return seconds of the groups of `_TEXT`; raise `pyarrow.ArrowInvalid` for a day that does not exist."""
    fields = dict(zip(parts.type.names, parts.flatten(), strict=True))

    def number(name: str) -> Doubles:
        return np.nan_to_num(to_floats(pc.replace_substring(fields[name], ",", ".")))

    year, month, day = (number(name).astype(np.int64) for name in ("year", "month", "day"))
    first = ((year - 1970) * 12 + month - 1).astype("M8[M]")
    last = ((first + 1).astype("M8[D]") - first.astype("M8[D]")).astype(np.int64)
    right = (month >= 1) & (month <= 12) & (day >= 1) & (day <= last)
    right &= (number("hour") < 24) & (number("minute") < 60) & (number("second") < 61)
    if not right.all():
        raise pa.ArrowInvalid("the time does not exist")
    days = first.astype("M8[D]").astype(np.int64) + day - 1
    seconds = days * DAY + number("hour") * 3600 + number("minute") * 60 + number("second")
    zone = number("zone_hour") * 3600 + number("zone_minute") * 60
    behind = pc.equal(pc.fill_null(fields["sign"], ""), "-").to_numpy(zero_copy_only=False)
    return np.asarray(seconds - np.where(behind, -zone, zone))


PARTS: dict[TimePart, Callable[[Doubles], Doubles]] = {
    "hour": lambda seconds: np.floor(seconds % DAY / 3600),
    "weekday": lambda seconds: (np.floor(seconds / DAY) + 3) % 7,
    "age": lambda seconds: seconds / DAY,
}
"""Parts of a time for features: hour 0 to 23, weekday 0 (Monday) to 6, or age as days since 1970."""


@checked()
@dataclass(frozen=True, slots=True)
class TimeRange:
    """Keeps the rows whose time in `column` is at or after `start` and before `stop`.

    A row without a time belongs to the range without a start.

    Args:
        column: column of times, see `to_seconds`.
        start: a text or number as in `column`, or None: the first rows.
        stop: as `start`, later; None: the last rows.

    Raises:
        ConfigError: a bound that is not a time, or an empty range.
    """

    column: str
    start: str | float | None = None
    stop: str | float | None = None
    bounds: tuple[float, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        low, high = _bound(self.start, -np.inf), _bound(self.stop, np.inf)
        if not low < high:
            raise ConfigError(
                f"no time is at or after {self.start} and before {self.stop}",
                fix="give the times in ascending order: validation rows come before test rows",
            )
        object.__setattr__(self, "bounds", (low, high))

    def keeps(self, seconds: Doubles) -> npt.NDArray[np.bool_]:
        """Return bool[n], True for the rows to keep."""
        low, high = self.bounds
        inside: npt.NDArray[np.bool_] = (seconds >= low) & (seconds < high)
        return inside | np.isnan(seconds) if self.start is None else inside


def _bound(value: Any, otherwise: float) -> float:
    if value is None:
        return otherwise
    try:
        [seconds] = to_seconds(pa.array([value])).tolist()
    except pa.ArrowInvalid:
        seconds = np.nan
    if np.isnan(seconds):
        raise ConfigError(f"{value!r} is not a time", fix="write it as 2024-01-31 or 2024-01-31 08:05:30")
    return float(seconds)
