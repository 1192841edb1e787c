"""Answers the first lookups of a resumed run with the rows that its snapshot has saved for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from satrap.exchange.lookup import Array, Lookup, LookupRequest, answered


class LooksUp(Protocol):
    """An exchange, as seen by a caller that only looks up."""

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[Any]:
        """See `Exchange.lookup`."""


@runtime_checkable
class CanReplay(Protocol):
    """An exchange that gets rows from several places, or pooled, and replays lookups itself."""

    def replay(self, lookups: Iterable[Sequence[Array]]) -> None:
        """Answer the next lookups that create with these rows; see `with_replays`."""


def with_replays(exchange: LooksUp, lookups: Iterable[Sequence[Array]]) -> LooksUp:
    """Return an exchange whose next lookups that create get the rows that a snapshot has saved.

    A snapshot saves the rows of the lookups in flight. They are older than the rows of the store: updates
    between the lookup and the snapshot have changed those. With them, a resumed run gives the results of the
    uninterrupted run.

    Args:
        exchange: it takes the updates of these lookups.
        lookups: of each lookup, float32[n, dim] for each request for unique ids.
    """
    if isinstance(exchange, CanReplay):
        exchange.replay(lookups)
        return exchange
    return Replays(exchange, lookups)


class Replays:
    """Answers lookups with saved rows, and passes all further lookups on; see `with_replays`."""

    def __init__(self, exchange: LooksUp, lookups: Iterable[Sequence[Array]]) -> None:
        self._exchange, self._lookups = exchange, deque(lookups)

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[Any]:
        """See `Exchange.lookup`."""
        if not (create and requests and self._lookups):
            return self._exchange.lookup(requests, create=create)
        self._exchange.lookup((), create=True)  # other workers may wait for this worker's lookup
        return answered(requests, self._lookups.popleft())
