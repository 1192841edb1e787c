"""Whose turn it is: requests in order of arrival, except where `sync` makes workers wait for each other."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from satrap.errors import ConfigError, ExchangeError, SatrapError, StoreError
from satrap.exchange.servers.journal import Journal
from satrap.exchange.servers.service import Service, Work
from satrap.exchange.servers.session import Answer, Session
from satrap.exchange.servers.unexpected import answerable
from satrap.rpc.wire.frames import FAILURE, Buffer, Code, FrameError, Header, Kind
from satrap.rpc.wire.text import pack_text

_UNGATED = (Kind.UPDATE, Kind.BYE, Kind.HELLO)
_NAMED = 8
"""Ranks that an error names, at most: a hello may speak of 65,536."""
FAR = 2
"""Steps before the open one at which a request is wrong: a worker asks for one step ahead of its update."""


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
        has_room: returns whether one more answer to a client may be kept; its requests wait until then.
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
        has_room: Callable[[Session], bool] = lambda _: True,
        journal: Journal | None = None,
    ) -> None:
        self._service, self._finish, self._wait, self._heard = service, finish, wait, heard
        self._has_room, self._journal = has_room, journal
        self.refused, self.busy = 0, 0.0
        self.executed: Counter[int] = Counter()
        self._parked: dict[int, deque[Job]] = {}

    def take(self, job: Job) -> None:
        """Execute a job after those taken before, or let it wait; then those whose turn has come."""
        client, session = job.session.client, job.session
        ahead = job.header.step - self._service.board.completed
        if session.gated and ahead >= FAR and job.header.kind not in _UNGATED:
            self._fail(job, Code.SEQUENCE, _too_early(job, ahead))
        elif client in self._parked:
            self._park(job)
            if self._wake_one(client):  # it may have acknowledged answers
                self._wake()
        elif self._must_wait(job):
            self._park(job)
        elif self._execute(job):
            self._wake()

    def _park(self, job: Job) -> None:
        session = job.session
        session.parked, session.parked_bytes = session.parked + 1, session.parked_bytes + job.size
        self._parked.setdefault(session.client, deque()).append(job)
        self._service.expect(job.header.kind, job.parts)

    def _unpark(self, client: int) -> Job:
        job = self._parked[client].popleft()
        session = job.session
        session.parked, session.parked_bytes = session.parked - 1, session.parked_bytes - job.size
        if not self._parked[client]:
            del self._parked[client]
        return job

    def _must_wait(self, job: Job) -> bool:
        session, header, board = job.session, job.header, self._service.board
        if session.fenced or header.kind in _UNGATED:
            return False
        if not self._has_room(session):
            return True
        if not session.gated:
            return False
        if session.ordered and (header.kind, header.step) == (Kind.LOOKUP, board.completed):
            return board.awaits(session.rank)
        return header.step > board.completed

    def _wake(self) -> None:
        """Execute what has its turn now, client after client in the order they began to wait."""
        while any([self._wake_one(client) for client in list(self._parked)]):
            pass

    def _wake_one(self, client: int) -> bool:
        """Execute what has its turn now of one client; return whether others may have theirs now."""
        progress = False
        while client in self._parked and not self._must_wait(self._parked[client][0]):
            progress = self._execute(self._unpark(client)) or progress
        return progress

    def expire(self, now: float) -> None:
        """Refuse what has waited too long; execute what has its turn now, since answers were acknowledged."""
        late = [c for c, jobs in self._parked.items() if now - jobs[0].arrived > self._wait]
        silent = self._silent(now) if late else []
        for client in late if silent else []:
            while client in self._parked and now - self._parked[client][0].arrived > self._wait:
                job = self._unpark(client)
                self._fail(job, Code.DEADLINE, self._too_late(job, silent))
        self._wake()

    def _silent(self, now: float) -> list[int]:
        """Return the first ranks that the open step lacks and from which nothing was heard for too long."""
        missing = self._service.board.missing()
        return list(islice((rank for rank in missing if now - self._heard(rank) > self._wait), _NAMED))

    def _too_late(self, job: Job, ranks: Sequence[int]) -> ExchangeError:
        return ExchangeError(
            f"step {self._service.board.completed} is not complete: nothing came from rank "
            f"{', '.join(map(str, ranks))}",
            where=f"stage: {name_of(job.header.kind)} of rank {job.session.rank}",
            why=f"waited {self._wait:g} s; in sync mode every rank must send its update",
        )

    def _execute(self, job: Job) -> bool:
        """Execute a job; return whether others may have their turn now."""
        before, started = self._service.board.progress, time.perf_counter()
        if job.session.fenced:  # since it was received: the hello of its successor came before it
            self._fail(job, Code.FENCED, fenced())
            return False
        answer = execute(self._service, job, self._journal)
        self.refused += answer.header.kind == FAILURE
        self._finish(job, answer)
        self.executed[job.header.kind] += 1
        self.busy += time.perf_counter() - started
        return self._service.board.progress != before

    def _fail(self, job: Job, code: Code, error: SatrapError) -> None:
        self.refused += 1
        self._finish(job, failure(job.header, code, error))


def _too_early(job: Job, ahead: int) -> ExchangeError:
    return ExchangeError(
        f"a request of step {job.header.step} came while step {job.header.step - ahead} is open",
        where=f"{Kind(job.header.kind).name.lower()} of rank {job.session.rank}",
        why="in sync mode a worker asks for a step once it has sent its update of the one before",
    )


def fenced() -> ExchangeError:
    """Return the error for a client whose rank a newer one has."""
    return ExchangeError("another worker has taken this one's rank")


def execute(service: Service, job: Job, journal: Journal | None = None) -> Answer:
    """Check a request, write it to the journal, execute it; return its answer, which may be an error.

    Whatever is raised, the request is answered. The journal keeps none that was refused by the check, or that
    failed before it changed anything. One that failed halfway stays, and is repeated whole.
    """
    own, every = service.seen(job.session)
    where = f"{service.role}: {name_of(job.header.kind)}"
    try:
        with answerable(where, begun=False):
            work = service.prepare(job.session, job.header, job.parts)
            if journal is not None:
                journal.append(job.head, job.parts)
        with answerable(where, begun=True):
            parts = work.run() if journal is None else _run(work, job, journal, service)
            return Answer.of(job.header.answer(acknowledged=own, step=every), parts)
    except SatrapError as error:
        return failure(job.header, error_code(error), error)


def _run(work: Work, job: Job, journal: Journal, service: Service) -> list[Buffer]:
    before = service.changes()
    try:
        parts = work.run()
    except BaseException:
        if job.header.kind == Kind.HELLO or service.changes() == before:
            journal.take_back()  # repeated where it succeeds, it would do what it has not done here
        raise
    if work.renews:
        with suppress(StoreError):  # without room what lies before it stays, and is repeated with it
            journal.begin(job.head, job.parts)
    return parts


def name_of(kind: int) -> str:
    """Return the name of a kind of request, as errors show it."""
    return Kind(kind).name.lower()


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
