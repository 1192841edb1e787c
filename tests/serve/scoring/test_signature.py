"""The columns of requests: their order, and the kinds of their values."""

from __future__ import annotations

import satrap
from satrap.serve.scoring.signature import Signature


def test_columns_are_ids_then_numbers_and_each_counts_once() -> None:
    features = {
        "age": satrap.Numeric(),
        "user": satrap.Categorical(dim=2),
        "tags": satrap.Categorical(dim=2, multi=True),
        "decade": satrap.Categorical(dim=2, column="age", boundaries=[10.0, 20.0]),
    }
    found = Signature("m", satrap.Schema((), features), ("",), ["a", "b"], 8)
    assert found.kinds() == {
        "user": "id",
        "tags": "list of ids",
        "age": "number",
    }
    assert (found.columns, found.known) == ([*found.kinds()], frozenset(found.kinds()))
    assert (found.outputs, found.score_bytes, found.vectors) == (["a", "b"], 8, False)
