"""Every bucket has one owner, and the split is even."""

from __future__ import annotations

import json

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


@settings(deadline=None, max_examples=30)
@given(st.sets(st.integers(0, 9), min_size=1), st.integers(0, 999), st.integers(1, 99))
def test_a_map_of_any_owners_survives_as_plain_data(members: set[int], seed: int, length: int) -> None:
    owners = np.random.default_rng(seed).choice(np.array(sorted(members), np.uint16), 4096 // length + 1)
    owners = np.repeat(owners, length)[:4096]
    made = ShardMap(1).after(owners, members)
    again = ShardMap.from_dict(json.loads(json.dumps(made.to_dict())))
    assert (again, again.digest, again.epoch) == (made, made.digest, 2)
    assert again.members == sorted(members)
    np.testing.assert_array_equal(again.owners, owners)
    for shard in range(10):
        np.testing.assert_array_equal(np.flatnonzero(owners == shard), list(again.buckets(shard)))


def test_digests_tell_owners_and_members_apart() -> None:
    even, owners = ShardMap(2), ShardMap(2).owners
    assert even.digest == even.after(owners, [0, 1]).digest
    assert even.digest != even.after(owners[::-1], [0, 1]).digest
    assert even.digest != even.after(owners, [0, 1, 2]).digest


@pytest.mark.parametrize(
    "changes",
    [
        {"runs": [[0, 4095]]},
        {"runs": [[0, 4096, 1]]},
        {"runs": [[5, 4096]]},
        {"runs": [[0, 4097], [0, -1]]},
        {"absent": [0]},
        {"absent": [0, 1]},
        {"absent": ["x"]},
        {"digest": "0" * 16},
        {"runs": 7},
        {"shards": 1.5},
        {"runs": [[1, 2048], [0, 2048]]},
    ],
)
def test_impossible_plain_data_is_refused(changes: dict[str, object]) -> None:
    plain = ShardMap(2).after(ShardMap(2).owners, [0, 1]).to_dict()
    assert ShardMap.from_dict(plain).epoch == 2
    with pytest.raises((ConfigError, TypeError)):
        ShardMap.from_dict(plain | changes)
