"""The items of a data set, against counts with pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import satrap
from satrap.data import catalogue
from satrap.data.catalogue import Catalogue, seeded_by
from satrap.errors import DataError
from satrap.pairs import TrainedEvents

FEATURES = {
    "user": satrap.Categorical(dim=2),
    "price": satrap.Numeric(),
    "item": satrap.Categorical(dim=2),
    "size": satrap.Numeric(),
    "tags": satrap.Categorical(dim=2, multi=True, separator="|"),
}
SCHEMA = satrap.Schema(["liked"], FEATURES)


def frame(rows: int = 500) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    item = rng.zipf(1.6, rows) % 40
    return pd.DataFrame(
        {
            "user": rng.integers(0, 9, rows),
            "price": rng.random(rows),
            "item": [f"i{n}" if n else None for n in item],
            "size": item * 2.0,
            "tags": [f"t{n % 3}|t{n % 5}" for n in item],
            "liked": rng.integers(0, 2, rows),
        }
    )


def ids_of(values: list[str]) -> np.ndarray:
    schema = satrap.Schema([], {"item": FEATURES["item"]})
    return next(iter(satrap.data.read({"item": values}, schema).batches())).ids["item"].values


@pytest.mark.parametrize("implicit", [False, True])
def test_items_and_counts_are_those_of_the_rows(implicit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "ROWS", 64)
    rows = frame()
    schema = satrap.Schema([satrap.Label(name="seen", implicit=True)], FEATURES) if implicit else SCHEMA
    items = Catalogue.of(satrap.data.read(rows, schema), ["item", "size", "tags"])
    expected = (
        (rows if implicit else rows[rows.liked == 1]).dropna().groupby("item")["size"].agg(["count", "first"])
    )
    places = items.find(ids_of(list(expected.index)))
    assert len(items) == len(expected)
    assert (np.diff(items.ids.astype(float)) > 0).all()
    np.testing.assert_array_equal(items.counts[places], expected["count"])
    columns = schema.numeric_columns
    assert items.items.numeric is not None
    np.testing.assert_array_equal(items.items.numeric[places, columns["size"]][:, 0], expected["first"])
    assert not items.items.numeric[:, columns["price"]].any()
    assert items.items.ids.keys() == {"item", "tags"}
    assert items.items.ids["tags"].offsets is not None


@pytest.mark.parametrize(
    ("first", "share", "counts"),
    [(False, 1.0, [2, 1, 0]), (True, 1.0, [2, 1, 2]), (True, 0.25, [1.25, 1, 0.5])],
)
def test_events_of_histories_count_as_often_as_training_predicts_them(
    first: bool, share: float, counts: list[float]
) -> None:
    past = satrap.Categorical(dim=2, multi=True, pooling="none", sequence="past", table="item", max_values=2)
    schema = satrap.Schema(
        [satrap.Label(name="seen", implicit=True)], {"item": FEATURES["item"], "past": past}
    )
    rows = {"item": ["a", "b", None], "past": [["c", "a"], ["c", None], ["d"]]}
    events = TrainedEvents({"past": "item"}, first=first, share=share)
    items = Catalogue.of(satrap.data.read(rows, schema), ["item"], events)
    assert len(items) == 3  # a row without an item does not count, nor do its events
    np.testing.assert_array_equal(items.counts[items.find(ids_of(["a", "b", "c"]))], counts)
    assert items.items.ids.keys() == {"item"}


def test_unknown_ids_have_no_place_and_no_share() -> None:
    items = Catalogue.of(satrap.data.read(frame(), SCHEMA), ["item"])
    unknown = ids_of(["never", "i1"])
    assert items.find(unknown)[0] == -1
    assert items.shares(unknown)[0] == 0
    assert items.shares(items.ids).sum() == pytest.approx(1)
    np.testing.assert_allclose(items.shares(items.ids, 0.0), 1 / len(items))


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_draws_follow_the_counts(power: float) -> None:
    items = Catalogue.of(satrap.data.read(frame(), SCHEMA), ["item", "size"])
    drawn = items.draw(40_000, power, np.random.default_rng(1))
    counts = np.bincount(items.find(drawn.ids["item"].values), minlength=len(items))
    expected = 40_000 * items.counts**power / (items.counts**power).sum()
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 1).all()


def test_seeds_are_a_function_of_the_ids() -> None:
    batches = [next(iter(satrap.data.read(frame(n), SCHEMA).batches())) for n in (20, 20, 21)]
    numbers = [seeded_by(batch, "item", 3, 4).random() for batch in batches]
    assert numbers[0] == numbers[1] != numbers[2]
    assert seeded_by(batches[0], "item", 3, 5).random() != numbers[0]


def test_rows_without_items_are_an_error() -> None:
    rows = frame().assign(item=None).astype({"item": "string"})
    with pytest.raises(DataError, match="no row has an item"):
        Catalogue.of(satrap.data.read(rows, SCHEMA), ["item"])


def test_joined_items_are_those_of_all_rows() -> None:
    rows = frame()
    parts = [
        Catalogue.of(satrap.data.read(part, SCHEMA), ["item", "size", "tags"])
        for part in (rows[:100], rows[100:])
    ]
    both, whole = (
        parts[0].joined(parts[1]),
        Catalogue.of(satrap.data.read(rows, SCHEMA), ["item", "size", "tags"]),
    )
    np.testing.assert_array_equal(both.ids, whole.ids)
    np.testing.assert_array_equal(both.counts, whole.counts)
    np.testing.assert_array_equal(both.items.numeric, whole.items.numeric)
    tags, expected = both.items.ids["tags"], whole.items.ids["tags"]
    np.testing.assert_array_equal(tags.values, expected.values)
