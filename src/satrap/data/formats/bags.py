"""Columns of a batch as Python programs hold them: tensors, and bags as values with offsets or lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from satrap.data.formats.columns import as_array
from satrap.errors import DataError


def with_bags(values: Any) -> Any:
    """Return a column with bags as an Arrow array of lists; any other column unchanged.

    Bags are (values, offsets) of two tensors or arrays, {"values": ..., "offsets" or "lengths": ...}, or an
    object with methods `values` and `offsets`, such as a nested tensor of PyTorch.

    Raises:
        DataError: the offsets or lengths do not fit the values.
    """
    if isinstance(values, tuple) and len(values) == 2 and all(hasattr(part, "dtype") for part in values):
        return _lists(*values)
    if isinstance(values, Mapping) and "values" in values:
        if "lengths" in values:
            return _lists(values["values"], np.append(0, np.cumsum(_whole(values["lengths"]))))
        if "offsets" in values:
            return _lists(values["values"], values["offsets"])
    if callable(getattr(values, "values", None)) and callable(getattr(values, "offsets", None)):
        return _lists(values.values(), values.offsets())
    return values


def _lists(values: Any, offsets: Any) -> pa.Array:
    ids, bounds = as_array(values), _whole(offsets)
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(ids) or (np.diff(bounds) < 0).any():
        raise DataError(
            f"offsets must ascend from 0 to the number of values, {len(ids)}, got {_shown(bounds)}",
            why="there is one offset more than samples: sample i has the values from offset i to i + 1",
            fix='append the number of values, or give {"values": ..., "lengths": ...}',
        )
    return pa.LargeListArray.from_arrays(pa.array(bounds), ids)


def _whole(values: Any) -> np.ndarray:
    array = as_array(values)
    if not pa.types.is_integer(array.type) or array.null_count:
        raise DataError(f"offsets and lengths are whole numbers, got values of type {array.type}")
    return np.asarray(array.to_numpy(zero_copy_only=False), np.int64)


def _shown(bounds: np.ndarray) -> str:
    return f"{bounds.tolist()}" if len(bounds) <= 6 else f"{bounds[:3].tolist()} ... {int(bounds[-1])}"
