"""The thread that executes requests: in order of arrival, except where `sync` makes workers wait."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from satrap.errors import ConfigError, ExchangeError, SatrapError, StoreError
from satrap.exchange.servers.frames import FAILURE, Buffer, Code, FrameError, Header, Kind
from satrap.exchange.servers.payload import pack_text
from satrap.exchange.servers.service import Service
from satrap.exchange.servers.session import Answer, Session

_TICK = 0.2
"""Seconds between looks at requests that wait too long."""
_UNGATED = (Kind.UPDATE, Kind.BYE, Kind.HELLO)


@dataclass(frozen=True, slots=True)
class Job:
    """A request to execute: who sent it, its header and parts, their bytes, and when it came."""

    session: Session
    header: Header
    parts: Sequence[Buffer]
    size: int
    arrived: float


Finish = Callable[[Job, Answer], None]


class Executor:
    """Runs the requests of all clients on one `Service`.

    Args:
        service: the store and its requests; touched by this thread only.
        finish: called in the thread with each job and its answer.
        wait: seconds a request may wait for other ranks.

    Attributes:
        refused: requests answered with an error.
        executed: kind of request -> how many were executed.
        busy: seconds spent executing.
    """

    def __init__(self, service: Service, finish: Finish, *, wait: float) -> None:
        self._service, self._finish, self._wait = service, finish, wait
        self.refused, self.busy = 0, 0.0
        self.executed: Counter[int] = Counter()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._parked: dict[int, deque[Job]] = {}
        self._thread = threading.Thread(target=self._run, name="satrap-shard", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Execute a job after those submitted before."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End after the jobs submitted before, and free the store."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_TICK)
            except Empty:
                self._expire()
                continue
            if job is None:
                break
            client = job.session.client
            if client in self._parked or self._must_wait(job):
                self._parked.setdefault(client, deque()).append(job)
                self._expire()
            elif self._execute(job):
                self._wake()
        self._service.close()

    def _must_wait(self, job: Job) -> bool:
        gated = job.session.gated and job.header.kind not in _UNGATED
        return gated and job.header.step > self._service.board.completed

    def _wake(self) -> None:
        """Execute what waited for a step, client after client in the order they began to wait."""
        again = True
        while again:
            again = False
            for client, jobs in list(self._parked.items()):
                while jobs and not self._must_wait(jobs[0]):
                    again = self._execute(jobs.popleft()) or again
                if not jobs:
                    del self._parked[client]

    def _expire(self) -> None:
        now = time.monotonic()
        for client, jobs in list(self._parked.items()):
            while jobs and now - jobs[0].arrived > self._wait:
                job = jobs.popleft()
                self._fail(job, Code.DEADLINE, self._too_late(job))
            if not jobs:
                del self._parked[client]

    def _too_late(self, job: Job) -> ExchangeError:
        board = self._service.board
        missing = ", ".join(map(str, board.missing()))
        return ExchangeError(
            f"step {board.completed} is not complete: nothing came from rank {missing}",
            where=f"stage: {Kind(job.header.kind).name.lower()} of rank {job.session.rank}",
            why=f"waited {self._wait:g} s; in sync mode every rank must send its update",
        )

    def _execute(self, job: Job) -> bool:
        """Execute a job; return whether it completed a step of `sync`."""
        before, started = self._service.board.completed, time.perf_counter()
        own, every = self._service.seen(job.session)
        try:
            parts = self._service.execute(job.session, job.header, job.parts)
        except SatrapError as error:
            self._fail(job, _code(error), error)
        except MemoryError:
            self._fail(job, Code.STORE, StoreError("the shard has too little memory for the request"))
        else:
            self._finish(job, Answer.of(job.header.answer(acknowledged=own, step=every), parts))
        self.executed[job.header.kind] += 1
        self.busy += time.perf_counter() - started
        return self._service.board.completed != before

    def _fail(self, job: Job, code: Code, error: SatrapError) -> None:
        self.refused += 1
        self._finish(job, failure(job.header, code, error))


def _code(error: SatrapError) -> Code:
    if isinstance(error, FrameError | StoreError):
        return Code.STORE
    return Code.CONFIG if isinstance(error, ConfigError) else Code.SEQUENCE


def failure(header: Header, code: Code, error: SatrapError) -> Answer:
    """Return the answer that carries an error."""
    text = {"code": int(code), "kind": header.kind} | {
        key: getattr(error, key) for key in ("what", "where", "why", "fix")
    }
    return Answer.of(header.answer(FAILURE), [pack_text(text)])
