"""A handler does the work of a server: a shard, a loader or an embedding worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from satrap.errors import ExchangeError, SatrapError
from satrap.rpc.server.session import Answer, Session, failure
from satrap.rpc.server.statistics import ServerStatistics
from satrap.rpc.wire.frames import Buffer, Code, Header, MessageKind


@dataclass(frozen=True, slots=True)
class Job:
    """A request to execute: a message with `size` bytes of payload, and `head`, its header as received.

    `arrived` is in seconds of the server's clock.
    """

    session: Session
    header: Header
    parts: Sequence[Buffer]
    size: int
    arrived: float
    head: bytes = b""


Finish = Callable[[Job, Answer], None]


@dataclass(frozen=True, slots=True)
class Work:
    """A checked request; `run` executes it and returns the parts of the response, None for an empty one.

    `renews`: nothing before this request matters any more, because a new group of workers starts.
    """

    run: Callable[[], list[Buffer] | None]
    renews: bool = False


class Board:
    """Decides which requests wait for other clients, and for which ones; here none does.

    It is not called for hellos, updates and goodbyes, which never wait.

    Attributes:
        progress: changes when a waiting request may have its turn.
    """

    progress: object = None

    def refusal(self, session: Session, header: Header) -> SatrapError | None:
        """Return the error for a request that must not even wait; None: it may."""
        return None

    def must_wait(self, session: Session, header: Header) -> bool:
        """Return whether a request has to wait."""
        return False

    def missing(self) -> Sequence[int]:
        """Return the ranks for which requests wait."""
        return ()

    def too_late(self, session: Session, header: Header, silent: str, seconds: float) -> SatrapError:
        """Return the error for a request that has waited `seconds` for silent ranks."""
        return ExchangeError(f"nothing came from rank {silent}", why=f"the server waited {seconds:g} s")


class Handler(Protocol):
    """Does the work of a server. Subclasses override the methods they need.

    Any thread may call `expect`; the thread of the server that executes requests calls the others.

    Attributes:
        role: the name of the process in messages.
        kinds: kinds of requests it executes.
        observe: returns the server's counters; the server sets it.
    """

    role: str
    kinds: Sequence[MessageKind]
    observe: Callable[[], ServerStatistics] = ServerStatistics

    @property
    def epoch(self) -> int | None:
        """Epoch of the shard map that requests must name; None: any."""
        return None

    def expect(self, kind: int, parts: Sequence[Buffer]) -> None:
        """Prepare for a request that waits or is announced; return at once, raise nothing."""
        return

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Drop state of clients that are gone."""
        return

    def close(self) -> None:
        """Free all resources."""
        return


class SerialHandler(Handler, Protocol):
    """A handler whose requests `Turns` executes one after another; its `board` decides which of them wait."""

    board: Board

    @abstractmethod
    def prepare(self, session: Session, header: Header, parts: Sequence[Buffer]) -> Work:
        """Check a request; return its work, or change nothing and raise a `SatrapError`."""

    def seen(self, session: Session) -> tuple[int, int]:
        """Return how many updates have been applied: (this client's, all)."""
        return 0, 0

    def changes(self) -> object:
        """Return a value that changes as soon as a request changes state that the journal restores."""
        return None


class Dispatcher(ABC):
    """Decides when each request is executed.

    Args:
        finish: called with each job and its response.

    Attributes:
        refused: number of requests answered with an error.
        executed: kind of request -> number executed.
        busy: seconds spent executing.
    """

    def __init__(self, finish: Finish) -> None:
        self.finish, self.refused, self.busy = finish, 0, 0.0
        self.executed: Counter[int] = Counter()

    def refuse(self, job: Job, code: Code, error: SatrapError) -> None:
        """Answer a request with an error."""
        self.refused += 1
        self.finish(job, failure(job.header, code, error))

    @abstractmethod
    def take(self, job: Job) -> None:
        """Execute a job when it may run, after earlier jobs of the same client."""

    @abstractmethod
    def expire(self, now: float) -> None:
        """Check waiting jobs, several times a second; `now` in seconds of the server's clock."""
