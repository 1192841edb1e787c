"""Runs requests in order of arrival, except where a handler's board makes clients wait."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from itertools import islice

from satrap.errors import SatrapError, StoreError
from satrap.rpc.server.handler import Dispatcher, Finish, Job, SerialHandler, Work
from satrap.rpc.server.journal import Journal
from satrap.rpc.server.session import Answer, error_code, failure, fenced
from satrap.rpc.server.sessions import Sessions
from satrap.rpc.server.unexpected import answerable
from satrap.rpc.wire.frames import FAILURE, Buffer, Code, MessageKind, name_of

_AT_ONCE = (MessageKind.UPDATE, MessageKind.BYE, MessageKind.HELLO)
"""Requests that never wait: other requests may wait for them, and their responses are small."""
_NAMED = 8
"""Most ranks that an error names: a hello may announce 65,536."""


class Turns(Dispatcher):
    """Lets a handler execute requests, each when it may run. Does no input or output except the journal's.

    Args:
        handler: does the work.
        finish: called with each job and its response.
        sessions: the clients; a request waits until there is room for its response, and for a silent rank as
            long as `Limits.wait`.
        journal: requests are written there before they are executed; None: nowhere.
    """

    def __init__(
        self,
        handler: SerialHandler,
        finish: Finish,
        sessions: Sessions,
        journal: Journal | None = None,
    ) -> None:
        super().__init__(finish)
        self._handler, self._sessions, self._journal = handler, sessions, journal
        self._wait = sessions.limits.wait
        self._parked: dict[int, deque[Job]] = {}

    def take(self, job: Job) -> None:
        """Execute a job or let it wait; then execute the waiting jobs whose turn has come."""
        client, board = job.session.client, self._handler.board
        if job.header.kind not in _AT_ONCE and (error := board.refusal(job.session, job.header)):
            self.refuse(job, Code.SEQUENCE, error)
        # Earlier jobs of the client wait, so this one does too: requests of one client keep their order.
        elif client in self._parked:
            self._park(job)
            if self._wake_one(client):  # the job may have acknowledged responses
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
        return not self._sessions.has_room(session) or self._handler.board.must_wait(session, header)

    def _wake(self) -> None:
        """Execute waiting jobs that may run, client after client in the order they began to wait."""
        while any([self._wake_one(client) for client in list(self._parked)]):
            pass

    def _wake_one(self, client: int) -> bool:
        """Execute a client's jobs that may run; return whether other clients' jobs may run now."""
        progress = False
        while client in self._parked and not self._must_wait(self._parked[client][0]):
            progress = self._execute(self._unpark(client)) or progress
        return progress

    def expire(self, now: float) -> None:
        """Reject jobs that have waited too long; execute jobs whose responses fit again."""
        late = [c for c, jobs in self._parked.items() if now - jobs[0].arrived > self._wait]
        missing = self._handler.board.missing() if late else ()
        ranks = (str(rank) for rank in missing if now - self._sessions.heard(rank) > self._wait)
        silent = ", ".join(islice(ranks, _NAMED))
        for client in late if silent else []:
            while client in self._parked and now - self._parked[client][0].arrived > self._wait:
                job = self._unpark(client)
                error = self._handler.board.too_late(job.session, job.header, silent, self._wait)
                self.refuse(job, Code.DEADLINE, error)
        self._wake()

    def _execute(self, job: Job) -> bool:
        """Execute a job; return whether other clients' jobs may run now."""
        before, started = self._handler.board.progress, time.perf_counter()
        if job.session.fenced:  # since it was received, a newer client of its rank was executed
            self.refuse(job, Code.FENCED, fenced())
            return False
        answer = execute(self._handler, job, self._journal)
        self.refused += answer.header.kind == FAILURE
        self.finish(job, answer)
        self.executed[job.header.kind] += 1
        self.busy += time.perf_counter() - started
        return self._handler.board.progress != before


def execute(handler: SerialHandler, job: Job, journal: Journal | None = None) -> Answer:
    """Check a request, write it to the journal, execute it; return its response, or its error as a response.

    The journal keeps no request that was rejected, or that failed before it changed anything. A request that
    failed halfway stays, and is repeated as a whole.
    """
    own_updates, all_updates = handler.seen(job.session)
    where = f"{handler.role}: {name_of(job.header.kind)}"
    try:
        with answerable(where, begun=False):
            work = handler.prepare(job.session, job.header, job.parts)
            if journal is not None:
                journal.append(job.head, job.parts)
        with answerable(where, begun=True):
            parts = work.run() if journal is None else _run(work, job, journal, handler)
            return Answer.of(job.header.answer(acknowledged=own_updates, step=all_updates), parts or ())
    except SatrapError as error:
        return failure(job.header, error_code(error), error)


def _run(work: Work, job: Job, journal: Journal, handler: SerialHandler) -> list[Buffer] | None:
    before = handler.changes()
    try:
        parts = work.run()
    except BaseException:
        if job.header.kind == MessageKind.HELLO or handler.changes() == before:
            journal.take_back()  # if it were repeated, it might succeed
        raise
    if work.renews:
        with suppress(StoreError):  # if the disk is full, older records stay, and are repeated as well
            journal.begin(job.head, job.parts)
    return parts
