"""Values as programs write them, against Python's own decimals, floats and times."""

import tempfile
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from satrap import Categorical, Schema
from satrap.data import read
from satrap.data.encode.canonical import BUFFER, number
from satrap.data.encode.hashing import hash_ids
from satrap.errors import DataError
from tests.support.examples import examples
from tests.xxh64 import xxh64

floats = st.floats(allow_nan=False, allow_infinity=False)


def id_of(text: str) -> int:
    return int(hash_ids(pa.array([text]))[0])


def same(*values: str) -> None:
    assert len({id_of(value) for value in values}) == 1, {value: id_of(value) for value in values}


def test_a_whole_number_is_the_integer_however_it_is_written() -> None:
    same("4", "4.0", "4.00", "4e+00", "4.0E0", "400e-02")
    same("0", "-0", "0.0", "-0.0", "0e+00", "0E-30")
    same("-3", "-3.0", "-3e+0")
    same("10000000000000000", "1e+16", "1.0E16")
    same(str(2**60), "1.152921504606847e+18", f"{2**60}.0")
    same(str(2**64 - 1), f"{2**64 - 1}.0")
    same(str(-(2**63)), f"-{2**63}.0")
    assert id_of("9007199254740993.0") != id_of("9007199254740992.0")


def test_another_number_is_its_shortest_decimal_text() -> None:
    same("1.5", "1.50", "15e-1", "0.15E1")
    same("1e-05", "0.00001", "1.0E-5")
    same("100000000000000000000", "1e+20", "100000000000000000000.0")
    same("-0.25", "-0.250")
    assert id_of("1.5") == xxh64(b"1.5", 0)
    assert id_of("0.00001") == xxh64(b"1e-05", 0)


@pytest.mark.parametrize(
    "text",
    [
        *("007", "00.5", "1e5", "12e45678", "68E12", "+1", " 1", "1 ", "1.", ".5", "1.2.3", "1,5", "--1"),
        *("1e+", "1.e+5", "1e+401", "1e+99999999999999", "1_000", "0x10", "1-2", "4.0a", "-.0", "-e+1"),
        *("18446744073709551616", "-9223372036854775809", "tRue", "TRue", "falsE", "truth", "yes", "t"),
        *("2024-02-30 10:00", "2024-13-01 10:00", "2024-01-01 24:00", "0000-01-01 10:00", "2024-01-01"),
        *("2024-01-01 10:00:00.", "2024-01-01 10:00:60", "2024-01-01 10:00 CET", "2024-01-01x10:00:00"),
        *("2024-01-01 10:00+24:00", "0001-01-01 00:00+01:00", "9999-12-31 23:30-01:00", "12:00:00"),
        *("2024-1-1 10:00:00", "20240101T10:00:00", "2024-01-01T10:00:00.5.5", "1" * 401 + ".0", "é4.0"),
        *("10:00", "25:00:00.0", "-"),
    ],
)
def test_anything_else_is_itself(text: str) -> None:
    assert id_of(text) == xxh64(text.encode(), 0)


def test_long_numbers_stay_in_their_buffer() -> None:
    room, long = np.full(2 * BUFFER, 7, np.uint8), "9" * 390
    for text in ("1e+400", "-1.5e+400", "1e-400", f"-{long}.5", f"-{long}e+400", f"0.{'0' * 395}1", long):
        raw = np.frombuffer(text.encode(), np.uint8)
        number(raw, 0, len(raw), room[:BUFFER])
        assert (room[BUFFER:] == 7).all()
    same("1e+400", "1" + "0" * 395 + "e+5")


@given(floats)
@settings(max_examples=examples(400), deadline=None)
def test_a_float_has_the_id_of_every_text_of_it(value: float) -> None:
    expected = int(hash_ids(np.array([value]))[0])
    assert id_of(repr(value)) == expected
    assert id_of(f"{Decimal(repr(value)):e}") == expected
    assert id_of(repr(value).replace("e+", "E+")) == expected
    if abs(value) < 2**53 and "e" not in repr(value):
        assert id_of(repr(value) + "000") == expected


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@settings(max_examples=examples(200), deadline=None)
def test_a_narrow_float_has_the_id_of_its_own_text(value: float) -> None:
    narrow = np.float32(value)
    assert id_of(str(narrow)) == int(hash_ids(np.array([narrow]))[0])


def canonical(digits: int, scale: int) -> str:
    """The text of digits / 10**scale by integer arithmetic: whole, fixed, or scientific below 0.0001."""
    while scale and digits % 10 == 0:
        digits, scale = digits // 10, scale - 1
    sign, shown = "-" if digits < 0 else "", str(abs(digits))
    if scale == 0:
        return sign + shown
    power = len(shown) - 1 - scale
    if power < -4:
        return f"{sign}{shown[0]}{'.' if shown[1:] else ''}{shown[1:]}e-{-power:02}"
    shown = shown.rjust(scale + 1, "0")
    return f"{sign}{shown[:-scale]}.{shown[-scale:]}"


@given(st.integers(-(10**30), 10**30), st.integers(0, 40), st.integers(0, 5))
@settings(max_examples=examples(400), deadline=None)
def test_decimals_in_every_notation(digits: int, scale: int, zeros: int) -> None:
    shown = str(abs(digits)).rjust(scale + 1, "0")
    fixed = ("-" if digits < 0 else "") + (f"{shown[:-scale]}.{shown[-scale:]}" if scale else f"{shown}.0")
    fixed += "0" * zeros
    same(canonical(digits, scale), fixed)
    typed = pa.array([Decimal(fixed)], pa.decimal256(76, 45))
    assert int(hash_ids(typed)[0]) == id_of(fixed)


@given(
    st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
    st.sampled_from(["seconds", "milliseconds", "microseconds"]),
)
@settings(max_examples=examples(300), deadline=None)
def test_an_instant_is_one_value(local: datetime, offset: int, precision: str) -> None:
    zone = timezone(timedelta(minutes=offset))
    aware = datetime.fromisoformat(local.isoformat(timespec=precision)).replace(tzinfo=zone)
    instant = aware.astimezone(UTC).replace(tzinfo=None)
    text = str(instant).rstrip("0") if instant.microsecond else str(instant)
    expected = xxh64((text if instant.time() != time(0) else str(instant.date())).encode(), 0)
    written = aware.isoformat(timespec=precision)
    assert id_of(written) == expected
    assert id_of(written.replace("T", " ")) == expected
    assert id_of(written[:-6] + written[-6:].replace(":", "")) == expected
    assert id_of(instant.isoformat(timespec="microseconds") + "Z") == expected
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", "America/New_York")):
        moment = instant if kind.tz is None else instant.replace(tzinfo=UTC)
        assert int(hash_ids(pa.array([moment], kind))[0]) == expected


def test_times_in_all_units() -> None:
    for unit in ("s", "ms", "us", "ns"):
        moment = pa.array([datetime(2024, 2, 29, 13, 5)], pa.timestamp(unit))
        assert int(hash_ids(moment)[0]) == id_of("2024-02-29 13:05") == id_of("2024-02-29T13:05:00.000Z")
        midnight = pa.array([datetime(2024, 2, 29)], pa.timestamp(unit))
        assert int(hash_ids(midnight)[0]) == id_of("2024-02-29")
    for kind in (pa.date32(), pa.date64()):
        assert int(hash_ids(pa.array([date(2024, 2, 29)], kind))[0]) == id_of("2024-02-29 00:00:00")
    for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        assert int(hash_ids(pa.array([time(7, 8, 9)], kind))[0]) == id_of("07:08:09") == id_of("07:08:09.000")
    same("07:08:09.5", "07:08:09.500000")


def test_truth_values() -> None:
    same("1", "true", "True", "TRUE", "1.0")
    same("0", "false", "False", "FALSE")
    assert hash_ids([True, False]).tolist() == [id_of("1"), id_of("0")]


def test_types_of_arrow_that_hold_text() -> None:
    texts = ["4.0", "abcd"]
    for kind in (pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()):
        assert hash_ids(pa.array(texts).cast(kind)).tolist() == [id_of(text) for text in texts]
    assert hash_ids(pa.array([b"abcd"], pa.binary(4))).tolist() == [id_of("abcd")]
    assert int(hash_ids(np.array([0.1], np.float16))[0]) == id_of("0.1")


@pytest.mark.parametrize("kind", [pa.duration("s"), pa.month_day_nano_interval()])
def test_durations_are_refused(kind: pa.DataType) -> None:
    values = [timedelta(1)] if pa.types.is_duration(kind) else [(1, 2, 3)]
    with pytest.raises(DataError, match="cannot be an id"):
        hash_ids(pa.array(values, kind))


def test_missing_values_of_every_type() -> None:
    missing = hash_ids(["-1", "none"])

    def known(values: list[object]) -> list[bool]:
        return hash_ids(values, missing=missing).astype(bool).tolist()

    assert known(["none", "-1.0", "x", None]) == [False, False, True, False]
    assert known([-1, 1]) == [False, True]
    assert known([-1.0, 0.5]) == [False, True]


ROUNDED = ("whole", "large")
"""Integers of 64 bits, which pandas rounds to floats where some are missing."""
LIST = "tags"
KINDS = {
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "large": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "narrow": (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "count": (pa.float64(), st.integers(-(2**53), 2**53).map(float)),
    "truth": (pa.bool_(), st.booleans()),
    "price": (pa.decimal128(20, 4), st.integers(-(10**12), 10**12).map(lambda v: Decimal(v).scaleb(-4))),
    "day": (pa.date32(), st.dates(date(1000, 1, 1))),
    "second": (
        pa.timestamp("s"),
        st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)).map(
            lambda moment: moment.replace(microsecond=0)
        ),
    ),
    "moment": (pa.timestamp("us"), st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))),
    "midnight": (
        pa.timestamp("ns"),
        st.dates(date(1700, 1, 1), date(2200, 1, 1)).map(lambda day: datetime.combine(day, time())),
    ),
    "berlin": (
        pa.timestamp("ms", "Europe/Berlin"),
        st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)).map(
            lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
        ),
    ),
    "clock": (pa.time64("us"), st.times()),
    "text": (pa.string(), st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12)),
    "code": (
        pa.string(),
        st.sampled_from(["007", "4.0", "4", "1e5", "True", "NA", "?", "-0", "1.50", "a,b", '"']),
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 6))
    columns = {
        name: pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
        for name, (kind, values) in KINDS.items()
    }
    words = st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3)
    columns[LIST] = pa.array(draw(st.lists(words, min_size=rows, max_size=rows)), pa.list_(pa.int32()))
    return pa.table(columns)


SCHEMA = Schema(
    [], {**{name: Categorical(dim=1) for name in KINDS}, LIST: Categorical(dim=1, multi=True, separator="|")}
)


def ids(source: object, **options: object) -> dict[str, list[int]]:
    [batch] = read(source, SCHEMA, **options).batches()  # type: ignore[arg-type]
    found = {name: batch.ids[name].values.tolist() for name in SCHEMA.features}
    return {**found, "ends": batch.ids[LIST].offsets.tolist()}  # type: ignore[union-attr]


def joined(table: pa.Table) -> pa.Table:
    """Lists as text, for files that have none."""
    rows = [
        None if row is None else "|".join("" if value is None else str(value) for value in row)
        for row in table[LIST].to_pylist()
    ]
    return table.set_column(table.column_names.index(LIST), LIST, pa.array(rows, pa.string()))


def write_all(table: pa.Table, folder: Path) -> None:
    """Write the table in every format."""
    pa.parquet.write_table(table, folder / "rows.parquet")
    pa.feather.write_feather(table, folder / "rows.feather")
    encoded = {name: table[name].combine_chunks().dictionary_encode() for name in KINDS}
    pa.feather.write_feather(pa.table({**encoded, LIST: table[LIST]}), folder / "encoded.arrow")
    text = joined(table)
    pa.csv.write_csv(text, folder / "rows.csv")
    pa.csv.write_csv(text, folder / "rows.tsv", pa.csv.WriteOptions(delimiter="\t"))
    text.to_pandas().to_csv(folder / "pandas.csv", index=False)
    text.to_pandas(integer_object_nulls=True).to_csv(folder / "objects.csv.gz", index=False)


@given(tables())
@settings(max_examples=examples(40), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_a_table_has_the_same_ids_in_every_file_and_frame(table: pa.Table) -> None:
    expected = ids(table)
    with tempfile.TemporaryDirectory() as name:
        write_all(table, Path(name))
        for file in sorted(Path(name).iterdir()):
            rounded = ROUNDED if file.name == "pandas.csv" else ()
            found = ids(file)
            assert {k: v for k, v in found.items() if k not in rounded} == {
                k: v for k, v in expected.items() if k not in rounded
            }, file.name
    objects = table.to_pandas(integer_object_nulls=True)
    frames = {
        "objects": objects,
        "arrow": table.to_pandas(types_mapper=pd.ArrowDtype),
        "nullable": objects.astype(
            {"whole": "Int64", "small": "Int16", "large": "UInt64", "truth": "boolean"}
        ),
        "categorical": objects.astype(dict.fromkeys(KINDS, "category")),
    }
    for kind, frame in frames.items():
        assert ids(frame) == expected, kind
    assert ids({name: table[name].combine_chunks() for name in SCHEMA.features}) == expected
