"""The thread that recovers a server, then executes its requests."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

from satrap.errors import SatrapError
from satrap.rpc.server.handler import Dispatcher, Job

_TICK = 0.2
"""Seconds between checks of waiting requests."""


class Executor:
    """Runs requests one after another, in a thread of its own.

    Requests of a connection run in the order submitted. Connections take turns, so that a busy one delays the
    others by one request at a time.

    Args:
        dispatcher: executes the requests; only this thread uses it.
        first: called in the thread before the first request.
        last: called in the thread after the last request.
        tick: called in the thread now and then with its clock's seconds.

    Attributes:
        error: the error of `first` or of a request; the thread has then ended.
        queued, queued_bytes: requests not yet given to the dispatcher, and bytes of their payloads. Requests
            that wait for other clients do not count: otherwise the request they wait for might not be read.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        first: Callable[[], None],
        last: Callable[[], None],
        tick: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._dispatcher, self._first, self._last, self._tick = dispatcher, first, last, tick
        self.error: SatrapError | None = None
        self.queued, self.queued_bytes = 0, 0
        self._jobs: OrderedDict[Hashable, deque[Job]] = OrderedDict()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="satrap-server", daemon=True)

    def start(self) -> None:
        """Start with `first`, then run submitted jobs."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Execute a job after the earlier ones of its connection."""
        with self._changed:
            self._jobs.setdefault(job.session.origin, deque()).append(job)
            self.queued, self.queued_bytes = self.queued + 1, self.queued_bytes + job.size
            self._changed.notify()

    def stop(self) -> None:
        """End after the running request; drop the queued ones."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._first()
            ticked = time.monotonic()
            while not self._stopping:
                if (job := self._next()) is not None:
                    self._dispatcher.take(job)
                if (now := time.monotonic()) - ticked >= _TICK:
                    ticked = now
                    self._dispatcher.expire(now)
                    self._tick(now)
        except SatrapError as error:
            self.error = error
        finally:
            self._last()

    def _next(self) -> Job | None:
        """Take the first job of the connection whose turn it is; None if none comes for a while."""
        with self._changed:
            if not self._jobs and not self._stopping:
                self._changed.wait(_TICK)
            if not self._jobs or self._stopping:
                return None
            origin, jobs = self._jobs.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._jobs[origin] = jobs
            self.queued, self.queued_bytes = self.queued - 1, self.queued_bytes - job.size
            return job
