from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from satrap.data.dataset import open_source
from satrap.tools.init.leakage import auc_alone, one_label
from satrap.tools.init.profile import profile


def alone(values: object, target: np.ndarray) -> float:
    column = profile(open_source({"y": target, "x": values}), "y").columns["x"]
    return auc_alone(column, pa.array(values), target)


def test_numbers_are_scored_by_themselves_in_both_directions() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=3000)
    target = (x + random.normal(size=3000) > 0).astype(float)
    expected = roc_auc_score(target, x)
    assert alone(x, target) == pytest.approx(expected, abs=1e-6)
    assert alone(-x, target) == pytest.approx(expected, abs=1e-6)


def test_a_copy_of_the_label_tells_all_and_noise_nothing() -> None:
    random = np.random.default_rng(2)
    target = random.integers(0, 2, 4000).astype(float)
    assert alone([f"class {int(t)}" for t in target], target) == 1
    assert alone(random.integers(0, 2000, 4000), target) < 0.56  # rows of their own score nothing


def test_a_category_is_worth_what_its_label_rates_are() -> None:
    random = np.random.default_rng(3)
    codes = random.integers(0, 5, 20_000)
    rates = np.array([0.1, 0.5, 0.3, 0.9, 0.7])
    target = (random.random(20_000) < rates[codes]).astype(float)
    assert alone([f"c{code}" for code in codes], target) == pytest.approx(
        roc_auc_score(target, rates[codes]), abs=0.01
    )


def test_one_class_or_lists_have_none() -> None:
    assert np.isnan(alone([1, 2, 3], np.zeros(3)))


def test_a_row_is_scored_by_the_other_half() -> None:
    random = np.random.default_rng(6)
    codes, target = random.integers(0, 4, 60), random.integers(0, 2, 60).astype(float)
    scores = []
    for i, code in enumerate(codes):
        others = [target[j] for j in range(len(codes)) if j % 2 != i % 2 and codes[j] == code]
        scores.append((sum(others) + target.mean()) / (len(others) + 1))
    expected = roc_auc_score(target, scores)
    assert expected > 0.5
    assert alone([f"c{code}" for code in codes], target) == pytest.approx(expected, abs=1e-6)


def test_rows_without_a_number_tell_nothing() -> None:
    values = np.where(np.arange(40) % 4 == 0, np.nan, np.arange(40.0))
    target = (np.arange(40) >= 20).astype(float)
    assert alone(values, target) == 0.75 * 1 + 0.25 * 0.5


def test_neither_one_class_nor_a_list_has_an_auc() -> None:
    assert np.isnan(alone([1, 2, 3], np.ones(3)))
    assert np.isnan(alone([[1], [2], [3, 4]], np.array([0.0, 1.0, 1.0])))


def told(values: Any, target: np.ndarray, *, each: bool = True, columns: int = 10) -> str | None:
    column = profile(open_source({"y": target, "x": values}), "y").columns["x"]
    return one_label(column, pa.array(values), target, each=each, columns=columns)


def labels(rows: int, share: float) -> np.ndarray:
    """0 and 1, as many of these as the share says, in a random order."""
    return np.random.default_rng(8).permutation((np.arange(rows) < share * rows).astype(float))


def test_what_is_filled_in_only_with_one_label_is_told() -> None:
    target = labels(4000, 0.25)
    some = (target == 1) & (np.arange(4000) % 3 == 0)
    count = f"{int(some.sum())} rows"
    for values in (
        some.astype(int),
        np.where(some, np.random.default_rng(1).lognormal(size=4000), 0.0),
        np.where(some, np.arange(4000) % 300, 7000),  # all different from one value
    ):
        assert f"the label is 1 in all {count} without value" in (told(values, target, each=False) or "")
    for values in (
        [f"t{i}" if there else None for i, there in enumerate(some)],
        [[i, 2] if there else [] for i, there in enumerate(some)],
        [0.5 if there else None for there in some],
    ):
        assert f"the label is 1 in all {count} with a value, in 25% of" in (told(values, target) or "")
    lists = [[1] if there else None for there in ~some]
    assert f"the label is 1 in all {count} without a value" in (told(lists, target) or "")


def test_a_value_of_several_with_one_label_is_told_unless_it_is_an_id() -> None:
    target = labels(4000, 0.4)
    values = np.random.default_rng(2).choice(["seen", "open", "late"], 4000).astype(object)
    values[np.flatnonzero(target == 1)[:200]] = "paid"
    assert told(values, target) == "the label is 1 in all 200 rows with value 'paid', in 40% of all rows"
    assert told(values, target, each=False) is None
    values[values == "paid"] = None
    assert told(values, target) == "the label is 1 in all 200 rows without a value, in 40% of all rows"
    values[np.flatnonzero(target == 0)[0]] = None
    assert told(values, target) is None
    values = np.random.default_rng(2).integers(0, 200, 4000)  # too many values to be a category
    values[values == 7] = 8
    values[np.flatnonzero(target == 1)[:60]] = 7
    assert told(values, target) is None


@pytest.mark.parametrize(
    ("rows", "share", "pure", "label", "told_of"),
    [
        (4000, 0.4, 50, 1, True),
        (4000, 0.4, 49, 1, False),
        (4000, 0.6, 50, 0, True),
        (4000, 0.66, 70, 1, True),  # 0.66**70 * 10 * 81 is 2e-10
        (4000, 0.66, 50, 1, True),  # 8e-7
        (8000, 0.66, 50, 1, False),  # in twice the rows there are twice as many values: 1.5e-6
        (8000, 0.66, 52, 1, True),  # 7e-7
        (4000, 0.67, 2000, 1, False),  # a usual label
        (4000, 0.95, 2000, 1, False),
        (4000, 0.95, 60, 0, True),
    ],
)
def test_limits_of_one_label(rows: int, share: float, pure: int, label: int, told_of: bool) -> None:
    """Ten columns, in each of which at most one value of 50 rows or more begins with every 50th row."""
    target = labels(rows, share)
    values = np.random.default_rng(3).choice(["a", "b", "c"], rows).astype(object)
    values[np.flatnonzero(target == label)[:pure]] = "pure"
    assert (told(values, target) is not None) == told_of


def test_tables_of_chance_and_strong_categories_are_not_told_of() -> None:
    """75 random columns, and categories with rates of 2 % to 97 %."""
    random = np.random.default_rng(9)
    for share in 0.05, 0.3, 0.5, 0.7, 0.97:
        target = (random.random(5000) < share).astype(float)
        for most in 2, 20, 100:
            for _ in range(5):
                assert told(random.integers(0, most, 5000), target, columns=1000) is None
    codes = random.integers(0, 20, 5000)
    target = (random.random(5000) < np.linspace(0.02, 0.97, 20)[codes]).astype(float)
    assert told([f"c{code}" for code in codes], target) is None


def test_neither_one_class_nor_a_structure_is_told_of() -> None:
    assert told(["a", "b"] * 100, np.ones(200)) is None
    assert told([{"a": 1}, None] * 100, labels(200, 0.5)) is None
