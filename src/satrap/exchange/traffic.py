"""Measures the requests of one caller: how stale its lookups were, and how long answers took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from satrap.exchange.protocol import Request

REMEMBERED = 256
"""Lookups that may wait for their update; a batch that is never updated is forgotten in time."""

Seen = tuple[int, int]
"""Updates a shard had applied when it executed a request: (of this caller, of all callers)."""


@dataclass(slots=True)
class _Open:
    """A lookup whose update has not been applied yet; `request` keeps the key, its address, taken."""

    request: Request
    seen: dict[int, Seen] = field(default_factory=dict)
    own: int = -1
    others: int = -1


class Traffic:
    """Measures staleness and times of the requests of one caller of an exchange.

    Every answer of a shard says how many updates it had applied. Updates between a lookup and its own update
    are those that the lookup did not see: the caller's own, and those of others. Of several shards the
    largest number counts.

    One thread issues, one takes answers, and any may call `report`.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._own: dict[int, int] = {}
        self._others: dict[int, int] = {}
        self._seconds = {"lookup": 0.0, "push": 0.0}
        self._issued = {"lookup": 0, "push": 0}
        self._answered = {"lookup": 0, "push": 0}

    def issue(self, kind: str, requests: Sequence[Request] = ()) -> Callable[..., None]:
        """Count a request that is being issued; return a function to call when it is done.

        Args:
            kind: "lookup" or "push".
            requests: of a push.
        """
        self._issued[kind] += 1
        return partial(self._done, kind, requests, time.perf_counter())

    def _done(self, kind: str, requests: Sequence[Request], issued: float, _: object = None) -> None:
        self._seconds[kind] += time.perf_counter() - issued
        self._answered[kind] += 1
        if kind == "push" and requests and (found := self._open.pop(id(requests[0]), None)) is not None:
            for missed, counts in ((found.own, self._own), (found.others, self._others)):
                if missed >= 0:
                    counts[missed] = counts.get(missed, 0) + 1

    def looked_up(self, requests: Sequence[Request], shard: int, seen: Seen) -> None:
        """Record what a shard had applied when it served a lookup."""
        if not requests:
            return
        key = id(requests[0])
        if key not in self._open:
            self._open[key] = _Open(requests[0])
            if len(self._open) > REMEMBERED:
                del self._open[next(iter(self._open))]
        self._open[key].seen[shard] = seen

    def applied(self, requests: Sequence[Request], shard: int, seen: Seen) -> None:
        """Record what a shard had applied just before the update of these requests."""
        found = self._open.get(id(requests[0])) if requests else None
        if found is None or shard not in found.seen:
            return
        then = found.seen[shard]
        own = seen[0] - then[0]
        if own >= 0:  # a shard that started anew counts from 0 again
            found.own, found.others = max(found.own, own), max(found.others, seen[1] - then[1] - own)

    def report(self) -> dict[str, Any]:
        """Return what was counted so far, as plain data.

        Returns:
            "staleness": {"own": {missed: updates}, "others": {missed: updates}}; and for "lookup" and "push",
            "..._count" and "..._seconds" of those answered, "..._in_flight" of those that are not yet.
        """
        found: dict[str, Any] = {"staleness": {"own": dict(self._own), "others": dict(self._others)}}
        for kind, issued in self._issued.items():
            answered = self._answered[kind]
            found[f"{kind}_count"], found[f"{kind}_seconds"] = answered, self._seconds[kind]
            found[f"{kind}_in_flight"] = issued - answered
        return found
