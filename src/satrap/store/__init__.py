"""The embedding rows of one process, and the batch operations around them.

`Shard` holds the rows of many tables: it creates, reads and trains them. `distinct`, `segment_sum`,
`pool` and `gather_features` (with their backward forms) turn the ids of a batch into requests for unique
rows, and turn the rows into a model's input.
"""

from satrap.retention import Admission, Eviction
from satrap.settings.store import StoreConfig, TableSettings
from satrap.store.arrays import Slots
from satrap.store.batch_pooling import (
    distinct,
    gather_features,
    gather_features_backward,
    pool,
    pool_backward,
    segment_sum,
    sum_features,
)
from satrap.store.group import GroupStore
from satrap.store.hashes import BUCKETS, bucket_of
from satrap.store.memory.buffers import floats
from satrap.store.row_chunk import RowChunk
from satrap.store.shard import Shard, open_store
from satrap.store.snapshot.changes import Changes, Delta
from satrap.store.statistics import Statistics
from satrap.store.tier import Tier

__all__ = [
    "BUCKETS",
    "Admission",
    "Changes",
    "Delta",
    "Eviction",
    "GroupStore",
    "RowChunk",
    "Shard",
    "Slots",
    "Statistics",
    "StoreConfig",
    "TableSettings",
    "Tier",
    "bucket_of",
    "distinct",
    "floats",
    "gather_features",
    "gather_features_backward",
    "open_store",
    "pool",
    "pool_backward",
    "segment_sum",
    "sum_features",
]


def __dir__() -> list[str]:
    return sorted(__all__)
