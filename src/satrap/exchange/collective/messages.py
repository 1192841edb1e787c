"""What ranks say to each other: every operation begins with a header, so that all know that they agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from satrap.errors import ExchangeError, SatrapError, error_of, error_values
from satrap.exchange.collective.ranks import Bytes, Ranks

_OPERATION, _NUMBER, _SIZE, _FAILED = range(4)


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

    After an `ExchangeError` it is closed to further operations: the ranks are no longer in step.

    Attributes:
        ranks: who talks.
        sent, received: bytes to and from other ranks, without the heads of messages.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self._count = ranks, 0
        self.sent = self.received = 0
        self._lost: ExchangeError | None = None

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
        size, failed = self.ranks.size, isinstance(parts, SatrapError)
        given = [as_text(error_values(parts))] * size if isinstance(parts, SatrapError) else list(parts)
        head = np.zeros((size, 4), np.int64)
        head[:, _OPERATION], head[:, _NUMBER], head[:, _FAILED] = operation, self._count, failed
        head[:, _SIZE] = [len(part) for part in given]
        told = self.ranks.all_to_all(list(head.view(np.uint8).reshape(size, -1)), [head[0].nbytes] * size)
        heads = np.stack([one.view(np.int64) for one in told])
        self._check(operation, heads)
        self._count += 1
        found = self.ranks.all_to_all(given, heads[:, _SIZE].tolist())
        own = self.ranks.rank
        self.sent += sum(map(len, given)) - len(given[own])
        self.received += sum(map(len, found)) - len(found[own])
        for rank in np.flatnonzero(heads[:, _FAILED]):
            raise _named(error_of(of_text(found[rank])), int(rank))
        return found

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

    def ask(self, operation: Operation, work: Callable[[], Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Do something; return what it returned on each rank, or raise what it raised on any."""
        try:
            said: Sequence[Bytes] | SatrapError = [as_text(work())] * self.ranks.size
        except SatrapError as error:
            said = error
        return [of_text(part) for part in self.talk(operation, said)]


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
