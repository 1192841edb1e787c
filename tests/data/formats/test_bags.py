"""Bags as Python programs hold them become Arrow lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from satrap.data.formats.bags import with_bags
from satrap.errors import DataError

LISTS = [[3, 4], [], [5]]


@pytest.mark.parametrize(
    "given",
    [
        (np.array([3, 4, 5]), np.array([0, 2, 2, 3])),
        (torch.tensor([3, 4, 5]), torch.tensor([0, 2, 2, 3], dtype=torch.int32)),
        {"values": [3, 4, 5], "lengths": [2, 0, 1]},
        {"values": torch.tensor([3, 4, 5]), "offsets": [0, 2, 2, 3]},
    ],
)
def test_bags_become_lists(given: Any) -> None:
    assert with_bags(given).to_pylist() == LISTS


@pytest.mark.parametrize("given", [LISTS, (1, 2), ([1], [2]), np.arange(3), {"a": 1}, "text", None])
def test_other_columns_stay(given: Any) -> None:
    assert with_bags(given) is given


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 2], r"ascend from 0 to the number of values, 3, got \[0, 2\]"),
        ([1, 3], "ascend from 0"),
        ([0, 2, 1, 3], "ascend from 0"),
        (np.arange(0), "ascend from 0"),
        ([0, 2, None, 3], "whole numbers"),
        ([0.0, 3.0], "whole numbers, got values of type double"),
        ([0, *[1] * 9, 2], r"got \[0, 1, 1\] ... 2"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(offsets: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        with_bags({"values": [3, 4, 5], "offsets": offsets})
