"""Messages between ranks: each operation begins with a header, so that all ranks can check it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, ExchangeError, SatrapError, error_of, error_values
from satrap.exchange.collective.ranks import Bytes, Ranks
from satrap.rpc.wire.frames import Buffer, as_bytes

_OPERATION, _NUMBER, _SIZE, _FAILED, _MORE = _HEAD = range(5)
_HEAD_BYTES = 8 * len(_HEAD)
_SMALL, _SPARE = 64, 64
"""Minimum spare bytes in a message, and the divisor of the previous length that gives further spare bytes."""

_ALIGNED, _ZEROS = 8, np.zeros(8, np.uint8)
"""Each part of a message begins at a multiple of these bytes."""

Lengths = npt.NDArray[np.int64]


class Operation(IntEnum):
    """The subject of a message."""

    HELLO = 0
    LOOKUP = 1
    PEEK = 2
    ROWS = 3
    UPDATE = 4
    FLUSH = 5
    PATCH = 6


Message = Sequence[Buffer]
"""The parts of a message to or from one rank."""


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

    def talk(self, operation: Operation, messages: Sequence[Message] | SatrapError) -> list[list[Bytes]]:
        """Send message r to rank r, return the message from each; an error is sent to all, which raise it.

        Raises:
            SatrapError: the error that another rank, or this one, sent instead of its messages.
            ExchangeError: a rank is lost, or is at another operation.
        """
        if self._lost is not None:
            raise self._lost
        try:
            return self._talk(operation, messages)
        except ExchangeError as error:
            self._lost = error
            raise

    def _talk(self, operation: Operation, messages: Sequence[Message] | SatrapError) -> list[list[Bytes]]:
        if self.ranks.size == 1:
            return _alone(messages)
        size, this, failed = self.ranks.size, self.ranks.rank, isinstance(messages, SatrapError)
        if isinstance(messages, SatrapError):
            messages = [[as_text(error_values(messages))]] * size
        outgoing = [[as_bytes(part) for part in message] for message in messages]
        framed = [_framed(parts) for parts in outgoing]
        lengths = np.array([sum(map(len, pieces)) for pieces in framed])
        others = np.arange(size) != this
        last = self._lengths.setdefault(self._before, np.zeros((2, size), np.int64))
        room, coming = (last + (last // _SPARE + _SMALL) // _ALIGNED * _ALIGNED) * others
        heads = np.zeros((size, len(_HEAD)), np.int64)
        heads[:, _OPERATION], heads[:, _NUMBER], heads[:, _FAILED] = operation, self._count, failed
        heads[:, _SIZE], heads[:, _MORE] = lengths, bool((lengths > room)[others].any())
        pieces, rests = list[Bytes](), list[Bytes]()
        for r in np.flatnonzero(others):
            first, rest = _cut(framed[r], room[r])
            pieces += [heads[r].view(np.uint8), *first]
            rests += rest
        incoming = self._sent(pieces, (room + _HEAD_BYTES) * others, (coming + _HEAD_BYTES) * others)
        for rank in np.flatnonzero(others):
            heads[rank] = incoming[rank][:_HEAD_BYTES].view(np.int64)
            incoming[rank] = incoming[rank][_HEAD_BYTES:][: heads[rank, _SIZE]]
        self._check(operation, heads)
        sizes = heads[:, _SIZE].copy()
        if heads[:, _MORE].any():
            more = self._sent(rests, (lengths - room).clip(0) * others, (sizes - coming).clip(0) * others)
            incoming = [np.concatenate(pair) for pair in zip(incoming, more, strict=True)]
        received = [outgoing[r] if r == this else _parts(incoming[r]) for r in range(size)]
        self._lengths[self._before] = np.stack([lengths, sizes])
        self._count, self._before = self._count + 1, operation
        self.sent += sum(len(part) for r in np.flatnonzero(others) for part in outgoing[r])
        self.received += sum(len(part) for r in np.flatnonzero(others) for part in received[r])
        for rank in np.flatnonzero(heads[:, _FAILED]):
            raise _named(error_of(of_text(received[rank])), int(rank))
        return received

    def _sent(self, pieces: Sequence[Bytes], lengths: Lengths, sizes: Lengths) -> list[Bytes]:
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
        return self.ask(operation, lambda: content)

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
            result: Sequence[Message] | SatrapError = [[as_text(work())]] * self.ranks.size
        except SatrapError as error:
            result = error
        return [of_text(message) for message in self.talk(operation, result)]


def _alone(messages: Sequence[Message] | SatrapError) -> list[list[Bytes]]:
    """Return the message of a single rank to itself: nothing to frame, to send or to check."""
    if isinstance(messages, SatrapError):
        raise _named(messages, 0)
    return [[as_bytes(part) for part in messages[0]]]


def _framed(parts: Sequence[Bytes]) -> list[Bytes]:
    """Return the bytes of a message: the number and sizes of its parts, then the parts, each aligned."""
    pieces = [np.array([len(parts), *map(len, parts)], np.int64).view(np.uint8)]
    for part in parts:
        pieces += [part, _ZEROS[: -len(part) % _ALIGNED]]
    return pieces


def _parts(message: Bytes) -> list[Bytes]:
    """Return the parts of a message, as views of it."""
    count, parts = int(message[:8].view(np.int64)[0]), []
    at = 8 + 8 * count
    for size in message[8:at].view(np.int64).tolist():
        parts.append(message[at : at + size])
        at += size + -size % _ALIGNED
    return parts


def _cut(pieces: Sequence[Bytes], room: int) -> tuple[list[Bytes], list[Bytes]]:
    """Return the first `room` bytes, filled up with zeros, and the others."""
    first, rest = list[Bytes](), list[Bytes]()
    for piece in pieces:
        first.append(piece[:room])
        rest.append(piece[room:])
        room -= len(first[-1])
    return [*first, np.zeros(room, np.uint8)], rest


def as_text(content: Mapping[str, Any]) -> Bytes:
    """Return plain data as bytes."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def of_text(message: Sequence[Bytes]) -> dict[str, Any]:
    """Return the plain data in a message of one part."""
    content: dict[str, Any] = json.loads(message[0].tobytes())
    return content


def _named(error: SatrapError, rank: int) -> SatrapError:
    where = f"rank {rank}: {error.where}" if error.where else f"rank {rank}"
    return type(error)(error.what, where=where, why=error.why, fix=error.fix)
