from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from satrap.data.encode.times import to_seconds
from satrap.tools.init.times import proposals, split_by_time


def test_the_last_tenths() -> None:
    at = pd.Timestamp("2024-01-01") + pd.to_timedelta(
        np.random.default_rng(1).integers(0, 10**7, 5000), unit="s"
    )
    for column in pa.array(at.astype(str)), pa.array(at), pa.array(at.astype("int64") // 10**6):
        found = split_by_time("at", column, ["validation", "test"])
        assert found is not None
        for part, share in ("validation", 0.2), ("test", 0.1):
            first = to_seconds(pa.array([found[part]]))[0]
            assert abs((to_seconds(column) >= first).mean() - share) < 0.002


def test_many_rows_of_one_time() -> None:
    found = split_by_time(
        "at", pa.array(["2024-01-01"] * 900 + ["2024-01-02", "2024-01-03"]), ["validation", "test"]
    )
    assert found == {"column": "at", "validation": "2024-01-02", "test": "2024-01-03"}
    assert split_by_time("at", pa.array(["2024-01-01", "2024-01-02"]), ["validation", "test"]) is None
    assert split_by_time("at", pa.array(["a", "b", "c"]), ["validation"]) is None


def at(seconds: Sequence[float]) -> pa.Array:
    return pa.array([pd.Timestamp("2024-01-01") + pd.Timedelta(seconds=second) for second in seconds])


def test_the_rows_where_the_last_parts_begin() -> None:
    times = at([i + 0.25 for i in range(100)])
    assert split_by_time("at", times, ["test"]) == {"column": "at", "test": "2024-01-01 00:01:30"}
    both = {"column": "at", "validation": "2024-01-01 00:01:20", "test": "2024-01-01 00:01:30"}
    assert split_by_time("at", times, ["validation", "test"]) == both


def test_the_first_time_is_always_for_training() -> None:
    """Rows 80 and 90 have two times, but the first of them is that of row 0."""
    found = split_by_time("at", at([0] * 85 + [1] * 10 + [2] * 5), ["validation", "test"])
    assert found == {"column": "at", "validation": "2024-01-01 00:00:01", "test": "2024-01-01 00:00:02"}
    assert split_by_time("at", at([0, 1]), ["test"]) == {"column": "at", "test": "2024-01-01 00:00:01"}


def test_proposals() -> None:
    days = [
        "at_weekday: {dim: 4, column: at, time: weekday}",
        "at_age: {numeric: true, column: at, time: age, transform: standardize}",
    ]
    assert proposals("at", at([0, 86_400])) == days
    assert proposals("at", at([0, 3600])) == ["at_hour: {dim: 4, column: at, time: hour}", *days]
    assert proposals("at", pa.array(["a"])) == []
