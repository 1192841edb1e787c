"""Measures the traffic between a worker and the rows, and the load of shard servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from satrap.data.prefetch import Prefetcher
from satrap.exchange import ShardStatistics, Traffic
from satrap.train.progress.observer import Progress
from satrap.train.step.phase_timer import PhaseTimer

Item = TypeVar("Item")
Shards = Sequence[ShardStatistics]


class ShardLoad:
    """Compares the store's counters at two times and reports the difference."""

    def __init__(self) -> None:
        self._last: Shards = ()
        self._worked: list[_Work] = []
        self._rows: tuple[int, ...] = ()
        self._pushes, self._push_seconds = 0, 0.0
        self._others = 0, 0

    def look(self, shards: Shards, traffic: Traffic, progress: Progress, samples: int) -> None:
        """Update `progress`; this worker has trained `samples`."""
        progress.waiting, progress.pushes = traffic.waiting, traffic.pushes.in_flight
        pushes, seconds = traffic.pushes.count, traffic.pushes.seconds
        if pushes > self._pushes:
            progress.push_seconds = (seconds - self._push_seconds) / (pushes - self._pushes)
        self._pushes, self._push_seconds = pushes, seconds
        lookups = sum(traffic.others.values())
        missed = sum(number * count for number, count in traffic.others.items())
        if lookups > self._others[0]:
            progress.others_missed = (missed - self._others[1]) / (lookups - self._others[0])
        self._others = lookups, missed
        if samples:
            progress.sent_bytes_per_sample = traffic.sent / samples
            progress.received_bytes_per_sample = traffic.received / samples
        progress.shard_rows = self._rows = tuple(shard.rows for shard in shards)
        progress.shard_queued = tuple(shard.server.queued for shard in shards)
        if [shard.shard for shard in self._last] != [shard.shard for shard in shards]:
            self._last = ()  # at first, and after shards have joined or left
        work = [
            _work(a, b) for a, b in zip(self._last or [ShardStatistics()] * len(shards), shards, strict=True)
        ]
        progress.shard_busy, progress.shard_requests = _shares(work)
        if self._last:
            self._worked = [a + b for a, b in zip(self._worked, work, strict=True)]
        else:
            self._worked = [_Work()] * len(shards)
        self._last = shards

    def total(self) -> dict[str, Any]:
        """Return rows, busy share and requests per second of each shard, from the first look to the last."""
        busy, requests = _shares(self._worked)
        return {"shard_rows": list(self._rows), "shard_busy": list(busy), "shard_requests": list(requests)}


def reading(turns: Prefetcher[Item], stages: PhaseTimer, progress: Progress) -> Iterator[Item]:
    """Yield a reader's items; record the time spent waiting and how many items are ready."""
    for turn in stages.waited("read", turns):
        progress.batches_ready = turns.ready
        yield turn


@dataclass(frozen=True, slots=True)
class _Work:
    seconds: float = 0.0
    busy: float = 0.0
    requests: int = 0

    def __add__(self, other: _Work) -> _Work:
        return _Work(self.seconds + other.seconds, self.busy + other.busy, self.requests + other.requests)


def _work(before: ShardStatistics, now: ShardStatistics) -> _Work:
    """Return a shard's work between two looks; a restarted shard counts from its start."""
    a, b = before.server, now.server
    if b.seconds < a.seconds:
        a = ShardStatistics().server
    requests = sum(b.requests.values()) - sum(a.requests.values())
    return _Work(b.seconds - a.seconds, b.busy_seconds - a.busy_seconds, requests)


def _shares(work: Sequence[_Work]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    seconds = [max(w.seconds, 1e-9) for w in work]
    return (
        tuple(w.busy / time for w, time in zip(work, seconds, strict=True)),
        tuple(w.requests / time for w, time in zip(work, seconds, strict=True)),
    )


def summary(traffic: Traffic, samples: int) -> dict[str, Any]:
    """Return the traffic of a worker's exchange as figures per request and per trained sample."""
    return {
        "staleness": {
            whose: {str(missed): counts[missed] for missed in sorted(counts)}
            for whose, counts in (("own", traffic.own), ("others", traffic.others))
        },
        "lookup_seconds": traffic.lookups.mean_seconds,
        "push_seconds": traffic.pushes.mean_seconds,
        "sent_bytes_per_sample": traffic.sent / max(samples, 1),
        "received_bytes_per_sample": traffic.received / max(samples, 1),
        "resent": traffic.resent,
        "waiting": traffic.waiting,
        "rounding_forward": traffic.rounding_forward,
        "rounding_backward": traffic.rounding_backward,
    }
