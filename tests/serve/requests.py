"""Bodies of requests for rows of a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


def plain(table: pd.DataFrame) -> dict[str, list[Any]]:
    """Return columns as JSON has them."""
    return {name: [_plain(value) for value in table[name]] for name in table}


def _plain(value: Any) -> Any:
    if isinstance(value, list | np.ndarray):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def assert_scores(found: dict[str, Any], expected: dict[str, list[Any]], rows: Any = slice(None)) -> None:
    """The scores are those of `satrap predict`, within 1e-6."""
    assert list(found) == list(expected)
    for name, values in expected.items():
        wanted: npt.NDArray[np.float64] = np.array(values)[rows]
        np.testing.assert_allclose(np.array(found[name]), wanted, rtol=1e-6, atol=1e-6)
