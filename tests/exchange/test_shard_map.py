"""Every bucket has one owner, and the split is even."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import ConfigError
from satrap.exchange.servers import ShardMap
from tests.support.examples import examples


@settings(deadline=None)
@given(st.integers(1, 4096))
def test_every_bucket_has_one_owner_and_the_split_is_even(shards: int) -> None:
    made = ShardMap(shards)
    counts = np.bincount(made.owners, minlength=shards)
    assert len(counts) == shards
    assert counts.max() - counts.min() <= 1
    for shard in {0, shards // 2, shards - 1}:
        np.testing.assert_array_equal(np.flatnonzero(made.owners == shard), list(made.buckets(shard)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0,), "shards must be 1 to 4096, got 0"),
        ((4097,), "shards must be 1 to 4096, got 4097"),
        ((2, 0), "the epoch of a shard map must be 1 to 4294967295, got 0"),
        ((2, 2**32), "the epoch of a shard map must be 1 to 4294967295, got 4294967296"),
        ((2, 1, ((0, 4095),)), "the runs of a shard map must give each of 4096 buckets to a shard"),
        ((2, 1, ((0, 4096), (1, 0))), "the runs of a shard map must give each of 4096 buckets to a shard"),
        ((2, 1, ((2, 4096),)), "the runs of a shard map must give each of 4096 buckets to a shard"),
        ((2, 1, ((1, 4096),), (1,)), "the runs of a shard map must give each of 4096 buckets to a shard"),
    ],
)
def test_impossible_maps_are_refused(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ShardMap(*arguments)
    assert raised.value.what == said


def test_the_next_map_has_the_next_epoch_or_a_later_one() -> None:
    last = ShardMap(2, 2**32 - 1)
    assert last.epoch == 2**32 - 1
    made = ShardMap(2, 3)
    assert [made.after(made.owners, [0, 1], epoch=epoch).epoch for epoch in (0, 4, 5)] == [4, 4, 5]
    without = made.after(np.full(4096, 3, np.uint16), [1, 3])
    assert (without.shards, without.absent, without.runs) == (4, (0, 2), ((3, 4096),))
    assert made.to_dict() == {"shards": 2, "epoch": 3}


@settings(deadline=None, max_examples=examples(30))
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
    ("changes", "said"),
    [
        ({"runs": [[0, 4095]]}, "the runs of a shard map must"),
        ({"runs": [[0, 4096, 1]]}, r"ShardMap: runs\[0\] must be a list of whole numbers"),
        ({"runs": [[5, 4096]]}, "the runs of a shard map must"),
        ({"runs": [[0, 4097], [0, -1]]}, "the runs of a shard map must"),
        ({"absent": [0]}, "the runs of a shard map must"),
        ({"absent": [0, 1]}, "the runs of a shard map must"),
        ({"absent": ["x"]}, r"ShardMap: absent\[0\] must be a whole number, got 'x'"),
        ({"absent": [2**32]}, "the runs of a shard map must"),
        ({"absent": [7] * 100_000}, "the runs of a shard map must"),
        ({"digest": "0" * 16}, "the digest of a shard map does not match"),
        ({"shards": 1.5}, "ShardMap: shards must be a whole number, got 1.5"),
        ({"epoch": True}, "ShardMap: epoch must be a whole number, got True"),
        ({"shards": None}, "ShardMap: shards must be a whole number, got None"),
        ({"epoch": None}, "ShardMap: epoch must be a whole number, got None"),
        ({"runs": 7}, "ShardMap: runs must be a list"),
        ({"runs": [[1, 2048], [0, 2048]]}, "the digest of a shard map does not match"),
    ],
)
def test_impossible_plain_data_is_refused(changes: dict[str, object], said: str) -> None:
    plain = ShardMap(2).after(ShardMap(2).owners, [0, 1]).to_dict()
    assert ShardMap.from_dict(plain).epoch == 2
    with pytest.raises(ConfigError, match=said):
        ShardMap.from_dict(plain | changes)
