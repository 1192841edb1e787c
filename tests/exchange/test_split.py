"""Requests are split among shards by bucket, and each part says where its ids were."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.exchange import LookupRequest, TableGroup
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.split import EVERYWHERE, Splitter
from satrap.store import BUCKETS, bucket_of

GROUPS = [TableGroup(0, ("a",), 4), TableGroup(1, ("b", "c"), 4)]
IDS = np.random.default_rng(0).integers(0, 2**64, 300, np.uint64)
WANTED = LookupRequest(1, IDS, np.array([0, 100, 300]))


def test_one_shard_gets_the_whole_request() -> None:
    [part] = Splitter(GROUPS, ShardMap(1)).split(WANTED)
    assert part.gradients is None
    assert (part.ids.tolist(), part.splits.tolist()) == (IDS.tolist(), [0, 100, 300])


def test_each_shard_gets_the_ids_of_its_buckets_by_table() -> None:
    owners = np.full(BUCKETS, 2, np.uint16)
    splitter = Splitter(GROUPS, ShardMap(3), {"c": owners})
    even = ShardMap(3).owners[bucket_of("b", IDS[:100])]
    parts = splitter.split(WANTED)
    for shard, part in enumerate(parts):
        assert part.gradients is not None
        of_b, of_c = np.flatnonzero(even == shard), np.arange(100, 300) if shard == 2 else np.arange(0)
        assert part.gradients.tolist() == [*of_b, *of_c]
        assert part.splits.tolist() == [0, len(of_b), len(of_b) + len(of_c)]
        assert part.ids.tolist() == IDS[part.gradients].tolist()
    assert splitter.shards_of("b", IDS[:100]).tolist() == even.tolist()
    assert splitter.shards_of("c", IDS).tolist() == [2] * 300


def test_ids_that_are_everywhere_come_once_for_each_shard() -> None:
    splitter = Splitter(GROUPS, ShardMap(3), {"b": np.full(BUCKETS, EVERYWHERE, np.uint16)})
    even = ShardMap(3).owners[bucket_of("c", IDS[100:])]
    for shard, part in enumerate(splitter.split(WANTED)):
        of_c = 100 + np.flatnonzero(even == shard)
        assert part.gradients is not None
        assert part.gradients.tolist() == [*range(100), *of_c]
        assert part.splits.tolist() == [0, 100, 100 + len(of_c)]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (LookupRequest(2, IDS, np.array([0, 300])), "there is no group 2: there are 2"),
        (LookupRequest(-1, IDS, np.array([0, 300])), "there is no group -1: there are 2"),
        (LookupRequest(0, IDS.astype(np.int64), np.array([0, 300])), "ids"),
        (LookupRequest(1, IDS, np.array([0, 300])), "splits"),
        (LookupRequest(1, IDS, np.array([0, 200, 299])), "splits"),
    ],
)
def test_wrong_requests_are_refused(request_: LookupRequest, said: str) -> None:
    for shards in (1, 2):
        with pytest.raises(StoreError, match=said):
            Splitter(GROUPS, ShardMap(shards)).split(request_)
    assert Splitter(GROUPS, ShardMap(2)).checked(WANTED).ids.tolist() == IDS.tolist()
