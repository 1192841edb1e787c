"""The protocol of event logs: append-only partitions, each read from an offset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from satrap.data.source import Origin

Offsets = Mapping[str, Any]
"""Partition -> offset of its next event, as plain data in a format private to the log."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some consecutive events of a partition.

    Args:
        partition: name of the partition.
        table: one row per event; columns as requested.
        origin: origin of the events.
        after: returns the partition's next offset after the first n events, n >= 1.
    """

    partition: str
    table: pa.Table
    origin: Origin
    after: Callable[[int], Any]


class LogReader(Protocol):
    """Reader of a worker's partitions of a log, each in order from its offset."""

    def read(self, most: int, seconds: float) -> Sequence[Events]:
        """Return about `most` of the next events; wait up to `seconds` if none is available."""

    def caught_up(self) -> bool:
        """Return whether the current content of the log has been read completely."""

    def close(self) -> None:
        """Close files and connections."""


@runtime_checkable
class Log(Protocol):
    """A log of events, readable any number of times from any offset that it still holds."""

    @property
    def name(self) -> str:
        """Name for messages."""

    def open(
        self, columns: Sequence[str], texts: Sequence[str], offsets: Offsets, worker: int, workers: int
    ) -> LogReader:
        """Return a reader of a worker's shard; shards are disjoint and together cover the whole log.

        Args:
            columns: columns to read.
            texts: the columns among them to read unchanged, if the log has a choice.
            offsets: partition -> where to resume; other partitions are read from their beginning. Partitions
                of other workers are ignored.
            worker: 0..workers-1.
            workers: number of readers that share the log.

        Raises:
            DataError: the log cannot be read, or no longer holds an offset.
        """
