from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.data.dataset import open_source
from satrap.errors import DataError
from satrap.tools.init.profile import Profile, profile
from tests.support.examples import examples


def of(columns: object, label: str = "y", **options: int) -> Profile:
    return profile(open_source(columns), label, **options)


def test_facts_are_those_of_pandas() -> None:
    random = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "y": random.integers(0, 2, 20_000),
            "city": random.choice(["Rome", "Oslo", None, "Bern"], 20_000),
            "price": np.where(random.random(20_000) < 0.1, np.nan, random.normal(3, 2, 20_000)),
        }
    )
    found = of(frame)
    assert found.rows == 20_000
    assert found.complete
    assert found.label == Counter(map(str, frame["y"]))
    for name in ("city", "price"):
        column = found.columns[name]
        assert column.missing == frame[name].isna().sum()
        assert column.distinct.count == pytest.approx(frame[name].nunique(), rel=0.05)
    assert (found.columns["price"].low, found.columns["price"].high) == (
        frame["price"].min(),
        frame["price"].max(),
    )
    assert found.columns["price"].numbers
    assert not found.columns["city"].numbers


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(-(10**6), 10**6), min_size=3, max_size=50))
def test_a_number_is_the_same_as_integer_float_and_text(values: list[int]) -> None:
    """Files write ids as floats, and CSV has only text."""
    y = [0] * len(values)
    kinds = [values, [float(v) for v in values], [str(v) for v in values], [f"{v}.0" for v in values]]
    facts = []
    for kind in kinds:
        column = of({"y": y, "x": kind}).columns["x"]
        facts.append((column.distinct.count, column.low, column.high, column.fractions, column.numbers))
    assert facts[0][0] == len(set(values))
    assert facts == facts[:1] * 4


def test_texts_among_numbers_are_counted_and_shown() -> None:
    column = of({"y": [0] * 100, "x": [*map(str, range(98)), "none", "-"]}).columns["x"]
    assert (column.texts, column.odd, column.high) == (2, {"none", "-"}, 97)
    assert column.numbers
    column = of({"y": [0] * 100, "x": [*map(str, range(50)), *"abcde" * 10]}).columns["x"]
    assert column.texts == 50
    assert not column.numbers


def test_one_text_may_stand_in_half_of_the_rows() -> None:
    """As "-" does where a measurement is missing; among a few codes it is one of them."""
    column = of({"y": [0] * 8000, "x": [*map(str, range(4000)), *["-"] * 4000]}).columns["x"]
    assert (column.texts, column.odd, column.numbers) == (4000, {"-"}, True)
    codes = of({"y": [0] * 8000, "x": [*(str(i % 9) for i in range(4000)), *["-"] * 4000]}).columns["x"]
    assert not codes.numbers


def test_lists_and_structures() -> None:
    table = pa.table(
        {
            "y": [0, 1, 1],
            "tags": pa.array([["a", "b"], [], ["a"]]),
            "deep": pa.array([{"a": 1}, {"a": 2}, None]),
        }
    )
    found = of(table).columns
    assert (found["tags"].is_list, found["tags"].missing, found["tags"].values) == (True, 1, 3)
    assert found["tags"].distinct.count == 2
    assert found["deep"].unusable == "its values are structs, which cannot be features"


def test_only_the_first_rows(tmp_path: Path) -> None:
    pd.DataFrame({"y": [0, 1] * 50_000, "x": range(100_000)}).to_csv(tmp_path / "a.csv", index=False)
    seen: list[int] = []
    found = profile(open_source(str(tmp_path / "a.csv")), "y", most=1000, progress=seen.append)
    assert (found.rows, found.complete, found.columns["x"].high) == (1000, False, 999)
    assert seen == [1000]


def test_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,x\n")
    with pytest.raises(DataError, match="no rows"):
        profile(open_source(str(tmp_path / "a.csv")), "y")
