"""Features are pooled when they are first asked for, once."""

from __future__ import annotations

import pytest
import torch

from satrap.batch import JaggedRows
from satrap.embedding.lazy import LazyBlocks, LazyFeatures


def test_blocks_are_made_at_first_use_and_once() -> None:
    made: list[int] = []

    def make() -> list[tuple[tuple[str, ...], torch.Tensor]]:
        made.append(1)
        return [(("a",), torch.zeros(2, 1, 3)), (("b", "c"), torch.ones(2, 2, 3))]

    blocks = LazyBlocks(make)
    assert made == []
    assert len(blocks) == 2
    assert blocks[1][0] == ("b", "c")
    assert [names for names, _ in blocks[:1]] == [("a",)]
    assert [names for names, _ in blocks] == [("a",), ("b", "c")]
    assert made == [1]


def test_features_come_in_the_order_of_the_schema_each_with_its_own() -> None:
    block = torch.arange(12.0).view(2, 2, 3)
    rows, asked = JaggedRows(torch.ones(4, 3), torch.tensor([0, 1, 4])), list[int]()

    def jagged() -> dict[str, JaggedRows]:
        asked.append(1)
        return {"history": rows}

    features = LazyFeatures(["c", "history", "a"], LazyBlocks(lambda: [(("a", "c"), block)]), jagged)
    assert list(features) == ["c", "history", "a"]
    assert len(features) == 3
    assert asked == []
    assert torch.equal(features["a"], block[:, 0])
    assert torch.equal(features["c"], block[:, 1])
    assert features["history"] is rows
    assert asked == [1]
    with pytest.raises(KeyError):
        features["b"]
