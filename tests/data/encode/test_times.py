from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import satrap
from satrap.batch import Batch
from satrap.data import Dataset, TimeRange
from satrap.data.encode.times import to_seconds
from satrap.errors import ConfigError, DataError
from tests.support.examples import examples

TIMES = st.datetimes(pd.Timestamp("1950-01-01").to_pydatetime(), pd.Timestamp("2150-01-01").to_pydatetime())
SCHEMA = satrap.Schema(["y"], {"x": satrap.Numeric()})


def seconds(stamps: Any) -> np.ndarray:
    """The oracle: pandas."""
    return np.asarray(
        (pd.to_datetime(stamps, utc=True) - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    )


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(TIMES, min_size=1, max_size=20),
    st.sampled_from(["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"]),
)
def test_texts_and_timestamps_are_those_of_pandas(times: list[Any], form: str) -> None:
    texts = [time.strftime(form) for time in times]
    np.testing.assert_allclose(to_seconds(pa.array(texts)), seconds(texts), rtol=0, atol=2e-5)
    # A second form among them: the slow way gives the same.
    found = to_seconds(pa.array([*texts, "2024/1/2 3:04"]))[:-1]
    np.testing.assert_allclose(found, seconds(texts), rtol=0, atol=2e-5)
    stamps = pa.array(times, pa.timestamp("us"))
    np.testing.assert_allclose(to_seconds(stamps), seconds(times), rtol=0, atol=2e-5)
    np.testing.assert_allclose(to_seconds(stamps.dictionary_encode()), seconds(times), rtol=0, atol=2e-5)


def test_zones_and_fractions() -> None:
    texts = ["2024-02-29T08:05:30.25Z", "2024-02-29 08:05:30+02:00", "2024-02-29T00:05-0330"]
    found = to_seconds(pa.array(texts))
    np.testing.assert_allclose(found, [seconds(text) for text in texts], rtol=0, atol=2e-5)
    stamps = pd.Series(pd.to_datetime(["2024-07-01 12:00"])).dt.tz_localize("Europe/Berlin")
    np.testing.assert_array_equal(to_seconds(pa.Array.from_pandas(stamps)), seconds(stamps))


def test_numbers_are_seconds_or_their_parts() -> None:
    time = 1_700_000_000
    for units in 1, 10**3, 10**6, 10**9:
        assert to_seconds(pa.array([time * units])) == [time]
        assert to_seconds(pa.array([str(time * units)])) == [time]
    assert to_seconds(pa.array([-5])) == [-5]
    assert np.isnan(to_seconds(pa.array(["?", "", None]), pa.array(["?"]))).all()


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (10**11 - 1, 1e11 - 1),
        (10**11, 1e8),
        (10**14 - 1000, 1e11 - 1),
        (10**14, 1e8),
        (10**17 - 10**6, 1e11 - 1),
        (10**17, 1e8),
        (-(10**11) + 1, 1 - 1e11),
        (-(10**11), -1e8),
    ],
)
def test_the_size_of_a_number_tells_its_unit(number: int, expected: float) -> None:
    assert to_seconds(pa.array([number])).tolist() == [expected]


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("2024/0/1", False),
        ("2024/12/0", False),
        ("2024/12/31", True),
        ("2024/12/32", False),
        ("2024/4/30", True),
        ("2024/4/31", False),
        ("2024/2/29", True),
        ("1900/2/29", False),
        ("2000/2/29", True),
        ("2024/1/1 23:59", True),
        ("2024/1/1 24:00", False),
        ("2024/1/1 0:60", False),
    ],
)
def test_days_and_hours_that_there_are(text: str, there: bool) -> None:
    if there:
        np.testing.assert_array_equal(to_seconds(pa.array([text])), seconds([text]))
    else:
        with pytest.raises(pa.ArrowInvalid, match="the time does not exist"):
            to_seconds(pa.array([text]))


def test_a_leap_second_is_the_next_minute() -> None:
    assert to_seconds(pa.array(["2016/12/31 23:59:60.5"])) == seconds(["2017-01-01"]) + 0.5
    with pytest.raises(pa.ArrowInvalid, match="the time does not exist"):
        to_seconds(pa.array(["2016/12/31 23:59:61"]))


def test_a_range_begins_at_its_start_and_ends_before_its_stop() -> None:
    times = np.array([9.0, 10.0, 19.0, 20.0, np.nan])
    assert TimeRange("at", 10, 20).keeps(times).tolist() == [False, True, True, False, False]
    assert TimeRange("at", stop=20).keeps(times).tolist() == [True, True, True, False, True]
    assert TimeRange("at", 10).keeps(times).tolist() == [False, True, True, True, False]
    for stop in (9, 10):
        with pytest.raises(ConfigError, match=f"no time is at or after 10 and before {stop}"):
            TimeRange("at", 10, stop)


@pytest.mark.parametrize("text", ["2023-02-29", "31.12.2024", "2024-13-01", "2024-01-01 25:00", "yesterday"])
def test_no_times(text: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        to_seconds(pa.array([text]))
    with pytest.raises(ConfigError, match="is not a time"):
        TimeRange("at", text)


def read(frame: pd.DataFrame, rows: TimeRange | None, **options: Any) -> Dataset:
    return satrap.data.read(frame, SCHEMA, batch_size=64, rows=rows).with_options(**options)


def frame(rows: int, seed: int = 1) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    at = pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 10**6, rows), unit="s")
    return pd.DataFrame({"x": np.arange(rows, dtype=float), "y": 0, "at": at.astype(str)})


def numbers(batches: Any) -> list[float]:
    return [x for batch in batches for x in batch.numeric[:, 0].tolist()]


def test_ranges_divide_the_rows_as_pandas_does() -> None:
    data = frame(30_000)
    data.loc[5, "at"] = None
    cuts = "2024-01-08 00:00:00", "2024-01-10"
    at = pd.to_datetime(data["at"])
    ranges = TimeRange("at", stop=cuts[0]), TimeRange("at", *cuts), TimeRange("at", cuts[1])
    chosen = at < cuts[0], (at >= cuts[0]) & (at < cuts[1]), at >= cuts[1]
    chosen[0][5] = True  # without a time
    for rows, here in zip(ranges, chosen, strict=True):
        assert numbers(read(data, rows)) == data["x"][here].tolist()
        shares = [numbers(read(data, rows, worker=w, workers=3, shuffle=True)) for w in range(3)]
        assert sorted(x for share in shares for x in share) == data["x"][here].tolist()
        tables = [table for table, _ in read(data, rows).tables_and_batches()]
        assert pa.concat_tables(tables)["x"].to_pylist() == data["x"][here].tolist()


def test_resuming_goes_on_with_the_next_batch() -> None:
    for shuffle in False, True:
        data = read(frame(20_000), TimeRange("at", "2024-01-05"), shuffle=shuffle, buffer_rows=1000)
        batches: list[Batch] = list(data.batches(2))
        for place in 0, 40, len(batches) - 1:
            rest = numbers(data.batches(2, batches[place].position))
            assert rest == numbers(batches[place + 1 :])
    other = read(frame(20_000), TimeRange("at", "2024-01-06"), shuffle=True, buffer_rows=1000)
    with pytest.raises(ConfigError, match="saved position"):
        next(other.batches(2, batches[0].position))


def test_what_is_wrong_is_told() -> None:
    data = frame(100)
    with pytest.raises(DataError, match="no rows remain"):
        list(read(data, TimeRange("at", "2050-01-01")))
    with pytest.raises(DataError, match="'when' is missing"):
        read(data, TimeRange("when", "2050-01-01"))
    data.loc[7, "at"] = "31.12.2024"
    with pytest.raises(DataError, match=r"'31.12.2024' is not a time[\s\S]*row 8"):
        list(read(data, TimeRange("at", "2024-01-01")))
    lists = {"label": [1.0], "x": [1.0], "y": [1.0], "at": [["2024-01-01"]]}
    with pytest.raises(DataError, match=r"type list<.*> cannot be a time[\s\S]*column 'at'"):
        list(read(lists, TimeRange("at", "2024-01-01")))
    with pytest.raises(ConfigError, match="validation rows come before test rows"):
        TimeRange("at", "2024-02-01", "2024-01-01")


def test_parts_of_a_time_are_those_of_pandas() -> None:
    random = np.random.default_rng(2)
    at = pd.Series(pd.Timestamp("1965-01-01") + pd.to_timedelta(random.integers(0, 2 * 10**9, 500), unit="s"))
    expected = {
        "hour": at.dt.hour,
        "weekday": at.dt.day_of_week,
        "age": (at - pd.Timestamp(0)) / pd.Timedelta(days=1),
    }
    parts = {name: satrap.Numeric(column="at", time=name) for name in expected}  # one column, several uses
    ids = {f"{name}_id": satrap.Categorical(dim=2, column="at", time=name) for name in ("hour", "weekday")}
    bins = satrap.Categorical(dim=2, column="at", time="age", boundaries=(0, 5000))
    schema = satrap.Schema([], {**parts, **ids, "bins": bins, "at": satrap.Categorical(dim=2)})
    for column in at, at.astype(str):
        [batch] = satrap.data.read({"at": column}, schema).batches()
        np.testing.assert_allclose(batch.numeric, np.stack(list(expected.values()), 1), rtol=1e-6)
        for name in "hour", "weekday":
            np.testing.assert_array_equal(
                batch.ids[f"{name}_id"].values, satrap.data.hash_ids(expected[name])
            )
        interval = np.searchsorted([0, 5000], expected["age"], side="right")
        np.testing.assert_array_equal(batch.ids["bins"].values, satrap.data.hash_ids(interval))
        np.testing.assert_array_equal(batch.ids["at"].values, satrap.data.hash_ids(pa.array(column)))


def test_a_missing_time_is_missing() -> None:
    hour, age = satrap.Categorical(dim=2, column="at", time="hour"), satrap.Numeric(column="at", time="age")
    [batch] = satrap.data.read(
        {"at": ["1970-01-02", "?"]}, satrap.Schema([], {"h": hour, "a": age})
    ).batches()
    assert batch.ids["h"].values[1] == 0
    assert batch.ids["h"].values[0] != 0
    assert batch.numeric is not None
    assert batch.numeric[:, 0].tolist() == [1, 0]


def test_ages_are_measured() -> None:
    schema = satrap.Schema([], {"at": satrap.Numeric(time="age", transform="minmax")})
    data = satrap.data.read({"at": ["2024-01-03", "2024-01-01", "2024-01-02"]}, schema)
    [batch] = data.with_options(schema=satrap.data.measure(schema, data)).batches()
    assert batch.numeric is not None
    assert batch.numeric[:, 0].tolist() == [1, 0, 0.5]
