"""Lookups of all ranks that are issued early and yet see what they would see in their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from satrap.exchange.awaited import Awaited, Mask
from satrap.exchange.collective.answers import Answers, owed
from satrap.exchange.collective.asks import Ask, Positions
from satrap.exchange.collective.messages import Channel, Operation
from satrap.exchange.collective.owner import Merged, Owner
from satrap.exchange.collective.ranks import Bytes, joined
from satrap.exchange.lookup import Array, Lookup


@dataclass(slots=True)
class _Early:
    """A lookup that waits for its turn.

    Args:
        wanted: what all ranks have asked this one for.
        later: which of these rows are sent in its turn.
        lookup: of this rank; its rows are set in its turn.
        rows: of the lookup, but for those that are missing.
        missing: of each request, the positions of the rows that each rank sends in its turn.
    """

    wanted: Sequence[Merged]
    later: Sequence[Mask]
    lookup: Lookup[Array] = field(default_factory=lambda: Lookup[Array](()))
    rows: list[Array] = field(default_factory=list)
    missing: Sequence[Sequence[Positions]] = ()


class EarlyLookups:
    """The lookups of all ranks that wait, on each rank in the same order.

    Rows are sent when a lookup is issued, beside everybody's own work, but for those that lookups before it
    ask for, too, on any rank: these will change, and are sent once its turn has come, that is after the
    updates of all lookups before it. So every row is sent once, and is that of a lookup in its turn, to the
    bit.

    Args:
        owner: of the rows of this rank.
        channel: to the other ranks.
        answers: packs and places rows.
    """

    def __init__(self, owner: Owner, channel: Channel, answers: Answers) -> None:
        self._owner, self._channel, self._answers = owner, channel, answers
        self._awaited, self._waiting = Awaited(owner.shard), deque[_Early]()
        self._next = _Early((), ())

    def answer(self, found: Sequence[tuple[Merged, Array]]) -> list[Bytes]:
        """Return what each rank gets now of a lookup.

        Args:
            found: what all ranks have asked this one for, and the rows as they are now.
        """
        later = [self._awaited.among(m.slots) for m, _ in found if m.slots is not None]
        self._next = _Early([m for m, _ in found], later)
        return [self._now(rank, found, later) for rank in range(self._channel.ranks.size)]

    def _now(self, rank: int, found: Sequence[tuple[Merged, Array]], later: Sequence[Mask]) -> Bytes:
        parts = []
        for (m, rows), mask in zip(found, later, strict=True):
            sent = self._owner.sent(rank, m)
            bits = mask[sent]
            parts += [owed(bits), self._answers.pack(rows, sent[~bits])]
        return joined(parts)

    def add(self, lookup: Lookup[Array], asks: Sequence[Sequence[Ask]], given: Sequence[Bytes]) -> bool:
        """Take the lookup that was just answered on all ranks; return whether it is its turn at once.

        Args:
            lookup: of this rank.
            asks: of each request, what each rank was asked for.
            given: what each rank has sent.
        """
        early = self._next
        early.lookup = lookup
        early.rows, early.missing = self._answers.place_early(given, lookup.requests, asks)
        for m in early.wanted:
            if m.slots is not None:
                self._awaited.add(m.slots)
        self._waiting.append(early)
        return len(self._waiting) == 1

    def refuse(self, update: Future[None]) -> None:
        """Tell all who wait that an update has failed, if it has."""
        for early in self._waiting:
            if not early.lookup.rows.done():
                early.lookup.told(update)

    def updated(self) -> Lookup[Array] | None:
        """Go on to the next lookup after the update of the first; return it once its rows are up to date."""
        for m in self._waiting.popleft().wanted:
            if m.slots is not None:
                self._awaited.remove(m.slots)
        if not self._waiting:
            return None
        early = self._waiting[0]
        given = self._channel.talk(Operation.PATCH, self._rest(early))
        self._answers.place_owed(given, early.lookup.requests, early.missing, early.rows)
        return early.lookup

    def _rest(self, early: _Early) -> list[Bytes]:
        """Return, for each rank, the rows of a lookup that it is still owed."""
        parts: list[list[Bytes]] = [[] for _ in range(self._channel.ranks.size)]
        for m, later in zip(early.wanted, early.later, strict=True):
            at = np.flatnonzero(later).astype(np.int32)
            rows, number = self._owner.read(m, at), (np.cumsum(later) - 1).astype(np.int32)
            for rank, own in enumerate(parts):
                sent = self._owner.sent(rank, m)
                own.append(self._answers.pack(rows, number[sent[later[sent]]]))
        return [joined(own) for own in parts]

    def hand_out(self) -> None:
        """Set the rows of the first lookup."""
        self._waiting[0].lookup.rows.set_result(self._waiting[0].rows)
