"""Dicts of columns become the batches that a file with the same rows gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.data.python_batches import PythonBatches
from satrap.errors import DataError

SCHEMA = satrap.Schema(
    labels=["clicked"],
    features={
        "user": satrap.Categorical(dim=4, column="user_id"),
        "tags": satrap.Categorical(dim=4, multi=True),
        "price": satrap.Numeric(transform="log1p"),
    },
)
COLUMNS: dict[str, Any] = {
    "user_id": [7, 8, 7],
    "tags": [["a"], [], ["b", "a"]],
    "price": [1.0, 2.0, 3.0],
    "clicked": [0, 1, 1],
    "other": object(),
}


def test_a_batch_equals_that_of_a_table() -> None:
    batch = PythonBatches(SCHEMA).batch({**COLUMNS, "user_id": torch.tensor([7, 8, 7])})
    (read,) = satrap.data.read({k: v for k, v in COLUMNS.items() if k != "other"}, SCHEMA)
    for name, jagged in read.ids.items():
        np.testing.assert_array_equal(batch.ids[name].values, jagged.values)
        np.testing.assert_array_equal(batch.ids[name].offsets, jagged.offsets)
    assert batch.numeric is not None
    assert read.numeric is not None
    np.testing.assert_array_equal(batch.numeric, read.numeric)
    np.testing.assert_array_equal(batch.labels, read.labels)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"price": ["cheap", "2", "3"]}, "batch, row 1, column 'price'"),
        ({"price": [1.0]}, "column 'price' has 1 rows"),
        ({"tags": {"values": ["a"], "lengths": [2, 0, 0]}}, "(?s)offsets must ascend.*batch, column 'tags'"),
        ({"tags": [["a"], 1, 2]}, "batch, column 'tags'"),
    ],
)
def test_errors_name_the_column(change: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        PythonBatches(SCHEMA).batch({**COLUMNS, **change})


def test_a_missing_column_is_named() -> None:
    with pytest.raises(DataError, match=r"(?s)column 'clicked' is missing.*batch"):
        PythonBatches(SCHEMA).batch({k: v for k, v in COLUMNS.items() if k != "clicked"})
