from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from satrap.data.dataset import open_source
from satrap.init.alone import auc_alone
from satrap.init.profile import profile


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
