"""How the text of strangers' files is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from satrap.data.formats.csv import CsvOptions
from satrap.data.formats.numerals import Numerals
from satrap.errors import DataError
from satrap.tools.init.open import numerals_of, open_data

GERMAN, ENGLISH, PLAIN = Numerals(",", "."), Numerals(".", ","), Numerals()


@pytest.mark.parametrize(
    ("columns", "fractions", "expected"),
    [
        ([["1.5", "2"], ["a", "b"]], True, PLAIN),
        ([["1,5", "2", "?"]], True, Numerals(",")),
        ([["1,5", "2"], ["1.234,5", "7"]], True, GERMAN),
        ([["1.234,5", "7"], ["1,5", "2"]], True, GERMAN),
        ([["1,5", "2"]], False, PLAIN),
        ([["1,234.5", "7"]], True, ENGLISH),
        ([["1,234", "12,345,678"]], False, ENGLISH),
        ([["1,5", "2"], ["1,2,3", "4,5"]], True, PLAIN),
        ([["1,5", "x"]], True, PLAIN),
        ([["red,blue", "red"]], True, PLAIN),
        ([["2024-01-31", "1"], [None, None]], True, PLAIN),
    ],
)
def test_how_numbers_are_written(
    columns: list[list[str | None]], fractions: bool, expected: Numerals
) -> None:
    table = pa.table({str(i): pa.array(column, pa.string()) for i, column in enumerate(columns)})
    assert numerals_of(table, fractions=fractions) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2\n", CsvOptions()),
        ("a;b\n1;2\n", CsvOptions(separator=";")),
        ("a;b\n1,5;2\n", CsvOptions(separator=";", decimal=",")),
        ("a b\n1 2\n", CsvOptions(separator=" ")),
        ("a\tb\n1\t2\n", CsvOptions(separator="\t")),
        ("a, b\n1, 2\n", CsvOptions(strip=True)),
        ("# of 2024\na,b\n1,2\n", CsvOptions(comment="#")),
        ("#a,b\n1,2\n", CsvOptions()),
        ('a,b\n"1,234",2\n', CsvOptions(thousands=",")),
    ],
)
def test_options_are_found(tmp_path: Path, text: str, expected: CsvOptions) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    source, csv, kind = open_data([str(path)])
    assert (csv, kind) == (expected, "csv")
    assert [name.lstrip("#") for name in source.names] == ["a", "b"]


def test_quotes_may_be_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n"x,1\n"y,2\n')
    with pytest.raises(DataError, match="satrap init --quote ''"):
        open_data([str(path)])
    assert open_data([str(path)], quote="")[1] == CsvOptions(quote=None)


def test_an_encoding_is_taken_as_given(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a;größe\n1,5;2\n", encoding="cp1252")
    source, csv, _ = open_data([str(path)], encoding="cp1252")
    assert list(source.names) == ["a", "größe"]
    assert csv == CsvOptions(separator=";", decimal=",", encoding="cp1252")
