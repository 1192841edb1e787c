"""What a batch says of its features, and what a model is told when it asks for what is not there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.batch import EmbeddedBatch, Jagged
from satrap.errors import ConfigError


def test_a_misspelt_feature_brings_the_nearest_one() -> None:
    user = torch.zeros(2, 4)
    batch = EmbeddedBatch(2, {"user": user, "item": torch.ones(2, 4)}, torch.zeros(2, 1))
    assert batch["user"] is user
    with pytest.raises(ConfigError, match="no embedding of feature 'usr'") as caught:
        batch["usr"]
    assert caught.value.fix.startswith("did you mean 'user'? use one of user, item; numeric features are")
    with pytest.raises(ConfigError) as caught:
        batch["price"]
    assert caught.value.fix.startswith("use one of user, item; numeric features are columns of batch.numeric")


def test_a_feature_is_single_where_each_sample_has_one_id_and_no_weight() -> None:
    ids = np.arange(2, dtype=np.uint64)
    assert Jagged(ids).single
    assert not Jagged(ids, np.array([0, 0, 2])).single
    assert not Jagged(ids, weights=np.ones(2, np.float32)).single
