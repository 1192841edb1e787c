"""What a server does with requests is up to its handler: a shard, a loader or an embedding worker."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from satrap.errors import ExchangeError, SatrapError
from satrap.rpc.server.session import Answer, Session
from satrap.rpc.wire.frames import Buffer, Header, Kind


@dataclass(frozen=True, slots=True)
class Job:
    """A request to execute.

    Args:
        session: of the client that sent it.
        header, parts: the message.
        size: bytes of its payload.
        arrived: when, in seconds of the server's clock.
        head: the header as it came, for the journal.
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
    """A request that was found to be possible.

    Args:
        run: executes it, and returns the parts of its answer.
        renews: it makes an end of everything before it: the first of a new group of workers.
    """

    run: Callable[[], list[Buffer]]
    renews: bool = False


class Board:
    """Which requests wait for other clients, and for whom. On this one, none does.

    It is not asked about hellos, updates and goodbyes, which never wait.

    Attributes:
        progress: changes when a request may have a turn that it did not have before.
    """

    progress: object = None

    def refusal(self, session: Session, header: Header) -> SatrapError | None:
        """Return the error for a request that must not even wait."""
        return None

    def must_wait(self, session: Session, header: Header) -> bool:
        """Return whether it is not a request's turn yet."""
        return False

    def missing(self) -> Sequence[int]:
        """Return the ranks that requests wait for."""
        return ()

    def too_late(self, session: Session, header: Header, silent: str, seconds: float) -> SatrapError:
        """Return the error for a request that has waited `seconds` for ranks of which nothing is heard."""
        return ExchangeError(f"nothing came from rank {silent}", why=f"waited {seconds:g} s")


class Handler(Protocol):
    """What a process does for its clients. Subclasses override what they need.

    Any thread may call `statistics` and `expect`; the thread of the server's `Executor` calls the others.

    Attributes:
        role: what the process calls itself.
        kinds: of requests that it executes.
        epoch: of the shard map under which requests must be made, None: any.
        observe: counters of the server; it sets this, and `statistics` tells them under `server`.
    """

    role: str
    kinds: Sequence[Kind]
    observe: Callable[[], Mapping[str, Any]] = dict

    @property
    def epoch(self) -> int | None:
        """See the class."""
        return None

    @abstractmethod
    def statistics(self) -> dict[str, Any]:
        """Return counters: its own, and those of the server."""

    def expect(self, kind: int, parts: Sequence[Buffer]) -> None:
        """Prepare for a request that waits or is yet to come. Returns at once and tells of no error."""
        return

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Let go what is held for clients that are gone."""
        return

    def close(self) -> None:
        """Free everything."""
        return


class SerialHandler(Handler, Protocol):
    """A handler whose requests `Turns` executes one after another.

    Attributes:
        board: which requests wait for other clients.
    """

    board: Board

    @abstractmethod
    def prepare(self, session: Session, header: Header, parts: Sequence[Buffer]) -> Work:
        """Check a request; return what executes it.

        Raises:
            SatrapError: it is refused; nothing has changed.
        """

    def seen(self, session: Session) -> tuple[int, int]:
        """Return how many updates have been applied: (of a session, of all)."""
        return 0, 0

    def changes(self) -> object:
        """Return something that is another once a request has begun to change what the journal restores."""
        return None


class Dispatcher(Protocol):
    """Has requests executed in an order of its own; counts them, and the seconds spent, as `Turns` does."""

    refused: int
    executed: Counter[int]
    busy: float

    def take(self, job: Job) -> None:
        """Execute a job once its turn has come, after those of the same client taken before."""

    def expire(self, now: float) -> None:
        """Look at what waits, several times a second; `now`: seconds of the server's clock."""
