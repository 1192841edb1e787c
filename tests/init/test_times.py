from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from satrap.data.times import to_seconds
from satrap.init.times import split_by_time


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
