from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.data.dataset import open_source
from satrap.tools.init.kinds import Decision, decide
from satrap.tools.init.profile import profile
from tests.support.examples import examples

RANDOM = np.random.default_rng(7)
ROWS = 2000


MONTHS = [f"{datetime.date(2024, month, 1):%B}" for month in range(1, 13)]


def decided(name: str, values: Any) -> Decision:
    found = profile(open_source({"y": [0] * len(values), name: values}), "y")
    return decide(found.columns[name], found.sample.column(name).chunk(0))


def repeated(values: list[Any]) -> list[Any]:
    return [values[i] for i in RANDOM.integers(0, len(values), ROWS)]


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("color", repeated(["red", "green", "blue"]), "category"),
        ("flag", repeated(["0", "1"]), "category"),
        ("user_id", repeated(list(range(300))), "category"),
        ("userId", [float(v) for v in repeated(list(range(300)))], "category"),
        ("hashed", repeated([10**12 + 7 * i for i in range(50)]), "category"),
        ("price", RANDOM.normal(size=ROWS).tolist(), "number"),
        ("price", [f"{v:.3f}" for v in RANDOM.normal(size=ROWS)], "number"),
        ("age", repeated(list(range(18, 80))), "number"),
        ("genres", [f"{a}|{b}" for a, b in RANDOM.choice(list("ABCDEFGHIJ"), (ROWS, 2))], "values"),
        ("tags", [["a", "b"], ["c"]] * 50, "values"),
        ("vector", [[0.1, 0.7], [], [0.2, 0.3], None] * 50, "vector"),
        ("points", [[0.1, 0.7], [0.2]] * 50, "unused"),
        ("endless", [[0.1, 0.7], [0.2, float("inf")]] * 50, "unused"),
        ("created_at", [1_600_000_000 + i * 37 % 99999 for i in range(ROWS)], "time"),
        ("when", [f"2024-0{1 + i % 9}-1{i % 10} 08:00:00" for i in range(ROWS)], "time"),
        ("day", [f"{1 + i % 28}/0{1 + i % 9}/2023" for i in range(ROWS)], "time"),
        ("when", [datetime.datetime(2024, 1, 1 + i % 28) for i in range(ROWS)], "time"),
        ("row", list(range(ROWS)), "unused"),
        ("order_id", RANDOM.permutation(ROWS).tolist(), "unused"),
        ("key", [f"k{i:x}" for i in range(ROWS)], "unused"),
        ("nothing", [None] * ROWS, "unused"),
        ("same", ["x"] * ROWS, "unused"),
        ("json", repeated(['{"a": 1}', '{"a": 2, "b": [3]}']), "unused"),
        ("review", [f"it is a story of {i} men who like {i % 7} things" for i in range(ROWS)], "unused"),
        ("mixed", repeated(["1", "2", "3", "a", "b", "c", "d", "e", "f", "g"]), "category"),
        ("size", [*repeated(["3", "4", "5.5", "7"]), "unknown", "-"], "number"),
        ("size", [*[f"{v:.2f}" for v in RANDOM.normal(size=ROWS)], *["-"] * (ROWS // 2)], "number"),
        ("grade", repeated(["1", "2", "3", "none"]), "category"),
        ("sold", [f"{1 + i % 28} {MONTHS[i % 12]} {2000 + i % 20}" for i in range(ROWS)], "unused"),
        ("sold", [f"{MONTHS[i % 12][:3]} {1 + i % 28:02}, 2013" for i in range(ROWS)], "unused"),
        ("sold", [f"{MONTHS[i % 12]} sale {2000 + i % 20}" for i in range(ROWS)], "category"),
        ("date", [20_130_000 + 100 * (1 + i % 12) + 1 + i % 28 for i in range(ROWS)], "unused"),
        ("date", [20_130_000 + i % 100 for i in range(ROWS)], "number"),
        ("paid", [f"${i % 300:,.2f}" for i in range(ROWS)], "category"),
        ("infinite", [float(i % 9) for i in range(ROWS)] + [float("inf")], "unused"),
    ],
)
def test_kinds(name: str, values: Any, kind: str) -> None:
    assert decided(name, values).kind == kind


def test_what_may_be_an_id_or_a_number_is_both() -> None:
    decision = decided("x", list(range(600)) * 20)
    assert (decision.kind, decision.also_id) == ("number", True)
    assert not decided("x", list(range(600)) * 19).also_id  # too few rows of each
    assert not decided("x", (10 * RANDOM.normal(size=ROWS)).tolist()).also_id


def test_a_number_with_a_sign_is_said_to_be_one() -> None:
    for text in ("${}", "{} €", "{}%", "-£{}"):
        assert "remove the sign in" in decided("x", [text.format(i % 50) for i in range(ROWS)]).why
    assert "sign" not in decided("x", [f"u{i % 50}" for i in range(ROWS)]).why


def test_separators() -> None:
    parts = RANDOM.choice([f"p{i}" for i in range(12)], (ROWS, 3))
    for separator in "|", ";", ",":
        decision = decided("x", [separator.join(row) for row in parts])
        assert (decision.kind, decision.separator) == ("values", separator)
    names = [f"Name{i}, First{i}" for i in range(40)]  # the same parts always stand together
    assert decided("author", repeated(names)).kind == "category"


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.text("abcxyz| ,;.", min_size=1, max_size=12), min_size=2, max_size=60))
def test_any_text_has_a_kind_and_a_reason(values: list[str]) -> None:
    decision = decided("x", values)
    assert decision.kind in ("category", "values", "unused")
    assert decision.why


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(-(10**6), 10**6), min_size=5, max_size=60), st.sampled_from(["x", "item_id"]))
def test_a_column_has_the_same_kind_as_number_and_as_text(values: list[int], name: str) -> None:
    kinds = {
        decided(name, form).kind for form in (values, [str(v) for v in values], [float(v) for v in values])
    }
    assert len(kinds) == 1


def test_arrow_types_without_text() -> None:
    table = pa.table({"y": [0, 1], "at": pa.array([datetime.time(1), datetime.time(2)])})
    found = profile(open_source(table), "y")
    assert decide(found.columns["at"], found.sample.column("at").chunk(0)).kind == "category"


def shuffled(values: list[Any]) -> list[Any]:
    return [*values[1:], values[0]]


def of_ids(rows: int, distinct: int) -> list[int]:
    return shuffled([i % distinct for i in range(rows)])


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("order_id", of_ids(99, 99), "whole numbers used as ids"),
        ("order_id", of_ids(100, 90), "a different id in almost every row"),
        ("order_id", of_ids(100, 89), "whole numbers used as ids"),
        ("x", [2, 1, 2, 1], "binary"),
        ("x", [1, 2, 4], "a row number"),
        ("x", [7, 5, 2**31], "whole numbers used as ids"),
        ("x", [9, 7, 2**31 - 1], "a number"),
        ("x", [9, 7, -(2**31)], "whole numbers used as ids"),
        ("x", [9, 7, 1 - 2**31], "a number"),
        (
            "date",
            [19000101, 21001231, 20240131],
            "days as numbers: write them as 2024-01-31 to use them as times",
        ),
        ("x", [19000101, 21001231, 20240131], "a number"),
        *(
            ("date", [20240131, 20240105, day], "a number")
            for day in (20240100, 20240132, 20240001, 20241301)
        ),
        *(("date", [20240131, 20240105, day], "a number") for day in (19000100, 21001232)),
        ("day", [300_000_000, 3_999_999_999, 400_000_000], "a time"),
        ("x", [300_000_000, 399_999_999, 350_000_000], "a number"),
        ("day", [299_999_999, 2**31 - 1, 400_000_000], "a number"),
        ("day", [4_000_000_000, 300_000_000, 400_000_000], "whole numbers used as ids"),
        ("day", [300_000_000_000, 3_999_999_999_999, 400_000_000_000], "a time"),
        ("day", [299_999_999_999, 3_999_999_999_999, 400_000_000_000], "whole numbers used as ids"),
        ("day", [300_000_000_000, 4_000_000_000_000, 400_000_000_000], "whole numbers used as ids"),
        ("day", [300_000_000.5, 300_000_001.0, 300_000_000.0], "a number"),
        ("x", [f"${i}" for i in range(20)] * 2, "a category"),
        ("x", [f"${i}" for i in range(21)] * 2, "a category; remove the sign in '$0' to use it as a number"),
        (
            "x",
            [f"{i} " + "a b c d e" for i in range(31)] + ["x 1 2 3 4 5"] * 69,
            "free text: not supported yet",
        ),
        ("x", [f"{i} " + "a b c d e" for i in range(29)] + ["x 1 2 3 4 5"] * 71, "a category"),
        ("x", [f"{i} " + "a b c d" for i in range(31)] + ["x 1 2 3 4"] * 69, "a category"),
        ("x", ["p", "q", "r"] * 2 + ["1"] * 6, "numbers and text mixed"),
        ("x", ["p", "q", "r"] * 2 + ["1"] * 5, "a category"),
    ],
)
def test_limits(name: str, values: list[Any], why: str) -> None:
    assert decided(name, values).why == why


def test_limits_of_what_is_both() -> None:
    """At least 300 values, a tenth of the numbers between them, each in 20 rows."""
    assert decided("x", list(range(300)) * 20).also_id
    assert not decided("x", list(range(299)) * 20).also_id
    assert decided("x", list(range(0, 3000, 10)) * 20).also_id
    assert not decided("x", list(range(0, 3300, 11)) * 20).also_id
