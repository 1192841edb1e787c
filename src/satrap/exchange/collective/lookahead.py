"""Lookups of all ranks that are issued early and return the rows of their turn."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from satrap.exchange.collective.messages import Channel, Message, Operation
from satrap.exchange.collective.owner import Merged, Owner
from satrap.exchange.lookup import Array, Lookup, LookupRequest
from satrap.exchange.pending_rows import Mask, PendingRows
from satrap.exchange.serial import Serial
from satrap.exchange.split import Positions, ShardPart
from satrap.exchange.wire.rows import RowReplies
from satrap.exchange.wire.sections import Section, pack, unpack
from satrap.store.arrays import Bytes

Found = Sequence[tuple[Merged, Array]]
"""The rows that all ranks have requested from this one, with their present values."""
Answer = Callable[[Callable[[], Found]], list[Message]]
"""Given a function that finds the rows, makes the message to each rank."""
LookUp = Callable[[Channel, Answer], tuple[list[list[ShardPart]], list[list[Bytes]]]]
"""Looks up; returns, for each request, the part requested from each rank, and each rank's message."""


@dataclass(slots=True)
class Early:
    """A lookup that waits for its turn.

    Args:
        lookup: lookup of this rank; its rows are set in its turn.
        first: no other lookup waited when it was issued: its turn is at once.
        wanted: the rows that all ranks have requested from this one.
        later: masks of the rows that are sent in its turn.
        replies: the rows of the lookup, without the missing ones.
        missing: for each rank, the positions of the rows that it sends in its turn, by request.
        here: done once `replies` has its rows.
    """

    lookup: Lookup[Array]
    first: bool
    wanted: Sequence[Merged] = ()
    later: Sequence[Mask] = ()
    replies: RowReplies | None = None
    missing: list[list[Positions]] = field(default_factory=list)
    here: Future[None] = field(default_factory=Future)


class EarlyLookups:
    """The waiting lookups of all ranks, on each rank in the same order.

    Rows are sent when a lookup is issued, in a thread of its own, concurrently with steps and updates. Rows
    that earlier waiting lookups of any rank also request are the exception: they will change, so they are
    sent in the lookup's turn, after the updates of all lookups before it. So every row is sent once, and is
    equal to the row of a lookup in its turn, to the bit.

    An owner may have applied an update that another owner has not applied yet. So each owner decides for
    itself which rows it sends later, and marks them in its message.

    Args:
        owner: owner of the rows of this rank.
        ahead: channel to the other ranks, for the thread that looks up.
        channel: the same, for the thread that updates.
        replies: returns the `RowReplies` of a lookup, given its requests and their parts.
        seen: called with each lookup whose turn has come.

    Attributes:
        lock: serializes the two threads while one reads or changes rows.
    """

    def __init__(
        self,
        owner: Owner,
        ahead: Channel,
        channel: Channel,
        replies: Callable[[Sequence[LookupRequest], Sequence[Sequence[ShardPart]]], RowReplies],
        seen: Callable[[Lookup[Array]], None],
    ) -> None:
        self._owner, self._ahead, self._channel, self._replies = owner, ahead, channel, replies
        self._seen, self._awaited, self.lock = seen, PendingRows(owner.shard), threading.Lock()
        self._waiting = deque[Early]()
        self._thread = Serial("satrap-lookahead")
        owner.most = sys.maxsize  # ranks look up at their own pace, but must all keep the same lookups

    def issue(self, lookup: Lookup[Array], look_up: LookUp, last_update: Future[None] | None) -> Future[None]:
        """Look up in the other thread; return a future of the rows that are sent early.

        Args:
            lookup: of this rank.
            look_up: the lookup function.
            last_update: the update that was issued last.
        """
        early = Early(lookup, first=not self._waiting)
        self._waiting.append(early)
        early.here = self._thread.submit(self._look_up, early, look_up, last_update)
        early.here.add_done_callback(lookup.fail_from)
        return early.here

    def _look_up(self, early: Early, look_up: LookUp, last_update: Future[None] | None) -> None:
        if early.first and last_update is not None:
            last_update.result()  # without a waiting lookup, its turn begins after the latest update
        parts, messages = look_up(self._ahead, lambda find: self._answer(early, find))
        early.replies = self._replies(early.lookup.requests, parts)
        for rank, message in enumerate(messages):
            early.missing.append(_place(early.lookup.requests, early.replies, rank, message))
        with self.lock:
            for m in early.wanted:
                if m.slots is not None:
                    self._awaited.add(m.slots)
        if early.first:
            self._hand_out(early)

    def _answer(self, early: Early, find: Callable[[], Found]) -> list[Message]:
        """Return the message that each rank gets now for a lookup."""
        with self.lock:
            groups = find()
            later = [self._awaited.among(m.slots) for m, _ in groups if m.slots is not None]
        early.wanted, early.later = [m for m, _ in groups], later
        return [self._now(rank, groups, later) for rank in range(self._channel.ranks.size)]

    def _now(self, rank: int, found: Found, later: Sequence[Mask]) -> Message:
        """Return bits that mark the rows that are sent later, and the other rows."""
        masks, sections = [np.empty(0, np.bool_)], []
        for (m, rows), mask in zip(found, later, strict=True):
            sent = self._owner.sent(rank, m)
            masks.append(mask[sent])
            sections.append(self._owner.reply(rank, m, rows, sent[~masks[-1]]))
        return [np.packbits(np.concatenate(masks)), *pack(sections)]

    def _hand_out(self, early: Early) -> None:
        assert early.replies is not None
        self._seen(early.lookup)
        early.lookup.rows.set_result(early.replies.rows)

    def refuse(self, update: Future[None]) -> None:
        """If an update has failed, pass its error to all waiting lookups."""
        for early in tuple(self._waiting):
            early.lookup.fail_from(update)

    def settle(self) -> None:
        """Wait until all issued lookups have run."""
        self._thread.submit(lambda: None).result()

    def take(self) -> tuple[Early | None, Early | None]:
        """Return the lookup that this update is for, and the next one, if they have been issued."""
        done = self._waiting.popleft() if self._waiting else None
        return done, self._waiting[0] if self._waiting else None

    def updated(self, done: Early | None, following: Early | None) -> None:
        """Complete the next lookup after the update of the first; both come from `take`."""
        if done is not None and not done.here.exception():
            # These rows have had their update on this rank, so a new lookup may get them at once.
            with self.lock:
                self._owner.forget(done.lookup.places[0])
                for m in done.wanted:
                    if m.slots is not None:
                        self._awaited.remove(m.slots)
        if following is not None and not following.here.exception():
            assert following.replies is not None
            messages = self._channel.talk(Operation.PATCH, self._rest(following))
            for rank, message in enumerate(messages):
                following.replies.put(rank, unpack(message), following.missing[rank])
            self._hand_out(following)

    def _rest(self, early: Early) -> list[Message]:
        """Return, for each rank, the rows of a lookup that it is still owed."""
        messages: list[list[Section]] = [[] for _ in range(self._channel.ranks.size)]
        for m, later in zip(early.wanted, early.later, strict=True):
            at = np.flatnonzero(later).astype(np.int32)
            with self.lock:
                rows = self._owner.read(m, at)
            number = (np.cumsum(later) - 1).astype(np.int32)
            for rank, sections in enumerate(messages):
                sent = self._owner.sent(rank, m)
                sections.append(self._owner.reply(rank, m, rows, number[sent[later[sent]]]))
        return [pack(sections) for sections in messages]

    def close(self) -> None:
        """Run the issued lookups, then disconnect from the other ranks."""
        self._thread.shutdown(wait=True)
        self._ahead.ranks.close()


def _place(
    requests: Sequence[LookupRequest], replies: RowReplies, rank: int, message: Sequence[Bytes]
) -> list[Positions]:
    """Place the rows that a rank has sent early; return the positions of its other rows, by request."""
    places = [
        np.arange(len(rows), dtype=np.int32) if at is None else at
        for rows, at in zip(replies.rows, replies.places(rank), strict=True)
    ]
    order = sorted(range(len(requests)), key=lambda i: requests[i].group)  # of the bits
    ends = np.cumsum([len(places[i]) for i in order])
    owed = np.unpackbits(message[0], count=int(sum(map(len, places)))).view(np.bool_)
    later = dict(zip(order, np.split(owed, ends[:-1]), strict=False))
    replies.put(rank, unpack(message[1:]), [at[~later[i]] for i, at in enumerate(places)])
    return [at[later[i]] for i, at in enumerate(places)]
