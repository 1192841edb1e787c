"""The protocol of logs of events: partitions that only grow, each read from an offset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from satrap.data.source import Origin

Offsets = Mapping[str, Any]
"""Partition -> the offset of its next event, as plain data whose meaning is the log's own."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some consecutive events of a partition.

    Args:
        partition: they are from.
        table: a row for each; columns as the log has them.
        origin: where they came from.
        after: returns the partition's next offset after the first n of them, n >= 1.
    """

    partition: str
    table: pa.Table
    origin: Origin
    after: Callable[[int], Any]


class LogReader(Protocol):
    """Reads a worker's partitions of a log, each from its offset on, in order."""

    def read(self, most: int, seconds: float) -> Sequence[Events]:
        """Return the next events, about `most` of them; wait up to `seconds` if there are none yet."""

    def caught_up(self) -> bool:
        """Return whether everything that is in the log now has been read."""

    def close(self) -> None:
        """Release files and connections."""


@runtime_checkable
class Log(Protocol):
    """A log of events that can be read any number of times, from any offsets that it still holds."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def open(
        self, columns: Sequence[str], texts: Sequence[str], offsets: Offsets, worker: int, workers: int
    ) -> LogReader:
        """Return a reader of the share of a worker; shares are disjoint, and together are the whole log.

        Args:
            columns: to read.
            texts: those of them that are read as they are written, where the log has a choice.
            offsets: partition -> where to go on; partitions that are not named are read from their begin.
                Those of other workers may be among them.
            worker: 0..workers-1.
            workers: how many readers share the log.

        Raises:
            DataError: it cannot be read, or no longer holds an offset.
        """
