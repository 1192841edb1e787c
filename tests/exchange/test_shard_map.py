"""Every bucket has one owner, and the split is even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import ConfigError
from satrap.exchange.servers import ShardMap


@settings(deadline=None)
@given(st.integers(1, 4096))
def test_every_bucket_has_one_owner_and_the_split_is_even(shards: int) -> None:
    made = ShardMap(shards)
    counts = np.bincount(made.owners, minlength=shards)
    assert len(counts) == shards
    assert counts.max() - counts.min() <= 1
    for shard in {0, shards // 2, shards - 1}:
        np.testing.assert_array_equal(np.flatnonzero(made.owners == shard), list(made.buckets(shard)))


@pytest.mark.parametrize("arguments", [(0,), (4097,), (2, 0), (2, 2**32)])
def test_impossible_maps_are_refused(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        ShardMap(*arguments)
