"""Data input: files and arrays as a stream of batches of ids and numbers."""

from satrap.data.csv import CsvOptions
from satrap.data.dataset import Dataset, read
from satrap.data.hashing import hash_ids
from satrap.data.join import Join
from satrap.data.measure import measure
from satrap.data.prefetch import prefetch
from satrap.data.source import RowSplit
from satrap.data.times import TimeRange

__all__ = [
    "CsvOptions",
    "Dataset",
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
