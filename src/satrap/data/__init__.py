"""Data input: files and arrays as a stream of batches of ids and numbers."""

from satrap.data.dataset import Dataset, read
from satrap.data.encode.hashing import hash_ids
from satrap.data.encode.statistics import measure
from satrap.data.encode.times import TimeRange
from satrap.data.formats.csv import CsvOptions
from satrap.data.formats.join import Join
from satrap.data.iterable_batches import IterableBatches
from satrap.data.prefetch import prefetch
from satrap.data.source import RowSplit

__all__ = [
    "CsvOptions",
    "Dataset",
    "IterableBatches",
    "Join",
    "RowSplit",
    "TimeRange",
    "hash_ids",
    "measure",
    "prefetch",
    "read",
]


def __dir__() -> list[str]:
    return sorted(__all__)
