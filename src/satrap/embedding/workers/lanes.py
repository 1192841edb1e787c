"""The requests of each worker run in threads of their own: none waits for what another one waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from satrap.embedding.workers.pooler import Begun
from satrap.embedding.workers.service import EmbeddingService, Session
from satrap.errors import ExchangeError, SatrapError
from satrap.exchange.servers.frames import FAILURE, Code, Kind
from satrap.exchange.servers.session import Answer
from satrap.exchange.servers.turns import Job, Turns, error_code, failure

TELL = 1.0
"""Seconds after which a worker is told that its request waits for the shards, and has not been lost."""

_WORK = (Kind.LOOKUP, Kind.PEEK, Kind.UPDATE)

WRONG = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a message that makes no sense may lead to: its worker hears of it, and nobody else."""

CLOSING = 5.0
"""Seconds for the exchanges to say goodbye when the process ends."""


class Lanes(Turns):
    """Executes requests in order of arrival for each worker, those of different workers at the same time.

    Two threads per worker: one begins requests (distinct ids, gradients of rows), one waits for the shards
    and answers (pooling). It stands in a `ShardServer` where `Turns` does.

    Args:
        service: of the embedding worker.
        finish: called with each job and its answer; with `last=False` for one that is not the last.

    Attributes:
        busy: seconds spent on ids, pooling and gradients, by all threads; waiting does not count.
    """

    def __init__(
        self, service: EmbeddingService, finish: Callable[..., None], *, wait: float, **_: Any
    ) -> None:
        super().__init__(service, finish, wait=wait)
        self._sessions_of, self._answered = service.session, finish
        self._lanes: dict[int, _Lane] = {}
        self._lock = threading.Lock()
        service.stop = self.stop

    def take(self, job: Job) -> None:
        """Execute a job after those of the same worker taken before."""
        client = job.session.client
        if client not in self._lanes:
            session = self._sessions_of(client)
            self._lanes[client] = _Lane(session, self._answered, self._note, self._spent)
        self._lanes[client].take(job)
        if job.header.kind == Kind.BYE:
            self._lanes.pop(client).end()

    def expire(self, now: float) -> None:
        """End the threads of workers that others have replaced; what waits has deadlines of its own."""
        for client, lane in list(self._lanes.items()):
            if lane.session.closed:
                self._lanes.pop(client).end()

    def stop(self) -> None:
        """End all threads after what they do."""
        lanes, until = list(self._lanes.values()), time.monotonic() + CLOSING
        for lane in lanes:
            lane.end()
        for lane in lanes:
            lane.join(max(until - time.monotonic(), 0.0))

    def _note(self, job: Job, answer: Answer) -> None:
        with self._lock:
            self.executed[job.header.kind] += 1
            self.refused += answer.header.kind == FAILURE

    def _spent(self, job: Job, since: float) -> None:
        if job.header.kind in _WORK:
            with self._lock:
                self.busy += time.perf_counter() - since


class _Lane:
    """The threads of one worker."""

    def __init__(
        self,
        session: Session,
        finish: Callable[..., None],
        note: Callable[[Job, Answer], None],
        spent: Callable[[Job, float], None],
    ) -> None:
        self.session, self._finish, self._note, self._spent = session, finish, note, spent
        self._begin: SimpleQueue[tuple[Job, Future[Begun]] | None] = SimpleQueue()
        self._answer: SimpleQueue[tuple[Job, Future[Begun]] | None] = SimpleQueue()
        self._told = 0
        self._threads = [
            threading.Thread(target=run, name="satrap-embedding", daemon=True)
            for run in (self._begin_all, self._answer_all)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, job: Job) -> None:
        begun: Future[Begun] = Future()
        self._answer.put((job, begun))
        self._begin.put((job, begun))

    def end(self) -> None:
        self._begin.put(None)
        self._answer.put(None)

    def join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)

    def _begin_all(self) -> None:
        while (item := self._begin.get()) is not None:
            job, begun = item
            started = time.perf_counter()
            try:
                begun.set_result(self.session.begin(job.header, job.parts))
            except (SatrapError, *WRONG) as error:
                begun.set_exception(error)
            self._spent(job, started)
        self.session.close()

    def _answer_all(self) -> None:
        while (item := self._answer.get()) is not None:
            job, begun = item
            try:
                future, make = self._patiently(job, begun)
                found = self._patiently(job, future)
                started = time.perf_counter()
                answer = Answer.of(job.header.answer(), make(found))
                self._spent(job, started)
            except SatrapError as error:
                answer = failure(job.header, error_code(error), error)
            except WRONG as error:
                wrong = ExchangeError(f"the embedding worker failed: {type(error).__name__}: {error}")
                answer = failure(job.header, Code.SEQUENCE, wrong)
            self._note(job, answer)
            self._finish(job, answer)

    def _patiently(self, job: Job, future: Future[Any]) -> Any:
        """Return the result; while it waits, tell the worker that it is being worked on."""
        while True:
            with suppress(TimeoutError):
                return future.result(TELL)
            if future.done():
                return future.result()
            self._told += 1
            waiting = failure(job.header, Code.RECOVERING, ExchangeError("it waits for the shards"))
            told = Answer.of(replace(waiting.header, step=self._told), waiting.parts)
            self._finish(job, told, last=False)
