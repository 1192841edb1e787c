"""The thread of a server that recovers it, then executes requests."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

from satrap.errors import SatrapError
from satrap.rpc.server.handler import Dispatcher, Job

_TICK = 0.2
"""Seconds between looks at requests that wait too long."""


class Executor:
    """Runs requests one after another, in a thread of its own.

    Those of one client in the order submitted; connections take turns, so that one which asks for much holds
    up the others by one request at a time.

    Args:
        dispatcher: has them executed; touched by this thread only.
        first: called in the thread before the first request.
        last: called in the thread after the last one.
        tick: called in the thread now and then with the seconds of its clock.

    Attributes:
        error: what `first` raised; the thread has then ended.
        queued, queued_bytes: requests that have not begun, and bytes of their payloads. What waits for a step
            has begun: were it counted here, the request that completes the step might not be read.
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
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Execute a job after those of the same connection submitted before."""
        with self._changed:
            self._jobs.setdefault(job.session.origin, deque()).append(job)
            self.queued, self.queued_bytes = self.queued + 1, self.queued_bytes + job.size
            self._changed.notify()

    def stop(self) -> None:
        """End after the request that is being executed; those that have not begun are dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._first()
            self._serve()
        except SatrapError as error:
            self.error = error
        finally:
            self._last()

    def _serve(self) -> None:
        ticked = time.monotonic()
        while not self._stopping:
            if (job := self._next()) is not None:
                self._dispatcher.take(job)
            if (now := time.monotonic()) - ticked >= _TICK:
                ticked = now
                self._dispatcher.expire(now)
                self._tick(now)

    def _next(self) -> Job | None:
        """Take the first job of the connection whose turn it is; None if there is none for a while."""
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
