"""Runs the requests of each worker in separate threads, so that workers do not wait for each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any

from satrap.embedding.workers.pooler import Begun
from satrap.embedding.workers.service import EmbeddingService
from satrap.errors import ExchangeError, SatrapError
from satrap.rpc.server.handler import Dispatcher, Job
from satrap.rpc.server.session import Answer, error_code, failure
from satrap.rpc.server.sessions import Sessions
from satrap.rpc.server.unexpected import answerable
from satrap.rpc.wire.frames import FAILURE, MAX_BYTES, Code, MessageKind, name_of

TELL = 1.0
"""Seconds after which a worker is notified that its request still waits for the shards."""

_WORK = (MessageKind.LOOKUP, MessageKind.PEEK, MessageKind.UPDATE)

CLOSING = 5.0
"""Seconds for the exchanges to close when the process ends."""

WORKERS = 256
"""Most workers per embedding worker; each has its own threads and connections."""

_LOOK = 0.05
"""Seconds between checks whether a worker has acknowledged replies."""


class ClientThreads(Dispatcher):
    """Executes the requests of each worker in order of arrival, and serves workers concurrently.

    Each worker has two threads: one starts requests (unique ids, gradients of rows), the other waits for the
    shards and replies (pooling). This is the dispatcher of an embedding worker's server.

    Args:
        service: service of the embedding worker.
        finish: called with each job and its reply; with `last=False` for a reply that is not the last.
        sessions: the clients; a request waits until there is room for its reply.

    Attributes:
        service: of the arguments.
        busy: seconds that all threads spent on ids, pooling and gradients, without waiting.
    """

    finish: Callable[..., None]

    def __init__(
        self, service: EmbeddingService, finish: Callable[..., None], sessions: Sessions, _: object = None
    ) -> None:
        super().__init__(finish)
        self.service, self._sessions = service, sessions
        self._lanes: dict[int, _Lane] = {}
        self._lock = threading.Lock()
        service.stop = self.stop

    def take(self, job: Job) -> None:
        """Execute a job after all earlier jobs of its worker."""
        client = job.session.client
        lane = self._lanes.get(client)
        if lane is None:
            try:
                lane = self._lanes[client] = self._lane(job)
            except SatrapError as error:
                self.refuse(job, error_code(error), error)
                return
        with self._lock:
            job.session.parked += 1
            job.session.parked_bytes += job.size
        lane.take(job)
        if job.header.kind == MessageKind.BYE:
            self._lanes.pop(client).end()

    def _lane(self, job: Job) -> _Lane:
        if job.header.kind != MessageKind.HELLO:
            raise ExchangeError(
                "the embedding worker received a request of a worker that it no longer serves"
            )
        if len(self._lanes) >= WORKERS:
            raise ExchangeError(
                f"the embedding worker already serves {WORKERS} workers",
                fix="increase cluster.embedding_workers",
            )
        with _answerable(job):  # the system may have no more threads
            return _Lane(job.session.client, self)

    def expire(self, now: float) -> None:
        """End the threads of workers that were rejected or replaced; waiting requests have deadlines."""
        for client, lane in list(self._lanes.items()):
            if lane.closed:
                self._lanes.pop(client).end()

    def stop(self) -> None:
        """End all threads after their current job."""
        lanes, until = list(self._lanes.values()), time.monotonic() + CLOSING
        for lane in lanes:
            lane.stop()
        for lane in lanes:
            lane.join(max(until - time.monotonic(), 0.0))

    def answered(self, job: Job, answer: Answer) -> None:
        """Send a reply; called by a thread of a lane."""
        with self._lock:
            self.executed[job.header.kind] += 1
            self.refused += answer.header.kind == FAILURE
            job.session.parked -= 1
            job.session.parked_bytes -= job.size
        self.finish(job, answer)

    def may_begin(self, job: Job) -> bool:
        """Return whether the reply to a job can be stored, or needs no room."""
        return (
            job.session.fenced
            or job.header.kind in (MessageKind.BYE, MessageKind.UPDATE)
            or self._sessions.has_room(job.session)
        )

    def spent(self, job: Job, since: float) -> None:
        """Add the time that a thread of a lane worked on a job."""
        if job.header.kind in _WORK:
            with self._lock:
                self.busy += time.perf_counter() - since


class _Lane:
    """The threads of one worker."""

    def __init__(self, client: int, lanes: ClientThreads) -> None:
        self._client, self._lanes, self._greeted = client, lanes, False
        self._begin: SimpleQueue[tuple[Job, Future[Begun]] | None] = SimpleQueue()
        self._answer: SimpleQueue[tuple[Job, Future[Begun]] | None] = SimpleQueue()
        self._told, self._stopped = 0, False
        self._threads = [
            threading.Thread(target=run, name="satrap-embedding", daemon=True)
            for run in (self._begin_all, self._answer_all)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def closed(self) -> bool:
        """Whether the worker was rejected or replaced, or has left."""
        return self._greeted and not self._lanes.service.serves(self._client)

    def take(self, job: Job) -> None:
        begun: Future[Begun] = Future()
        self._answer.put((job, begun))
        self._begin.put((job, begun))

    def end(self) -> None:
        """End the threads after all jobs taken so far."""
        self._begin.put(None)
        self._answer.put(None)

    def stop(self) -> None:
        """End the threads after their current job; drop the other jobs."""
        self._stopped = True
        self.end()

    def join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)

    def _begin_all(self) -> None:
        while (item := self._begin.get()) is not None and not self._stopped:
            job, begun = item
            while not (self._stopped or self.closed or self._lanes.may_begin(job)):
                time.sleep(_LOOK)
            started = time.perf_counter()
            try:
                with _answerable(job):
                    begun.set_result(self._lanes.service.begin(self._client, job.header, job.parts))
            except SatrapError as error:
                begun.set_exception(error)
            self._greeted = True  # the first job was the hello
            self._lanes.spent(job, started)
        self._lanes.service.leave(self._client)

    def _answer_all(self) -> None:
        while (item := self._answer.get()) is not None and not self._stopped:
            job, begun = item
            try:
                with _answerable(job):
                    answer = self._answer_to(job, begun)
            except SatrapError as error:
                answer = failure(job.header, error_code(error), error)
            self._lanes.answered(job, answer)

    def _answer_to(self, job: Job, begun: Future[Begun]) -> Answer:
        future, make = self._patiently(job, begun)
        result = self._patiently(job, future)
        started = time.perf_counter()
        answer = Answer.of(job.header.answer(), make(result))
        if (size := answer.payload.size) > MAX_BYTES:
            raise ExchangeError(
                f"the pooled tensors of a batch take {size} bytes, but a message holds at most {MAX_BYTES}",
                fix="use smaller batches, or 16-bit numbers in cluster.wire",
            )
        self._lanes.spent(job, started)
        return answer

    def _patiently(self, job: Job, future: Future[Any]) -> Any:
        """Return the result; while waiting for it, notify the worker."""
        while not wait([future], TELL).done:
            if self._stopped:
                raise ExchangeError("the embedding worker has been stopped")
            self._told += 1
            error = ExchangeError("the request waits for the shards")
            waiting = failure(job.header, Code.RECOVERING, error, step=self._told)
            self._lanes.finish(job, waiting, last=False)
        return future.result()


def _answerable(job: Job) -> AbstractContextManager[None]:
    return answerable(f"embedding worker: {name_of(job.header.kind)}", begun=True)
