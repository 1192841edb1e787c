"""Messages between ranks: each operation begins with a header, so that all ranks can check it."""

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
"""Minimum spare bytes in a message, and the divisor of the previous length that gives further spare bytes."""

Lengths = npt.NDArray[np.int64]


class Operation(IntEnum):
    """The subject of a message."""

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

    An operation is one all-to-all. A message has room for a little more than was sent the last time that the
    same operation came before it. If one message is longer, all ranks send the rest of theirs in a second
    all-to-all. Both ends know the room beforehand, whatever operation either is at, so that ranks which are
    out of step notice it.

    After an `ExchangeError` no further operations are possible: the ranks are out of step.

    Attributes:
        ranks: the processes.
        sent, received: bytes to and from other ranks, without headers and unused room.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self._count = ranks, 0
        self.sent = self.received = 0
        self._lost: ExchangeError | None = None
        self._before = -1
        self._lengths: dict[int, Lengths] = {}
        """Operation -> the lengths of the messages after it, to and from each rank, int64[2, ranks]."""

    def talk(self, operation: Operation, parts: Sequence[Bytes] | SatrapError) -> list[Bytes]:
        """Send part r to rank r and return the part from each rank; an error is sent to all, which raise it.

        Raises:
            SatrapError: the error that another rank, or this one, sent instead of its parts.
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
        size, this, failed = self.ranks.size, self.ranks.rank, isinstance(parts, SatrapError)
        outgoing = [as_text(error_values(parts))] * size if isinstance(parts, SatrapError) else list(parts)
        lengths, others = np.array([len(part) for part in outgoing]), np.arange(size) != this
        last = self._lengths.setdefault(self._before, np.zeros((2, size), np.int64))
        room, coming = (last + last // _SPARE + _SMALL) * others
        heads = np.zeros((size, len(_HEAD)), np.int64)
        heads[:, _OPERATION], heads[:, _NUMBER], heads[:, _FAILED] = operation, self._count, failed
        heads[:, _SIZE], heads[:, _MORE] = lengths, bool((lengths > room)[others].any())
        framed = [piece for r in np.flatnonzero(others) for piece in _framed(heads[r], outgoing[r], room[r])]
        incoming = self._sent(framed, (room + _HEAD_BYTES) * others, (coming + _HEAD_BYTES) * others)
        for rank in np.flatnonzero(others):
            heads[rank] = incoming[rank][:_HEAD_BYTES].view(np.int64)
            incoming[rank] = incoming[rank][_HEAD_BYTES:][: heads[rank, _SIZE]]
        self._check(operation, heads)
        sizes = heads[:, _SIZE].copy()
        if heads[:, _MORE].any():
            rests = [outgoing[r][room[r] :] for r in np.flatnonzero(others)]
            more = self._sent(rests, (lengths - room).clip(0) * others, (sizes - coming).clip(0) * others)
            incoming = [joined(pair) for pair in zip(incoming, more, strict=True)]
        incoming[this] = outgoing[this]
        self._lengths[self._before] = np.stack([lengths, sizes])
        self._count, self._before = self._count + 1, operation
        self.sent += int(lengths[others].sum())
        self.received += int(sizes[others].sum())
        for rank in np.flatnonzero(heads[:, _FAILED]):
            raise _named(error_of(of_text(incoming[rank])), int(rank))
        return incoming

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
        """Send plain data to all ranks; return the data of each rank, see `talk`."""
        return [of_text(part) for part in self.talk(operation, [as_text(content)] * self.ranks.size)]

    def agree(self, own: Mapping[str, Any]) -> None:
        """Compare this rank's settings with all others; raise `ConfigError` if a rank has different ones."""
        for rank, other in enumerate(self.tell(Operation.HELLO, own)):
            for name, value in own.items():
                if other[name] != value:
                    raise ConfigError(
                        f"rank {rank} differs from rank {self.ranks.rank} in {name}",
                        why="ranks that hold the tables together must have equal settings",
                        fix="start all ranks with the same program and recipe",
                    )

    def ask(self, operation: Operation, work: Callable[[], Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Call a function on all ranks; return the result of each rank, or raise the error of any rank."""
        try:
            result: Sequence[Bytes] | SatrapError = [as_text(work())] * self.ranks.size
        except SatrapError as error:
            result = error
        return [of_text(part) for part in self.talk(operation, result)]


def _framed(head: Lengths, part: Bytes, room: int) -> Iterator[Bytes]:
    yield head.view(np.uint8)
    yield part[:room]
    yield np.zeros(max(room - len(part), 0), np.uint8)


def as_text(content: Mapping[str, Any]) -> Bytes:
    """Return plain data as bytes."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def of_text(part: Bytes) -> dict[str, Any]:
    """Return the plain data in bytes."""
    content: dict[str, Any] = json.loads(part.tobytes())
    return content


def _named(error: SatrapError, rank: int) -> SatrapError:
    where = f"rank {rank}: {error.where}" if error.where else f"rank {rank}"
    return type(error)(error.what, where=where, why=error.why, fix=error.fix)
