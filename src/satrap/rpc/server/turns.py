"""Runs requests in order of arrival, except where a handler's board makes clients wait."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from satrap.errors import SatrapError, StoreError
from satrap.rpc.server.handler import Finish, Job, SerialHandler, Work
from satrap.rpc.server.journal import Journal
from satrap.rpc.server.session import Answer, Session, error_code, failure, fenced
from satrap.rpc.server.unexpected import answerable
from satrap.rpc.wire.frames import FAILURE, Buffer, Code, Kind, name_of

_AT_ONCE = (Kind.UPDATE, Kind.BYE, Kind.HELLO)
"""Requests that never wait: others may wait for them, and their answers are small."""
_NAMED = 8
"""Most ranks that an error names: a hello may announce 65,536."""


class Turns:
    """Has a handler execute requests, each when it may be. Does no input or output but the journal's.

    Args:
        handler: does the work.
        finish: called with each job and its answer.
        wait: seconds a request may wait for a silent rank.
        heard: returns when a rank was last heard.
        has_room: returns whether one more answer to a client may be kept; its requests wait until then.
        journal: where requests are written before they are executed; None: nowhere.

    Attributes:
        refused: number of requests answered with an error.
        executed: kind of request -> number executed.
        busy: seconds spent executing.
    """

    def __init__(
        self,
        handler: SerialHandler,
        finish: Finish,
        *,
        wait: float,
        heard: Callable[[int], float] = lambda _: float("-inf"),
        has_room: Callable[[Session], bool] = lambda _: True,
        journal: Journal | None = None,
    ) -> None:
        self._handler, self._finish, self._wait, self._heard = handler, finish, wait, heard
        self._has_room, self._journal = has_room, journal
        self.refused, self.busy = 0, 0.0
        self.executed: Counter[int] = Counter()
        self._parked: dict[int, deque[Job]] = {}

    def take(self, job: Job) -> None:
        """Execute a job or let it wait; then execute the waiting jobs whose turn has come."""
        client, board = job.session.client, self._handler.board
        if job.header.kind not in _AT_ONCE and (error := board.refusal(job.session, job.header)):
            self._fail(job, Code.SEQUENCE, error)
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
        self._handler.expect(job.header.kind, job.parts)

    def _unpark(self, client: int) -> Job:
        job = self._parked[client].popleft()
        session = job.session
        session.parked, session.parked_bytes = session.parked - 1, session.parked_bytes - job.size
        if not self._parked[client]:
            del self._parked[client]
        return job

    def _must_wait(self, job: Job) -> bool:
        session, header = job.session, job.header
        if session.fenced or header.kind in _AT_ONCE:
            return False
        return not self._has_room(session) or self._handler.board.must_wait(session, header)

    def _wake(self) -> None:
        """Execute waiting jobs that have their turn, client after client in the order they began to wait."""
        while any([self._wake_one(client) for client in list(self._parked)]):
            pass

    def _wake_one(self, client: int) -> bool:
        """Execute a client's jobs that have their turn; return whether other clients may have theirs."""
        progress = False
        while client in self._parked and not self._must_wait(self._parked[client][0]):
            progress = self._execute(self._unpark(client)) or progress
        return progress

    def expire(self, now: float) -> None:
        """Refuse jobs that have waited too long; execute those for whose answers there is room again."""
        late = [c for c, jobs in self._parked.items() if now - jobs[0].arrived > self._wait]
        missing = self._handler.board.missing() if late else ()
        ranks = (str(rank) for rank in missing if now - self._heard(rank) > self._wait)
        silent = ", ".join(islice(ranks, _NAMED))
        for client in late if silent else []:
            while client in self._parked and now - self._parked[client][0].arrived > self._wait:
                job = self._unpark(client)
                error = self._handler.board.too_late(job.session, job.header, silent, self._wait)
                self._fail(job, Code.DEADLINE, error)
        self._wake()

    def _execute(self, job: Job) -> bool:
        """Execute a job; return whether other clients may have their turn."""
        before, started = self._handler.board.progress, time.perf_counter()
        if job.session.fenced:  # since it was received: a newer client of its rank was executed before
            self._fail(job, Code.FENCED, fenced())
            return False
        answer = execute(self._handler, job, self._journal)
        self.refused += answer.header.kind == FAILURE
        self._finish(job, answer)
        self.executed[job.header.kind] += 1
        self.busy += time.perf_counter() - started
        return self._handler.board.progress != before

    def _fail(self, job: Job, code: Code, error: SatrapError) -> None:
        self.refused += 1
        self._finish(job, failure(job.header, code, error))


def execute(handler: SerialHandler, job: Job, journal: Journal | None = None) -> Answer:
    """Check a request, write it to the journal, execute it; return its answer, whatever is raised.

    The journal keeps no request that was refused, or that failed before it changed anything. A request that
    failed halfway stays, and is repeated whole.
    """
    own, every = handler.seen(job.session)
    where = f"{handler.role}: {name_of(job.header.kind)}"
    try:
        with answerable(where, begun=False):
            work = handler.prepare(job.session, job.header, job.parts)
            if journal is not None:
                journal.append(job.head, job.parts)
        with answerable(where, begun=True):
            parts = work.run() if journal is None else _run(work, job, journal, handler)
            return Answer.of(job.header.answer(acknowledged=own, step=every), parts)
    except SatrapError as error:
        return failure(job.header, error_code(error), error)


def _run(work: Work, job: Job, journal: Journal, handler: SerialHandler) -> list[Buffer]:
    before = handler.changes()
    try:
        parts = work.run()
    except BaseException:
        if job.header.kind == Kind.HELLO or handler.changes() == before:
            journal.take_back()  # repeated, it might succeed
        raise
    if work.renews:
        with suppress(StoreError):  # without room older records stay, and are repeated too
            journal.begin(job.head, job.parts)
    return parts
