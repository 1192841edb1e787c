from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from satrap.data.dataset import open_source
from satrap.errors import ConfigError, DataError
from satrap.tools.init.label import LabelChoice, choose_label
from satrap.tools.init.profile import profile

RANDOM = np.random.default_rng(3)


def chosen(values: Any, name: str = "y", **asked: Any) -> LabelChoice:
    return choose_label(profile(open_source({name: values}), name), name, **asked)


@pytest.mark.parametrize(
    ("values", "keys", "share"),
    [
        ([0, 1, 1, 1], {}, 0.75),
        (["0", "1.0", "1", "0.0"], {}, 0.5),
        ([True, False, False, False], {}, 0.25),
        (["true", "false", "true", "false"], {}, 0.5),
        (["no", "yes", "yes", "yes"], {"positive": ["yes"]}, 0.75),
        ([-1, 1, 1, 1], {"positive": ["1"]}, 0.75),
        (["<=50K", "<=50K", ">50K", "<=50K"], {"positive": [">50K"]}, 0.25),
    ],
)
def test_what_counts_as_one(values: list[Any], keys: dict[str, Any], share: float) -> None:
    target = chosen(values)
    assert target.keys == keys
    assert target.share == share
    assert target.questions(pa.array(values))[0].mean() == share


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        (RANDOM.normal(1e6, 1e5, 500), {"kind": "regression", "loss": "squared"}),
        ([str(v) for v in range(18, 90)], {"kind": "regression", "loss": "squared"}),
        (RANDOM.poisson(RANDOM.gamma(1, 5, 2000)), {"kind": "regression", "loss": "poisson"}),
        ([*RANDOM.normal(size=2000), 400.0], {"kind": "regression", "loss": "huber"}),
        (list("abcb") * 3, {"kind": "multiclass", "classes": ["a", "b", "c"]}),
        ([0, 1, 2, 1] * 3, {"kind": "multiclass", "classes": 3}),
        ([1.0, 2.0, 10.0] * 3, {"kind": "multiclass", "classes": ["1.0", "2.0", "10.0"]}),
    ],
)
def test_numbers_and_classes(values: Any, keys: dict[str, Any]) -> None:
    target = chosen(values)
    assert {key: target.keys[key] for key in keys} == keys
    assert target.why


def test_a_rating_has_a_threshold_and_other_numbers_are_classes() -> None:
    values = [1, 2, 3, 3, 4, 4, 4, 5]
    target = chosen(values, "Book-Rating")
    assert (target.keys, target.share) == ({"threshold": 4.0}, 0.5)
    assert target.questions(pa.array(values))[0].mean() == 0.5
    assert chosen(values * 2, "sort").kind == "multiclass"
    assert chosen(values, "rating", kind="regression").keys == {"kind": "regression", "loss": "squared"}
    assert chosen([0, 1, 1, 0], kind="multiclass").keys["classes"] == 2


def test_questions_are_what_a_copy_of_the_label_tells() -> None:
    numbers = RANDOM.normal(size=1000)
    shares = [asked.mean() for asked in chosen(numbers).questions(pa.array(numbers))]
    assert shares == pytest.approx([0.5, 0.9, 0.1], abs=0.002)
    classes = list("aaaabbbccd") * 10
    shares = [asked.mean() for asked in chosen(classes).questions(pa.array(classes))]
    assert shares == pytest.approx([0.4, 0.3, 0.2])


def test_asked_for() -> None:
    assert chosen(["a", "b", "c"], positive=["b"]).keys == {"positive": ["b"]}
    target = chosen([1.5, 2.5, 3.5], threshold=2.0)
    np.testing.assert_array_equal(target.questions(pa.array([1.5, 2.0, 3.5]))[0], [0, 1, 1])
    assert target.share == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("values", "asked", "kind", "match"),
    [
        (["a", "b", "c"], {}, DataError, r"3 values in 3 rows[\s\S]*--positive"),
        ([f"t{i}" for i in range(2000)], {}, DataError, r"more than 1000 values[\s\S]*--positive"),
        ([*map(str, range(50)), "many"], {"kind": "regression"}, DataError, "is not a number: many"),
        (["a", "b", "c"] * 9, {"kind": "binary"}, ConfigError, "more than two values"),
        ([1, 2, 3], {"kind": "regression", "threshold": 2.0}, ConfigError, "not regression"),
        ([1, 1, 1], {}, DataError, "the same value in all rows: 1"),
        ([0, 1, None], {}, DataError, "missing in 1 of 3 rows"),
        (["a", "b"], {"threshold": 1.0}, ConfigError, "needs numbers"),
        ([1, 2, 3], {"threshold": 7.0}, ConfigError, "all rows the same label"),
        (["a", "b", "c"], {"positive": ["d"]}, ConfigError, "'d' is not a value of 'y'"),
    ],
)
def test_a_label_that_cannot_be_learned(
    values: list[Any], asked: dict[str, Any], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        chosen(values, **asked)


def spread(count: int, *, low: int = 1, high: int = 50) -> list[int]:
    """So many different whole numbers, each six times."""
    return [*range(low, low + count - 1), high] * 6


@pytest.mark.parametrize(
    ("values", "name", "keys"),
    [
        (["x", "w", "w", "x"], "y", {"positive": ["w"]}),
        (["x", "w", "w", "w"], "y", {"positive": ["x"]}),
        ([2.5, 7, 7, 7], "y", {"positive": ["7.0"]}),
        (spread(12), "y", {"kind": "multiclass"}),
        (spread(13), "y", {"kind": "regression", "loss": "squared"}),
        ([0.5, 1, 2] * 6, "y", {"kind": "regression", "loss": "squared"}),
        (spread(3), "rating", {"kind": "multiclass"}),
        (spread(4), "rating", {"threshold": 3.0}),
        (spread(25), "rating", {"threshold": 13.0}),
        (spread(26), "rating", {"kind": "regression", "loss": "squared"}),
        (spread(4, low=-10, high=100), "rating", {"threshold": -8.0}),
        (spread(4, low=-11), "rating", {"kind": "multiclass"}),
        (spread(4, high=101), "rating", {"kind": "multiclass"}),
    ],
)
def test_limits_between_kinds(values: list[Any], name: str, keys: dict[str, Any]) -> None:
    found = chosen(values, name).keys
    assert {key: value for key, value in found.items() if key != "classes"} == keys


@pytest.mark.parametrize(
    ("values", "loss"),
    [
        ([0] * 8 + [1000] * 2, "poisson"),  # its skewness is 1.5
        ([0] * 8 + [1001] * 2, "squared"),
        ([1] * 8 + [1000] * 2, "squared"),
        ([0] * 7 + [1000] * 3, "squared"),  # 0.87
        ([0.0] * 8 + [0.5, 1000], "squared"),
        ([-1] * 399 + [5], "squared"),  # the square root of 399 deviations from the mean
        ([-1] * 401 + [5], "huber"),
        ([5] * 401 + [-1], "huber"),
    ],
)
def test_losses_of_numbers(values: list[float], loss: str) -> None:
    assert chosen(values, kind="regression").keys == {"kind": "regression", "loss": loss}


def test_classes_have_two_rows_each_and_their_order() -> None:
    assert chosen(list("abcabc")).keys["classes"] == ["a", "b", "c"]
    with pytest.raises(DataError, match="3 values in 5 rows"):
        chosen(list("abcab"))
    assert chosen(["10", "9", "x"] * 2, kind="multiclass").keys["classes"] == ["x", "9", "10"]


def test_a_threshold_divides_the_rows() -> None:
    assert chosen([1, 2, 3], threshold=3.0).share == pytest.approx(1 / 3)
    assert chosen([1, 2, 3], threshold=1.5).share == pytest.approx(2 / 3)
    for threshold in (1.0, 3.5):
        with pytest.raises(ConfigError, match="all rows the same label"):
            chosen([1, 2, 3], threshold=threshold)
    assert chosen(["a", "b", "b", "c"], positive=["b", "c"]).share == 0.75
