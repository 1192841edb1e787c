"""Lookups of all ranks that are issued early and yet see what they would see in their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from satrap.exchange import kernels
from satrap.exchange.collective.asks import Ask, joined
from satrap.exchange.collective.messages import Channel, Operation
from satrap.exchange.collective.owner import Merged, Owner
from satrap.exchange.collective.ranks import Bytes
from satrap.exchange.kernels import row_bytes
from satrap.exchange.lookup import Array, Lookup
from satrap.exchange.protocol import TableGroup
from satrap.exchange.servers.wire import to_wire
from satrap.store.types import address

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Early:
    """A lookup that waits for its turn.

    Args:
        lookup: of this rank; its rows are set in its turn.
        rows: as they were when it was issued.
        asks: of each request, what each rank was asked for.
        wanted: what all ranks asked this one for.
        changed: which of these rows have changed since.
    """

    lookup: Lookup[Array]
    rows: list[Array]
    asks: Sequence[Sequence[Ask]]
    wanted: Sequence[Merged]
    changed: list[Mask] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changed = [np.zeros(len(m.ids), np.bool_) for m in self.wanted]


class EarlyLookups:
    """The lookups of all ranks that wait, on each rank in the same order.

    Rows are sent when a lookup is issued, beside everybody's own work. When its turn comes, that is after the
    updates of all lookups before it, their owners send those again that have changed. Then the rows are those
    of a lookup in its turn, to the bit.

    Args:
        owner: of the rows of this rank.
        channel: to the other ranks.
        groups: the table groups.
        code: number format of rows on their way.
    """

    def __init__(self, owner: Owner, channel: Channel, groups: Sequence[TableGroup], code: int) -> None:
        self._owner, self._channel, self._groups, self._code = owner, channel, groups, code
        self._waiting: deque[_Early] = deque()
        self._stepped = [np.zeros(0, np.bool_) for _ in groups]

    def add(
        self, lookup: Lookup[Array], rows: list[Array], asks: Sequence[Sequence[Ask]], number: int
    ) -> bool:
        """Take a lookup and the rows as they are now; return whether it is its turn at once."""
        self._waiting.append(_Early(lookup, rows, asks, self._owner.kept(number)))
        return len(self._waiting) == 1

    def refuse(self, update: Future[None]) -> None:
        """Tell all who wait that an update has failed, if it has."""
        for early in self._waiting:
            if not early.lookup.rows.done():
                early.lookup.told(update)

    def updated(self, stepped: Sequence[Merged]) -> Lookup[Array] | None:
        """Go on to the next lookup after the update of the first; return it once its rows are up to date.

        Args:
            stepped: the rows of this rank that may have changed.
        """
        self._waiting.popleft()
        if not self._waiting:
            return None
        self._note(stepped)
        early = self._waiting[0]
        for rank, message in enumerate(self._channel.talk(Operation.PATCH, self._patches(early))):
            self._take(early, rank, message)
        return early.lookup

    def hand_out(self) -> None:
        """Set the rows of the first lookup."""
        self._waiting[0].lookup.rows.set_result(self._waiting[0].rows)

    def _note(self, stepped: Sequence[Merged]) -> None:
        """Note which rows of the lookups that wait have just changed."""
        for m in stepped:
            for early in self._waiting:
                for own, changed in zip(early.wanted, early.changed, strict=True):
                    if own.group == m.group:
                        changed |= self._among(own, m)

    def _among(self, own: Merged, stepped: Merged) -> Mask:
        """Return which rows of `own` are among `stepped`; all, if it is not known where these are."""
        if own.slots is None or stepped.slots is None:
            return np.ones(len(own.ids), np.bool_)
        slots = self._owner.shard.groups[own.group].directory.slots
        if len(self._stepped[own.group]) < slots:
            self._stepped[own.group] = np.zeros(slots * 5 // 4, np.bool_)
        mask = self._stepped[own.group]
        mask[stepped.slots.numbers] = True
        found: Mask = mask[own.slots.numbers]
        mask[stepped.slots.numbers] = False
        return found

    def _patches(self, early: _Early) -> list[Bytes]:
        """Return, for each rank, the rows of a lookup that it must get again.

        By group: their number, then their places among all that this rank sent, then the rows.
        """
        size = self._channel.ranks.size
        counts = np.zeros((size, len(self._groups)), np.int64)
        places: list[list[Bytes]] = [[] for _ in range(size)]
        rows: list[list[Bytes]] = [[] for _ in range(size)]
        for m, changed in zip(early.wanted, early.changed, strict=True):
            fresh, number = self._owner.read(m, np.flatnonzero(changed)), np.cumsum(changed) - 1
            for rank in range(size):
                sent = self._owner.sent(rank, m)
                again = np.flatnonzero(changed[sent]).astype(np.int32)
                counts[rank, m.group] = len(again)
                places[rank].append(again.view(np.uint8))
                rows[rank].append(to_wire(fresh[number[sent[again]]], self._code))
        return [joined([counts[r].view(np.uint8), *places[r], *rows[r]]) for r in range(size)]

    def _take(self, early: _Early, rank: int, message: Bytes) -> None:
        """Put the rows that a rank has sent again in their places."""
        head = 8 * len(self._groups)
        counts = message[:head].view(np.int64)
        places, rows = head + 4 * np.cumsum(counts), message[head + 4 * int(counts.sum()) :]
        answers = zip(early.lookup.requests, early.asks, early.rows, strict=True)
        for request, asks, found in sorted(answers, key=lambda one: one[0].group):
            dim, end = self._groups[request.group].dim, int(places[request.group])
            again = message[end - 4 * int(counts[request.group]) : end].view(np.int32)
            size = row_bytes(self._code, dim) * len(again)
            raw, rows = rows[:size], rows[size:]
            positions = asks[rank].rows
            at = again.copy() if positions is None else positions[again]
            kernels.widen_rows(self._code, address(raw), np.uint64(dim), at, address(found))
