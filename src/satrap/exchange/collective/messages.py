"""What ranks say to each other: every operation begins with a header, so that all know that they agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, ExchangeError, SatrapError, error_of, error_values
from satrap.exchange.collective.ranks import Bytes, Ranks, joined

_OPERATION, _NUMBER, _SIZE, _FAILED, _MORE = _HEAD = range(5)
_HEAD_BYTES = 8 * len(_HEAD)
_SMALL, _SPARE = 64, 64
"""A message has room for so many bytes, and for one in so many more than the one before had."""

Lengths = npt.NDArray[np.int64]


class Operation(IntEnum):
    """What a message is about."""

    HELLO = 0
    LOOKUP = 1
    PEEK = 2
    ROWS = 3
    UPDATE = 4
    FLUSH = 5
    CUT = 6
    WRITE = 7
    WRITTEN = 8
    PATCH = 9


class Channel:
    """Exchanges messages with all ranks, one operation after another; used by one thread.

    An operation is one all-to-all: a message has room for about as many bytes as followed the last time that
    the operation before was the same. If one message is longer, all ranks send their rests in a second one.
    Both ends know the room beforehand, whatever operation either is at, so that ranks which are not in step
    find out.

    After an `ExchangeError` it is closed to further operations: the ranks are no longer in step.

    Attributes:
        ranks: who talks.
        sent, received: bytes to and from other ranks, without the heads of messages and unused room.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self._count = ranks, 0
        self.sent = self.received = 0
        self._lost: ExchangeError | None = None
        self._before = -1
        self._lengths: dict[int, Lengths] = {}
        """Operation -> the lengths of the messages after it, to and from each rank, int64[2, ranks]."""

    def talk(self, operation: Operation, parts: Sequence[Bytes] | SatrapError) -> list[Bytes]:
        """Send part r to rank r and return what each rank sent; an error goes to all, who raise it.

        Raises:
            SatrapError: that another rank, or this one, sent in place of its parts.
            ExchangeError: a rank is lost, or is at another operation.
        """
        if self._lost is not None:
            raise self._lost
        try:
            return self._talk(operation, parts)
        except ExchangeError as error:
            self._lost = error
            raise

    def _talk(self, operation: Operation, parts: Sequence[Bytes] | SatrapError) -> list[Bytes]:
        size, own, failed = self.ranks.size, self.ranks.rank, isinstance(parts, SatrapError)
        given = [as_text(error_values(parts))] * size if isinstance(parts, SatrapError) else list(parts)
        lengths, others = np.array([len(part) for part in given]), np.arange(size) != own
        last = self._lengths.setdefault(self._before, np.zeros((2, size), np.int64))
        room, coming = (last + last // _SPARE + _SMALL) * others
        heads = np.zeros((size, len(_HEAD)), np.int64)
        heads[:, _OPERATION], heads[:, _NUMBER], heads[:, _FAILED] = operation, self._count, failed
        heads[:, _SIZE], heads[:, _MORE] = lengths, bool((lengths > room)[others].any())
        framed = [piece for r in np.flatnonzero(others) for piece in _framed(heads[r], given[r], room[r])]
        found = self._sent(framed, (room + _HEAD_BYTES) * others, (coming + _HEAD_BYTES) * others)
        for rank in np.flatnonzero(others):
            heads[rank] = found[rank][:_HEAD_BYTES].view(np.int64)
            found[rank] = found[rank][_HEAD_BYTES:][: heads[rank, _SIZE]]
        self._check(operation, heads)
        sizes = heads[:, _SIZE].copy()
        if heads[:, _MORE].any():
            rests = [given[r][room[r] :] for r in np.flatnonzero(others)]
            more = self._sent(rests, (lengths - room).clip(0) * others, (sizes - coming).clip(0) * others)
            found = [joined(pair) for pair in zip(found, more, strict=True)]
        found[own] = given[own]
        self._lengths[self._before] = np.stack([lengths, sizes])
        self._count, self._before = self._count + 1, operation
        self.sent += int(lengths[others].sum())
        self.received += int(sizes[others].sum())
        for rank in np.flatnonzero(heads[:, _FAILED]):
            raise _named(error_of(of_text(found[rank])), int(rank))
        return found

    def _sent(self, pieces: Sequence[Bytes], lengths: Lengths, sizes: Lengths) -> list[Bytes]:
        if self.ranks.size == 1:
            return [np.empty(0, np.uint8)]
        return self.ranks.all_to_all(np.concatenate(pieces), lengths.tolist(), sizes.tolist())

    def _check(self, operation: Operation, heads: np.ndarray) -> None:
        for rank, (other, number, *_) in enumerate(heads.tolist()):
            if (other, number) != (operation, self._count):
                raise ExchangeError(
                    f"rank {rank} is at operation {number} ({Operation(other).name.lower()}), rank "
                    f"{self.ranks.rank} at {self._count} ({operation.name.lower()})",
                    why="ranks that hold the tables together must issue the same calls in the same order",
                    fix="evaluate, save, load and close on all ranks",
                )

    def tell(self, operation: Operation, content: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send plain data to all ranks; return what each sent, see `talk`."""
        return [of_text(part) for part in self.talk(operation, [as_text(content)] * self.ranks.size)]

    def agree(self, own: Mapping[str, Any]) -> None:
        """Tell all ranks the settings of this one; raise `ConfigError` if a rank has others."""
        for rank, other in enumerate(self.tell(Operation.HELLO, own)):
            for name, value in own.items():
                if other[name] != value:
                    raise ConfigError(
                        f"rank {rank} has other {name} than rank {self.ranks.rank}",
                        why="ranks hold the tables together, so they must agree",
                        fix="start all ranks with the same program and recipe",
                    )

    def ask(self, operation: Operation, work: Callable[[], Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Do something; return what it returned on each rank, or raise what it raised on any."""
        try:
            said: Sequence[Bytes] | SatrapError = [as_text(work())] * self.ranks.size
        except SatrapError as error:
            said = error
        return [of_text(part) for part in self.talk(operation, said)]


def _framed(head: Lengths, part: Bytes, room: int) -> Iterator[Bytes]:
    yield head.view(np.uint8)
    yield part[:room]
    yield np.zeros(max(room - len(part), 0), np.uint8)


def as_text(content: Mapping[str, Any]) -> Bytes:
    """Return plain data as bytes."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def of_text(part: Bytes) -> dict[str, Any]:
    """Return the plain data in bytes."""
    found: dict[str, Any] = json.loads(part.tobytes())
    return found


def _named(error: SatrapError, rank: int) -> SatrapError:
    where = f"rank {rank}: {error.where}" if error.where else f"rank {rank}"
    return type(error)(error.what, where=where, why=error.why, fix=error.fix)
