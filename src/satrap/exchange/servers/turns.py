"""Whose turn it is: requests in order of arrival, except where `sync` makes workers wait for each other."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from satrap.errors import ConfigError, ExchangeError, SatrapError, StoreError
from satrap.exchange.servers.frames import FAILURE, Buffer, Code, FrameError, Header, Kind
from satrap.exchange.servers.journal import Journal
from satrap.exchange.servers.payload import pack_text
from satrap.exchange.servers.service import Service
from satrap.exchange.servers.session import Answer, Session

_UNGATED = (Kind.UPDATE, Kind.BYE, Kind.HELLO)


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


class Turns:
    """Executes requests on a `Service`, each when it may be. Does no input or output but the journal's.

    Args:
        service: the store and its requests.
        finish: called with each job and its answer.
        wait: seconds a request may wait for a rank from which nothing is heard.
        heard: returns when a rank was last heard.
        journal: where requests are written before they are executed; None: nowhere.

    Attributes:
        refused: requests answered with an error.
        executed: kind of request -> how many were executed.
        busy: seconds spent executing.
    """

    def __init__(
        self,
        service: Service,
        finish: Finish,
        *,
        wait: float,
        heard: Callable[[int], float] = lambda _: float("-inf"),
        journal: Journal | None = None,
    ) -> None:
        self._service, self._finish, self._wait, self._heard = service, finish, wait, heard
        self._journal = journal
        self.refused, self.busy = 0, 0.0
        self.executed: Counter[int] = Counter()
        self._parked: dict[int, deque[Job]] = {}

    def take(self, job: Job) -> None:
        """Execute a job after those taken before, or let it wait; then those whose turn has come."""
        client = job.session.client
        if client in self._parked or self._must_wait(job):
            self._parked.setdefault(client, deque()).append(job)
            self._service.expect(job.header.kind, job.parts)
            self.expire(job.arrived)
        elif self._execute(job):
            self._wake()

    def _must_wait(self, job: Job) -> bool:
        session, header, board = job.session, job.header, self._service.board
        if not session.gated or header.kind in _UNGATED:
            return False
        if session.ordered and (header.kind, header.step) == (Kind.LOOKUP, board.completed):
            return board.awaits(session.rank)
        return header.step > board.completed

    def _wake(self) -> None:
        """Execute what has its turn now, client after client in the order they began to wait."""
        again = True
        while again:
            again = False
            for client, jobs in list(self._parked.items()):
                while jobs and not self._must_wait(jobs[0]):
                    again = self._execute(jobs.popleft()) or again
                if not jobs:
                    del self._parked[client]

    def expire(self, now: float) -> None:
        """Refuse what has waited too long."""
        for client, jobs in list(self._parked.items()):
            while jobs and (silent := self._silent(jobs[0], now)):
                job = jobs.popleft()
                self._fail(job, Code.DEADLINE, self._too_late(job, silent))
            if not jobs:
                del self._parked[client]

    def _silent(self, job: Job, now: float) -> list[int]:
        """Return the ranks a job has waited for too long."""
        if now - job.arrived <= self._wait:
            return []
        return [rank for rank in self._service.board.missing() if now - self._heard(rank) > self._wait]

    def _too_late(self, job: Job, ranks: Sequence[int]) -> ExchangeError:
        return ExchangeError(
            f"step {self._service.board.completed} is not complete: nothing came from rank "
            f"{', '.join(map(str, ranks))}",
            where=f"stage: {Kind(job.header.kind).name.lower()} of rank {job.session.rank}",
            why=f"waited {self._wait:g} s; in sync mode every rank must send its update",
        )

    def _execute(self, job: Job) -> bool:
        """Execute a job; return whether others may have their turn now."""
        before, started = self._service.board.progress, time.perf_counter()
        if job.session.fenced:  # since it was received: the hello of its successor came before it
            self._fail(job, Code.FENCED, fenced())
            return False
        try:
            if self._journal is not None:
                if self._service.renews(job.header, job.parts):
                    self._journal.begin()
                self._journal.append(job.head, job.parts)
        except StoreError as error:
            self._fail(job, Code.STORE, error)
            return False
        answer = execute(self._service, job)
        self.refused += answer.header.kind == FAILURE
        self._finish(job, answer)
        self.executed[job.header.kind] += 1
        self.busy += time.perf_counter() - started
        return self._service.board.progress != before

    def _fail(self, job: Job, code: Code, error: SatrapError) -> None:
        self.refused += 1
        self._finish(job, failure(job.header, code, error))


def fenced() -> ExchangeError:
    """Return the error for a client whose rank a newer one has."""
    return ExchangeError("another worker has taken this one's rank")


def execute(service: Service, job: Job) -> Answer:
    """Execute a request and return its answer, which may be an error."""
    own, every = service.seen(job.session)
    try:
        parts = service.execute(job.session, job.header, job.parts)
        return Answer.of(job.header.answer(acknowledged=own, step=every), parts)
    except SatrapError as error:
        return failure(job.header, error_code(error), error)
    except MemoryError:
        full = StoreError("the shard has too little memory for the request")
        return failure(job.header, Code.STORE, full)


def error_code(error: SatrapError) -> Code:
    """Return how a refusal is told to the client."""
    if isinstance(error, FrameError | StoreError):
        return Code.STORE
    return Code.CONFIG if isinstance(error, ConfigError) else Code.SEQUENCE


def failure(header: Header, code: Code, error: SatrapError) -> Answer:
    """Return the answer that carries an error."""
    text = {"code": int(code), "kind": header.kind} | {
        key: getattr(error, key) for key in ("what", "where", "why", "fix")
    }
    return Answer.of(header.answer(FAILURE), [pack_text(text)])
