from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from satrap.data.dataset import open_source
from satrap.errors import ConfigError, DataError
from satrap.init.label import Target, choose_label
from satrap.init.profile import profile


def chosen(values: Any, **asked: Any) -> Target:
    return choose_label(profile(open_source({"y": values}), "y"), "y", **asked)


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
        ([1, 2, 3, 3, 4, 4, 4, 5], {"threshold": 4.0}, 0.5),
    ],
)
def test_what_counts_as_one(values: list[Any], keys: dict[str, Any], share: float) -> None:
    target = chosen(values)
    assert target.keys == keys
    assert target.share == share
    assert target.of(pa.array(values)).mean() == share


def test_asked_for() -> None:
    assert chosen(["a", "b", "c"], positive=["b"]).keys == {"positive": ["b"]}
    target = chosen([1.5, 2.5, 3.5], threshold=2.0)
    np.testing.assert_array_equal(target.of(pa.array([1.5, 2.0, 3.5])), [0, 1, 1])
    assert target.share == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("values", "asked", "kind", "match"),
    [
        (["a", "b", "c"], {}, DataError, r"3 values: a, b, c[\s\S]*--positive"),
        ([0, 1, 2], {}, DataError, r"3 values: 0, 1, 2[\s\S]*--threshold"),
        (list(range(2000)), {}, DataError, r"more than 1000 values[\s\S]*--threshold"),
        ([1, 1, 1], {}, DataError, "the same value in all rows: 1"),
        ([0, 1, None], {}, DataError, "missing in 1 of 3 rows"),
        (["a", "b"], {"threshold": 1.0}, ConfigError, "needs numbers"),
        ([1, 2, 3], {"threshold": 7.0}, ConfigError, "all rows the same label"),
        (["a", "b", "c"], {"positive": ["d"]}, ConfigError, "'d' is no value of 'y'"),
    ],
)
def test_a_label_that_cannot_be_learned(
    values: list[Any], asked: dict[str, Any], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        chosen(values, **asked)
