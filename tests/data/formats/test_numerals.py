"""Numbers as people write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from satrap import Categorical, Numeric, Schema
from satrap.data import CsvOptions, hash_ids, read
from satrap.data.formats.numerals import MARKS, Numerals
from satrap.errors import ConfigError

WAYS = [Numerals(decimal, mark) for decimal in ".," for mark in (None, *MARKS) if mark != decimal]


@given(st.floats(-1e12, 1e12), st.integers(0, 5), st.sampled_from(WAYS))
def test_what_python_writes_is_read_again(value: float, digits: int, way: Numerals) -> None:
    plain = f"{value:.{digits}f}"
    grouped = f"{value:,.{digits}f}" if way.thousands else plain
    text = grouped.translate(str.maketrans({",": way.thousands or "", ".": way.decimal}))
    assert way.rewritten(pa.array([text, f" {text} ", None])).to_pylist()[0::2] == [plain, None]
    assert float(way.rewritten(pa.array([f" {text} "])).to_pylist()[0]) == float(plain)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        (Numerals(",", "."), "1.2.3"),
        (Numerals(",", "."), "12.34"),
        (Numerals(",", "."), "2024.01.31"),
        (Numerals(","), "1,2,3"),
        (Numerals(","), "red, blue"),
        (Numerals(".", ","), "1,23"),
        (Numerals(".", ","), "12,3456"),
        (Numerals(".", ","), "a,b"),
        (Numerals(".", " "), "1 23"),
    ],
)
def test_other_text_stays(way: Numerals, text: str) -> None:
    assert way.rewritten(pa.array([text])).to_pylist() == [text]


@pytest.mark.parametrize(
    ("given", "says"), [((";",), "decimal"), ((".", "x"), "thousands"), ((",", ","), "both ','")]
)
def test_impossible_marks(given: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Numerals(*given)
    with pytest.raises(ConfigError, match=says):
        CsvOptions(decimal=given[0], thousands=(*given, None)[1])


def test_files_of_a_spreadsheet(tmp_path: Path) -> None:
    """A column is the same as a number, in bins and as ids, whichever way its numbers are written."""
    values = np.random.default_rng(1).lognormal(7, 2, 500).round(2)
    schema = Schema(
        [],
        {
            "x": Numeric(),
            "bins": Categorical(dim=4, column="x", boundaries=(10.0, 1000.0)),
            "id": Categorical(dim=4, column="x"),
        },
    )
    found = []
    for number, way in enumerate([Numerals(), Numerals(","), Numerals(",", "."), Numerals(".", ",")]):
        rows = []
        for value in values:
            text = f"{value:,.2f}" if way.thousands else f"{value:.2f}"
            rows.append(text.translate(str.maketrans({",": way.thousands or "", ".": way.decimal})))
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(["x;name", *(f"{row};a" for row in rows)]))
        options = CsvOptions(separator=";", decimal=way.decimal, thousands=way.thousands)
        [batch] = read(str(path), schema, batch_size=1000, csv=options)
        assert batch.numeric is not None
        found.append((batch.numeric[:, 0], batch.ids["bins"].values, batch.ids["id"].values))
    np.testing.assert_array_equal(found[0][0], values.astype(np.float32))
    np.testing.assert_array_equal(found[0][2], hash_ids([f"{value:.2f}" for value in values]))
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)
