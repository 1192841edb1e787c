"""Vectors of pairs: number format, and the feature that identifies items."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import satrap
from satrap.errors import ConfigError
from satrap.pairs import Pairs, key_of_items


def test_vectors_become_float32() -> None:
    half, ids = torch.ones(2, 3, dtype=torch.bfloat16), np.zeros(2, np.uint64)
    pairs = Pairs(half, half, ids, half, ids).float()
    assert [t.dtype for t in (pairs.queries, pairs.items, pairs.candidates)] == [torch.float32] * 3
    assert pairs.item_ids is ids


def test_the_first_feature_with_one_id_identifies_items() -> None:
    features: dict[str, satrap.schema.Feature] = {
        "price": satrap.Numeric(),
        "genres": satrap.Categorical(dim=2, multi=True),
        "movie": satrap.Categorical(dim=2),
    }
    schema = satrap.Schema([], features)
    assert key_of_items(schema, features) == "movie"
    with pytest.raises(ConfigError, match="no feature identifies the items"):
        key_of_items(schema, ["price", "genres"])
