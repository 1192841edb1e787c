"""Measured costs of a short real run, per step of one worker."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

PIECES = ("reader", "main", "exchange", "other", "shards")
"""Sources of CPU time. Of a worker: the thread that reads and deduplicates, the training thread, the exchange
thread, and all others (sums over workers); and all shards together."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run; all numbers except the first four are per step.

    Args:
        workers: number of training workers.
        holders: shard servers, or workers that hold the rows; 0: the rows were in the worker.
        spread: standard deviation of a step's seconds, as a fraction of their median; from quantiles.
        busy: busy cores of the machine, including other programs.
        samples: samples of one worker.
        rows: unique ids of one worker.
        values: numbers in these rows.
        dense: bytes of the network's gradients.
        sent, received: bytes of one worker to and from holders.
        seconds: time from one step to the next.
        waited: seconds that the training thread waited for rows.
        reader, main, exchange, other: CPU seconds of one worker, see `PIECES`.
        shards: CPU seconds of all shards for the steps of all workers.
    """

    workers: int
    holders: int
    spread: float
    busy: float
    samples: float
    rows: float
    values: float
    dense: float
    sent: float
    received: float
    seconds: float
    waited: float
    reader: float
    main: float
    exchange: float
    other: float
    shards: float

    @property
    def samples_per_second(self) -> float:
        """Samples per second of all workers."""
        return self.workers * self.samples / self.seconds

    @property
    def cpu(self) -> float:
        """CPU seconds of a step, of all processes."""
        return self.workers * (self.reader + self.main + self.exchange + self.other) + self.shards

    @classmethod
    def mean(cls, of_workers: Sequence[Measured]) -> Measured:
        """Return the mean over the workers of a run."""
        return cls._combined(of_workers, statistics.fmean)

    @classmethod
    def median(cls, runs: Sequence[Measured]) -> Measured:
        """Return the median of each number over equal runs."""
        return cls._combined(runs, statistics.median)

    @classmethod
    def _combined(cls, found: Sequence[Measured], how: object) -> Measured:
        assert callable(how)
        return cls(**{f.name: how([getattr(measured, f.name) for measured in found]) for f in fields(cls)})
